//! The snapshots there are: what the gate guards.

use super::SNAPSHOTS;
use super::target::Target;
use crate::Error;

pub(super) struct Slot {
    pub epoch: u32,
    pub target: Target,
}

#[derive(Default)]
pub(super) struct Snapshots {
    /// The newest snapshot's.
    pub epoch: u32,
    pub slots: [Option<Slot>; SNAPSHOTS],
}

impl Snapshots {
    pub fn active(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten()
    }

    /// A free slot.
    pub fn free(&self) -> Result<usize, Error> {
        let free = self.slots.iter().position(Option::is_none);
        free.ok_or(Error::TooManySnapshots { limit: SNAPSHOTS })
    }
}
