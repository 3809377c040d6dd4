//! A program that has been checked. The generator relies on the rules without looking again.

use crate::{
    diagnostic::Span,
    interval::Interval,
    syntax::{BinaryOperator, WriteKind},
};

#[derive(Debug)]
pub(crate) struct Program {
    pub procedures: Vec<Procedure>,
}

#[derive(Debug)]
pub(crate) struct Procedure {
    pub name: String,
    pub span: Span,
    pub read_only: bool,
    pub arguments: Vec<Argument>,
    /// Whether a condition asks what a get has found.
    pub uses_found: bool,
    pub body: Vec<Statement>,
}

#[derive(Debug)]
pub(crate) struct Argument {
    pub name: String,
    pub span: Span,
    pub kind: ArgumentKind,
    /// The refusal if the argument is out of range.
    pub refusal: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ArgumentKind {
    Integer(Interval),
    /// The lengths that the text can have.
    Text(Interval),
}

/// A variable. Variables of the same name in different blocks have different numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub name: String,
    pub number: usize,
}

/// An argument by its place in the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArgumentRef {
    pub name: String,
    pub index: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Integer {
    Constant(i64),
    Variable(Variable),
    Argument(ArgumentRef),
    ArgumentLength(ArgumentRef),
    /// The value that the last get has read, as a number.
    Value,
    ValueLength,
    Now,
    Binary {
        operator: BinaryOperator,
        left: Box<Integer>,
        right: Box<Integer>,
        /// Whether the operation has to be checked when it runs.
        can_fail: bool,
    },
}

impl Integer {
    /// Whether some part of the expression fulfils the test.
    pub fn any(&self, test: &impl Fn(&Integer) -> bool) -> bool {
        test(self)
            || match self {
                Integer::Binary { left, right, .. } => left.any(test) || right.any(test),
                _ => false,
            }
    }
}

#[derive(Debug)]
pub(crate) enum Condition {
    Found,
    Missing,
    Not(Box<Condition>),
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
    Compare(&'static str, Integer, Integer),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyPart {
    Text(Vec<u8>),
    Argument(ArgumentRef),
    Integer(Integer),
}

#[derive(Debug)]
pub(crate) struct Key {
    pub parts: Vec<KeyPart>,
    /// Whether the call has this key already, on every path.
    pub is_set: bool,
}

#[derive(Debug)]
pub(crate) enum Bytes {
    Integer(Integer),
    Argument(ArgumentRef),
    Text(Vec<u8>),
    /// The value that the last get has read.
    Value,
}

#[derive(Debug)]
pub(crate) enum Expiry {
    Never,
    Keep,
    /// A Unix time in milliseconds, and whether it can be below 1.
    At(Integer, bool),
}

#[derive(Debug)]
pub(crate) enum Otherwise {
    Refuse(Vec<u8>),
    Run(Vec<Statement>),
}

#[derive(Debug)]
pub(crate) struct Statement {
    pub span: Span,
    pub kind: StatementKind,
}

#[derive(Debug)]
pub(crate) struct Loop {
    pub variable: Variable,
    pub first: Integer,
    pub last: Integer,
    /// Most rounds.
    pub rounds: u64,
    /// Whether the ends can be so far apart that the loop would have more rounds.
    pub can_exceed: bool,
    /// Whether the loop always has all of its rounds.
    pub is_constant: bool,
    pub body: Vec<Statement>,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Declare {
        variable: Variable,
        mutable: bool,
        value: Option<Integer>,
    },
    Assign(Variable, Integer),
    Get {
        key: Key,
        otherwise: Option<Otherwise>,
    },
    Write {
        kind: WriteKind,
        key: Key,
        value: Bytes,
        expiry: Expiry,
        otherwise: Option<Otherwise>,
    },
    Delete {
        key: Key,
        otherwise: Option<Otherwise>,
    },
    Require(Condition, Vec<u8>),
    If {
        branches: Vec<(Condition, Vec<Statement>)>,
        otherwise: Option<Vec<Statement>>,
        /// Whether the procedure goes on behind more than one of the branches.
        forks: bool,
    },
    For(Loop),
    Refuse(Vec<u8>),
    ReplyOk,
    ReplyNil,
    Reply(Bytes),
}
