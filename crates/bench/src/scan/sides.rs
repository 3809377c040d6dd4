//! The sides: six ways to read a file, or every second batch of it.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_scan::{Channel, FRAME, Range, Scan, Service};
use serde::{Deserialize, Serialize};

use super::data::{Data, forget, open};
use super::meter::{Pass, measure};
use super::uring::Ring;
use crate::pool::apart::{Apart, Serve};
use crate::pool::budget::Group;
use crate::{Error, Result};

/// A way to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `pread` through the page cache, with the kernel's read-ahead.
    Buffered,
    /// `pread` past it.
    Direct,
    /// `pread` from a device file.
    Device,
    /// io_uring past it, ahead of the worker, with a polling kernel thread.
    Uring,
    /// This project's scan, with a worker that sleeps until there is a page.
    Scan,
    /// The same, with a worker that polls.
    Polled,
}

impl Kind {
    pub const ALL: [Kind; 6] =
        [Kind::Buffered, Kind::Direct, Kind::Device, Kind::Uring, Kind::Scan, Kind::Polled];

    /// Whether it is this project's.
    pub fn is_ours(self) -> bool {
        matches!(self, Kind::Scan | Kind::Polled)
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Buffered => "pread",
            Kind::Direct => "pread O_DIRECT",
            Kind::Device => "pread device",
            Kind::Uring => "io_uring SQPOLL",
            Kind::Scan => "bedplate",
            Kind::Polled => "bedplate, polled",
        }
    }
}

/// The bytes to read, and the limits of a pass.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Question {
    pub size: u64,
    /// Bytes of a request, and of a page.
    pub page: usize,
    /// `None`: all of the file. Otherwise: batches of this size with odd numbers.
    pub batch: Option<u64>,
    pub most: Duration,
    pub count: bool,
}

impl Question {
    /// First bytes and ends of the ranges to read.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        match self.batch {
            None => vec![(0, self.size)],
            Some(batch) => (1..self.size / batch).step_by(2).map(|n| (n * batch, (n + 1) * batch)).collect(),
        }
    }

    fn requests(&self) -> impl Iterator<Item = (u64, usize)> {
        let page = self.page as u64;
        self.ranges().into_iter().flat_map(move |(start, end)| {
            (start..end).step_by(page as usize).map(move |at| (at, page.min(end - at) as usize))
        })
    }

    fn bytes(&self) -> u64 {
        self.ranges().iter().map(|(start, end)| end - start).sum()
    }

    /// Checks the bytes and the sum of a pass, if it is whole.
    pub fn check(&self, kind: Kind, pass: &Pass, data: &Data) -> Result<()> {
        let sum = |sum: u64, range: &(u64, u64)| sum.wrapping_add(data.sum(range.0..range.1));
        let (bytes, sum) = (self.bytes(), self.ranges().iter().fold(0, sum));
        if pass.bytes > 0 && (!pass.whole || (pass.bytes, pass.sum) == (bytes, sum)) {
            return Ok(());
        }
        Err(Error::engine(format!("{} read {} bytes of {bytes}, or wrong ones", kind.name(), pass.bytes)))
    }
}

/// A side in a process of its own.
pub type Side = Apart<Question, Pass>;

/// Starts a side that reads a file, or the device on it, within `budget` bytes of memory.
pub fn start(kind: Kind, file: &Path, device: Option<&Path>, budget: u64) -> Result<(Side, Option<String>)> {
    let (group, unlimited) = match Group::create(&format!("scan-{kind:?}")) {
        Ok(group) => (Some((group, budget)), None),
        Err(reason) => (None, Some(reason)),
    };
    let (file, device) = (file.to_owned(), device.map(Path::to_owned));
    let side = Apart::start(kind.name(), group, move || begin(kind, file, device))?;
    Ok((side.map_err(Error::engine)?, unlimited))
}

