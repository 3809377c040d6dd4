//! The tree that the parser makes.

use crate::diagnostic::Span;

/// A name and its place.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub text: String,
    pub span: Span,
}

#[derive(Debug, Default)]
pub(crate) struct File {
    pub constants: Vec<(Name, Expression)>,
    pub procedures: Vec<Procedure>,
}

#[derive(Debug)]
pub(crate) struct Procedure {
    pub name: Name,
    pub read_only: bool,
    pub arguments: Vec<Argument>,
    pub body: Block,
}

#[derive(Debug)]
pub(crate) struct Argument {
    pub name: Name,
    pub kind: ArgumentKind,
    pub refusal: Option<Refusal>,
}

#[derive(Debug)]
pub(crate) enum ArgumentKind {
    /// First and last number.
    Integer(Option<(Expression, Expression)>),
    /// Shortest and longest length.
    Text(Option<Expression>, Expression),
}

#[derive(Debug)]
pub(crate) struct Block {
    pub statements: Vec<Statement>,
    /// The brace that ends the block.
    pub end: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub code: String,
    pub text: Vec<u8>,
    pub span: Span,
}

#[derive(Debug)]
pub(crate) enum Otherwise {
    Refuse(Refusal),
    Run(Block),
}

#[derive(Debug)]
pub(crate) struct Statement {
    pub span: Span,
    pub kind: StatementKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    Set,
    Insert,
    Update,
}

#[derive(Debug)]
pub(crate) enum Expiry {
    Never,
    Keep,
    At(Expression),
}

#[derive(Debug)]
pub(crate) struct Write {
    pub kind: WriteKind,
    pub key: Key,
    pub value: Expression,
    pub expiry: Expiry,
    pub otherwise: Option<Otherwise>,
}

#[derive(Debug)]
pub(crate) struct Loop {
    pub variable: Name,
    pub first: Expression,
    pub last: Expression,
    pub bound: Option<Expression>,
    pub body: Block,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    /// `let`, or `var` with or without a value.
    Declare {
        name: Name,
        mutable: bool,
        value: Option<Expression>,
    },
    Assign {
        name: Name,
        value: Expression,
    },
    Get {
        key: Key,
        otherwise: Option<Otherwise>,
    },
    Write(Write),
    Delete {
        key: Key,
        otherwise: Option<Otherwise>,
    },
    Require {
        condition: Expression,
        refusal: Refusal,
    },
    If {
        branches: Vec<(Expression, Block)>,
        otherwise: Option<Block>,
    },
    For(Loop),
    Refuse(Refusal),
    ReplyOk,
    ReplyNil,
    Reply(Expression),
}

#[derive(Debug)]
pub(crate) struct Key {
    pub parts: Vec<Expression>,
    pub span: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOperator {
    Or,
    And,
    Compare(&'static str),
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Debug)]
pub(crate) struct Expression {
    pub span: Span,
    pub kind: ExpressionKind,
}

#[derive(Debug)]
pub(crate) enum ExpressionKind {
    Number(i64),
    Text(Vec<u8>),
    Name(String),
    /// The value that the last get has read.
    Value,
    /// `integer(value)`.
    ValueInteger,
    /// `length(value)`.
    ValueLength,
    /// `length(NAME)`.
    Length(Name),
    Now,
    Found,
    Missing,
    Not(Box<Expression>),
    Negate(Box<Expression>),
    Binary(BinaryOperator, Box<Expression>, Box<Expression>),
}
