//! `kv-voter`: Voter's VOTE procedure, serializable transactions of three GETs and two SETs (paper 5.2,
//! 6.4, 6.5, Figure 10b).
//!
//! The same procedure three ways, in turns on databases of their own: in the kernel with many votes per
//! call, in the kernel with one vote per call, and from user space with one call per operator. What the
//! last two differ by is what composing operators inside the kernel saves.

use std::time::{Duration, Instant};

use bedplate_kerneldb::{Config, Database, Procedure, Session, SetOptions};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::cpu::thread_cpu_ns;
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-voter",
    about: "Voter's VOTE as a procedure in the kernel and from user space (paper 6.5, Figure 10b)",
    run,
};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/voter.bpf.o"));
const AREA_CODES: u64 = 200;
const CONTESTANTS: u64 = 12;
const MAX_VOTES: u64 = 2;
/// Votes per call of the batched way.
const BATCH: u64 = 256;
const MEMORY: u64 = 2 << 30;

/// How votes are cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    KernelBatch,
    KernelOne,
    UserSpace,
}

const WAYS: [Way; 3] = [Way::KernelBatch, Way::KernelOne, Way::UserSpace];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::KernelBatch => "procedure, 256 votes per call",
            Way::KernelOne => "procedure, one vote per call",
            Way::UserSpace => "one call per operator",
        }
    }
}

/// What became of votes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Votes {
    accepted: u64,
    bad_contestant: u64,
    over_limit: u64,
    rolled_back: u64,
}

impl Votes {
    fn add(&mut self, other: Votes) {
        self.accepted += other.accepted;
        self.bad_contestant += other.bad_contestant;
        self.over_limit += other.over_limit;
        self.rolled_back += other.rolled_back;
    }

    /// Votes that were processed, by whichever rule.
    fn processed(self) -> u64 {
        self.accepted + self.bad_contestant + self.over_limit
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    votes: Votes,
    cpu_ns: u64,
    wall_ns: u64,
}

impl Window {
    fn per_cpu_s(&self) -> f64 {
        self.votes.processed() as f64 * 1e9 / self.cpu_ns as f64
    }
}

fn run(options: &Options, progress: Sink<'_>) -> Result<Report> {
    let rounds = options.pick(5, 9);
    let window = Duration::from_millis(options.pick(200, 1000));
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("window_ms", window.as_millis() as u64)
        .with("area_codes", AREA_CODES)
        .with("contestants", CONTESTANTS)
        .with("max_votes", MAX_VOTES);
    let mut report = Report::new(BENCH.name, config);
    for (done, threads) in [1usize, 2].into_iter().enumerate() {
        progress(Step { done, total: 2, label: &format!("{threads} threads") });
        let halls = WAYS.iter().map(|_| Hall::open()).collect::<Result<Vec<_>>>()?;
        let windows = interleave(rounds, WAYS.len(), |side, round| {
            halls[side].vote_in_threads(WAYS[side], threads, round as u64, window)
        })?;
        for (way, windows) in WAYS.iter().zip(&windows) {
            let per_cpu = samples(windows, Window::per_cpu_s);
            let mut all = Votes::default();
            windows.iter().for_each(|w| all.add(w.votes));
            report.rows.push(
                Fields::new()
                    .with("threads", threads)
                    .with("way", way.name())
                    .with("votes_per_cpu_s", per_cpu.median())
                    .with("spread", per_cpu.spread())
                    .with("cpu_ns_per_vote", 1e9 / per_cpu.median())
                    .with(
                        "votes_per_s",
                        samples(windows, |w| w.votes.processed() as f64 * 1e9 / w.wall_ns as f64).median(),
                    )
                    .with("accepted", all.accepted)
                    .with("bad_contestant", all.bad_contestant)
                    .with("over_limit", all.over_limit)
                    .with("rolled_back", all.rolled_back),
            );
        }
        for (hall, windows) in halls.iter().zip(&windows) {
            hall.check(windows.iter().map(|w| w.votes.accepted).sum())?;
        }
        let per_cpu = |side: usize| samples(&windows[side], Window::per_cpu_s);
        report.ratio(&format!("procedure_over_user_space_{threads}t"), per_cpu(1).over(&per_cpu(2)));
        report.ratio(&format!("batch_over_user_space_{threads}t"), per_cpu(0).over(&per_cpu(2)));
    }
    Ok(report)
}

/// A database with the tables of Voter and the procedure on it.
struct Hall {
    database: Database,
    procedure: Procedure,
}

fn key(table: u8, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[0] = table;
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

impl Hall {
    fn open() -> Result<Hall> {
        let database = Database::create(Config { memory_bytes: MEMORY, ..Config::default() })?;
        database.prefault(MEMORY / 8);
        let procedure = database.load_procedure(OBJECT, "voter")?;
        let mut session = database.session()?;
        for area in 0..AREA_CODES {
            session.set(&key(b'S', area), &(area % 50).to_le_bytes(), SetOptions::default())?;
        }
        for contestant in 1..=CONTESTANTS {
            let name = format!("contestant {contestant:05}");
            session.set(&key(b'C', contestant), name.as_bytes(), SetOptions::default())?;
        }
        Ok(Hall { database, procedure })
    }

    fn vote_in_threads(&self, way: Way, threads: usize, round: u64, window: Duration) -> Result<Window> {
        let results: Vec<Result<Window>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads as u64)
                .map(|t| scope.spawn(move || self.vote_for(way, round << 8 | t, window)))
                .collect();
            running.into_iter().map(|t| t.join().expect("a voting thread does not panic")).collect()
        });
        let mut sum = Window::default();
        for result in results {
            let one = result?;
            sum.votes.add(one.votes);
            sum.cpu_ns += one.cpu_ns;
            sum.wall_ns = sum.wall_ns.max(one.wall_ns);
        }
        Ok(sum)
    }

    fn vote_for(&self, way: Way, seed: u64, window: Duration) -> Result<Window> {
        let mut session = self.database.session()?;
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut votes = Votes::default();
        let (start, cpu) = (Instant::now(), thread_cpu_ns());
        while start.elapsed() < window {
            match way {
                Way::KernelBatch => votes.add(self.call(&mut session, BATCH, rng.random())?),
                Way::KernelOne => votes.add(self.call(&mut session, 1, rng.random())?),
                Way::UserSpace => vote(&mut session, &mut rng, &mut votes)?,
            }
        }
        let cpu_ns = thread_cpu_ns() - cpu;
        Ok(Window { votes, cpu_ns, wall_ns: start.elapsed().as_nanos() as u64 })
    }

    /// Calls the procedure for a number of votes.
    fn call(&self, session: &mut Session, votes: u64, seed: u64) -> Result<Votes> {
        let mut input = Vec::with_capacity(40);
        for word in [votes, seed | 1, AREA_CODES, CONTESTANTS, MAX_VOTES] {
            input.extend_from_slice(&word.to_le_bytes());
        }
        let output = self.procedure.call(session, &input)?;
        let words: Vec<u64> =
            output.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        match words[..] {
            [accepted, bad_contestant, over_limit, rolled_back, _] => {
                Ok(Votes { accepted, bad_contestant, over_limit, rolled_back })
            }
            _ => Err(Error::engine(format!("the procedure returned {} bytes", output.len()))),
        }
    }

    /// Every accepted vote left one record, and the counts of the phone numbers add up to them.
    fn check(&self, accepted: u64) -> Result<()> {
        let snapshot = self.database.snapshot()?;
        let (mut records, mut counted) = (0, 0);
        snapshot.scan(0, snapshot.positions(), &mut |item| match item.key.first() {
            Some(b'V') => records += 1,
            Some(b'P') => {
                counted += item.value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            }
            _ => {}
        });
        if records != accepted || counted != accepted {
            return Err(Error::engine(format!(
                "{accepted} votes were accepted, {records} are recorded and {counted} are counted"
            )));
        }
        Ok(())
    }
}

