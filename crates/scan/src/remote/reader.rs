//! A reader's connection to the cache of another process.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use bedplate_threads::forks::Process;

use super::{Remote, answer};
use crate::cache::Span;
use crate::lease::LeaseView;
use crate::limits::MAX_SEGMENTS;
use crate::memory::{FRAME, SegmentView};
use crate::reactor::Watched;
use crate::reader::{Arrived, Link};
use crate::source::FileVersion;
use crate::wire::{Received, Reply, Request, Socket, malformed};
use crate::{Error, RangeReader, Result};

/// The connection. A segment of the cache's memory is mapped when the first range in it arrives.
struct Connection {
    socket: Socket,
    lease: LeaseView,
    segments: Mutex<Vec<Option<Arc<SegmentView>>>>,
    watched: Mutex<Watched>,
    process: Process,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The parent's reactor waits for the parent's own connection with the same epoll instance.
        if self.process.is_current() {
            // A child that was forked during the creation has a copy, which does not keep the connection open.
            self.socket.end();
            self.watched.get_mut().unwrap_or_else(PoisonError::into_inner).forget(self.socket.as_fd());
        }
    }
}

impl Remote {
    /// The same as [`Service::reader_of`](crate::Service::reader_of). The daemon opens the file again, by the descriptor.
    pub fn reader_of(&self, file: BorrowedFd<'_>) -> Result<RangeReader> {
        let socket = self.socket()?;
        socket.send(&Request::Reader, &[file])?;
        let Received { message, descriptors } = answer(&socket)?;
        let (Reply::Reader { identity, stamp, unit }, Ok([lease])) =
            (message, <[_; 1]>::try_from(descriptors))
        else {
            return Err(malformed("is not the answer to what was asked"));
        };
        let lease = LeaseView::open(lease)?;
        if !unit.is_power_of_two() || unit as usize > FRAME {
            return Err(malformed("has a unit that is none"));
        }
        let version = FileVersion::from_words(identity, stamp);
        let connection = Connection {
            socket,
            lease,
            segments: Mutex::default(),
            watched: Mutex::default(),
            process: Process::current(),
        };
        Ok(RangeReader::new(Box::new(connection), version, unit))
    }
}

impl Connection {
    /// The memory of a segment. Its descriptor comes with the first range in it.
    fn mapping(&self, number: u32, received: Received<Reply>) -> Result<Arc<SegmentView>> {
        let number = number as usize;
        if number >= MAX_SEGMENTS {
            return Err(malformed("has a segment that is none"));
        }
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        if segments.len() <= number {
            segments.resize(number + 1, None);
        }
        let mut descriptors = received.descriptors.into_iter();
        match (&segments[number], descriptors.next(), descriptors.next()) {
            (Some(mapping), None, None) => Ok(mapping.clone()),
            (None, Some(memory), None) => {
                let mapping = Arc::new(SegmentView::of(memory)?);
                segments[number] = Some(mapping.clone());
                Ok(mapping)
            }
            _ => Err(malformed("does not have the descriptors of a range")),
        }
    }
}

impl Link for Connection {
    fn fetch(&self, fetch: u32, Span { start, len }: Span) -> Result<()> {
        self.socket.send(&Request::Fetch { fetch, start, len }, &[])
    }

    fn release(&self, fetch: u32) -> bool {
        self.socket.send_now(&Request::Release { fetch }, &[])
    }

    fn receive(&self, waits: bool) -> Result<Option<Arrived>> {
        let received = match waits {
            true => self.socket.receive()?,
            false => match self.socket.receive_now()? {
                Some(received) => received,
                None => return Ok(None),
            },
        };
        match received.message {
            Reply::Fetched { fetch, segment, at } => {
                let at = usize::try_from(at).map_err(|_| malformed("has a place that is none"))?;
                Ok(Some(Arrived { fetch, place: Ok((self.mapping(segment, received)?, at)) }))
            }
            Reply::NotFetched { fetch, error } => {
                let error = rustix::io::Errno::from_raw_os_error(error as i32);
                Ok(Some(Arrived { fetch, place: Err(error) }))
            }
            Reply::Failed { text, .. } => Err(Error::Refused(text)),
            _ => Err(malformed("is none of a reader's")),
        }
    }

    fn wake_at_arrival(&self, waker: Waker) -> Result<()> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.wake_when_readable(self.socket.as_fd(), waker)
    }

    fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    fn end(&self) {
        self.socket.end();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
