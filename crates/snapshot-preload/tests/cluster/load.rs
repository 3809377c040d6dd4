//! Writers and readers that use a cluster, and the expected content afterwards.
//!
//! A writer writes consecutive numbers to its own keys in turn, and continues after a number is acknowledged. So an image of one
//! moment at a node has, for each writer, the latest number of each of its keys there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::cluster::{ClusterClient, ClusterConnection, cluster_pipe};
use redis::{Commands, Connection};

use crate::common::{number_of, value};

const WRITERS: usize = 2;
/// The keys of a writer.
const KEYS: u64 = 4000;
/// Keys that are read at once in the end.
const BATCH: usize = 500;

/// The time within which a command succeeds, even if a master fails meanwhile.
const PATIENCE: Duration = Duration::from_secs(600);

/// The values that readers may find while the load runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Every value that was acknowledged before the read, or a later one.
    Acknowledged,
    /// A failover may lose values that are acknowledged, because replicas get them later.
    Any,
}

/// The keys, and the numbers that were written to them.
pub struct Load {
    client: ClusterClient,
    /// The latest number of each writer.
    latest: Vec<AtomicU64>,
    /// The latest acknowledged number of each key, by `index`.
    acknowledged: Vec<AtomicU64>,
    reads: AtomicU64,
}

/// The name of a key.
pub fn name(index: usize) -> String {
    format!("{}:{}", index / KEYS as usize, index % KEYS as usize)
}

/// The key that a writer writes a number to.
fn index(writer: usize, number: u64) -> usize {
    writer * KEYS as usize + (number.wrapping_mul(7919) % KEYS) as usize
}

impl Load {
    /// Number of keys.
    pub const ALL: usize = WRITERS * KEYS as usize;

    pub fn new(addresses: Vec<String>) -> Self {
        let nodes = addresses.iter().map(|address| format!("redis://{address}"));
        let client = ClusterClient::builder(nodes).retries(3).response_timeout(PATIENCE).build().unwrap();
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { client, latest: zeros(WRITERS), acknowledged: zeros(Self::ALL), reads: AtomicU64::new(0) }
    }

    /// Runs writers and readers while `f` runs.
    pub fn run<T>(&self, reads: Reads, f: impl FnOnce() -> T) -> T {
        let over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for writer in 0..WRITERS {
                threads.push(scope.spawn(move || self.write(writer, over)));
            }
            threads.push(scope.spawn(move || self.read(reads, over)));
            // The threads end even if this panics.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            over.store(true, Relaxed);
            for thread in threads {
                thread.join().unwrap();
            }
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn write(&self, writer: usize, over: &AtomicBool) {
        let mut connection = self.connect();
        while !over.load(Relaxed) {
            let number = self.latest[writer].load(Relaxed) + 1;
            let index = index(writer, number);
            self.retry::<()>(&mut connection, |connection| connection.set(name(index), value(number)));
            self.acknowledged[index].store(number, Relaxed);
            self.latest[writer].store(number, Relaxed);
        }
    }

    fn read(&self, reads: Reads, over: &AtomicBool) {
        let mut connection = self.connect();
        let mut index = 0;
        while !over.load(Relaxed) {
            index = (index + 7919) % Self::ALL;
            let before = self.acknowledged[index].load(Relaxed);
            let found: Option<String> = self.retry(&mut connection, |connection| connection.get(name(index)));
            let found = found.map_or(0, |value| number_of(&value));
            assert!(
                reads == Reads::Any || found >= before,
                "key {}: {found} was read after {before} was acknowledged",
                name(index)
            );
            self.reads.fetch_add(1, Relaxed);
        }
    }

    /// Repeats a command until it succeeds. Each attempt uses a new connection, because an old one continues to ask a master that
    /// has failed. Commands here may run twice.
    fn retry<T>(
        &self,
        connection: &mut ClusterConnection,
        mut command: impl FnMut(&mut ClusterConnection) -> redis::RedisResult<T>,
    ) -> T {
        let limit = Instant::now() + PATIENCE;
        loop {
            match command(connection) {
                Ok(answer) => return answer,
                Err(error) if Instant::now() > limit => panic!("{error}"),
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(50));
                    *connection = self.connect();
                }
            }
        }
    }

    fn connect(&self) -> ClusterConnection {
        let limit = Instant::now() + PATIENCE;
        loop {
            match self.client.get_connection() {
                Ok(connection) => return connection,
                Err(error) if Instant::now() > limit => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Waits until every key has been written once more.
    pub fn write_all(&self) {
        let limit = Instant::now() + PATIENCE;
        for latest in &self.latest {
            let goal = latest.load(Relaxed) + KEYS;
            while latest.load(Relaxed) < goal {
                assert!(Instant::now() < limit, "a writer does not get on");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// The latest numbers that were acknowledged, by key.
    pub fn acknowledged(&self) -> Vec<u64> {
        self.acknowledged.iter().map(|number| number.load(Relaxed)).collect()
    }

    /// Number of reads.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// The numbers that the cluster has, by key.
    pub fn contents(&self) -> Vec<u64> {
        let mut connection = self.connect();
        let mut numbers = Vec::new();
        for start in (0..Self::ALL).step_by(BATCH) {
            let mut pipeline = cluster_pipe();
            for index in start..(start + BATCH).min(Self::ALL) {
                pipeline.get(name(index));
            }
            let values: Vec<Option<String>> = pipeline.query(&mut connection).unwrap();
            numbers.extend(values.iter().map(|value| value.as_deref().map_or(0, number_of)));
        }
        numbers
    }

    /// Takes the content of the cluster as acknowledged, after a failover has lost the rest.
    pub fn accept(&self, contents: &[u64]) {
        for (acknowledged, number) in self.acknowledged.iter().zip(contents) {
            acknowledged.store(*number, Relaxed);
        }
    }

    /// Checks that a server has an image of one moment, which is not older than the numbers in `before`. Returns the number of
    /// its keys.
    pub fn check_image(&self, image: &mut Connection, before: &[u64]) -> usize {
        let after = self.acknowledged();
        let mut numbers = vec![0; Self::ALL];
        let mut count = 0;
        for start in (0..Self::ALL).step_by(BATCH) {
            let end = (start + BATCH).min(Self::ALL);
            let names: Vec<_> = (start..end).map(name).collect();
            let values: Vec<Option<String>> = image.mget(&names).unwrap();
            for (key, value) in (start..end).zip(values) {
                let Some(value) = value else { continue };
                let number = number_of(&value);
                assert!(
                    (before[key]..=after[key]).contains(&number),
                    "key {}: {number} is not between {} and {}",
                    name(key),
                    before[key],
                    after[key]
                );
                numbers[key] = number;
                count += 1;
            }
        }
        for (writer, numbers) in numbers.chunks(KEYS as usize).enumerate() {
            let latest = *numbers.iter().max().unwrap();
            for number in numbers.iter().filter(|number| **number > 0) {
                assert!(
                    *number + KEYS > latest,
                    "writer {writer}: {number} is in the image with {latest}, and what followed it is not"
                );
            }
        }
        let size: usize = redis::cmd("DBSIZE").query(image).unwrap();
        assert_eq!(size, count, "keys that nobody wrote");
        count
    }
}
