//! Clients, which run the operations.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::trace::{Mix, Op, Popularity, TOGETHER, draw, load_order};
use crate::cpu::CpuTime;
use crate::pool::store::{Access, Session, Store, Verdict};
use crate::{Error, Result};

/// Bytes of a value.
pub const VALUE: usize = 120;
/// Records that are loaded in a transaction.
const BATCH: usize = 1000;
/// Number of operations that a client draws. It repeats them when it has done all.
const DRAWN: usize = 1 << 18;

/// The settings of a window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub mix: Mix,
    pub popularity: Popularity,
    pub records: u32,
    pub threads: u32,
    pub window_ms: u64,
    pub seed: u64,
}

/// The results of a window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Window {
    pub operations: u64,
    pub seconds: f64,
    /// Processor time of the whole process.
    pub cpu_seconds: f64,
}

impl Window {
    /// Operations per second. Each record that is read or updated at once with others counts.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Operations per second of CPU time.
    pub fn per_core(&self) -> f64 {
        self.operations as f64 / self.cpu_seconds
    }
}

/// Keys of loaded records are even, in the order of their numbers; a record's neighbour is odd.
fn key(record: u32, inserted: bool) -> [u8; 8] {
    (u64::from(record) * 2 + u64::from(inserted)).to_be_bytes()
}

/// Fills a value with the key, so that a wrong answer is noticed, and random bytes.
fn fill(value: &mut [u8; VALUE], key: [u8; 8], random: &mut SmallRng) {
    random.fill_bytes(value);
    value[..8].copy_from_slice(&key);
}

/// Inserts the records.
pub fn load(store: &impl Store, records: u32) -> Result<Window> {
    let (start, cpu) = (Instant::now(), CpuTime::of_process());
    let (mut session, mut random) = (store.session()?, SmallRng::seed_from_u64(1));
    let order: Vec<u32> = load_order(records).collect();
    for batch in order.chunks(BATCH) {
        let mut value = [0; VALUE];
        session.transaction(Access::Write, &mut |tx| {
            for &record in batch {
                fill(&mut value, key(record, false), &mut random);
                tx.insert(&key(record, false), &value)?;
            }
            Ok(Verdict::Commit)
        })?;
    }
    store.settle()?;
    Ok(window(records.into(), start, cpu))
}

/// Reads all records. There must be at least `records`.
pub fn warm(store: &impl Store, records: u32) -> Result<Window> {
    let (start, cpu, mut seen) = (Instant::now(), CpuTime::of_process(), 0);
    store.session()?.scan(&key(0, false), None, &mut |_, _| {
        seen += 1;
        true
    })?;
    match seen >= u64::from(records) {
        true => Ok(window(seen, start, cpu)),
        false => Err(Error::engine(format!("there are {seen} records instead of {records}"))),
    }
}

fn window(operations: u64, start: Instant, cpu: CpuTime) -> Window {
    let cpu_seconds = CpuTime::of_process().since(cpu).total_ns() as f64 / 1e9;
    Window { operations, seconds: start.elapsed().as_secs_f64(), cpu_seconds }
}

/// Runs the clients for the time of a window.
pub fn measure<S: Store>(store: &S, plan: &Plan) -> Result<Window> {
    let over = AtomicBool::new(false);
    let ready = Barrier::new(plan.threads as usize + 1);
    let (done, window) = std::thread::scope(|scope| {
        let (over, ready) = (&over, &ready);
        let clients: Vec<_> = (0..plan.threads)
            .map(|thread| {
                scope.spawn(move || {
                    let seed = plan.seed * 1009 + u64::from(thread);
                    let ops = draw(plan.mix, plan.popularity, plan.records, DRAWN, seed);
                    let client = store.session();
                    ready.wait();
                    Client { session: client?, value: Vec::new(), random: SmallRng::seed_from_u64(seed) }
                        .work(&ops, over)
                })
            })
            .collect();
        ready.wait();
        let (start, cpu) = (Instant::now(), CpuTime::of_process());
        std::thread::sleep(Duration::from_millis(plan.window_ms));
        over.store(true, Ordering::Relaxed);
        let done: Vec<Result<u64>> =
            clients.into_iter().map(|client| client.join().unwrap_or_else(|_| Err(panicked()))).collect();
        (done, window(0, start, cpu))
    });
    let operations = done.into_iter().sum::<Result<u64>>()?;
    Ok(Window { operations, ..window })
}

/// Does each operation once, on the calling thread. Returns their number.
#[cfg(target_arch = "x86_64")]
pub fn replay(store: &impl Store, ops: &[Op], seed: u64) -> Result<u64> {
    let (session, random) = (store.session()?, SmallRng::seed_from_u64(seed));
    let mut client = Client { session, value: Vec::new(), random };
    ops.iter().try_fold(0, |done, op| Ok(done + client.one(op)?))
}

