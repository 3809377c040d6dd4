//! The link of a reader to a cache in its own process.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use super::mailbox::{Mailbox, Sender};
use super::{Arrived, Link};
use crate::cache::{Arrival, Attached, Cache, Charge, Span};
use crate::source::File;
use crate::{RangeReader, Result};

/// The link.
pub struct Local {
    attached: Attached,
    arrivals: Arc<Mailbox>,
}

impl Local {
    /// Opens a reader of a file.
    ///
    /// # Errors
    /// The same as those of [`Cache::attach`].
    pub fn open(cache: &Arc<Cache>, file: File) -> Result<RangeReader> {
        let arrivals = Arc::new(Mailbox::default());
        // The service does not charge for memory of a cache in the reader's own process.
        let uncounted = |_| -> Result<Charge> { Ok(Box::new(())) };
        let attached = cache.attach(file, &uncounted, Box::new(Sender(arrivals.clone())))?;
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
            Ok(place) => Ok((place.segment.view()?, place.at)),
            Err(error) => Err(error),
        };
        Ok(Some(Arrived { fetch, place }))
    }

    fn wake_at_arrival(&self, waker: Waker) -> Result<()> {
        self.arrivals.wake_at_arrival(waker);
        Ok(())
    }

    /// Only this process releases the ranges.
    fn is_held(&self) -> bool {
        true
    }

    fn end(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
