//! A reader's way to a cache in its own process.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Arrived, Link};
use crate::cache::{Arrival, Attached, Cache, Charge, Recipient, Span};
use crate::source::File;
use crate::{Error, RangeReader, Result};

/// The memory of a process's own cache is not counted.
struct Uncounted;

impl Charge for Uncounted {
    fn add(&mut self, _bytes: u64) -> Result<()> {
        Ok(())
    }
}

struct ToReader(Sender<Arrival>);

impl Recipient for ToReader {
    fn arrive(&mut self, arrival: Arrival) {
        // A reader that is gone hears nothing.
        let _ = self.0.send(arrival);
    }
}

/// The way.
pub struct Local {
    attached: Attached,
    arrivals: Mutex<Receiver<Arrival>>,
}

impl Local {
    /// A reader of a file.
    pub fn open(cache: &Arc<Cache>, file: File) -> Result<RangeReader> {
        let (sender, arrivals) = channel();
        let attached = cache.attach(file, Box::new(Uncounted), Box::new(ToReader(sender)))?;
        let (version, unit) = (attached.version, attached.unit);
        Ok(RangeReader::new(Box::new(Self { attached, arrivals: Mutex::new(arrivals) }), version, unit))
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
        let arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let arrival = if waits {
            arrivals.recv().map_err(|_| Error::Gone)?
        } else {
            match arrivals.try_recv() {
                Ok(arrival) => arrival,
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(Error::Gone),
            }
        };
        let Arrival { fetch, place } = arrival;
        let place = match place {
            Ok(place) => Ok((place.frames.view()?, place.at)),
            Err(error) => Err(error),
        };
        Ok(Some(Arrived { fetch, place }))
    }

    fn end(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
