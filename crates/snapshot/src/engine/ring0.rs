//! The `ring0` engine of a [`Memory`](crate::Memory). Its tasks run in threads of this process, in ring 0. Programs
//! that fork use another one, [`Region`](crate::ring0::Region).

use std::sync::Arc;

use super::{Engine, Kind, Options, Statistics, Threads, Work};
use crate::ring0::{Background, Space, process};
use crate::task::Task;
use crate::{Error, PAGE, ring0};

/// A memory that only ring 0 can use.
pub(super) struct Ring0 {
    // Dropped first, because it works on the memory.
    background: Background,
    space: Arc<Space>,
}

impl Ring0 {
    pub fn new(options: Options) -> Result<Self, Error> {
        if options.reserve > options.bytes {
            let reason = "its memories do not grow: leave out Builder::reserve".to_owned();
            return Err(Error::Unavailable { engine: Kind::Ring0, reason });
        }
        let space = Space::new(process()?, options)?;
        Ok(Self { background: Background::start(&space, options.copiers)?, space })
    }
}

impl Threads for Ring0 {}

impl Engine for Ring0 {
    fn kind(&self) -> Kind {
        Kind::Ring0
    }

    fn base(&self) -> usize {
        self.space.base() as usize
    }

    fn pages(&self) -> usize {
        self.space.bytes() / PAGE
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
