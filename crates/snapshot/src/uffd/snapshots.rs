//! The active snapshots, which the gate guards.

use super::SNAPSHOTS;
use super::target::Target;
use crate::Error;

pub(super) struct Slot {
    pub epoch: u32,
    pub target: Target,
}

#[derive(Default)]
pub(super) struct Snapshots {
    /// The epoch of the newest snapshot.
    pub epoch: u32,
    /// The era: number of times that the epochs have wrapped around.
    pub era: u32,
    pub slots: [Option<Slot>; SNAPSHOTS],
}

impl Snapshots {
    pub fn active(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten()
    }

    /// The active snapshots with their slots.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(number, slot)| slot.as_ref().map(|slot| (number, slot)))
    }

    /// A free slot.
    pub fn free(&self) -> Result<usize, Error> {
        let free = self.slots.iter().position(Option::is_none);
        free.ok_or(Error::TooManySnapshots { limit: SNAPSHOTS })
    }
}
