//! A process beside a scan, which reads a file of its own at random and counts the reads that the page cache can
//! answer.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::pool::apart::{Apart, Serve};
use crate::tpch::cold;
use crate::{Error, Result};

/// Bytes of a read.
const PAGE: usize = 4096;
/// The pause between two reads.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Question {
    /// Read the whole file twice, like a working set in frequent use.
    Warm,
    /// Begin to read at random.
    Begin,
    /// End the reads at random.
    End,
}

/// Reads, and those that the page cache answered.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub hits: u64,
}

impl Counts {
    /// The share of reads that needed no device.
    pub fn share(self) -> f64 {
        self.hits as f64 / self.reads as f64
    }
}

/// The process. It is a member of the control groups of the process that starts it.
pub struct Neighbour {
    apart: Apart<Question, Counts>,
    _file: NamedTempFile,
}

impl Neighbour {
    /// Starts the process, with a file of `bytes` bytes in a folder.
    pub fn start(folder: &Path, bytes: u64) -> Result<Self> {
        let io = |e: std::io::Error| Error::io("the file of a scan's neighbour")(e);
        let mut file = NamedTempFile::new_in(folder).map_err(io)?;
        for _ in 0..bytes >> 20 {
            file.write_all(&[7; 1 << 20]).map_err(io)?;
        }
        cold::forget_file(file.as_file()).map_err(io)?;
        let path = file.path().to_owned();
        let begin = move || {
            let file = Arc::new(File::open(&path).map_err(io)?);
            let mut running: Option<Running> = None;
            Ok(Box::new(move |question| match question {
                Question::Warm => {
                    for _ in 0..2 {
                        std::io::copy(&mut File::open(&path).map_err(io)?, &mut std::io::sink())
                            .map_err(io)?;
                    }
                    Ok(Counts::default())
                }
                Question::Begin => {
                    running = Some(Running::begin(file.clone(), bytes));
                    Ok(Counts::default())
                }
                Question::End => running.take().map_or(Ok(Counts::default()), Running::end),
            }) as Serve<Question, Counts>)
        };
        let apart = Apart::start("neighbour", None, begin)?.map_err(Error::engine)?;
        Ok(Self { apart, _file: file })
    }

    /// Brings the file into the page cache.
    pub fn warm(&mut self) -> Result<()> {
        self.apart.ask(&Question::Warm).map(drop)
    }

    /// Reads at random while `work` runs.
    pub fn beside<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<(T, Counts)> {
        self.apart.ask(&Question::Begin)?;
        let done = work();
        let counts = self.apart.ask(&Question::End)?;
        Ok((done?, counts))
    }
}

/// A thread that reads.
struct Running {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<Counts>>,
}

impl Running {
    fn begin(file: Arc<File>, bytes: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut random = SmallRng::seed_from_u64(1);
            let mut counts = Counts::default();
            while !over.load(Ordering::Relaxed) {
                let page = random.random_range(0..bytes / PAGE as u64);
                counts.reads += 1;
                counts.hits += u64::from(read(&file, page * PAGE as u64)?);
                std::thread::sleep(PAUSE);
            }
            Ok(counts)
        });
        Self { is_over, thread }
    }

    fn end(self) -> Result<Counts> {
        self.is_over.store(true, Ordering::Relaxed);
        let counts =
            self.thread.join().map_err(|_| Error::engine("a scan's neighbour panicked".to_owned()))?;
        counts.map_err(Error::io("read beside a scan"))
    }
}

/// Reads a page. Returns whether the page cache had it: the kernel refuses a read that may not wait if it needs the device.
fn read(file: &File, offset: u64) -> std::io::Result<bool> {
    let mut page = [0u8; PAGE];
    for flags in [libc::RWF_NOWAIT, 0] {
        let part = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: PAGE };
        // SAFETY: the part is all of `page`, which outlives the call.
        let read = unsafe { libc::preadv2(file.as_raw_fd(), &part, 1, offset as i64, flags) };
        if read == PAGE as isize {
            return Ok(flags == libc::RWF_NOWAIT);
        }
        let error = std::io::Error::last_os_error();
        if read < 0 && error.kind() != std::io::ErrorKind::WouldBlock {
            return Err(error);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;

    #[test]
    fn a_read_says_whether_the_page_cache_had_it() {
        let mut file = NamedTempFile::new_in(".").unwrap();
        file.write_all(&[1; 8 * PAGE]).unwrap();
        // The kernel keeps pages in another processor's list of new pages, so one call may not be enough.
        let is_cold = |_| {
            cold::forget_file(file.as_file()).unwrap();
            !read(file.as_file(), 0).unwrap()
        };
        assert!((0..100).any(is_cold));
        assert!(read(file.as_file(), 0).unwrap());
    }

    rusty_fork_test! {
    #[test]
    fn a_neighbour_of_nothing_always_hits() {
        let mut neighbour = Neighbour::start(Path::new("."), 2 << 20).unwrap();
        neighbour.warm().unwrap();
        let ((), counts) =
            neighbour.beside(|| { std::thread::sleep(Duration::from_millis(50)); Ok(()) }).unwrap();
        assert!(counts.reads > 5 && counts.reads == counts.hits, "{counts:?}");
    }
    }
}