fn panicked() -> Error {
    Error::engine("a client panicked".to_owned())
}

struct Client<S> {
    session: S,
    value: Vec<u8>,
    random: SmallRng,
}

impl<S: Session> Client<S> {
    fn work(&mut self, ops: &[Op], over: &AtomicBool) -> Result<u64> {
        let mut done = 0;
        // On a busy machine, a client may begin after the end of its window. It does one operation, too.
        for op in ops.iter().cycle() {
            done += self.one(op)?;
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(done)
    }

    /// Does an operation and returns its count: the number of records that it reads or updates at once, or else 1.
    fn one(&mut self, op: &Op) -> Result<u64> {
        match *op {
            Op::Read(record) => self.read(record)?,
            Op::ReadMany(records) => return self.read_many(&records),
            Op::UpdateMany(records) => return self.write_many(&records),
            Op::Update(record) => self.write(key(record, false))?,
            Op::Insert(record) => self.write(key(record, true))?,
            Op::Scan(record, count) => self.scan(record, count)?,
        }
        Ok(1)
    }

    fn read(&mut self, record: u32) -> Result<()> {
        let key = key(record, false);
        let found = self.session.get(&key, &mut self.value)?;
        match found && self.value.len() == VALUE && self.value.starts_with(&key) {
            true => Ok(()),
            false => Err(Error::engine(format!("record {record} is not what was written"))),
        }
    }

    fn read_many(&mut self, records: &[u32; TOGETHER]) -> Result<u64> {
        let keys = records.map(|record| key(record, false));
        let mut right = [false; TOGETHER];
        let mut each = |index: usize, value: Option<&[u8]>| {
            right[index] = value.is_some_and(|value| value.len() == VALUE && value.starts_with(&keys[index]));
        };
        self.session.get_many(&keys.each_ref().map(|key| &key[..]), &mut each)?;
        match records.iter().zip(right).find(|(_, right)| !right) {
            None => Ok(TOGETHER as u64),
            Some((record, _)) => Err(Error::engine(format!("record {record} is not what was written"))),
        }
    }

    fn write(&mut self, key: [u8; 8]) -> Result<()> {
        let mut value = [0; VALUE];
        fill(&mut value, key, &mut self.random);
        self.session.put(&key, &value)
    }

    fn write_many(&mut self, records: &[u32; TOGETHER]) -> Result<u64> {
        let keys = records.map(|record| key(record, false));
        let values = keys.map(|key| {
            let mut value = [0; VALUE];
            fill(&mut value, key, &mut self.random);
            value
        });
        let pairs: [(&[u8], &[u8]); TOGETHER] = std::array::from_fn(|at| (&keys[at][..], &values[at][..]));
        self.session.put_many(&pairs)?;
        Ok(TOGETHER as u64)
    }

    fn scan(&mut self, record: u32, count: u32) -> Result<()> {
        let (first, mut seen, mut bytes) = (key(record, false), 0, 0);
        let mut begins = true;
        self.session.scan(&first, Some(count as usize), &mut |key, value| {
            begins &= seen > 0 || key == first;
            seen += 1;
            bytes += value.len();
            seen < count
        })?;
        match begins && bytes == seen as usize * VALUE {
            true => Ok(()),
            false => Err(Error::engine(format!("a scan from record {record} gives something else"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::memory::{Map, Memory};

    #[test]
    fn clients_do_their_operations_and_notice_damage() {
        let store = Memory::new(Map::new());
        let records = 500;
        assert_eq!(load(&store, records).unwrap().operations, 500);
        assert_eq!(store.copy().len(), 500);
        assert_eq!(warm(&store, records).unwrap().operations, 500);
        assert!(warm(&store, records + 1).is_err());
        for mix in Mix::ALL {
            let plan =
                Plan { mix, popularity: Popularity::Zipf, records, threads: 2, window_ms: 30, seed: 1 };
            let window = measure(&store, &plan).unwrap();
            assert!(window.operations > 0 && window.rate() > 0.0 && window.per_core() > 0.0, "{window:?}");
        }
        let map = store.copy();
        assert!(map.len() > 500 && map.len() <= 1000, "{}", map.len());
        let mut damaged = map;
        damaged.remove(&key(7, false)[..]);
        let plan = Plan {
            mix: Mix::C,
            popularity: Popularity::Uniform,
            records,
            threads: 1,
            window_ms: 200,
            seed: 1,
        };
        let problem = measure(&Memory::new(damaged), &plan).unwrap_err().to_string();
        assert!(problem.contains("record 7 "), "{problem}");
    }
}
