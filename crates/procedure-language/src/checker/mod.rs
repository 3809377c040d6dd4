//! Checks a program against the rules, path by path, and makes what the generator needs.
//!
//! A [`State`] has the facts that hold on every path to a point. Where paths meet, the states are joined. A loop's body is checked
//! once, with the facts that hold in each of its rounds.

mod expressions;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use self::state::{Presence, State, Value, join};
use crate::{
    Rule,
    diagnostic::{Errors, Span},
    interval::Interval,
    limits::{REFUSAL_BYTES_MAX, ROUNDS_MAX, STEPS_MAX, VALUE_BYTES_MAX, VARIABLES_MAX},
    program::{
        Argument, ArgumentKind, ArgumentRef, Condition, Expiry, Integer, Loop, Otherwise, Procedure, Program,
        Statement, StatementKind, Variable,
    },
    reserved,
    syntax::{self, Block, File, Name, Refusal, WriteKind},
};

/// Steps that an operator counts: about as many branches as it has in the program.
const OPERATOR_STEPS: u64 = 8;

/// The meaning of a name.
#[derive(Clone, Debug)]
enum Meaning {
    Constant(i64),
    Argument(ArgumentRef, ArgumentKind),
    Variable { variable: Variable, mutable: bool, interval: Interval },
}

/// Checks a file. The program is complete only if there were no errors.
pub(crate) fn check(file: &File, errors: &mut Errors) -> Program {
    let mut checker = Checker {
        errors,
        constants: BTreeMap::new(),
        scope: Vec::new(),
        variables: 0,
        rounds: 1,
        steps: 0,
        uses_found: false,
        read_only: false,
    };
    for (name, value) in &file.constants {
        checker.is_free(name);
        let number = checker.constant(value).unwrap_or(0);
        checker.constants.insert(name.text.clone(), number);
    }
    let mut names = BTreeSet::new();
    let mut procedures = Vec::new();
    for procedure in &file.procedures {
        let name = &procedure.name;
        if !names.insert(name.text.clone()) {
            let message = format!("there is a procedure {} already", name.text);
            checker.errors.add(name.span, Rule::DuplicateName, message);
        }
        if reserved::is_reserved(&name.text) {
            let message = format!("the name {} is in use by C or by the headers", name.text);
            checker.errors.add(name.span, Rule::ReservedName, message);
        }
        procedures.push(checker.procedure(procedure));
    }
    if procedures.is_empty() {
        checker.errors.add(Span::default(), Rule::Syntax, "the file has no procedure");
    }
    Program { procedures }
}

struct Checker<'a> {
    errors: &'a mut Errors,
    constants: BTreeMap<String, i64>,
    /// The procedure's names that are visible, the newest last.
    scope: Vec<(String, Meaning)>,
    /// Variables that the procedure has declared.
    variables: usize,
    /// How often the statement can run.
    rounds: u64,
    /// Steps of the procedure so far.
    steps: u64,
    uses_found: bool,
    read_only: bool,
}

