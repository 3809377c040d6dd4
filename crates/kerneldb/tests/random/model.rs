//! The required behaviour of a database with transactions, in plain maps: strict two-phase locking,
//! snapshots, expiry.
//!
//! Keys are numbers here. The model does not know when an operator has to fail. It knows the result that a
//! successful operator must have, and whether there was a reason to fail.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// A value: a piece of [`Bytes`], and its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Val {
    pub start: u32,
    pub len: u32,
    pub expire_at_ms: Option<u64>,
}

/// Bytes of which all values are pieces.
pub struct Bytes(Vec<u8>);

pub const LONGEST: usize = 65_536;

impl Bytes {
    pub fn new() -> Bytes {
        let mut x = 88_172_645_463_325_252u64;
        Bytes(
            (0..2 * LONGEST)
                .map(|_| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    (x >> 32) as u8
                })
                .collect(),
        )
    }

    pub fn of(&self, value: Val) -> &[u8] {
        &self.0[value.start as usize..][..value.len as usize]
    }
}

/// Whether a key exists at a time, which is not always known for keys with an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Absent,
    Present(Val, u64),
    /// It expires about now.
    Unsure,
}

/// Upper bound of the difference between the clocks of kernel and user space.
const MARGIN_MS: u64 = 200;
/// Values that expire later than this do not expire while a test runs.
const NEVER_MS: u64 = 1 << 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    /// Keys written so far.
    Writing(BTreeMap<usize, Option<Val>>),
    /// The snapshot: everything up to this commit.
    Reading(u64),
}

/// A key: committed versions, oldest first, with the model's and the database's number of the commit.
#[derive(Default)]
struct Key {
    versions: VecDeque<(u64, u64, Option<Val>)>,
    owner: Option<usize>,
    sharers: Vec<usize>,
}

pub struct Model {
    keys: Vec<Key>,
    pub sessions: Vec<State>,
    /// Commits so far.
    pub clock: u64,
    locks: HashMap<usize, Vec<usize>>,
}

impl Model {
    pub fn new(keys: usize, sessions: usize) -> Model {
        Model {
            keys: (0..keys).map(|_| Key::default()).collect(),
            sessions: vec![State::Idle; sessions],
            clock: 0,
            locks: HashMap::new(),
        }
    }

    fn seen(value: Option<(u64, Option<Val>)>, now_ms: u64) -> Seen {
        match value {
            None | Some((_, None)) => Seen::Absent,
            Some((ts, Some(value))) => match value.expire_at_ms {
                Some(at) if at + MARGIN_MS < now_ms => Seen::Absent,
                Some(at) if at < now_ms + NEVER_MS => Seen::Unsure,
                _ => Seen::Present(value, ts),
            },
        }
    }

    /// The value of a key that a session sees. The number is the database's commit timestamp, 0 = its own
    /// write.
    pub fn read(&self, session: usize, key: usize, now_ms: u64) -> Seen {
        let until = match &self.sessions[session] {
            State::Writing(own) if own.contains_key(&key) => {
                return Self::seen(Some((0, own[&key])), now_ms);
            }
            State::Reading(snapshot) => *snapshot,
            _ => u64::MAX,
        };
        let version = self.keys[key].versions.iter().rev().find(|v| v.0 <= until);
        Self::seen(version.map(|v| (v.1, v.2)), now_ms)
    }

    /// Whether the newest committed version of a key is a value, expired or not.
    pub fn has_value(&self, key: usize) -> bool {
        self.keys[key].versions.back().is_some_and(|version| version.2.is_some())
    }

    /// Whether another session's lock is in the way.
    pub fn locked(&self, session: usize, key: usize, exclusive: bool) -> bool {
        let key = &self.keys[key];
        key.owner.is_some_and(|owner| owner != session)
            || exclusive && key.sharers.iter().any(|sharer| *sharer != session)
    }

    pub fn lock(&mut self, session: usize, key: usize, exclusive: bool) {
        let locks = &mut self.keys[key];
        if exclusive {
            locks.owner = Some(session);
        } else if locks.owner != Some(session) && !locks.sharers.contains(&session) {
            locks.sharers.push(session);
        }
        self.locks.entry(session).or_default().push(key);
    }

    fn unlock(&mut self, session: usize) {
        for key in self.locks.remove(&session).unwrap_or_default() {
            let key = &mut self.keys[key];
            key.sharers.retain(|sharer| *sharer != session);
            if key.owner == Some(session) {
                key.owner = None;
            }
        }
        self.sessions[session] = State::Idle;
    }

    pub fn snapshots(&self) -> usize {
        self.sessions.iter().filter(|state| matches!(state, State::Reading(_))).count()
    }

    /// The write of a transaction, or of a single operation, which commits at once as `ts`.
    pub fn write(&mut self, session: usize, key: usize, value: Option<Val>, ts: u64) {
        if let State::Writing(own) = &mut self.sessions[session] {
            own.insert(key, value);
        } else {
            self.clock += 1;
            self.install(key, value, ts);
        }
    }

    fn install(&mut self, key: usize, value: Option<Val>, ts: u64) {
        let oldest = self.sessions.iter().filter_map(|state| match state {
            State::Reading(snapshot) => Some(*snapshot),
            _ => None,
        });
        let oldest = oldest.min().unwrap_or(self.clock);
        let versions = &mut self.keys[key].versions;
        versions.push_back((self.clock, ts, value));
        while versions.len() > 1 && versions[1].0 <= oldest {
            versions.pop_front();
        }
    }

    /// Ends the transaction; its writes take effect if it commits.
    pub fn end(&mut self, session: usize, commit_ts: Option<u64>) -> BTreeMap<usize, Option<Val>> {
        let state = std::mem::replace(&mut self.sessions[session], State::Idle);
        let mut written = BTreeMap::new();
        if let (State::Writing(own), Some(ts)) = (state, commit_ts) {
            self.clock += u64::from(!own.is_empty());
            own.iter().for_each(|(&key, &value)| self.install(key, value, ts));
            written = own;
        }
        self.unlock(session);
        written
    }
}
