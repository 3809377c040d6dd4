//! A reader's way to a cache in its own process.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use super::mailbox::{Mailbox, Sender};
use super::{Arrived, Link};
use crate::cache::{Arrival, Attached, Cache, Charge, Span};
use crate::source::File;
use crate::{RangeReader, Result};

/// The memory of a process's own cache is not counted.
struct Uncounted;

impl Charge for Uncounted {
    fn add(&mut self, _bytes: u64) -> Result<()> {
        Ok(())
    }
}

/// The way.
pub struct Local {
    attached: Attached,
    arrivals: Arc<Mailbox>,
}

impl Local {
    /// A reader of a file.
    pub fn open(cache: &Arc<Cache>, file: File) -> Result<RangeReader> {
        let arrivals = Arc::new(Mailbox::default());
        let attached = cache.attach(file, Box::new(Uncounted), Box::new(Sender(arrivals.clone())))?;
        let (version, unit) = (attached.version, attached.unit);
        Ok(RangeReader::new(Box::new(Self { attached, arrivals }), version, unit))
    }
}

impl Link for Local {
    fn fetch(&self, fetch: u32, span: Span) -> Result<()> {
        self.attached.fetch(fetch, span)
    }

    fn release(&self, fetch: u32) -> bool {
        self.attached.release(fetch);
        true
    }

    fn receive(&self, waits: bool) -> Result<Option<Arrived>> {
        let Some(Arrival { fetch, place }) = self.arrivals.take(waits)? else { return Ok(None) };
        let place = match place {
            Ok(place) => Ok((place.frames.view()?, place.at)),
            Err(error) => Err(error),
        };
        Ok(Some(Arrived { fetch, place }))
    }

    fn wake_at_arrival(&self, waker: Waker) -> Result<()> {
        self.arrivals.wake_at_arrival(waker);
        Ok(())
    }

    fn end(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
