//! The sides: clients of a buffer pool, and workers of a scan service, each side in a process of its own.
//!
//! A side makes the pool that its clients share and then lets all of them begin at once. A client of a scan service opens its
//! channel, or joins, in the time that is measured, because the service begins to read then. Before all this, a side touches as
//! much memory as it will use, and frees it. Some machines get memory from their host only at the first touch, which takes many
//! times as long as the measured work.

use std::ffi::c_void;
use std::ptr;
use std::sync::Barrier;
use std::time::Instant;

use bedplate_bufpool::{Kind, PAGE, PAYLOAD, PageId, Pool};
use bedplate_scan::{Channel, FRAME, Scan, Service};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use serde::{Deserialize, Serialize};

use super::super::meter::{Usage, Used};
use super::super::share::{Had, Paced, settle};
use super::super::sides::consume;
use super::table::{Table, failed};
use crate::pool::apart::{Apart, Serve};
use crate::{Error, Result};

/// Pages that a client of [`Way::Ahead`] asks for at a time: 512 KiB.
const WINDOW: u64 = 128;
/// The least memory of a channel: a frame that its worker has, and two that are read into.
const CHANNEL_LEAST: usize = 3 * FRAME;
/// The most memory of a channel that is of use, which is its default.
const CHANNEL_MOST: usize = 16 * FRAME;

/// The way in which clients get their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By pinning one page of a buffer pool after the other.
    Pool(Kind),
    /// The same, and each client asks the pool for pages before it needs them.
    Ahead(Kind),
    /// By a channel for each client.
    Channels,
    /// By a pool of the scan service that all clients join.
    Shared,
}

impl Way {
    pub fn name(self) -> String {
        match self {
            Way::Pool(kind) => kind.name().to_owned(),
            Way::Ahead(kind) => format!("{}, reading ahead", kind.name()),
            Way::Channels => "channels".to_owned(),
            Way::Shared => "shared".to_owned(),
        }
    }

    pub fn is_pool(self) -> bool {
        matches!(self, Way::Pool(_) | Way::Ahead(_))
    }
}

/// A side: a way, and the most bytes of pages in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub way: Way,
    pub memory: usize,
}

/// The task of a side.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Question {
    pub clients: usize,
    /// Bytes that a client consumes in a second.
    pub pace: f64,
    /// All clients do it again, with the pages that the first time has left in memory.
    pub again: bool,
}

/// The resources that the task took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Time until the last client had everything.
    pub wall_s: f64,
    /// The processor time of the process and of the kernel's workers.
    pub cpu_s: f64,
    /// Bytes that the device was asked for, if the kernel reports them.
    pub device: Option<u64>,
    /// Memory that was given to the side, in bytes.
    pub memory: usize,
}

/// A side's process. It answers with the cost of each time.
pub type Process = Apart<Question, Vec<Cost>>;

impl Side {
    /// Starts its process, or returns the reason why there is no such side on this machine.
    pub fn start(self, table: &Table) -> Result<std::result::Result<Process, String>> {
        let table = table.clone();
        let begin = move || {
            let service = if self.way.is_pool() { None } else { Some(Service::start()?) };
            enter_ring0(self.way)?;
            Ok(Box::new(move |question| match &service {
                None => self.by_pool(&table, question),
                Some(service) => self.by_scan(service, &table, question),
            }) as Serve<Question, Vec<Cost>>)
        };
        Apart::start(&self.way.name(), None, begin)
    }

    fn by_pool(self, table: &Table, question: Question) -> Result<Vec<Cost>> {
        let (Way::Pool(kind) | Way::Ahead(kind)) = self.way else {
            return Err(Error::engine(format!("{} is no buffer pool", self.way.name())));
        };
        touch(self.memory)?;
        let pool = table.open(kind, self.memory)?;
        let ahead = matches!(self.way, Way::Ahead(_));
        let time = |_| {
            let clients = (0..question.clients).map(|_| {
                let pool = &pool;
                move || {
                    enter_ring0(self.way)?;
                    by_pages(pool, table, question.pace, ahead)
                }
            });
            run(table, self.memory, clients.collect(), || Ok(()))
        };
        (0..1 + usize::from(question.again)).map(time).collect()
    }

    fn by_scan(self, service: &Service, table: &Table, question: Question) -> Result<Vec<Cost>> {
        let (memory, pool) = match self.way {
            Way::Shared => {
                touch(self.memory)?;
                (self.memory, Some(service.create_pool([&table.file], self.memory)?))
            }
            _ => {
                let each = self.memory / question.clients / FRAME * FRAME;
                let each = each.clamp(CHANNEL_LEAST, CHANNEL_MOST);
                touch(each * question.clients)?;
                (each * question.clients, None)
            }
        };
        let key = pool.as_ref().map(bedplate_scan::Pool::key);
        let open = move || -> Result<Channel> {
            Ok(match key {
                Some(key) => service.join(key, PAGE)?,
                None => {
                    let scan = Scan::of([&table.file]).page_size(PAGE)?;
                    service.open(scan.ring_bytes(memory / question.clients)?)?
                }
            })
        };
        let clients = (0..question.clients).map(|_| move || by_channel(open()?, question.pace));
        let cost = run(table, memory, clients.collect(), || {
            drop(pool);
            // A read that ends after the last client has left counts, too.
            settle(service)
        })?;
        Ok(vec![cost])
    }
}