impl Checker<'_> {
    fn meaning(&self, name: &str) -> Option<Meaning> {
        let local = self.scope.iter().rev().find(|(known, _)| known == name);
        let constant = || self.constants.get(name).copied().map(Meaning::Constant);
        local.map(|(_, meaning)| meaning.clone()).or_else(constant)
    }

    /// Reports a name that stands for something already.
    fn is_free(&mut self, name: &Name) {
        if self.meaning(&name.text).is_some() {
            let message = format!("the name {} stands for something else here", name.text);
            self.errors.add(name.span, Rule::DuplicateName, message);
        }
    }

    /// Counts steps of a statement.
    fn step(&mut self, steps: u64, span: Span) {
        let before = self.steps;
        self.steps = before.saturating_add(steps.saturating_mul(self.rounds));
        if before <= STEPS_MAX && self.steps > STEPS_MAX {
            let message =
                format!("the procedure has more than {STEPS_MAX} steps up to here: shorten its loops");
            self.errors.add(span, Rule::Limit, message);
        }
    }

    fn procedure(&mut self, procedure: &syntax::Procedure) -> Procedure {
        self.scope.clear();
        (self.variables, self.rounds, self.steps, self.uses_found) = (0, 1, 0, false);
        self.read_only = procedure.read_only;
        let mut arguments = Vec::new();
        for (index, argument) in procedure.arguments.iter().enumerate() {
            self.is_free(&argument.name);
            self.step(4, argument.name.span);
            let checked = self.argument(argument);
            let name = checked.name.clone();
            let meaning = Meaning::Argument(ArgumentRef { name: name.clone(), index }, checked.kind);
            self.scope.push((name, meaning));
            arguments.push(checked);
        }
        let (body, end) = self.block(&procedure.body, Some(State::new()));
        if end.is_some() {
            let message = format!("a path of {} ends here without a reply or a refusal", procedure.name.text);
            self.errors.add(procedure.body.end, Rule::Outcome, message);
        }
        Procedure {
            name: procedure.name.text.clone(),
            span: procedure.name.span,
            read_only: procedure.read_only,
            arguments,
            uses_found: self.uses_found,
            body,
        }
    }

    fn argument(&mut self, argument: &syntax::Argument) -> Argument {
        let name = &argument.name;
        let (kind, what) = match &argument.kind {
            syntax::ArgumentKind::Integer(None) => (ArgumentKind::Integer(Interval::ALL), String::new()),
            syntax::ArgumentKind::Integer(Some((first, last))) => {
                let range = self.range(first.span.to(last.span), (first, last), Interval::ALL);
                (ArgumentKind::Integer(range), format!("must be {} to {}", range.low, range.high))
            }
            syntax::ArgumentKind::Text(least, most) => {
                let lengths = Interval { low: 0, high: VALUE_BYTES_MAX as i64 };
                let span = least.as_ref().map_or(most.span, |least| least.span.to(most.span));
                let range = match least {
                    Some(least) => self.range(span, (least, most), lengths),
                    None => {
                        let high = self.constant(most).unwrap_or(0);
                        self.check_range(span, Interval { low: 0, high }, lengths)
                    }
                };
                (ArgumentKind::Text(range), format!("must have {} to {} bytes", range.low, range.high))
            }
        };
        let refusal = match &argument.refusal {
            Some(refusal) => self.refusal(refusal),
            None => format!("ERR {} {what}", name.text).into_bytes(),
        };
        Argument { name: name.text.clone(), span: name.span, kind, refusal }
    }

    fn range(
        &mut self,
        span: Span,
        (first, last): (&syntax::Expression, &syntax::Expression),
        within: Interval,
    ) -> Interval {
        match (self.constant(first), self.constant(last)) {
            (Some(low), Some(high)) => self.check_range(span, Interval { low, high }, within),
            _ => within,
        }
    }

    fn check_range(&mut self, span: Span, range: Interval, within: Interval) -> Interval {
        let message = if range.low > range.high {
            "the range is empty".to_owned()
        } else if range.low < within.low || range.high > within.high {
            format!("the range exceeds {} to {}", within.low, within.high)
        } else {
            return range;
        };
        self.errors.add(span, Rule::Range, message);
        within
    }

    fn refusal(&mut self, refusal: &Refusal) -> Vec<u8> {
        let text = [refusal.code.as_bytes(), b" ", &refusal.text].concat();
        let message = if text.len() > REFUSAL_BYTES_MAX {
            format!("a refusal has at most {REFUSAL_BYTES_MAX} bytes with its code")
        } else if refusal.text.is_empty() {
            "a refusal has a text".to_owned()
        } else if std::str::from_utf8(&refusal.text).is_ok_and(|text| !text.contains(char::is_control)) {
            return text;
        } else {
            "a refusal has no control characters and is UTF-8".to_owned()
        };
        self.errors.add(refusal.span, Rule::Refusal, message);
        text
    }

    /// Checks the statements of a block; returns the state behind it, unless every path has ended.
    fn block(&mut self, block: &Block, state: Option<State>) -> (Vec<Statement>, Option<State>) {
        let visible = self.scope.len();
        let mut state = state;
        let mut statements = Vec::new();
        for statement in &block.statements {
            let Some(before) = state else {
                let message = "every path has ended in a reply or a refusal before this statement";
                self.errors.add(statement.span, Rule::AfterOutcome, message);
                break;
            };
            let (kind, after) = self.statement(statement, before);
            statements.push(Statement { span: statement.span, kind });
            state = after;
        }
        self.scope.truncate(visible);
        (statements, state)
    }

    fn declare(&mut self, name: &Name, mutable: bool, interval: Interval) -> Variable {
        self.is_free(name);
        if self.variables == VARIABLES_MAX {
            let message = format!("a procedure has at most {VARIABLES_MAX} variables");
            self.errors.add(name.span, Rule::Limit, message);
        } else {
            self.variables += 1;
        }
        let variable = Variable { name: name.text.clone(), number: self.variables };
        let meaning = Meaning::Variable { variable: variable.clone(), mutable, interval };
        self.scope.push((name.text.clone(), meaning));
        variable
    }

    fn writes(&mut self, span: Span, what: &str) {
        if self.read_only {
            self.errors.add(span, Rule::ReadOnly, format!("the procedure is readonly and {what}"));
        }
    }

    fn statement(
        &mut self,
        statement: &syntax::Statement,
        mut state: State,
    ) -> (StatementKind, Option<State>) {
        let span = statement.span;
        self.step(1, span);
        match &statement.kind {
            syntax::StatementKind::Declare { name, mutable, value } => {
                let checked = value.as_ref().map(|value| self.integer(value, &state));
                let interval = match (&checked, mutable) {
                    (Some((_, interval)), false) => *interval,
                    _ => Interval::ALL,
                };
                let variable = self.declare(name, *mutable, interval);
                if checked.is_some() {
                    state.assign(&variable);
                }
                let value = checked.map(|(value, _)| value);
                (StatementKind::Declare { variable, mutable: *mutable, value }, Some(state))
            }
            syntax::StatementKind::Assign { name, value } => {
                let (value, _) = self.integer(value, &state);
                let variable = match self.meaning(&name.text) {
                    Some(Meaning::Variable { variable, mutable: true, .. }) => variable,
                    Some(_) => {
                        let message = format!("{} does not change: declare a variable with var", name.text);
                        self.errors.add(name.span, Rule::Immutable, message);
                        return (StatementKind::ReplyOk, Some(state));
                    }
                    None => {
                        let message = format!("there is no {} here", name.text);
                        self.errors.add(name.span, Rule::UnknownName, message);
                        return (StatementKind::ReplyOk, Some(state));
                    }
                };
                state.assign(&variable);
                (StatementKind::Assign(variable, value), Some(state))
            }
            syntax::StatementKind::Get { key, otherwise } => {
                self.step(OPERATOR_STEPS, span);
                let key = self.key(key, &mut state);
                if otherwise.is_none() {
                    state.value = Value::Read(Presence::Unknown);
                    return (StatementKind::Get { key, otherwise: None }, Some(state));
                }
                let (found, missing) =
                    (state.with_presence(Presence::Found), state.with_presence(Presence::Missing));
                let (otherwise, end) = self.otherwise(otherwise.as_ref(), missing);
                (StatementKind::Get { key, otherwise }, join(Some(found), end))
            }
            syntax::StatementKind::Write(write) => self.write(write, span, state),
            syntax::StatementKind::Delete { key, otherwise } => {
                self.writes(span, "deletes");
                self.step(OPERATOR_STEPS, span);
                let key = self.key(key, &mut state);
                state.lose_value();
                let (otherwise, end) = self.otherwise(otherwise.as_ref(), state.clone());
                (StatementKind::Delete { key, otherwise }, join(Some(state), end))
            }
            syntax::StatementKind::Require { condition, refusal } => {
                let checked = self.condition(condition, &state);
                let refusal = self.refusal(refusal);
                (StatementKind::Require(checked.condition, refusal), Some(checked.when_true))
            }
            syntax::StatementKind::If { branches, otherwise } => {
                self.branches(branches, otherwise.as_ref(), state)
            }
            syntax::StatementKind::For(rounds) => self.rounds(rounds, span, state),
            syntax::StatementKind::Refuse(refusal) => (StatementKind::Refuse(self.refusal(refusal)), None),
            syntax::StatementKind::ReplyOk => (StatementKind::ReplyOk, None),
            syntax::StatementKind::ReplyNil => (StatementKind::ReplyNil, None),
            syntax::StatementKind::Reply(value) => (StatementKind::Reply(self.bytes(value, &state)), None),
        }
    }

    fn otherwise(
        &mut self,
        otherwise: Option<&syntax::Otherwise>,
        state: State,
    ) -> (Option<Otherwise>, Option<State>) {
        match otherwise {
            None => (None, None),
            Some(syntax::Otherwise::Refuse(refusal)) => {
                (Some(Otherwise::Refuse(self.refusal(refusal))), None)
            }
            Some(syntax::Otherwise::Run(block)) => {
                let (statements, end) = self.block(block, Some(state));
                (Some(Otherwise::Run(statements)), end)
            }
        }
    }

    fn write(
        &mut self,
        write: &syntax::Write,
        span: Span,
        mut state: State,
    ) -> (StatementKind, Option<State>) {
        let what = match write.kind {
            WriteKind::Set => "sets",
            WriteKind::Insert => "inserts",
            WriteKind::Update => "updates",
        };
        self.writes(span, what);
        self.step(OPERATOR_STEPS, span);
        let before = state.clone();
        let key = self.key(&write.key, &mut state);
        let value = self.bytes(&write.value, &before);
        let expiry = match &write.expiry {
            syntax::Expiry::Never => Expiry::Never,
            syntax::Expiry::Keep => Expiry::Keep,
            syntax::Expiry::At(time) => {
                let (time, interval) = self.integer(time, &before);
                Expiry::At(time, interval.low < 1)
            }
        };
        state.lose_value();
        let (otherwise, end) = self.otherwise(write.otherwise.as_ref(), state.clone());
        (StatementKind::Write { kind: write.kind, key, value, expiry, otherwise }, join(Some(state), end))
    }

    fn branches(
        &mut self,
        branches: &[(syntax::Expression, Block)],
        otherwise: Option<&Block>,
        state: State,
    ) -> (StatementKind, Option<State>) {
        let mut before = state;
        let mut after = None;
        let mut going_on = 0;
        let mut end_branch = |end: Option<State>| {
            going_on += usize::from(end.is_some());
            after = join(after.take(), end);
        };
        let mut checked: Vec<(Condition, Vec<Statement>)> = Vec::new();
        for (condition, block) in branches {
            let condition = self.condition(condition, &before);
            let (statements, end) = self.block(block, Some(condition.when_true));
            end_branch(end);
            before = condition.when_false;
            checked.push((condition.condition, statements));
        }
        let otherwise = match otherwise {
            Some(block) => {
                let (statements, end) = self.block(block, Some(before));
                end_branch(end);
                Some(statements)
            }
            None => {
                end_branch(Some(before));
                None
            }
        };
        (StatementKind::If { branches: checked, otherwise, forks: going_on > 1 }, after)
    }

    fn rounds(
        &mut self,
        rounds: &syntax::Loop,
        span: Span,
        mut state: State,
    ) -> (StatementKind, Option<State>) {
        let (first, from) = self.integer(&rounds.first, &state);
        let (last, to) = self.integer(&rounds.last, &state);
        let ends = rounds.first.span.to(rounds.last.span);
        let possible = i128::from(to.high) - i128::from(from.low) + 1;
        let stated = rounds.bound.as_ref().and_then(|bound| {
            let number = self.constant(bound)?;
            let is_allowed = (1..=ROUNDS_MAX as i64).contains(&number);
            if !is_allowed {
                let message = format!("a loop has 1 to {ROUNDS_MAX} rounds");
                self.errors.add(bound.span, Rule::LoopBound, message);
            }
            is_allowed.then_some(i128::from(number))
        });
        let most = stated.map_or(possible, |stated| stated.min(possible));
        let problem = if possible < 1 {
            Some("the loop has no round".to_owned())
        } else if most > ROUNDS_MAX.into() && rounds.bound.is_none() {
            Some(format!(
                "the loop can have more than {ROUNDS_MAX} rounds: give its ends a range, or state a bound with up to"
            ))
        } else {
            None
        };
        if let Some(message) = &problem {
            self.errors.add(ends, Rule::LoopBound, message);
        }
        // One mistake in the bound is one error: the body then counts once.
        let is_bounded = problem.is_none() && rounds.bound.is_some() == stated.is_some();
        let most = if is_bounded { most.clamp(1, ROUNDS_MAX.into()) as u64 } else { 1 };
        let is_constant = matches!((&first, &last), (Integer::Constant(_), Integer::Constant(_)));
        let visible = self.scope.len();
        let interval = match problem {
            None => Interval { low: from.low, high: to.high },
            Some(_) => Interval::ALL,
        };
        let variable = self.declare(&rounds.variable, false, interval);
        state.enter_loop(changes_key(&rounds.body));
        let mut entry = state.clone();
        entry.assign(&variable);
        let outer = self.rounds;
        self.rounds = outer.saturating_mul(most);
        self.step(2, span);
        let (body, end) = self.block(&rounds.body, Some(entry));
        self.rounds = outer;
        self.scope.truncate(visible);
        if end.is_none() {
            let message = "every path of the loop's body ends the procedure, so it would run once";
            self.errors.add(span, Rule::LoopOnce, message);
        }
        let can_exceed = possible > i128::from(most);
        // A loop with a bound below its constant number of rounds always refuses.
        if is_constant && can_exceed && is_bounded {
            self.errors.add(ends, Rule::LoopBound, "the loop has more rounds than it states");
        }
        let mut after = match is_constant {
            true => end,
            false => join(Some(state), end),
        };
        if let Some(after) = &mut after {
            after.enter_loop(false);
        }
        let checked = Loop { variable, first, last, rounds: most, can_exceed, is_constant, body };
        (StatementKind::For(checked), after)
    }
}

/// Whether a block has operators, so that the call's key and value change.
fn changes_key(block: &Block) -> bool {
    block.statements.iter().any(|statement| match &statement.kind {
        syntax::StatementKind::Get { .. }
        | syntax::StatementKind::Write(_)
        | syntax::StatementKind::Delete { .. } => true,
        syntax::StatementKind::If { branches, otherwise } => {
            branches.iter().any(|(_, block)| changes_key(block))
                || otherwise.as_ref().is_some_and(changes_key)
        }
        syntax::StatementKind::For(rounds) => changes_key(&rounds.body),
        _ => false,
    })
}
