//! Runs a server under mixed load for a long time. No acknowledged write is lost, values are right, memory stays flat, and
//! nothing is left behind.
//!
//! The run consists of segments of some seconds. Each ends abruptly for all clients. In the first part, the server is killed,
//! stopped, or kills its clients, and is upgraded to itself. In the second part, one server lives to the end, and only kills its clients.
//! After each segment the test compares the data with the clients' models.
//!
//! `BEDPLATE_TEST_SECONDS=3600` lets it run for an hour (30 seconds by default), `BEDPLATE_TEST_SEED` repeats the choices
//! of a run, and `BEDPLATE_TEST_CLIENTS=scans,transfers` runs these clients only.

#[path = "kill/mod.rs"]
mod kill;
mod running;
#[path = "soak/mod.rs"]
mod soak;

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kill::load::{Round, write_own};
use kill::model::{Owner, Random, SLOTS, State, key, written_by};
use kill::wire::{Reply, Wire, put};
use redis::Connection;
use running::{Server, command};
use rustix::process::Signal;
use soak::clients::{self, Segment, Stop};
use soak::footprint::{Footprint, kernel_objects, remains};

/// The memory that the server may use, and the share of it that values of changing sizes take: with everything else,
/// at most 70 %.
const MEMORY: &str = "96M";
const CHANGING_BYTES: usize = 24 << 20;
/// A server that is not synchronous may lose writes of its interval of 100 ms, and of the time that the disk was busy with
/// the sync before. The rest allows for a machine that does not run the log's writer in time.
const ASYNC_WINDOW: Duration = Duration::from_millis(100 + 1900);
/// Bounds of growth between the first and the last third of the time that a server lives after its warm-up.
const MOST_GROWTH: f64 = 1.10;
const MOST_MORE_BYTES: u64 = 8 << 20;
/// The same for the server's private memory. The allocator's heaps keep the memory of a peak of small blocks, such as replies
/// to many clients while the disk stalls. A run may have its first such peak late.
const MOST_MORE_PRIVATE_BYTES: u64 = 24 << 20;
/// Resident bytes of the server's mappings: its limit on memory, and 48 MiB for rings and the program.
const MOST_MAPPED_BYTES: u64 = (96 + 48) << 20;
/// Threads and descriptors that may come and go: a checkpoint that is just being taken has some.
const MOST_MORE_DESCRIPTORS: usize = 16;
const MOST_MORE_THREADS: usize = 4;
/// A segment takes half of this time to two and a half times of it, so that values of one size can be written in it.
const SHORTEST_STEP_MS: u64 = 2500;
/// Measurements after the warm-up; a run on a slow machine continues until it has them.
const LEAST_SAMPLES: usize = 6;

/// The time within which a server finishes its work in the background.
const PATIENCE: Duration = Duration::from_secs(30);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// A running server, and the resources that must disappear with it.
struct Running {
    server: Server,
    objects: std::collections::BTreeSet<String>,
}

impl Running {
    fn start(data: &Path, random: &mut Random) -> Running {
        let mut options = vec!["--memory", MEMORY, "--max-clients", "256", "--durability", "sync"];
        options.extend([
            "--fsync-interval-ms",
            "100",
            "--checkpoint-wal-bytes",
            "32M",
            "--wal-segment-bytes",
            "8M",
        ]);
        options.extend_from_slice([&["--local-fast-path"][..], &[]][random.below(2) as usize]);
        let server = Server::start(data, &options);
        let objects = kernel_objects(server.process());
        Running { server, objects }
    }

    /// Ends the server and checks that nothing of it is left.
    fn end(self, signal: Signal) {
        let (process, port) = (self.server.process(), self.server.port);
        // A rebuild has exchanged some of them.
        let objects = &self.objects | &kernel_objects(process);
        assert!(self.objects.len() > 20, "the server has hardly any kernel objects: {:?}", self.objects);
        let (code, said) = self.server.end(signal);
        if signal == Signal::TERM {
            assert_eq!(code, Some(0), "{said}");
        }
        let left = remains(process, port, &objects);
        assert!(left.is_empty(), "after the server's end there are still {left:?}");
    }