fn begin(kind: Kind, file: PathBuf, device: Option<PathBuf>) -> Result<Serve<Question, Pass>> {
    let service = if kind.is_ours() { Some(Service::start()?) } else { None };
    Ok(Box::new(move |question| {
        forget(&file)?;
        measure(question.bytes(), question.most, question.count, |meter| {
            let take = |page: &[u8]| meter.consume(page);
            match kind {
                Kind::Buffered => by_calls(&file, 0, &question, take),
                Kind::Direct => by_calls(&file, libc::O_DIRECT, &question, take),
                Kind::Device => by_calls(device.as_ref().unwrap_or(&file), libc::O_DIRECT, &question, take),
                Kind::Uring => by_ring(&file, &question, take),
                Kind::Scan | Kind::Polled => {
                    let service = service.as_ref().expect("it was started");
                    let mut channel = channel(service, &file, &question)?;
                    if kind == Kind::Polled { poll(&mut channel, take) } else { consume(&mut channel, take) }
                }
            }
        })
    }))
}

/// A part of a buffer that has `bytes` bytes and begins at a page.
pub fn aligned(buffer: &mut [u8], bytes: usize) -> &mut [u8] {
    let pad = buffer.as_ptr().align_offset(4096);
    &mut buffer[pad..pad + bytes]
}

fn by_calls(path: &Path, flags: i32, question: &Question, mut take: impl FnMut(&[u8]) -> bool) -> Result<()> {
    let file = open(path, flags)?;
    let mut memory = vec![0; question.page + 4096];
    let buffer = aligned(&mut memory, question.page);
    for (offset, len) in question.requests() {
        file.read_exact_at(&mut buffer[..len], offset).map_err(Error::io("read the file to scan"))?;
        if !take(&buffer[..len]) {
            break;
        }
    }
    Ok(())
}

fn by_ring(path: &Path, question: &Question, take: impl FnMut(&[u8]) -> bool) -> Result<()> {
    // The ring reads as far ahead as a scan of this project at most, within the limits of a ring.
    let depth = (8 * FRAME / question.page).clamp(2, 64);
    Ring::open(path, question.page, depth, true)?.read(question.requests(), take)
}

fn channel(service: &Service, path: &Path, question: &Question) -> Result<Channel> {
    let mut scan = Scan::of([path]).page_size(question.page.min(FRAME))?;
    if question.batch.is_some() {
        let ranges = question.ranges().into_iter().map(|(start, end)| Range { file: 0, start, end });
        scan = scan.ranges(ranges.collect::<Vec<_>>());
    }
    Ok(service.open(scan)?)
}

/// Passes the pages of a channel to `take`, as long as it wants more.
pub fn consume(channel: &mut Channel, mut take: impl FnMut(&[u8]) -> bool) -> Result<()> {
    while let Some(page) = channel.next_page()? {
        if !take(&page) {
            break;
        }
    }
    Ok(())
}

/// The same, without ever sleeping.
fn poll(channel: &mut Channel, mut take: impl FnMut(&[u8]) -> bool) -> Result<()> {
    loop {
        if !channel.wait(Some(Duration::ZERO))? {
            std::hint::spin_loop();
            continue;
        }
        match channel.next_page()? {
            Some(page) if take(&page) => {}
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::super::loops::Loop;
    use super::*;

    rusty_fork_test! {
    #[test]
    fn all_sides_read_the_same() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let data = Data::write(directory.path(), 16 << 20).unwrap();
        let device = Loop::over(&data.path());
        for kind in Kind::ALL {
            let device = device.as_ref().ok().map(Loop::path);
            if kind == Kind::Device && device.is_none() {
                println!("skipped: no loop device");
                continue;
            }
            // On a busy machine, a service may free the memory of a closed channel only after the next one is open.
            let (mut side, _) = start(kind, &data.path(), device, 256 << 20).unwrap();
            for batch in [None, Some(64 << 10), Some(4 << 20)] {
                let (page, most) = (64 << 10, Duration::from_secs(60));
                let question = Question { size: data.size, page, batch, most, count: true };
                let pass = side.ask(&question).unwrap();
                assert!(pass.whole);
                question.check(kind, &pass, &data).unwrap();
                // A side that bypasses the page cache reads the wanted bytes, and perhaps the file's metadata.
                let over = pass.over_read().filter(|_| kind != Kind::Buffered).unwrap_or(0.0);
                assert!((0.0..65536.0).contains(&over), "{kind:?} {batch:?} {pass:?}");
                let wrong = Pass { sum: pass.sum + 1, ..pass };
                assert!(question.check(kind, &wrong, &data).is_err());
            }
        }
    }
    }
}
