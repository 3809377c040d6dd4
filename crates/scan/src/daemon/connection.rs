//! One connection: it serves the client's requests and owns the objects that the client has opened.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::budget::{Budget, Share};
use super::{Limits, files, reader};
use crate::engine::Kind;
use crate::limits::{POOL_CHUNK_BYTES, UNCOUNTED};
use crate::memory::{FRAME, Pages};
use crate::plan::{Pending, Range};
use crate::service::{AccessKey, Opened, Shared, Terms};
use crate::source::File;
use crate::wire::{DESCRIPTORS, Received, Reply, Request, Socket, malformed};
use crate::{Error, Result, Scan};

/// The time in which a client must send its request, and the time in which it must receive a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection.
pub struct Connection {
    socket: Arc<Socket>,
    shared: Arc<Shared>,
    budget: Budget,
    limits: Limits,
}

impl Connection {
    /// Makes the connection of a client that has just connected.
    pub fn new(socket: Arc<Socket>, shared: Arc<Shared>, budget: Budget, limits: Limits) -> Self {
        Self { socket, shared, budget, limits }
    }

    /// Serves the client's requests until the client is gone.
    ///
    /// # Errors
    /// The reason why the connection ends. The client has received it.
    pub fn run(self) -> Result<()> {
        self.socket.set_patience(Some(PATIENCE));
        let result = self.talk();
        match &result {
            Ok(()) | Err(Error::Gone | Error::System { .. }) => {}
            // The client's own error says that the service refuses.
            Err(Error::Refused(text)) => {
                let _ = self.socket.send(&Reply::Failed { invalid: false, text: text.clone() }, &[]);
            }
            Err(error) => {
                let invalid = matches!(error, Error::Invalid(_));
                let _ = self.socket.send(&Reply::Failed { invalid, text: error.to_string() }, &[]);
            }
        }
        result
    }

    fn talk(&self) -> Result<()> {
        loop {
            let Received { message, descriptors } = self.socket.receive::<Request>()?;
            if message == Request::Reader {
                return reader::serve(&self.socket, &self.shared, &self.budget, descriptors);
            }
            if !descriptors.is_empty() {
                return Err(malformed("has descriptors where there are none"));
            }
            match message {
                Request::About => self.about()?,
                Request::Names { key } => self.names(AccessKey::from_bytes(key))?,
                Request::Open { page_size, ring_bytes, terms, ranges, files } => {
                    // The daemon checks all bounds before it does any work for the request.
                    let wrong = || Error::Invalid("a number is too large".into());
                    let (page, ring) = (page_size.try_into(), ring_bytes.try_into());
                    let scan = Scan::of::<&str>([]).page_size(page.map_err(|_| wrong())?)?;
                    let scan = scan.ring_bytes(ring.map_err(|_| wrong())?)?.pages_held(terms.pages_held)?;
                    let frames = scan.frames()?;
                    let _share = self.budget.take((frames * FRAME) as u64, "the memory of the channel")?;
                    let (files, _) = files::receive(&self.socket, files, self.limits.files)?;
                    files::check_size(&files, ranges.as_deref())?;
                    let opened = self.shared.open(files, ranges, scan.page_size, frames, terms)?;
                    return self.hold(opened);
                }
                Request::Found { memory_bytes, terms, files } => {
                    return self.found(memory_bytes, terms, files);
                }
                Request::Join { key, page_size, files } => {
                    let (proof, _) = files::receive(&self.socket, files, self.limits.files)?;
                    return self.join(AccessKey::from_bytes(key), page_size, proof);
                }
                Request::Ring
                | Request::Reader
                | Request::Fetch { .. }
                | Request::Release { .. }
                | Request::Files(_)
                | Request::Ranges(_)
                | Request::Cancel(_)
                | Request::Watch => {
                    return Err(malformed("is not one to begin with"));
                }
            }
        }
    }

    fn about(&self) -> Result<()> {
        let (engine, about) = self.shared.engine();
        let engine = match engine {
            Kind::Uring => 0,
            Kind::Threads => 1,
        };
        let statistics = self.shared.statistics().to_words();
        self.socket.send(&Reply::About { engine, about: about.to_owned(), statistics }, &[])
    }

    fn names(&self, key: AccessKey) -> Result<()> {
        let all = self.shared.names(key)?;
        let of = all.len() as u32;
        if all.is_empty() {
            return self.socket.send(&Reply::Names { names: all, of }, &[]);
        }
        let mut parts = all.chunks(DESCRIPTORS);
        parts.try_for_each(|names| self.socket.send(&Reply::Names { names: names.to_vec(), of }, &[]))
    }

