//! Parses expressions and conditions, which have one grammar: the checker tells numbers, texts and truth values apart.

use super::{Parsed, Parser, WORDS};
use crate::{
    Rule,
    diagnostic::Span,
    lexer::Token,
    limits::{EXPRESSION_DEPTH_MAX, EXPRESSION_NODES_MAX},
    syntax::{BinaryOperator, Expression, ExpressionKind},
};

/// The strength of `not`, between those of `and` and of comparisons.
const NOT: usize = 3;

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Parsed<Expression> {
        self.depth = 0;
        self.nodes = 0;
        self.binary(0)
    }

    /// Counts an operand or an operator.
    fn node(&mut self, span: Span, kind: ExpressionKind) -> Parsed<Expression> {
        self.nodes += 1;
        if self.nodes > EXPRESSION_NODES_MAX {
            let message = format!("an expression has at most {EXPRESSION_NODES_MAX} operands and operators");
            return self.error(span, Rule::Limit, message);
        }
        Ok(Expression { span, kind })
    }

    /// The operator that comes next, and its strength: how tightly it binds.
    fn operator(&self) -> Option<(BinaryOperator, usize)> {
        Some(match self.token() {
            Token::Name(word) if word == "or" => (BinaryOperator::Or, 1),
            Token::Name(word) if word == "and" => (BinaryOperator::And, 2),
            Token::Symbol(symbol @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => {
                (BinaryOperator::Compare(symbol), 4)
            }
            Token::Symbol("+") => (BinaryOperator::Add, 5),
            Token::Symbol("-") => (BinaryOperator::Subtract, 5),
            Token::Symbol("*") => (BinaryOperator::Multiply, 6),
            Token::Symbol("/") => (BinaryOperator::Divide, 6),
            Token::Symbol("%") => (BinaryOperator::Remainder, 6),
            _ => return None,
        })
    }

    /// Parses operators that bind more tightly than `weakest`.
    fn binary(&mut self, weakest: usize) -> Parsed<Expression> {
        let start = self.span();
        let mut left = self.unary(weakest)?;
        let mut compared = false;
        while let Some((operator, strength)) = self.operator().filter(|(_, strength)| *strength > weakest) {
            let is_comparison = matches!(operator, BinaryOperator::Compare(_));
            if is_comparison && compared {
                return self.expected("no second comparison");
            }
            compared = is_comparison;
            self.advance();
            let right = self.binary(strength)?;
            let span = self.since(start);
            left = self.node(span, ExpressionKind::Binary(operator, Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn unary(&mut self, weakest: usize) -> Parsed<Expression> {
        let start = self.span();
        // The operand of a comparison does not begin with `not`.
        let is_not = self.is_word("not") && weakest <= NOT;
        if !is_not && !self.is_symbol("-") && !self.is_symbol("(") {
            return self.primary();
        }
        if self.depth == EXPRESSION_DEPTH_MAX {
            let message = format!("an expression has at most {EXPRESSION_DEPTH_MAX} levels");
            return self.error(start, Rule::Limit, message);
        }
        self.depth += 1;
        let parsed = if self.take_symbol("(") {
            let inner = self.binary(0)?;
            self.symbol(")")?;
            Expression { span: self.since(start), kind: inner.kind }
        } else if is_not {
            self.advance();
            let inner = self.binary(NOT)?;
            self.node(self.since(start), ExpressionKind::Not(Box::new(inner)))?
        } else {
            self.advance();
            if let Token::Number(number) = *self.token() {
                self.advance();
                // The sign makes 2^63 the lowest number.
                self.node(self.since(start), ExpressionKind::Number((number as i64).wrapping_neg()))?
            } else {
                let inner = self.unary(7)?;
                self.node(self.since(start), ExpressionKind::Negate(Box::new(inner)))?
            }
        };
        self.depth -= 1;
        Ok(parsed)
    }

    fn primary(&mut self) -> Parsed<Expression> {
        let span = self.span();
        let kind = match self.token().clone() {
            Token::Number(number) => match i64::try_from(number) {
                Ok(number) => ExpressionKind::Number(number),
                Err(_) => return self.error(span, Rule::Number, "the number is too large"),
            },
            Token::Text(text) => ExpressionKind::Text(text),
            Token::Name(word) => match word.as_str() {
                "value" => ExpressionKind::Value,
                "now" => ExpressionKind::Now,
                "found" => ExpressionKind::Found,
                "missing" => ExpressionKind::Missing,
                "integer" => {
                    self.advance();
                    self.symbol("(")?;
                    self.word("value")?;
                    self.symbol(")")?;
                    return self.node(self.since(span), ExpressionKind::ValueInteger);
                }
                "length" => {
                    self.advance();
                    self.symbol("(")?;
                    let kind = match self.take_word("value") {
                        true => ExpressionKind::ValueLength,
                        false => ExpressionKind::Length(self.name()?),
                    };
                    self.symbol(")")?;
                    return self.node(self.since(span), kind);
                }
                _ if WORDS.contains(&word.as_str()) => return self.expected("an expression"),
                _ => ExpressionKind::Name(word),
            },
            _ => return self.expected("an expression"),
        };
        self.advance();
        self.node(span, kind)
    }
}