    /// Measures the server without the data whose size changes. Log records that wait for the disk take memory, and so does
    /// a checkpoint: the server finishes both first.
    fn footprint(&self) -> Result<Footprint, String> {
        let mut connection = self.server.connect();
        clients::remove_sizes(&mut connection).unwrap();
        expired_keys_go(&mut connection)?;
        let started = Instant::now();
        loop {
            let durable: Vec<u64> =
                redis::cmd("WAITAOF").arg(1).arg(0).arg(1000).query(&mut connection).unwrap();
            if durable == [1, 0] && info(&mut connection, "rdb_bgsave_in_progress") == 0 {
                break;
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("the server still writes, WAITAOF gives {durable:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let used = info(&mut connection, "used_memory");
        Ok(Footprint::of(self.server.process(), used))
    }
}

/// A number of INFO.
fn info(connection: &mut Connection, field: &str) -> u64 {
    let text: String = redis::cmd("INFO").query(connection).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("INFO has no {field}")).trim().parse().unwrap()
}

/// The state of an owner's keys.
fn read(wire: &mut Wire, owner: &str) -> State {
    let mut out = Vec::new();
    (0..SLOTS).for_each(|slot| put(&mut out, &[b"GET", &key(owner, slot)]));
    wire.send(&out).unwrap();
    let mut state = [None; SLOTS];
    for (slot, writer) in state.iter_mut().enumerate() {
        match wire.reply().unwrap() {
            Reply::Bulk(None) => {}
            Reply::Bulk(Some(found)) => *writer = Some(written_by(owner, slot, &found).unwrap()),
            other => panic!("{other:?}"),
        }
    }
    state
}

/// Whether a client takes part in the run.
fn runs(name: &str) -> bool {
    let chosen = std::env::var("BEDPLATE_TEST_CLIENTS").ok();
    chosen.is_none_or(|names| names.split(',').any(|chosen| chosen == name))
}

/// The way in which a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    ServerKilled,
    ServerStopped,
    ClientsKilled,
}

/// The length of a segment, its end, and whether the server may be upgraded in it.
struct Plan {
    time: Duration,
    end: End,
    upgrades: bool,
}

/// Syncs a small file beside a folder again and again, and returns the longest time that a sync took.
fn slowest_sync(beside: &Path, segment: &Segment) -> Duration {
    let mut file = tempfile::tempfile_in(beside.parent().unwrap()).unwrap();
    let mut slowest = Duration::ZERO;
    while !segment.ends() {
        let started = Instant::now();
        file.write_all(&[0; 4096]).unwrap();
        file.sync_data().unwrap();
        slowest = slowest.max(started.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    slowest
}

/// Lets all clients work for some time. Returns the errors.
fn segment(
    running: Running,
    data: &Path,
    owners: &mut [Owner],
    random: &mut Random,
    plan: &Plan,
    fills: &mut usize,
) -> (Option<Running>, Vec<String>) {
    let segment = Segment {
        port: running.server.port,
        upgrades: plan.upgrades,
        ending: AtomicBool::new(false),
        fills: AtomicUsize::new(*fills),
    };
    let round = Round { port: segment.port, ..Round::default() };
    let wrong = Mutex::new(Vec::new());
    let note = |problem: Option<String>| wrong.lock().unwrap().extend(problem);
    let mut left = Some(running);
    let (ended, slowest) = std::thread::scope(|scope| {
        let (segment, round, note) = (&segment, &round, &note);
        let syncs = scope.spawn(|| slowest_sync(data, segment));
        if runs("owners") {
            for owner in owners.iter_mut() {
                let random = Random::new(random.next());
                scope.spawn(move || {
                    let name = owner.name.clone();
                    note(segment.judge(&name, write_own(round, owner, random).map_err(Stop::from)));
                });
            }
        }
        let mut client = |name: &'static str, run: fn(&Segment, Random) -> clients::Result| {
            let random = Random::new(random.next());
            if runs(name) {
                scope.spawn(move || note(segment.judge(name, run(segment, random))));
            }
        };
        client("expiring", clients::expiring_keys);
        client("pipelines", clients::deep_pipelines);
        client("sizes", |segment, random| clients::changing_sizes(segment, random, CHANGING_BYTES));
        client("transfers", clients::transfers);
        client("transfers", clients::transfers);
        client("scans", clients::scans);
        client("administration", clients::administration);
        client("leaving", clients::leaving_clients);
        client("benchmark", clients::benchmark);
        client("python", clients::python);

        std::thread::sleep(plan.time);
        segment.ending.store(true, SeqCst);
        let running = left.take().unwrap();
        let killed = Instant::now();
        match plan.end {
            End::ServerKilled => running.end(Signal::KILL),
            End::ServerStopped => running.end(Signal::TERM),
            End::ClientsKilled => {
                let mut connection = running.server.connect();
                let kill = |connection: &mut Connection| {
                    redis::cmd("CLIENT")
                        .arg("KILL")
                        .arg("SKIPME")
                        .arg("yes")
                        .query::<u64>(connection)
                        .unwrap()
                };
                kill(&mut connection);
                left = Some(running);
                // A client may have connected meanwhile.
                let started = Instant::now();
                while info(&mut connection, "connected_clients") > 1
                    && started.elapsed() < Duration::from_secs(30)
                {
                    kill(&mut connection);
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
        let ended = if plan.end == End::ServerKilled { killed } else { Instant::now() };
        (ended, syncs.join().unwrap())
    });
    *fills = segment.fills.into_inner();
    let mut wrong = wrong.into_inner().unwrap();
    wrong.extend(round.unexpected.into_inner().unwrap());
    for owner in owners.iter_mut() {
        owner.must_keep_before(match plan.end {
            End::ServerKilled => ended.checked_sub(ASYNC_WINDOW + 2 * slowest).unwrap(),
            End::ServerStopped | End::ClientsKilled => ended,
        });
    }
    (left, wrong)
}

/// Compares the data with the clients' models.
fn check(running: &Running, owners: &mut [Owner]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut wire = Wire::connect(running.server.port).unwrap();
    for owner in owners {
        let found = read(&mut wire, &owner.name);
        wrong.extend(owner.check(&found).err());
    }
    let mut connection = running.server.connect();
    let sum = clients::total(&mut connection).unwrap();
    if sum != clients::ACCOUNTS as i64 * clients::BALANCE {
        wrong.push(format!("the accounts' total is {sum}"));
    }
    wrong
}

/// Checks that expired keys disappear without any access: the number of keys becomes that of the keys that SCAN finds.
fn expired_keys_go(connection: &mut Connection) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let all: u64 = redis::cmd("DBSIZE").query(connection).unwrap();
        let (mut cursor, mut live) = (0u64, 0);
        loop {
            let (next, names): (u64, Vec<Vec<u8>>) =
                redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(1000).query(connection).unwrap();
            live += names.len() as u64;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        if all == live {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(format!("of {all} keys only {live} have not expired"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Compares the first third of the measurements after the warm-up with the last one.
fn growth(samples: &[Footprint]) -> Vec<String> {
    let third = samples.len() / 3;
    let (first, last) = (&samples[..third], &samples[samples.len() - third..]);
    let most = |part: &[Footprint], of: fn(&Footprint) -> u64| part.iter().map(of).max().unwrap_or(0);
    let mut wrong = Vec::new();
    let mut compare = |what: &str, of: fn(&Footprint) -> u64, bound: &dyn Fn(u64) -> u64| {
        let (before, after) = (most(first, of), most(last, of));
        println!("{what}: at most {before} at first, {after} at last");
        if after > bound(before) {
            wrong.push(format!("{what} grew from {before} to {after}: {samples:?}"));
        }
    };
    let grown = |before: u64, more: u64| (before as f64 * MOST_GROWTH) as u64 + more;
    compare("private memory", |f| f.resident, &|before| grown(before, MOST_MORE_PRIVATE_BYTES));
    // The database's memory may reach its limit early or late.
    compare("mapped memory", |f| f.mapped, &|_| MOST_MAPPED_BYTES);
    compare("used memory", |f| f.used, &|before| grown(before, MOST_MORE_BYTES));
    compare("descriptors", |f| f.descriptors as u64, &|before| before + MOST_MORE_DESCRIPTORS as u64);
    compare("threads", |f| f.threads as u64, &|before| before + MOST_MORE_THREADS as u64);
    wrong
}

#[test]
fn mixed_load_with_kills_loses_nothing_and_leaves_nothing() {
    let total = Duration::from_secs(number("BEDPLATE_TEST_SECONDS", 30));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("BEDPLATE_TEST_SEED", now.as_nanos() as u64);
    println!("seed {seed}, {total:?}");
    let mut random = Random::new(seed);
    let data = tempfile::tempdir().unwrap();
    let mut owners: Vec<Owner> =
        (0..3).map(|i| Owner::new(format!("owner{i}"), /* may lose */ i == 2)).collect();
    let started = Instant::now();
    let mut running = Running::start(data.path(), &mut random);
    let mut connection = running.server.connect();
    clients::open_accounts(&mut connection).unwrap();
    clients::write_fixed(&mut connection).unwrap();
    let baseline = info(&mut connection, "used_memory");
    drop(connection);

    // A segment's length grows with the run's, so that an hour has longer ones as well.
    let step = (total.as_millis() as u64 / 60).clamp(SHORTEST_STEP_MS, 60_000);
    let (mut samples, mut ends) = (Vec::new(), Vec::new());
    let (mut fills, mut fills_at_start) = (0, None);
    while started.elapsed() < total || samples.len() < LEAST_SAMPLES {
        assert!(
            started.elapsed() < total * 12,
            "seed {seed}: after {:?} only {fills} fills",
            started.elapsed()
        );
        let kills_server = started.elapsed() < total.mul_f64(0.4);
        let end = match random.below(4) {
            0 => End::ClientsKilled,
            1 if kills_server => End::ServerStopped,
            _ if kills_server => End::ServerKilled,
            _ => End::ClientsKilled,
        };
        let time = Duration::from_millis(step / 2 + random.below(step * 2));
        let plan = Plan { time, end, upgrades: kills_server };
        let (left, mut wrong) = segment(running, data.path(), &mut owners, &mut random, &plan, &mut fills);
        running = left.unwrap_or_else(|| Running::start(data.path(), &mut random));
        wrong.extend(check(&running, &mut owners));
        let footprint = running.footprint().map_err(|problem| wrong.push(problem));
        assert!(
            wrong.is_empty(),
            "seed {seed}, segment {}, {end:?}, {footprint:?}:\n{}",
            ends.len(),
            wrong.join("\n")
        );
        ends.push(end);
        if !kills_server {
            // A server is warm once it had values of all sizes, at least once since its start.
            let start = *fills_at_start.get_or_insert(fills);
            if fills >= start + clients::LENGTHS.len() || !runs("sizes") {
                samples.extend(footprint);
            }
        }
    }
    let count = |end| ends.iter().filter(|e| **e == end).count();
    println!(
        "{} segments: {} ended by kill -9, {} by SIGTERM, {} by CLIENT KILL; {} upgrades",
        ends.len(),
        count(End::ServerKilled),
        count(End::ServerStopped),
        count(End::ClientsKilled),
        clients::UPGRADES.load(SeqCst)
    );

    let mut wrong = growth(&samples);
    let mut connection = running.server.connect();
    wrong.extend(expired_keys_go(&mut connection).err());
    let () = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
    // The memory of deleted keys is freed once no reader can see it.
    let (flushed, bound) = (Instant::now(), baseline + MOST_MORE_BYTES);
    while info(&mut connection, "used_memory") > bound && flushed.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(200));
    }
    let empty = info(&mut connection, "used_memory");
    if empty > bound {
        wrong.push(format!("after FLUSHALL {empty} bytes are in use; before the run there were {baseline}"));
    }
    let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    if keys > 0 {
        wrong.push(format!("after FLUSHALL there are {keys} keys"));
    }
    drop(connection);
    running.end(Signal::TERM);
    let deep = command(&["kv", "verify", "--deep", data.path().to_str().unwrap()]).output().unwrap();
    if !deep.status.success() {
        wrong.push(format!("the data directory is damaged: {deep:?}"));
    }
    assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
}
