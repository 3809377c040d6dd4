//! What a snapshot and the first write to a page after it cost in instructions, where the time stamp counts them
//! (`bedplate vm run --icount`).
//!
//! That guest has one processor, so its count has the instructions of all threads that work for the operation.

use bedplate_snapshot::Memory;

use crate::{Fields, Result};

/// What operations cost in one round.
pub type Costs = Vec<(String, f64)>;

pub const SNAPSHOT: &str = "snapshot: the whole call";
pub const FIRST_WRITE: &str = "first write to a page after it";

/// A row that says why nothing was counted.
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
    let mut snapshot_cost = 0.0;
    let held = Held::take(memory, |task| {
        let mut taken = None;
        snapshot_cost = clock.time(1, || {
            taken = Some(memory.spawn(task)?);
            Ok(())
        })?;
        taken.ok_or_else(|| Error::engine("no snapshot was taken".to_owned()))
    })?;
    let pages = WRITTEN.min(memory.words().len() / WORDS_OF_A_PAGE);
    let write_cost = clock.time(pages, || {
        memory.words().iter().step_by(WORDS_OF_A_PAGE).take(pages).for_each(|word| {
            word.fetch_add(1, Ordering::Relaxed);
        });
        Ok(())
    })?;
    held.end()?;
    Ok(vec![(SNAPSHOT.to_owned(), snapshot_cost), (FIRST_WRITE.to_owned(), write_cost)])
}

#[cfg(not(target_arch = "x86_64"))]
pub fn round(_: &Memory) -> Result<Costs> {
    Ok(Costs::new())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::snapshot::sides::FORK;

    #[test]
    fn both_operations_have_a_cost() {
        let memory = FORK.memory(1 << 20).unwrap();
        let costs = FORK.alone(&memory, || round(&memory)).unwrap();
        let names: Vec<_> = costs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [SNAPSHOT, FIRST_WRITE]);
        assert!(costs.iter().all(|(_, cost)| *cost > 0.0), "{costs:?}");
    }
}
