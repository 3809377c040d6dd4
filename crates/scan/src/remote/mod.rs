//! The client's side of a service that is another process. The daemon returns a channel as a board and frames, and
//! from then on the worker uses it like a channel of its own process.
//!
//! Each open object has a connection of its own. The connection ends with the object, and with this process, however that ends.
//! The client opens the files with its own rights, and sends their descriptors.

mod reader;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::board::Board;
use crate::engine::Kind;
use crate::memory::{FRAME, Mapping, Pages};
use crate::plan::{Plan, Range};
use crate::service::{AccessKey, Statistics, Terms};
use crate::source::{File, Source};
use crate::wire::{DESCRIPTORS, RANGES, Received, Reply, Request, Socket, malformed};
use crate::worker::{Cancelled, Channel, Link, Memory};
use crate::{Error, Result, Scan};

/// A service that listens at a path.
pub struct Remote {
    path: PathBuf,
    /// The longest time that each step may take.
    patience: Duration,
    engine: Kind,
    about: String,
    /// The statistics that the daemon sent last. A thread holds this lock only briefly.
    statistics: Mutex<Statistics>,
}

/// A pool of the daemon, which lasts as long as this object.
pub struct Founded {
    _socket: Socket,
    pub key: AccessKey,
    pub memory_bytes: usize,
}

impl Remote {
    /// Connects to the daemon at a path, and asks for its description.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self> {
        let failed = |error: Errno| Error::File { path: path.to_owned(), source: error.into() };
        let socket = Socket::connect(path, patience).map_err(failed)?;
        let (engine, about, statistics) = ask_about(&socket)?;
        Ok(Self { path: path.to_owned(), patience, engine, about, statistics: Mutex::new(statistics) })
    }

    /// The engine with which the daemon reads.
    pub fn engine(&self) -> Kind {
        self.engine
    }

    /// The description of the engine.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// The statistics of the daemon.
    pub fn statistics(&self) -> Statistics {
        let now = self.socket().and_then(|socket| ask_about(&socket));
        let mut last = self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok((_, _, statistics)) = now {
            *last = statistics;
        }
        *last
    }

    fn socket(&self) -> Result<Socket> {
        Socket::connect(&self.path, self.patience).map_err(|error| match error {
            // The daemon was there before, so it is gone now.
            Errno::CONNREFUSED | Errno::NOENT => Error::Gone,
            error => Error::System { what: "connecting to the scan service", source: error },
        })
    }

    /// The same as [`Service::open`](crate::Service::open).
    pub fn open(&self, scan: Scan) -> Result<Channel> {
        // The check is made here, so that the error refers to the caller's own options.
        scan.frames()?;
        let files = scan.sources.iter().map(File::open).collect::<Result<Vec<_>>>()?;
        let (first, more) = match scan.ranges {
            None => (None, Vec::new()),
            Some(mut ranges) => {
                let more = ranges.split_off(ranges.len().min(RANGES));
                (Some(ranges), more)
            }
        };
        let (page_size, ring_bytes) = (scan.page_size as u64, scan.ring_bytes as u64);
        let terms = Terms { is_watched: scan.is_watched, pages_held: scan.pages_held };
        let request =
            Request::Open { page_size, ring_bytes, terms, ranges: first, files: files.len() as u32 };
        let socket = self.socket()?;
        hand_over(&socket, &request, &files, &vec![Vec::new(); files.len()])?;
        let mut channel = channel(socket, files, true, scan.page_size)?;
        if !more.is_empty() {
            channel.notify_ranges(&more)?;
        }
        Ok(channel)
    }

    /// The same as [`Service::create_pool`](crate::Service::create_pool).
    pub fn found(&self, sources: &[Source], memory_bytes: usize, terms: Terms) -> Result<Founded> {
        let files = sources.iter().map(File::open).collect::<Result<Vec<_>>>()?;
        let names: Vec<_> = sources.iter().map(Source::name).collect();
        let request = Request::Found { memory_bytes: memory_bytes as u64, terms, files: files.len() as u32 };
        let socket = self.socket()?;
        hand_over(&socket, &request, &files, &names)?;
        match answer(&socket)?.message {
            Reply::Pool { key, memory_bytes } => Ok(Founded {
                _socket: socket,
                key: AccessKey::from_bytes(key),
                memory_bytes: memory_bytes as usize,
            }),
            _ => Err(malformed("is not the answer to what was asked")),
        }
    }

    /// The same as [`Service::join`](crate::Service::join). Opens the pool's files by their names, unless the caller has passed
    /// them, to prove that this process may read them.
    pub fn join(&self, key: AccessKey, files: Option<Vec<File>>, page_size: usize) -> Result<Channel> {
        let page_size = Scan::of::<Source>([]).page_size(page_size)?.page_size;
        let socket = self.socket()?;
        let files = match files {
            Some(files) => files,
            None => names(&socket, key)?.into_iter().map(by_name).collect::<Result<_>>()?,
        };
        let request =
            Request::Join { key: key.to_bytes(), page_size: page_size as u64, files: files.len() as u32 };
        hand_over(&socket, &request, &files, &vec![Vec::new(); files.len()])?;
        channel(socket, files, false, page_size)
    }
}

fn names(socket: &Socket, key: AccessKey) -> Result<Vec<Vec<u8>>> {
    hand_over(socket, &Request::Names { key: key.to_bytes() }, &[], &[])?;
    let mut all = Vec::new();
    loop {
        let Reply::Names { names, of } = answer(socket)?.message else {
            return Err(malformed("is not the answer to what was asked"));
        };
        let none = names.is_empty();
        all.extend(names);
        if all.len() >= of as usize || none {
            return Ok(all);
        }
    }
}

