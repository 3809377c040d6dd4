//! Errors: where they are, the rule that is broken, and how they are printed.

use std::fmt;

use crate::limits::ERRORS_MAX;

/// A part of the source text, in bytes from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end }
    }
}

macro_rules! rules {
    ($($variant:ident, $identifier:literal, $sentence:literal;)*) => {
        /// A rule of the language. The documentation has the same list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rule {
            $(#[doc = $sentence] $variant,)*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &[Rule] = &[$(Rule::$variant,)*];

            /// The rule's identifier in errors and in the documentation.
            pub fn identifier(self) -> &'static str {
                match self {
                    $(Rule::$variant => $identifier,)*
                }
            }

            /// The rule in one sentence.
            pub fn sentence(self) -> &'static str {
                match self {
                    $(Rule::$variant => $sentence,)*
                }
            }
        }
    };
}

rules! {
    Syntax, "syntax", "The text follows the grammar.";
    Number, "number", "A number is a decimal integer of 64 bits with a sign.";
    Literal, "literal", "A text literal ends on its line, uses known escapes, and has at most 255 bytes.";
    Name, "name", "A name has 1 to 63 lower-case letters, digits and underscores, and no digit in front.";
    ReservedName, "reserved-name", "A procedure does not have a name that C or the headers use.";
    DuplicateName, "duplicate-name", "A name stands for one thing at a time.";
    UnknownName, "unknown-name", "A name is declared before it is used.";
    Type, "type", "A condition is a truth value, a number is an integer, and a text is used where a text can be.";
    Constant, "constant", "Limits of types, bounds of loops and constants are known when the program is compiled.";
    Range, "range", "A range is not empty and lies within the limits of its type.";
    NeverInRange, "never-in-range", "An operation has a result that is an integer of 64 bits.";
    ReadOnly, "read-only", "A read-only procedure does not write.";
    Outcome, "outcome", "Every path of a procedure ends in a reply or a refusal.";
    AfterOutcome, "after-outcome", "Nothing follows a reply or a refusal.";
    Assigned, "assigned", "A variable has a value on every path to its use.";
    Immutable, "immutable", "Only a variable that is declared with var is assigned.";
    ValueUnread, "value-unread", "The value is used after a get on every path.";
    KeyChanged, "key-changed", "The value is not used after the key has changed.";
    ValueMissing, "value-missing", "The value is used only where the get has found it.";
    LoopBound, "loop-bound", "A loop has at least 1 and at most 1000 rounds, and the program says so.";
    LoopOnce, "loop-once", "A loop has a path on which its body does not end the procedure.";
    Refusal, "refusal", "A refusal has a code in capital letters and a text without control characters, of 127 bytes together.";
    KeySize, "key-size", "A key has 1 to 255 bytes, whatever its arguments are.";
    Limit, "limit", "A program is within the limits.";
}

/// An error in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
    /// The rule that is broken.
    pub rule: Rule,
    /// The mistake, without the rule.
    pub message: String,
}

impl Diagnostic {
    /// The error as one line that names the file.
    pub fn display<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        struct In<'a>(&'a Diagnostic, &'a str);
        impl fmt::Display for In<'_> {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                let In(Diagnostic { line, column, rule, message }, file) = self;
                write!(out, "{file}:{line}:{column}: {message} [{}]", rule.identifier())
            }
        }
        In(self, file)
    }
}

/// The errors that were found so far.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    found: Vec<(Span, Rule, String)>,
}

impl Errors {
    pub fn add(&mut self, span: Span, rule: Rule, message: impl Into<String>) {
        if !self.is_full() {
            self.found.push((span, rule, message.into()));
        }
    }

    pub fn count(&self) -> usize {
        self.found.len()
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether no more errors are reported.
    pub fn is_full(&self) -> bool {
        self.found.len() >= ERRORS_MAX
    }

    /// The errors in the order of the text.
    pub fn into_diagnostics(mut self, source: &str) -> Vec<Diagnostic> {
        self.found.sort_by_key(|(span, ..)| span.start);
        let lines = Lines::new(source);
        let place = |(span, rule, message): (Span, Rule, String)| {
            let (line, column) = lines.place(source, span.start);
            Diagnostic { line, column, rule, message }
        };
        self.found.into_iter().map(place).collect()
    }
}

/// Where the lines of a text begin.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub fn new(source: &str) -> Lines {
        let after = source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Lines(std::iter::once(0).chain(after).collect())
    }

    /// The line of a byte, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.0.partition_point(|start| *start <= at)
    }

    /// Line and column of a byte, from 1.
    fn place(&self, source: &str, at: usize) -> (usize, usize) {
        let line = self.line(at);
        let start = self.0[line - 1];
        let before = source.get(start..at).unwrap_or_default();
        (line, before.chars().count() + 1)
    }
}
