//! A client's reader of the cache: the daemon serves its fetches and releases.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;

use super::budget::Budget;
use crate::cache::{Arrival, Charge, Place, Recipient, Span};
use crate::lease::Lease;
use crate::limits::{FRAMES_PER_SEGMENT, SEGMENTS_FOR_A_READY_ONE};
use crate::memory::FRAME;
use crate::service::Shared;
use crate::source::File;
use crate::wire::{Received, Reply, Request, Socket, malformed};
use crate::{Error, Result};

struct ToClient {
    socket: Arc<Socket>,
    /// The segments whose memory the client has received.
    sent: Vec<u32>,
}

impl Recipient for ToClient {
    fn arrive(&mut self, Arrival { fetch, place }: Arrival) -> Option<Waker> {
        let is_sent = match place {
            Ok(Place { number, segment, at }) => {
                let reply = Reply::Fetched { fetch, segment: number, at: at as u64 };
                if self.sent.contains(&number) {
                    self.socket.send_now(&reply, &[])
                } else {
                    self.sent.push(number);
                    self.socket.send_now(&reply, &[segment.lend().as_fd()])
                }
            }
            Err(error) => {
                let error = error.raw_os_error() as u32;
                self.socket.send_now(&Reply::NotFetched { fetch, error }, &[])
            }
        };
        // The socket has room for the answers to all fetches that a reader may have, unless the client receives nothing at all.
        if !is_sent {
            self.socket.end();
        }
        // The client's own process wakes its tasks.
        None
    }
}

/// Makes memory before there is a reader, so that the first reader does not wait for it. A daemon with a small budget keeps none
/// ready.
pub fn keep_memory_ready(shared: &Shared, budget: &Budget) {
    let bytes = (FRAMES_PER_SEGMENT * FRAME) as u64;
    if budget.all() < SEGMENTS_FOR_A_READY_ONE * bytes {
        return;
    }
    let kept = budget.take(bytes, "the memory that is kept ready").and_then(|charge| {
        shared.cache()?.keep_ready(Box::new(charge));
        Ok(())
    });
    if let Err(error) = kept {
        tracing::warn!("no memory is kept ready: {error}");
    }
}

/// Serves a reader until its client is gone.
pub fn serve(
    socket: &Arc<Socket>,
    shared: &Arc<Shared>,
    budget: &Budget,
    descriptors: Vec<OwnedFd>,
) -> Result<()> {
    let [file] = <[_; 1]>::try_from(descriptors).map_err(|_| malformed("does not have a file"))?;
    let file = File::reopened(file)
        .map_err(|error| Error::Refused(format!("the file cannot be read by another process: {error}")))?;
    let recipient = ToClient { socket: socket.clone(), sent: Vec::new() };
    // The memory of a cached file is charged to the reader that needs more, for as long as the file is cached.
    let charge = |bytes| -> Result<Charge> { Ok(Box::new(budget.take(bytes, "the memory of the cache")?)) };
    let attached = shared.cache()?.attach(file, &charge, Box::new(recipient))?;
    // The lease ends before the reader is detached, because other readers get its frames at that time.
    let lease = Lease::new()?;
    let (identity, stamp) = attached.version.to_words();
    socket.send(&Reply::Reader { identity, stamp, unit: attached.unit }, &[lease.lend().as_fd()])?;
    socket.set_patience(None);
    loop {
        let Received { message, descriptors } = socket.receive::<Request>()?;
        match message {
            Request::Fetch { fetch, start, len } if descriptors.is_empty() => {
                attached.fetch(fetch, Span { start, len })?;
            }
            Request::Release { fetch } if descriptors.is_empty() => attached.release(fetch),
            _ => return Err(malformed("is none of a reader's")),
        }
    }
}
