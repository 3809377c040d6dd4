//! The workers: threads of this process, and processes that have a connection to its daemon.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

use bedplate_scan::{AccessKey, Channel, Daemon, Options, Scan, Service, Stopper};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::super::meter::sum;
use super::super::pacer::Pacer;
use super::super::sides::consume;
use crate::pool::apart::{Apart, Serve};
use crate::{Error, Result};

/// Pages as databases have them.
const PAGE: usize = 8 << 10;
/// Bytes between two rests of a worker. With more, frames would return too late; with fewer, sleeps
/// would dominate the measurement.
const SLICE: u64 = 1 << 20;

/// A command to a worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Join the pool with this key, of the service that listens at this path.
    Join(PathBuf, [u8; 16]),
    /// Consume everything, this number of bytes in a second.
    Consume(f64),
}

/// The data that a worker had, and its time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Had {
    pub bytes: u64,
    pub sum: u64,
    pub wall_ns: u64,
}

/// A worker process. It is started before this process has threads, and gets its commands later.
pub type Process = Apart<Order, Had>;

/// Starts a worker process.
pub fn start(number: usize) -> Result<Process> {
    let begin = || {
        let mut member = None;
        Ok(Box::new(move |order| match order {
            Order::Join(socket, key) => {
                let service = Service::connect(socket)?;
                member = Some(service.join(AccessKey::from_bytes(key), PAGE)?);
                Ok(Had::default())
            }
            Order::Consume(pace) => {
                let channel = member.take().ok_or_else(|| Error::engine("it has not joined".to_owned()))?;
                scan(channel, pace)
            }
        }) as Serve<Order, Had>)
    };
    Apart::start(&format!("worker {number}"), None, begin)?.map_err(Error::engine)
}

/// A worker that is ready to begin.
pub enum Ready<'a> {
    Thread(Box<Channel>),
    Process(&'a mut Process),
}

impl Ready<'_> {
    /// A worker with a channel of its own.
    pub fn alone(service: &Service, file: &Path) -> Result<Self> {
        Ok(Self::Thread(service.open(Scan::of([file]).page_size(PAGE)?)?.into()))
    }

    /// A worker of a pool.
    pub fn member(service: &Service, key: AccessKey) -> Result<Self> {
        Ok(Self::Thread(service.join(key, PAGE)?.into()))
    }

    /// Consumes everything.
    pub fn consume(self, pace: f64) -> Result<Had> {
        match self {
            Self::Thread(channel) => scan(*channel, pace),
            Self::Process(process) => process.ask(&Order::Consume(pace)),
        }
    }
}

/// A worker that consumes pages at a pace.
pub struct Paced {
    pacer: Pacer,
    had: Had,
    start: Instant,
}

impl Paced {
    /// A worker that begins now and consumes `pace` bytes in a second.
    pub fn begin(pace: f64) -> Self {
        Self { pacer: Pacer::new(pace, SLICE), had: Had::default(), start: Instant::now() }
    }

    /// Consumes a page.
    pub fn consume(&mut self, page: &[u8]) {
        self.pacer.begin();
        self.had.bytes += page.len() as u64;
        self.had.sum = self.had.sum.wrapping_add(sum(page));
        self.pacer.end(page.len());
    }

    /// The worker has consumed everything.
    pub fn end(mut self) -> Had {
        self.had.wall_ns = self.start.elapsed().as_nanos() as u64;
        self.had
    }
}

fn scan(mut channel: Channel, pace: f64) -> Result<Had> {
    let mut worker = Paced::begin(pace);
    consume(&mut channel, |page| {
        worker.consume(page);
        true
    })?;
    Ok(worker.end())
}

/// A daemon in this process, at a socket that no other program knows.
pub struct Host {
    pub socket: PathBuf,
    stopper: Stopper,
    thread: Option<JoinHandle<bedplate_scan::Result<()>>>,
    _folder: TempDir,
}

impl Host {
    /// Serves a service to other processes.
    pub fn start(service: &Service) -> Result<Self> {
        // A socket's path must be short, and the path of the file's folder may be long.
        let folder = tempfile::tempdir().map_err(Error::io("create a directory for a socket"))?;
        let socket = folder.path().join("scan.sock");
        let daemon = Daemon::bind(service.clone(), &socket, &Options::default())?;
        let stopper = daemon.stopper();
        let thread = std::thread::Builder::new().name("scan-daemon".into()).spawn(|| daemon.run());
        let thread = Some(thread.map_err(Error::io("start the daemon"))?);
        Ok(Self { socket, stopper, thread, _folder: folder })
    }
}

impl Drop for Host {
    /// The socket is removed before its folder.
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
