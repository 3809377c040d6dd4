//! Types of expressions, the numbers that they can be, and the facts about the value that follow from conditions.

use super::{
    Checker, Meaning,
    state::{Presence, State, Value, join},
};
use crate::{
    Rule,
    diagnostic::Span,
    interval::{Interval, operate},
    limits::{KEY_BYTES_MAX, KEY_INTEGER_BYTES, VALUE_BYTES_MAX},
    program::{ArgumentKind, ArgumentRef, Bytes, Condition, Integer, Key, KeyPart},
    syntax::{self, BinaryOperator, Expression, ExpressionKind},
};

/// A condition, and the states in which it is true and false.
pub(super) struct Checked {
    pub condition: Condition,
    pub when_true: State,
    pub when_false: State,
}

impl Checker<'_> {
    /// A number, and the numbers that it can be. After an error it is any number, so that one mistake is one error.
    pub(super) fn integer(&mut self, expression: &Expression, state: &State) -> (Integer, Interval) {
        self.step(1, expression.span);
        let span = expression.span;
        let unknown = (Integer::Value, Interval::ALL);
        let length = Interval { low: 0, high: VALUE_BYTES_MAX as i64 };
        match &expression.kind {
            ExpressionKind::Number(number) => (Integer::Constant(*number), Interval::only(*number)),
            ExpressionKind::Name(name) => self.name(name, span, state).unwrap_or(unknown),
            ExpressionKind::ValueInteger => {
                self.uses_value(span, state);
                unknown
            }
            ExpressionKind::ValueLength => {
                self.uses_value(span, state);
                (Integer::ValueLength, length)
            }
            ExpressionKind::Length(name) => match self.text_argument(&name.text) {
                Some((argument, length)) => (Integer::ArgumentLength(argument), length),
                None => {
                    self.errors.add(name.span, Rule::Type, format!("{} is no text argument", name.text));
                    unknown
                }
            },
            ExpressionKind::Now => (Integer::Now, Interval::ALL),
            ExpressionKind::Negate(inner) => {
                let left = (Integer::Constant(0), Interval::only(0));
                let right = self.integer(inner, state);
                self.operation(BinaryOperator::Subtract, span, left, right)
            }
            ExpressionKind::Binary(
                operator @ (BinaryOperator::Add
                | BinaryOperator::Subtract
                | BinaryOperator::Multiply
                | BinaryOperator::Divide
                | BinaryOperator::Remainder),
                left,
                right,
            ) => {
                let left = self.integer(left, state);
                let right = self.integer(right, state);
                self.operation(*operator, span, left, right)
            }
            ExpressionKind::Value => {
                let message = "the value is a text: integer(value) is its number";
                self.errors.add(span, Rule::Type, message);
                unknown
            }
            ExpressionKind::Text(_) => {
                self.errors.add(span, Rule::Type, "a text is no number");
                unknown
            }
            _ => {
                self.errors.add(span, Rule::Type, "a truth value is no number");
                unknown
            }
        }
    }

    fn operation(
        &mut self,
        operator: BinaryOperator,
        span: Span,
        (left, left_interval): (Integer, Interval),
        (right, right_interval): (Integer, Interval),
    ) -> (Integer, Interval) {
        if let (Integer::Constant(left), Integer::Constant(right)) = (&left, &right)
            && let Some(number) = operate(operator, *left, *right)
        {
            return (Integer::Constant(number), Interval::only(number));
        }
        let Some(operation) = left_interval.operation(operator, right_interval) else {
            self.errors.add(span, Rule::NeverInRange, "the operation never has a result");
            return (Integer::Value, Interval::ALL);
        };
        let (left, right, can_fail) = (Box::new(left), Box::new(right), operation.can_fail);
        (Integer::Binary { operator, left, right, can_fail }, operation.result)
    }

    fn name(&mut self, name: &str, span: Span, state: &State) -> Option<(Integer, Interval)> {
        match self.meaning(name) {
            Some(Meaning::Constant(number)) => Some((Integer::Constant(number), Interval::only(number))),
            Some(Meaning::Argument(argument, ArgumentKind::Integer(interval))) => {
                Some((Integer::Argument(argument), interval))
            }
            Some(Meaning::Argument(_, ArgumentKind::Text(_))) => {
                self.errors.add(span, Rule::Type, format!("the argument {name} is a text, not a number"));
                None
            }
            Some(Meaning::Variable { variable, interval, .. }) => {
                if !state.is_assigned(&variable) {
                    let message = format!("{name} does not have a value on every path to here");
                    self.errors.add(span, Rule::Assigned, message);
                }
                Some((Integer::Variable(variable), interval))
            }
            None => {
                self.errors.add(span, Rule::UnknownName, format!("there is no {name} here"));
                None
            }
        }
    }

    fn text_argument(&self, name: &str) -> Option<(ArgumentRef, Interval)> {
        match self.meaning(name) {
            Some(Meaning::Argument(argument, ArgumentKind::Text(length))) => Some((argument, length)),
            _ => None,
        }
    }

    /// A number that is known now.
    pub(super) fn constant(&mut self, expression: &Expression) -> Option<i64> {
        let before = self.errors.count();
        // A constant is computed now, and never when the procedure runs.
        let rounds = std::mem::take(&mut self.rounds);
        let checked = self.integer(expression, &State::for_constants());
        self.rounds = rounds;
        match checked {
            (Integer::Constant(number), _) => return Some(number),
            _ if self.errors.count() > before => {}
            _ => self.errors.add(expression.span, Rule::Constant, "this is not a constant"),
        }
        None
    }

    fn uses_value(&mut self, span: Span, state: &State) {
        let (rule, message) = match state.value {
            Value::Read(Presence::Found) => return,
            Value::Read(Presence::Missing) => (Rule::ValueMissing, "the get has found no value here"),
            Value::Read(Presence::Unknown) => (
                Rule::ValueMissing,
                "the get may have found no value: test it, or give the get an else that ends the procedure",
            ),
            Value::Unread => (Rule::ValueUnread, "no get has read a value on every path to here"),
            Value::Stale => {
                (Rule::KeyChanged, "the key may have changed since the get: use the value before")
            }
        };
        self.errors.add(span, rule, message);
    }

    /// A text, a number, or the value.
    pub(super) fn bytes(&mut self, expression: &Expression, state: &State) -> Bytes {
        match &expression.kind {
            ExpressionKind::Text(text) => Bytes::Text(text.clone()),
            ExpressionKind::Value => {
                self.uses_value(expression.span, state);
                Bytes::Value
            }
            ExpressionKind::Name(name) => match self.text_argument(name) {
                Some((argument, _)) => Bytes::Argument(argument),
                None => Bytes::Integer(self.integer(expression, state).0),
            },
            _ => Bytes::Integer(self.integer(expression, state).0),
        }
    }

    pub(super) fn key(&mut self, key: &syntax::Key, state: &mut State) -> Key {
        let mut parts: Vec<KeyPart> = Vec::new();
        let (mut least, mut most) = (0, 0);
        for part in &key.parts {
            self.step(3, part.span);
            let (checked, lengths) = match self.bytes(part, state) {
                Bytes::Text(text) => {
                    let length = text.len();
                    if let Some(KeyPart::Text(before)) = parts.last_mut() {
                        before.extend(text);
                        (None, (length, length))
                    } else {
                        (Some(KeyPart::Text(text)), (length, length))
                    }
                }
                Bytes::Argument(argument) => {
                    let length = self.text_argument(&argument.name).map_or(Interval::only(0), |(_, l)| l);
                    (Some(KeyPart::Argument(argument)), (length.low as usize, length.high as usize))
                }
                Bytes::Integer(number) => {
                    (Some(KeyPart::Integer(number)), (KEY_INTEGER_BYTES, KEY_INTEGER_BYTES))
                }
                Bytes::Value => {
                    let message = "a key has texts, text arguments and numbers: integer(value) is a number";
                    self.errors.add(part.span, Rule::Type, message);
                    (None, (1, 1))
                }
            };
            parts.extend(checked);
            (least, most) = (least + lengths.0, most + lengths.1);
        }
        if least == 0 {
            let message = "the key can be empty: begin it with a text, or give the argument a least length";
            self.errors.add(key.span, Rule::KeySize, message);
        }
        if most > KEY_BYTES_MAX {
            let message = format!("the key can have {most} bytes, and keys have at most {KEY_BYTES_MAX}");
            self.errors.add(key.span, Rule::KeySize, message);
        }
        let is_set = state.has_key(&parts);
        state.set_key(&parts);
        Key { parts, is_set }
    }

    pub(super) fn condition(&mut self, expression: &Expression, state: &State) -> Checked {
        self.step(1, expression.span);
        let span = expression.span;
        let same = |condition| Checked { condition, when_true: state.clone(), when_false: state.clone() };
        match &expression.kind {
            ExpressionKind::Found | ExpressionKind::Missing => {
                self.uses_found = true;
                let rule = match state.value {
                    Value::Read(_) => None,
                    Value::Unread => Some((Rule::ValueUnread, "no get has run on every path to here")),
                    Value::Stale => Some((Rule::KeyChanged, "the key may have changed since the get")),
                };
                if let Some((rule, message)) = rule {
                    self.errors.add(span, rule, message);
                }
                let (found, missing) =
                    (state.with_presence(Presence::Found), state.with_presence(Presence::Missing));
                match expression.kind {
                    ExpressionKind::Found => {
                        Checked { condition: Condition::Found, when_true: found, when_false: missing }
                    }
                    _ => Checked { condition: Condition::Missing, when_true: missing, when_false: found },
                }
            }
            ExpressionKind::Not(inner) => {
                let inner = self.condition(inner, state);
                Checked {
                    condition: Condition::Not(Box::new(inner.condition)),
                    when_true: inner.when_false,
                    when_false: inner.when_true,
                }
            }
            ExpressionKind::Binary(BinaryOperator::And, left, right) => {
                let left = self.condition(left, state);
                let right = self.condition(right, &left.when_true);
                Checked {
                    condition: Condition::And(Box::new(left.condition), Box::new(right.condition)),
                    when_true: right.when_true,
                    when_false: either(left.when_false, right.when_false),
                }
            }
            ExpressionKind::Binary(BinaryOperator::Or, left, right) => {
                let left = self.condition(left, state);
                let right = self.condition(right, &left.when_false);
                Checked {
                    condition: Condition::Or(Box::new(left.condition), Box::new(right.condition)),
                    when_true: either(left.when_true, right.when_true),
                    when_false: right.when_false,
                }
            }
            ExpressionKind::Binary(BinaryOperator::Compare(operator), left, right) => {
                let left = self.integer(left, state).0;
                let right = self.integer(right, state).0;
                same(Condition::Compare(operator, left, right))
            }
            _ => {
                self.errors.add(span, Rule::Type, "this is no condition: compare it with something");
                same(Condition::Found)
            }
        }
    }
}

/// The facts of both states.
fn either(a: State, b: State) -> State {
    let fallback = a.clone();
    join(Some(a), Some(b)).unwrap_or(fallback)
}
