//! A language of stored procedures for kerneldb. A file of it compiles to C on top of `bedplate/procedure.h`, and so to an eBPF
//! library that a database loads.
//!
//! The compiler enforces at compile time what a writer of C has to think of: a read-only procedure does not write, every path ends
//! in one outcome, and a value is used only where a get has found it. `docs/procedure-language.md` describes the language and lists
//! the rules.
//!
//! ```
//! let source = r#"
//! readonly procedure balance(name: text(1..255)) {
//!     get [name] else { reply nil; }
//!     reply integer(value);
//! }
//! "#;
//! let c = bedplate_procedure_language::compile(source, "bank.kdb").unwrap();
//! assert!(c.contains("KDB_READ_ONLY_PROCEDURE(balance)"));
//!
//! let errors = bedplate_procedure_language::compile("procedure nothing() {}", "bank.kdb").unwrap_err();
//! assert_eq!(
//!     errors[0].display("bank.kdb").to_string(),
//!     "bank.kdb:1:22: a path of nothing ends here without a reply or a refusal [outcome]",
//! );
//! ```

mod checker;
mod diagnostic;
mod generator;
mod interval;
mod lexer;
pub mod limits;
mod parser;
mod program;
#[cfg(test)]
mod random;
mod reserved;
mod syntax;

/// `tests/common` imports the crate by its name.
#[cfg(test)]
extern crate self as bedplate_procedure_language;

pub use diagnostic::{Diagnostic, Rule};
use diagnostic::{Errors, Span};

/// Compiles a source text to C. `file` is its name in the C text's line directives, so that messages of the C compiler and of the
/// kernel's verifier name its lines.
///
/// The function takes time and memory in proportion to the length of the text. It never panics.
///
/// # Errors
///
/// The errors in the text, in its order, of which there is at least one and at most [`limits::ERRORS_MAX`]. Errors against the
/// grammar hide all others.
pub fn compile(source: &str, file: &str) -> Result<String, Vec<Diagnostic>> {
    let mut errors = Errors::default();
    if source.len() > limits::SOURCE_BYTES_MAX {
        let message = format!("a file has at most {} KiB", limits::SOURCE_BYTES_MAX >> 10);
        errors.add(Span::default(), Rule::Limit, message);
        return Err(errors.into_diagnostics(""));
    }
    let tokens = lexer::tokens(source, &mut errors);
    let parsed = parser::parse(tokens, &mut errors);
    if !errors.is_empty() {
        return Err(errors.into_diagnostics(source));
    }
    let program = checker::check(&parsed, &mut errors);
    match errors.is_empty() {
        true => Ok(generator::generate(&program, source, file)),
        false => Err(errors.into_diagnostics(source)),
    }
}
