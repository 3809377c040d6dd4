//! The `ring0` engine: page tables of this process's own.

use std::ptr::NonNull;
use std::sync::Arc;

use bedplate_ring0::Process;

use super::{Engine, Kind, Shape, Statistics, Work};
use crate::ring0::{Background, Space};
use crate::task::Task;
use crate::{Error, ring0};

/// A memory that only ring 0 can use.
pub(crate) struct Ring0 {
    // Dropped first: it works on the memory.
    background: Background,
    space: Arc<Space>,
}

impl Ring0 {
    pub(crate) fn new(shape: Shape) -> Result<Self, Error> {
        super::check_at_once(Kind::Ring0, shape, ring0::SNAPSHOTS)?;
        let space = Space::new(process()?, shape)?;
        Ok(Self { background: Background::start(&space, shape.copiers)?, space })
    }
}

/// This process in ring 0, built if it is not.
pub(crate) fn process() -> Result<&'static Process, Error> {
    Process::this().map_err(|error| Error::Unavailable { engine: Kind::Ring0, reason: error.to_string() })
}

impl Engine for Ring0 {
    fn kind(&self) -> Kind {
        Kind::Ring0
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.space.base() as *mut u8).expect("no memory is at address 0")
    }

    fn spawn(&self, work: Work) -> Result<Task, Error> {
        ring0::spawn(&self.space, work)
    }

    fn settle(&self) {
        self.background.settle();
    }

    fn statistics(&self) -> Statistics {
        self.space.statistics()
    }
}
