//! The `ring0` engine: page tables of this process's own.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use bedplate_ring0::Process;

use super::{ChildWork, Engine, Kind, Shape, Statistics, Work};
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
        if shape.reserve > shape.bytes {
            let reason = "its memories do not grow: leave out Builder::reserve".to_owned();
            return Err(Error::Unavailable { engine: Kind::Ring0, reason });
        }
        super::check_shape(Kind::Ring0, shape, ring0::SNAPSHOTS, false)?;
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

    fn bytes(&self) -> usize {
        self.space.bytes()
    }

    fn grow(&self, bytes: usize) -> Result<Range<usize>, Error> {
        let len = self.bytes();
        super::grown(len, bytes, len).map(|grown| len..grown)
    }

    fn spawn(&self, work: Work) -> Result<Task, Error> {
        ring0::spawn(&self.space, work)
    }

    fn spawn_in_child(&self, _: ChildWork<'_>) -> Result<Task, Error> {
        let reason = "its tasks run in this process (Memory::spawn)".to_owned();
        Err(Error::Unavailable { engine: Kind::Ring0, reason })
    }

    fn settle(&self) {
        self.background.settle();
    }

    fn statistics(&self) -> Statistics {
        self.space.statistics()
    }
}
