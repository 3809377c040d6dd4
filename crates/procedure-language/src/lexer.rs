//! Cuts the text into tokens.

use crate::{
    Rule,
    diagnostic::{Errors, Span},
    limits::{LITERAL_BYTES_MAX, NAME_BYTES_MAX},
};

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A name or a word of the language.
    Name(String),
    /// A word in capital letters: the code of a refusal.
    Code(String),
    /// The digits of a number; at most 2^63.
    Number(u64),
    /// The bytes of a text literal.
    Text(Vec<u8>),
    Symbol(&'static str),
    End,
}

/// A token and its place.
#[derive(Clone, Debug)]
pub(crate) struct Spanned {
    pub token: Token,
    pub span: Span,
}

/// Symbols; a symbol stands before those that begin it.
const SYMBOLS: [&str; 23] = [
    "..", "==", "!=", "<=", ">=", "=", "<", ">", "(", ")", "[", "]", "{", "}", ",", ":", ";", "+", "-", "*",
    "/", "%", ".",
];

/// All tokens, of which the last one is [`Token::End`].
pub(crate) fn tokens(source: &str, errors: &mut Errors) -> Vec<Spanned> {
    let mut lexer = Lexer { source, at: 0, errors };
    let mut found = Vec::new();
    while !lexer.errors.is_full() {
        lexer.skip_blanks();
        let start = lexer.at;
        if start == source.len() {
            break;
        }
        if let Some(token) = lexer.next() {
            found.push(Spanned { token, span: Span { start, end: lexer.at } });
        }
    }
    let end = source.len();
    found.push(Spanned { token: Token::End, span: Span { start: end, end } });
    found
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    errors: &'a mut Errors,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    /// Length of the beginning of the rest whose characters all fit.
    fn run(&self, fits: impl Fn(char) -> bool) -> usize {
        self.rest().find(|c: char| !fits(c)).unwrap_or(self.rest().len())
    }

    fn skip_blanks(&mut self) {
        loop {
            self.at += self.run(|c| matches!(c, ' ' | '\t' | '\r' | '\n'));
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.run(|c| c != '\n');
        }
    }

    fn error(&mut self, start: usize, rule: Rule, message: impl Into<String>) {
        self.errors.add(Span { start, end: self.at }, rule, message);
    }

    /// The next token, or `None` after an error that leaves no token.
    fn next(&mut self) -> Option<Token> {
        let first = self.rest().chars().next()?;
        match first {
            'a'..='z' | 'A'..='Z' | '_' => Some(self.word()),
            '0'..='9' => Some(self.number()),
            '"' => Some(self.text()),
            _ => self.symbol(first),
        }
    }

    fn symbol(&mut self, first: char) -> Option<Token> {
        let start = self.at;
        match SYMBOLS.into_iter().find(|symbol| self.rest().starts_with(symbol)) {
            Some(symbol) => {
                self.at += symbol.len();
                Some(Token::Symbol(symbol))
            }
            None => {
                self.at += first.len_utf8();
                self.error(start, Rule::Syntax, format!("the character {first:?} has no meaning here"));
                None
            }
        }
    }

    fn word(&mut self) -> Token {
        let start = self.at;
        let len = self.run(|c| c.is_ascii_alphanumeric() || c == '_');
        let word = self.rest()[..len].to_owned();
        self.at += len;
        if word.len() > NAME_BYTES_MAX {
            self.error(start, Rule::Name, format!("a name has at most {NAME_BYTES_MAX} characters"));
        }
        let has = |test: fn(&u8) -> bool| word.as_bytes().iter().any(test);
        match (has(u8::is_ascii_lowercase), has(u8::is_ascii_uppercase)) {
            (false, true) => Token::Code(word),
            (true, true) => {
                self.error(start, Rule::Name, format!("{word} has capital letters"));
                Token::Name(word.to_ascii_lowercase())
            }
            _ => Token::Name(word),
        }
    }

    fn number(&mut self) -> Token {
        let start = self.at;
        let len = self.run(|c| c.is_ascii_alphanumeric() || c == '_');
        let digits = self.rest()[..len].replace('_', "");
        self.at += len;
        match digits.parse::<u64>() {
            Ok(number) if number <= 1 << 63 => Token::Number(number),
            _ => {
                let reason = match digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    true => "the number is too large",
                    false => "a number has only digits and underscores",
                };
                self.error(start, Rule::Number, reason);
                Token::Number(0)
            }
        }
    }

    fn text(&mut self) -> Token {
        let start = self.at;
        let mut bytes = Vec::new();
        self.at += 1;
        loop {
            let plain = self.run(|c| !matches!(c, '"' | '\\' | '\n'));
            bytes.extend_from_slice(&self.rest().as_bytes()[..plain]);
            self.at += plain;
            match self.rest().chars().next() {
                Some('"') => {
                    self.at += 1;
                    break;
                }
                Some('\\') => bytes.extend(self.escape()),
                _ => {
                    self.error(start, Rule::Literal, "the text literal does not end on its line");
                    break;
                }
            }
        }
        if bytes.len() > LITERAL_BYTES_MAX {
            self.error(start, Rule::Literal, format!("a text literal has at most {LITERAL_BYTES_MAX} bytes"));
            bytes.clear();
        }
        Token::Text(bytes)
    }

    fn escape(&mut self) -> Option<u8> {
        let start = self.at;
        let rest = &self.rest().as_bytes()[1..];
        let (len, byte) = match rest.first() {
            Some(b'n') => (1, Some(b'\n')),
            Some(c @ (b'"' | b'\\')) => (1, Some(*c)),
            Some(b'x') => {
                let digits = rest.get(1..3).and_then(|digits| std::str::from_utf8(digits).ok());
                let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
                match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                    Some(byte) => (3, Some(byte)),
                    None => (1, None),
                }
            }
            _ => (0, None),
        };
        self.at += 1 + len;
        if byte.is_none() {
            self.error(start, Rule::Literal, "the escapes are \\n, \\\", \\\\ and \\x with two digits");
        }
        byte
    }
}