/// Opens a file of a pool by its name.
fn by_name(name: Vec<u8>) -> Result<File> {
    if name.is_empty() {
        return Err(Error::Invalid(
            "a file of the pool has no name that it could be opened by: join with the files".into(),
        ));
    }
    File::open(&Source::Path(std::ffi::OsString::from_vec(name).into()))
}

/// Sends a request, with files if there are any.
fn hand_over(socket: &Socket, request: &Request, files: &[File], names: &[Vec<u8>]) -> Result<()> {
    let all = || {
        socket.send(request, &[])?;
        for (files, names) in files.chunks(DESCRIPTORS).zip(names.chunks(DESCRIPTORS)) {
            let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            socket.send(&Request::Files(names.to_vec()), &descriptors)?;
        }
        Ok(())
    };
    match all() {
        // A daemon that receives no more has sent the reason, and the client receives it next.
        Err(Error::Gone) => Ok(()),
        result => result,
    }
}

fn answer(socket: &Socket) -> Result<Received<Reply>> {
    // If the daemon closed the socket before it had received everything, the first receive fails with this error. The next one
    // returns the daemon's last message.
    let received = socket.receive::<Reply>().or_else(|error| match error {
        Error::Gone => socket.receive(),
        error => Err(error),
    })?;
    match received.message {
        Reply::Failed { invalid: true, text } => Err(Error::Invalid(text)),
        Reply::Failed { invalid: false, text } => Err(Error::Refused(text)),
        _ => Ok(received),
    }
}

fn ask_about(socket: &Socket) -> Result<(Kind, String, Statistics)> {
    hand_over(socket, &Request::About, &[], &[])?;
    let Reply::About { engine, about, statistics } = answer(socket)?.message else {
        return Err(malformed("is not the answer to what was asked"));
    };
    let kind = if engine == 0 { Kind::Uring } else { Kind::Threads };
    Ok((kind, about, Statistics::from_words(statistics)))
}

/// Receives the channel that was requested on a connection.
fn channel(socket: Socket, files: Vec<File>, in_order: bool, page_size: usize) -> Result<Channel> {
    let Received { message: Reply::Channel { pages, terms }, descriptors } = answer(&socket)? else {
        return Err(malformed("is not the answer to what was asked"));
    };
    let Ok([board, frames]) = <[_; 2]>::try_from(descriptors) else {
        return Err(malformed("does not have the descriptors of a channel"));
    };
    let board = Arc::new(Board::open(board)?);
    let bytes = rustix::fs::fstat(&frames).map_err(Error::system("looking at frames"))?.st_size as usize;
    if bytes == 0 || !bytes.is_multiple_of(FRAME) {
        return Err(malformed("has frames that are none"));
    }
    let pages = match pages {
        0 => Pages::Reserved,
        1 => Pages::Transparent,
        _ => Pages::Normal,
    };
    let direct = files.iter().map(|file| file.direct).collect();
    let plan = Plan::new(&files, page_size);
    let files = if terms.is_watched { Vec::new() } else { files };
    let memory =
        Memory { frames: Arc::new(Mapping::view(frames, bytes)?), pages, direct, in_order, terms, files };
    Ok(Channel::new(board, memory, Box::new(Connection { socket, plan, in_order }), page_size))
}

/// A channel's connection to its service.
struct Connection {
    socket: Socket,
    /// An empty plan. It checks ranges before any of them is sent.
    plan: Plan,
    in_order: bool,
}

impl Connection {
    /// Sends a request and reads the answer. If the result is neither an answer nor a refusal, the connection is over, because a
    /// later answer would be taken for that of the next request.
    fn ask<T>(&self, request: &Request, read: impl FnOnce(Received<Reply>) -> Result<T>) -> Result<T> {
        let result = self.socket.send(request, &[]).and_then(|()| answer(&self.socket)).and_then(read);
        if !matches!(result, Ok(_) | Err(Error::Invalid(_) | Error::Refused(_))) {
            self.socket.end();
        }
        result
    }
}

impl Link for Connection {
    fn notify_ranges(&self, ranges: &[Range]) -> Result<()> {
        if self.in_order {
            self.plan.check(ranges)?;
        }
        for ranges in ranges.chunks(RANGES) {
            self.ask(&Request::Ranges(ranges.to_vec()), |received| match received.message {
                Reply::Done => Ok(()),
                _ => Err(malformed("is not the answer to what was asked")),
            })?;
        }
        Ok(())
    }

    fn cancel_ranges(&self, ranges: &[Range]) -> Result<Cancelled> {
        if self.in_order {
            self.plan.check(ranges)?;
        }
        let mut all = Cancelled::default();
        for ranges in ranges.chunks(RANGES) {
            let cancelled =
                self.ask(&Request::Cancel(ranges.to_vec()), |received| match received.message {
                    Reply::Cancelled(cancelled) => Ok(cancelled),
                    _ => Err(malformed("is not the answer to what was asked")),
                })?;
            all = Cancelled { bytes: all.bytes + cancelled.bytes, before: cancelled.before };
        }
        Ok(all)
    }

    fn descriptor(&self, _: &Board) -> Result<OwnedFd> {
        self.ask(&Request::Watch, |received| {
            let Received { message: Reply::Done, descriptors } = received else {
                return Err(malformed("is not the answer to what was asked"));
            };
            let [descriptor] = <[_; 1]>::try_from(descriptors)
                .map_err(|_| malformed("does not have the descriptor that was asked for"))?;
            Ok(descriptor)
        })
    }

    fn is_alive(&self) -> bool {
        self.socket.is_alive()
    }

    fn ring(&self) {
        self.socket.send_now(&Request::Ring, &[]);
    }
}

#[cfg(test)]
mod tests;
