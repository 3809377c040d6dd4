//! Names that procedures cannot have, because they are functions of the generated program: those of C and of the headers.

/// Names that the headers declare or define, one a line. A test compares them with the headers.
const HEADERS: &str = include_str!("reserved_names.txt");

/// Words of C, functions that its compiler calls, and functions that do not return for the compiler, as far as they have the form of a procedure's name.
const C: [&str; 48] = [
    "abort",
    "asm",
    "auto",
    "bool",
    "break",
    "case",
    "char",
    "const",
    "continue",
    "default",
    "do",
    "double",
    "else",
    "enum",
    "exit",
    "extern",
    "false",
    "float",
    "for",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "longjmp",
    "main",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "register",
    "restrict",
    "return",
    "short",
    "siglongjmp",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "true",
    "typedef",
    "typeof",
    "union",
    "unsigned",
    "void",
    "volatile",
    "while",
];

/// Beginnings of names that belong to the headers and to the generated program.
const BEGINNINGS: [&str; 5] = ["_", "kdb_", "bpf_", "generated_", "v_"];

/// Ends of names that belong to the functions which the headers make of a procedure.
const ENDS: [&str; 1] = ["_body"];

/// Whether a procedure cannot have this name.
pub(crate) fn is_reserved(name: &str) -> bool {
    C.contains(&name)
        || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || ENDS.iter().any(|end| name.ends_with(end))
        || HEADERS.lines().any(|known| known == name)
}