    fn found(&self, memory_bytes: u64, terms: Terms, count: u32) -> Result<()> {
        let _share = self.budget.take(memory_bytes, "the memory of the pool")?;
        let (files, names) = files::receive(&self.socket, count, self.limits.files)?;
        files::check_size(&files, None)?;
        let chunks: u64 = files.iter().map(|file| file.size.div_ceil(FRAME as u64)).sum();
        let counted = chunks.saturating_sub(UNCOUNTED as u64);
        let what = format!("the list of the pool's {chunks} chunks of 2 MiB");
        let _list = self.budget.take(counted * POOL_CHUNK_BYTES as u64, &what)?;
        let founded = self.shared.found(files, names, memory_bytes as usize, terms)?;
        let reply = Reply::Pool { key: founded.key.to_bytes(), memory_bytes: founded.memory_bytes() as u64 };
        self.socket.send(&reply, &[])?;
        self.socket.set_patience(None);
        // The only event of a pool's connection is its end.
        match self.socket.receive::<Request>() {
            Ok(_) => Err(malformed("is about a pool, of which there is nothing to say")),
            Err(error) => Err(error),
        }
    }

    fn join(&self, key: AccessKey, page_size: u64, proof: Vec<File>) -> Result<()> {
        let page_size = usize::try_from(page_size).unwrap_or(usize::MAX);
        let opened = self.shared.join(key, page_size, Some(&proof))?;
        drop(proof);
        self.hold(opened)
    }

    /// Sends a channel to the client, and keeps it until the client is gone.
    fn hold(&self, opened: Opened) -> Result<()> {
        let pages = match opened.frames.pages() {
            Pages::Reserved => 0,
            Pages::Transparent => 1,
            Pages::Normal => 2,
        };
        let descriptors = [opened.board.file().as_fd(), opened.frames.lend().as_fd()];
        self.socket.send(&Reply::Channel { pages, terms: opened.terms }, &descriptors)?;
        self.socket.set_patience(None);
        let mut announced = self.budget.take(0, RANGES)?;
        charge(&mut announced, &opened.pending, 0)?;
        loop {
            let Received { message, descriptors } = self.socket.receive::<Request>()?;
            match message {
                Request::Ring if descriptors.is_empty() => opened.link.ring(),
                Request::Ranges(ranges) if descriptors.is_empty() => {
                    let added = files::check_size(&[], Some(&ranges))
                        .and_then(|()| charge(&mut announced, &opened.pending, ranges.len()))
                        .and_then(|()| opened.link.notify_ranges(&ranges));
                    let reply = match added {
                        Ok(()) => Reply::Done,
                        Err(error) => failed(error)?,
                    };
                    self.socket.send(&reply, &[])?;
                }
                Request::Cancel(ranges) if descriptors.is_empty() => {
                    // Each cancelled range may leave one more piece.
                    let cancelled = charge(&mut announced, &opened.pending, ranges.len())
                        .and_then(|()| opened.link.cancel_ranges(&ranges));
                    let reply = match cancelled {
                        Ok(cancelled) => Reply::Cancelled(cancelled),
                        Err(error) => failed(error)?,
                    };
                    self.socket.send(&reply, &[])?;
                }
                Request::Watch if descriptors.is_empty() => match opened.link.descriptor(&opened.board) {
                    Ok(descriptor) => self.socket.send(&Reply::Done, &[descriptor.as_fd()])?,
                    Err(error) => {
                        let invalid = matches!(error, Error::Invalid(_));
                        self.socket.send(&Reply::Failed { invalid, text: error.to_string() }, &[])?;
                    }
                },
                _ => return Err(malformed("is none of a channel's")),
            }
        }
    }
}

/// The name of this memory in error texts.
const RANGES: &str = "the list of ranges that are announced and not read yet";

/// Charges the memory of a channel's ranges, with `more` additional ones. The count is slightly old: ranges that were read since
/// then are still counted.
fn charge(share: &mut Share, pending: &Pending, more: usize) -> Result<()> {
    let ranges = (pending.count() + more + 1).saturating_sub(UNCOUNTED);
    share.resize((ranges * size_of::<Range>()) as u64, RANGES)
}

/// The reply to a request that failed, unless the service is gone.
fn failed(error: Error) -> Result<Reply> {
    match error {
        Error::Gone => Err(Error::Gone),
        Error::Refused(text) => Ok(Reply::Failed { invalid: false, text }),
        error => Ok(Reply::Failed { invalid: true, text: error.to_string() }),
    }
}
