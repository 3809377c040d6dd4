//! The facts that hold at one point of a procedure, on every path that leads there.

use crate::program::{Integer, KeyPart, Variable};

/// The facts about the value of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// No get has read it, on some path.
    Unread,
    /// A get has read it, and the key may have changed since.
    Stale,
    Read(Presence),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Unknown,
    Found,
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The variables that have a value, by their numbers.
    assigned: u64,
    pub value: Value,
    /// The key that the call has.
    key: Option<Vec<KeyPart>>,
}

impl State {
    pub fn new() -> State {
        State { assigned: 0, value: Value::Unread, key: None }
    }

    /// The state for an expression that has to be constant: that a variable has no value is not its mistake.
    pub fn for_constants() -> State {
        State { assigned: u64::MAX, ..State::new() }
    }

    pub fn is_assigned(&self, variable: &Variable) -> bool {
        self.assigned & (1 << variable.number) != 0
    }

    /// A variable gets a value.
    pub fn assign(&mut self, variable: &Variable) {
        self.assigned |= 1 << variable.number;
        let uses = |part: &KeyPart| match part {
            KeyPart::Integer(number) => number.any(&|n| matches!(n, Integer::Variable(v) if v == variable)),
            KeyPart::Text(_) | KeyPart::Argument(_) => false,
        };
        if self.key.as_ref().is_some_and(|key| key.iter().any(uses)) {
            self.key = None;
        }
    }

    /// Whether the call has this key.
    pub fn has_key(&self, parts: &[KeyPart]) -> bool {
        self.key.as_deref() == Some(parts)
    }

    /// The call gets a key.
    pub fn set_key(&mut self, parts: &[KeyPart]) {
        let changes =
            |number: &Integer| matches!(number, Integer::Value | Integer::ValueLength | Integer::Now);
        let is_stable = |part: &KeyPart| match part {
            KeyPart::Integer(number) => !number.any(&changes),
            KeyPart::Text(_) | KeyPart::Argument(_) => true,
        };
        self.key = parts.iter().all(is_stable).then(|| parts.to_vec());
    }

    /// The value is no longer that of the last get.
    pub fn lose_value(&mut self) {
        if matches!(self.value, Value::Read(_)) {
            self.value = Value::Stale;
        }
    }

    /// Leaves the facts that hold in every round of a loop. `changes_key` says whether its body has operators.
    pub fn enter_loop(&mut self, changes_key: bool) {
        self.key = None;
        if changes_key {
            self.lose_value();
        }
    }

    /// The same state for a value that was found or is missing.
    pub fn with_presence(&self, presence: Presence) -> State {
        State { value: Value::Read(presence), ..self.clone() }
    }
}

/// The facts that hold where two paths meet. A path that has ended has no state.
pub(super) fn join(a: Option<State>, b: Option<State>) -> Option<State> {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (a, b) => return a.or(b),
    };
    let value = match (a.value, b.value) {
        (a, b) if a == b => a,
        (Value::Unread, _) | (_, Value::Unread) => Value::Unread,
        (Value::Stale, _) | (_, Value::Stale) => Value::Stale,
        (Value::Read(_), Value::Read(_)) => Value::Read(Presence::Unknown),
    };
    let key = a.key.filter(|key| b.key.as_ref() == Some(key));
    Some(State { assigned: a.assigned & b.assigned, value, key })
}
