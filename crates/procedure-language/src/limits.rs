//! Every limit of the language, its value, and the error at the limit.
//!
//! Limits of a program are reported under [`Rule::Limit`](crate::Rule::Limit) unless the limit names another rule. Those that
//! repeat a limit of the engine are compared with it by a test.

/// Bytes of a source text. A longer text is not read.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;

/// Procedures in a file, as many as a database has.
pub const PROCEDURES_MAX: usize = 256;

/// Bytes of a name; a longer name is an error under [`Rule::Name`](crate::Rule::Name).
pub const NAME_BYTES_MAX: usize = 63;

/// Arguments of a procedure, as many as a call has.
pub const ARGUMENTS_MAX: usize = 16;

/// Bytes of a key; a key that can be longer is an error under [`Rule::KeySize`](crate::Rule::KeySize).
pub const KEY_BYTES_MAX: usize = 255;

/// Bytes of an integer in a key.
pub const KEY_INTEGER_BYTES: usize = 8;

/// Bytes of a value, and of a text argument; a longer argument type is an error under [`Rule::Range`](crate::Rule::Range).
pub const VALUE_BYTES_MAX: usize = 65_536;

/// Bytes of a refusal with its code; a longer one is an error under [`Rule::Refusal`](crate::Rule::Refusal).
pub const REFUSAL_BYTES_MAX: usize = 127;

/// Bytes of a text literal; a longer one is an error under [`Rule::Literal`](crate::Rule::Literal).
pub const LITERAL_BYTES_MAX: usize = 255;

/// Blocks within blocks, the body of the procedure included.
pub const NESTING_MAX: usize = 8;

/// Parentheses, signs and negations within each other in an expression.
pub const EXPRESSION_DEPTH_MAX: usize = 16;

/// Operands and operators of an expression.
pub const EXPRESSION_NODES_MAX: usize = 64;

/// Parts of a key.
pub const KEY_PARTS_MAX: usize = 16;

/// Variables that a procedure declares, loop variables included.
pub const VARIABLES_MAX: usize = 16;

/// Rounds of a loop; a loop that can have more is an error under [`Rule::LoopBound`](crate::Rule::LoopBound).
pub const ROUNDS_MAX: u64 = 1000;

/// Steps of a procedure. A loop counts its body as often as it can run. The kernel's verifier looks at each step, and
/// follows at most 8,192 branches in a row, so a program of more steps could be refused when it is loaded.
pub const STEPS_MAX: u64 = 6000;

/// Errors that one run reports. The compiler stops at the last one.
pub const ERRORS_MAX: usize = 20;
