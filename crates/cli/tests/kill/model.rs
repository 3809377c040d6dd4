//! The model of a client's requests and acknowledgements, and of the states that are allowed after a crash.

use std::time::Instant;

/// Keys that belong to one owner.
pub const SLOTS: usize = 24;
/// Values are padded to one of these lengths, at least.
const LENGTHS: [usize; 6] = [0, 16, 60, 100, 1000, 3000];

/// Pseudo-random numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 24
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The key in a slot of an owner.
pub fn key(owner: &str, slot: usize) -> Vec<u8> {
    format!("{owner}:{slot}").into_bytes()
}

/// The value that unit `number` of an owner writes into a slot. Each value is different, so that it identifies its
/// writer, and so that long values are checked to the last byte.
pub fn value(owner: &str, number: u64, slot: usize) -> Vec<u8> {
    let mut bytes = format!("{owner} {number} {slot} ").into_bytes();
    let length = LENGTHS[(number as usize * 7 + slot) % LENGTHS.len()];
    for i in bytes.len()..length {
        bytes.push((i as u64 * 31 + number) as u8);
    }
    bytes
}

/// The number of the unit that wrote the value found in a slot.
pub fn written_by(owner: &str, slot: usize, found: &[u8]) -> Result<u64, String> {
    let damaged = || format!("{owner}:{slot} holds {:?}", String::from_utf8_lossy(found));
    let number = found.split(|b| *b == b' ').nth(1).and_then(|n| std::str::from_utf8(n).ok());
    let number = number.and_then(|n| n.parse().ok()).ok_or_else(damaged)?;
    if found == value(owner, number, slot) { Ok(number) } else { Err(damaged()) }
}

/// Writer of each slot's value; `None` = absent.
pub type State = [Option<u64>; SLOTS];

/// A request or a transaction: all or nothing.
#[derive(Debug)]
pub struct Unit {
    pub number: u64,
    /// Slots, and whether they are written or deleted.
    pub changes: Vec<(usize, bool)>,
}

/// An owner's keys over all rounds. Only the owner writes them, so it knows the order.
pub struct Owner {
    pub name: String,
    /// Whether units that are not on disk may be lost.
    pub may_lose: bool,
    /// The state at the start of the round.
    pub base: State,
    /// The units that were sent since.
    pub units: Vec<Unit>,
    /// The number of these units that were acknowledged.
    pub acknowledged: usize,
    /// The time at which each of them was acknowledged, if units may be lost.
    acknowledged_at: Vec<Instant>,
    /// The number of acknowledged units that must be there although others may be lost.
    must_keep: usize,
    pub last_number: u64,
}

impl Owner {
    pub fn new(name: String, may_lose: bool) -> Owner {
        Owner {
            name,
            may_lose,
            base: [None; SLOTS],
            units: Vec::new(),
            acknowledged: 0,
            acknowledged_at: Vec::new(),
            must_keep: 0,
            last_number: 0,
        }
    }

    /// Records that the next unit was acknowledged.
    pub fn acknowledge(&mut self) {
        self.acknowledged += 1;
        if self.may_lose {
            self.acknowledged_at.push(Instant::now());
        }
    }

    /// Records that units that were acknowledged before this moment must not be lost.
    pub fn must_keep_before(&mut self, moment: Instant) {
        self.must_keep = self.acknowledged_at.partition_point(|at| *at < moment);
    }

    /// Generates the next unit.
    pub fn next(&mut self, random: &mut Random, most: u64) -> &Unit {
        self.last_number += 1;
        let changes = (0..1 + random.below(most))
            .map(|_| (random.below(SLOTS as u64) as usize, random.below(5) > 0))
            .collect();
        self.units.push(Unit { number: self.last_number, changes });
        self.units.last().expect("just pushed")
    }

    /// Checks the state after a crash: it must be that of a prefix of the sent units, with all that were acknowledged.
    /// The next round starts from it. Returns the number of units in it that were not acknowledged.
    pub fn check(&mut self, found: &State) -> Result<usize, String> {
        let mut state = self.base;
        let least = if self.may_lose { self.must_keep } else { self.acknowledged };
        let mut matches = Vec::new();
        for done in 0..=self.units.len() {
            if state == *found {
                matches.push(done);
            }
            if let Some(unit) = self.units.get(done) {
                for &(slot, present) in &unit.changes {
                    state[slot] = present.then_some(unit.number);
                }
            }
        }
        match matches.last() {
            Some(&done) if done >= least => {
                self.base = *found;
                self.units.clear();
                self.acknowledged_at.clear();
                self.must_keep = 0;
                let acknowledged = std::mem::take(&mut self.acknowledged);
                Ok(done.saturating_sub(acknowledged))
            }
            _ => Err(format!(
                "{}: {} of {} units were acknowledged; what is there is the state after {matches:?}.\n\
                 found {found:?}\nbefore {:?}\nunits {:?}",
                self.name,
                self.acknowledged,
                self.units.len(),
                self.base,
                self.units
            )),
        }
    }
}

/// An attempt to write keys 0 and 1 of a pair, which every client always writes together.
pub struct Attempt {
    pub number: u64,
    pub sent: Instant,
    pub acknowledged: Option<Instant>,
    pub failed: bool,
}

/// Checks a pair after a crash: both keys are from one attempt, it was not refused, and no acknowledged attempt
/// came after it. `base` is the writer of the state before.
pub fn check_pair(base: Option<u64>, attempts: &[Attempt], found: [Option<u64>; 2]) -> Result<(), String> {
    if found[0] != found[1] {
        return Err(format!("torn: {found:?}"));
    }
    let acknowledged = |a: &&Attempt| a.acknowledged.is_some() && !a.failed;
    let this = attempts.iter().find(|a| Some(a.number) == found[0]);
    let later = match this {
        None if found[0] == base => attempts.iter().find(acknowledged),
        None => return Err(format!("{found:?} was never written in this round, nor there before")),
        Some(this) if this.failed => return Err(format!("{found:?} was refused")),
        Some(this) => {
            let end = this.acknowledged;
            attempts.iter().filter(acknowledged).find(|a| end.is_some_and(|end| a.sent > end))
        }
    };
    match later {
        Some(later) => Err(format!("{found:?} is older than {}, which was acknowledged", later.number)),
        None => Ok(()),
    }
}
