//! The instructions of a snapshot and of the first write to a page after it. They are counted where the time stamp counts
//! instructions (`bedplate vm run --icount`).
//!
//! That guest has one processor, so its count has the instructions of all threads that work for the operation.

use bedplate_snapshot::Memory;
use serde::{Deserialize, Serialize};

use crate::{Fields, Result};

/// The costs of both operations in one round, in instructions.
#[derive(Debug, Serialize, Deserialize)]
pub struct Costs {
    pub snapshot: f64,
    pub first_write: f64,
}

/// An operation's name, and its cost.
pub type Operation = (&'static str, fn(&Costs) -> f64);

pub const SNAPSHOT: Operation = ("snapshot: the whole call", |costs| costs.snapshot);
pub const FIRST_WRITE: Operation = ("first write to a page after it", |costs| costs.first_write);

/// A row with the reason why nothing was counted.
pub fn not_counted() -> Fields {
    let why = "not counted: the time stamp counts no instructions here, but in \
               `bedplate vm run --icount --memory 4G -- bedplate bench htap`";
    Fields::new().with("instructions", why)
}

/// Whether instructions are counted here.
#[cfg(target_arch = "x86_64")]
pub fn are_counted() -> bool {
    use crate::ring0::clock::Clock;
    Clock::detect() == Clock::Instructions
}

#[cfg(not(target_arch = "x86_64"))]
pub fn are_counted() -> bool {
    false
}

/// Measures a round.
#[cfg(target_arch = "x86_64")]
pub fn round(memory: &Memory) -> Result<Costs> {
    use std::sync::atomic::Ordering;

    use crate::Error;
    use crate::ring0::WRITTEN;
    use crate::ring0::clock::Clock;
    use crate::snapshot::held::Held;
    use crate::snapshot::sides::WORDS_OF_A_PAGE;

    memory.settle();
    let clock = Clock::detect();
    let mut snapshot = 0.0;
    let held = Held::take(memory, |task| {
        let mut taken = None;
        snapshot = clock.time(1, || {
            taken = Some(memory.spawn(task)?);
            Ok(())
        })?;
        taken.ok_or_else(|| Error::engine("no snapshot was taken".to_owned()))
    })?;
    let pages = WRITTEN.min(memory.words().len() / WORDS_OF_A_PAGE);
    let first_write = clock.time(pages, || {
        memory.words().iter().step_by(WORDS_OF_A_PAGE).take(pages).for_each(|word| {
            word.fetch_add(1, Ordering::Relaxed);
        });
        Ok(())
    })?;
    held.end()?;
    Ok(Costs { snapshot, first_write })
}

#[cfg(not(target_arch = "x86_64"))]
pub fn round(_: &Memory) -> Result<Costs> {
    Err(crate::Error::engine("instructions are counted on x86-64 only".to_owned()))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::snapshot::sides::FORK;

    #[test]
    fn both_operations_have_a_cost() {
        let memory = FORK.memory(1 << 20).unwrap();
        let costs = FORK.alone(&memory, || round(&memory)).unwrap();
        for (name, cost) in [SNAPSHOT, FIRST_WRITE] {
            assert!(cost(&costs) > 0.0, "{name}: {costs:?}");
        }
    }
}
