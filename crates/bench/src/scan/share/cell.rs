//! One cell: a number of workers that begin at once, and their cost together.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate_scan::{FRAME, Pool, Service};

use super::super::data::Data;
use super::workers::{Had, Host, Order, Process, Ready, start};
use crate::cpu::MachineCpu;
use crate::{Error, Result};

/// The memory of a pool, which is enough for more workers than any cell has.
pub const POOL: usize = 96 << 20;
/// The factor by which a slow worker is slower.
pub const SLOWER: f64 = 4.0;
/// The interval at which frames in use are counted.
const LOOK: Duration = Duration::from_millis(2);

/// The way in which workers get their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Threads, each with a channel of its own.
    Alone,
    /// Threads in a pool.
    Threads,
    /// Processes in a pool.
    Processes,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Alone => "alone",
            Way::Threads => "threads",
            Way::Processes => "processes",
        }
    }
}

/// The workers of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub way: Way,
    pub workers: usize,
    /// One of the workers is slow.
    pub slow: bool,
}

/// The cost of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub device_over_file: f64,
    /// Time until the last worker had finished, a slow one aside.
    pub wall_s: f64,
    /// Frames that were in use at most, as bytes.
    pub used_bytes: f64,
    /// Number of processors that were busy.
    pub busy: f64,
}

/// Runs cells.
pub struct Stage {
    data: Data,
    file: PathBuf,
    /// The rate of all workers that are not slow, in bytes per second.
    pace: f64,
    processes: Vec<Process>,
    host: Host,
    service: Service,
    /// A client of the service, which creates the pools for worker processes.
    client: Service,
}

impl Stage {
    /// A stage for cells of at most `most` workers.
    pub fn new(data: Data, pace: f64, most: usize) -> Result<Self> {
        // Processes start before there are threads, which a fork would not copy.
        let processes = (0..most).map(start).collect::<Result<Vec<_>>>()?;
        let service = Service::start()?;
        let host = Host::start(&service)?;
        let client = Service::connect(&host.socket)?;
        let file = data.path();
        Ok(Self { data, file, pace, processes, host, service, client })
    }

    /// Runs a cell, and checks the data of each worker.
    pub fn run(&mut self, cell: Cell) -> Result<Cost> {
        let before = self.service.statistics().bytes_read;
        let pool = match cell.way {
            Way::Alone => None,
            Way::Threads => Some(self.service.create_pool([&self.file], POOL)?),
            Way::Processes => Some(self.client.create_pool([&self.file], POOL)?),
        };
        let (service, pace) = (&self.service, self.pace);
        let ready = ready(cell, &self.file, service, &self.host, pool.as_ref(), &mut self.processes)?;
        let (cpu, begun) = (machine()?, Instant::now());
        let mut used = 0;
        let had = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, ready) in ready.into_iter().enumerate() {
                let pace = if cell.slow && number == 0 { pace / SLOWER } else { pace };
                threads.push(scope.spawn(move || ready.consume(pace)));
            }
            while threads.iter().any(|thread| !thread.is_finished()) {
                used = used.max(service.statistics().pool_frames);
                std::thread::sleep(LOOK);
            }
            let ended = threads.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
            ended.collect::<Result<Vec<Had>>>()
        })?;
        let wall = begun.elapsed().as_nanos() as u64;
        let busy = machine()?.busy_since(cpu, wall) as f64 / wall as f64;
        drop(pool);
        settle(&self.service)?;
        let right = (self.data.size, self.data.sum(0..self.data.size));
        if had.iter().any(|had| (had.bytes, had.sum) != right) {
            return Err(Error::engine(format!("{cell:?}: a worker had other bytes than those of the file")));
        }
        let read = self.service.statistics().bytes_read - before;
        let last = had.iter().skip(cell.slow.into()).map(|had| had.wall_ns).max().unwrap_or(0);
        Ok(Cost {
            device_over_file: read as f64 / self.data.size as f64,
            wall_s: last as f64 / 1e9,
            used_bytes: used as f64 * FRAME as f64,
            busy,
        })
    }
}

/// Workers that have joined, or opened the file, and wait for their start.
fn ready<'a>(
    cell: Cell,
    file: &Path,
    service: &Service,
    host: &Host,
    pool: Option<&Pool>,
    processes: &'a mut [Process],
) -> Result<Vec<Ready<'a>>> {
    let Some(key) = pool.map(Pool::key) else {
        return (0..cell.workers).map(|_| Ready::alone(service, file)).collect();
    };
    if cell.way == Way::Threads {
        return (0..cell.workers).map(|_| Ready::member(service, key)).collect();
    }
    let join = |process: &'a mut Process| {
        process.ask(&Order::Join(host.socket.clone(), key.to_bytes()))?;
        Ok(Ready::Process(process))
    };
    processes.iter_mut().take(cell.workers).map(join).collect()
}

fn machine() -> Result<MachineCpu> {
    MachineCpu::sample().map_err(Error::io("look at the processors"))
}

/// Waits until all channels are closed and no read is in flight, because these reads count, too.
pub(in crate::scan) fn settle(service: &Service) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = service.statistics();
        if (now.channels, now.pools) == (0, 0) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::engine(format!("{} channels of nobody are left", now.channels)));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;

    rusty_fork_test! {
    #[test]
    fn all_ways_end_with_every_byte() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let data = Data::write(folder.path(), 16 << 20).unwrap();
        let mut stage = Stage::new(data, 256e6, 3).unwrap();
        let socket = stage.host.socket.clone();
        for way in [Way::Alone, Way::Threads, Way::Processes, Way::Threads] {
            for slow in [false, true] {
                let cost = stage.run(Cell { way, workers: 3, slow }).unwrap();
                let shares = way != Way::Alone;
                assert!(cost.device_over_file >= 1.0 && cost.wall_s > 0.0 && cost.busy >= 0.0, "{cost:?}");
                assert!(shares || cost.device_over_file == 3.0, "{cost:?}");
                assert_eq!(cost.used_bytes > 0.0, shares, "{cost:?}");
            }
        }
        assert!(socket.exists());
        drop(stage);
        assert!(!socket.exists());
    }
    }
}