/// VOTE from user space: the same operators as the procedure's, one call each.
fn vote(session: &mut Session, rng: &mut SmallRng, votes: &mut Votes) -> Result<()> {
    let area = rng.random_range(0..AREA_CODES);
    let phone = area * 10_000_000 + rng.random_range(0..10_000_000u64);
    let contestant =
        if rng.random_range(0..100) == 0 { CONTESTANTS + 1 } else { rng.random_range(1..=CONTESTANTS) };
    let mut transaction = || -> bedplate_kerneldb::Result<Votes> {
        session.begin()?;
        let state = session.get(&key(b'S', area))?;
        if session.get(&key(b'C', contestant))?.is_none() {
            session.rollback()?;
            return Ok(Votes { bad_contestant: 1, ..Votes::default() });
        }
        let count = session.get(&key(b'P', phone))?;
        let count = count.and_then(|v| v.data.first_chunk().map(|b| u64::from_le_bytes(*b))).unwrap_or(0);
        if count >= MAX_VOTES {
            session.rollback()?;
            return Ok(Votes { over_limit: 1, ..Votes::default() });
        }
        session.set(&key(b'P', phone), &(count + 1).to_le_bytes(), SetOptions::default())?;
        let mut record = state.map(|v| v.data).unwrap_or_default();
        record.extend_from_slice(&contestant.to_le_bytes());
        session.set(&key(b'V', phone << 8 | count), &record, SetOptions::default())?;
        session.commit()?;
        Ok(Votes { accepted: 1, ..Votes::default() })
    };
    match transaction() {
        Ok(v) => votes.add(v),
        Err(e) if e.is_transient() => {
            session.rollback()?;
            votes.rolled_back += 1;
        }
        Err(e) => return Err(e.into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The procedure and the user-space transaction keep the same books.
    #[test]
    fn accepted_votes_are_recorded_and_counted() {
        let hall = Hall::open().unwrap();
        let mut session = hall.database.session().unwrap();
        let mut rng = SmallRng::seed_from_u64(1);
        let mut votes = hall.call(&mut session, 3000, 42).unwrap();
        for _ in 0..300 {
            vote(&mut session, &mut rng, &mut votes).unwrap();
            votes.add(hall.call(&mut session, 1, rng.random()).unwrap());
        }
        assert_eq!(votes.processed(), 3600, "{votes:?}");
        assert!((10..=90).contains(&votes.bad_contestant), "{votes:?}");
        hall.check(votes.accepted).unwrap();
        assert!(hall.check(votes.accepted + 1).is_err());
        // The same seed casts the same votes: at last every phone number is over its limit.
        for _ in 0..3 {
            votes.add(hall.call(&mut session, 500, 7).unwrap());
        }
        assert!(votes.over_limit > 400, "{votes:?}");
        hall.check(votes.accepted).unwrap();
    }
}