/// Lets all clients begin at once, and checks the data that each of them had. The device's work is counted until `end`
/// has returned.
fn run<C: FnOnce() -> Result<Had> + Send>(
    table: &Table,
    memory: usize,
    clients: Vec<C>,
    end: impl FnOnce() -> Result<()>,
) -> Result<Cost> {
    let start = Barrier::new(clients.len() + 1);
    let (usage, wall_s, had) = std::thread::scope(|scope| {
        let start = &start;
        let begin = |client: C| {
            scope.spawn(move || {
                start.wait();
                client()
            })
        };
        let threads: Vec<_> = clients.into_iter().map(begin).collect();
        let usage = Usage::now();
        start.wait();
        let begun = Instant::now();
        let ended = threads.into_iter().map(|thread| thread.join().expect("a client does not panic"));
        let had = ended.collect::<Result<Vec<Had>>>();
        (usage, begun.elapsed().as_secs_f64(), had)
    });
    end()?;
    let Used { process_ns, kernel_ns, device } = usage?.until_now()?;
    let right = (table.consumed(), table.sum);
    if let Some(wrong) = had?.iter().find(|had| (had.bytes, had.sum) != right) {
        return Err(Error::engine(format!(
            "a client had {wrong:?}, which is not what the file has: {right:?}"
        )));
    }
    Ok(Cost { wall_s, cpu_s: (process_ns + kernel_ns) as f64 / 1e9, device, memory })
}

fn by_pages(pool: &Pool, table: &Table, pace: f64, ahead: bool) -> Result<Had> {
    let mut worker = Paced::begin(pace);
    let window = |from: u64| -> Vec<PageId> {
        (from..(from + WINDOW).min(table.pages)).map(|number| table.page(number)).collect()
    };
    for number in 0..table.pages {
        if ahead && number.is_multiple_of(WINDOW) {
            if number == 0 {
                pool.prefetch(&window(0));
            }
            pool.prefetch(&window(number + WINDOW));
        }
        let page = pool.pin_shared(table.page(number)).map_err(failed)?;
        worker.consume(&page[..]);
    }
    Ok(worker.end())
}

fn by_channel(mut channel: Channel, pace: f64) -> Result<Had> {
    let mut worker = Paced::begin(pace);
    consume(&mut channel, |page| {
        worker.consume(&page[..PAYLOAD]);
        true
    })?;
    Ok(worker.end())
}

/// Moves the calling thread to ring 0, if the engine needs that.
fn enter_ring0(way: Way) -> Result<()> {
    #[cfg(target_arch = "x86_64")]
    if way == Way::Pool(Kind::Ring0) {
        let ring0 = |error| Error::io("ring 0")(std::io::Error::other(error));
        bedplate_ring0::Process::this().and_then(bedplate_ring0::Process::enter).map_err(ring0)?;
    }
    let _ = way;
    Ok(())
}

/// Makes the machine get `bytes` bytes of memory from its host.
fn touch(bytes: usize) -> Result<()> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
    // SAFETY: a new mapping at an address of the kernel's choice, which no other code knows before it is unmapped.
    unsafe {
        let start: *mut c_void =
            mmap_anonymous(ptr::null_mut(), bytes, access, flags).map_err(Error::io("map memory"))?;
        munmap(start, bytes).map_err(Error::io("unmap memory"))
    }
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::super::super::data::Data;
    use super::*;

    const SIZE: u64 = 24 << 20;
    const SMALL: usize = 16 << 20;
    const LARGE: usize = 32 << 20;

    rusty_fork_test! {
    #[test]
    fn all_sides_have_every_byte_and_what_fits_into_memory_is_read_once() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let data = Data::write(folder.path(), SIZE).unwrap();
        let table = Table::copy(&data).unwrap();
        let question = Question { clients: 2, pace: 1e9, again: true };
        for memory in [SMALL, LARGE] {
            for way in [
                Way::Pool(Kind::Vmcache),
                Way::Pool(Kind::Stock),
                Way::Ahead(Kind::Stock),
                Way::Pool(Kind::Array),
            ] {
                let mut process = Side { way, memory }.start(&table).unwrap().unwrap();
                let costs = process.ask(&question).unwrap();
                let [cold, again] = costs.as_slice() else { panic!("{costs:?}") };
                assert!(cold.wall_s > 0.0 && cold.cpu_s > 0.0, "{cold:?}");
                let Some((cold, again)) = cold.device.zip(again.device) else {
                    println!("skipped: the kernel does not say what the device was asked for");
                    continue;
                };
                assert!(cold >= SIZE, "{way:?} {cold}");
                if memory == LARGE {
                    assert_eq!((cold, again), (SIZE, 0), "{way:?}");
                } else {
                    assert!(again > 0, "{way:?}");
                }
            }
        }
        for way in [Way::Channels, Way::Shared] {
            let mut process = Side { way, memory: SMALL }.start(&table).unwrap().unwrap();
            let [cost] = process.ask(&question).unwrap()[..] else { panic!("{way:?}") };
            assert!(cost.wall_s > 0.0 && cost.cpu_s > 0.0 && cost.memory >= SMALL, "{cost:?}");
            assert!(cost.device.is_none_or(|device| device >= SIZE), "{way:?} {cost:?}");
        }
        // A side fails if its clients' data differ from the file's.
        let mut wrong = table.clone();
        wrong.sum += 1;
        for way in [Way::Pool(Kind::Stock), Way::Shared] {
            let mut process = Side { way, memory: SMALL }.start(&wrong).unwrap().unwrap();
            let error = process.ask(&question).unwrap_err().to_string();
            assert!(error.contains("not what the file has"), "{way:?} {error}");
        }
    }
    }
}
