//! Kills the real server by `kill -9` at random moments, under load of real clients. Writes that were acknowledged
//! under sync durability are there after the restart, transactions are there wholly or not at all, and no old
//! state comes back.
//!
//! `BEDPLATE_TEST_KILLS` is the number of kills (20), `BEDPLATE_TEST_SEED` repeats the choices of a run.

#[path = "kill/mod.rs"]
mod kill;
mod running;

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kill::load::{Attempts, PAIRS, Round, SHARED, change_options, take_checkpoints, write_own, write_pairs};
use kill::model::{Owner, Random, SLOTS, State, check_pair, key, written_by};
use kill::wire::{Reply, Wire, put};
use running::{Server, command};
use rustix::process::Signal;

const PATIENCE: Duration = Duration::from_secs(30);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// The options of the server, which are different in every round.
fn options(random: &mut Random) -> Vec<&'static str> {
    let mut args = vec!["--durability", "sync", "--wal-segment-bytes", "64K", "--fsync-interval-ms", "5"];
    args.extend_from_slice(match random.below(4) {
        0 => &["--no-kernel-path"],
        1 => &["--local-fast-path"],
        _ => &[],
    });
    if random.below(2) == 0 {
        args.extend(["--checkpoint-wal-bytes", "1M"]);
    }
    if random.below(3) == 0 {
        args.extend(["--partitions", "2"]);
    }
    args
}

/// Reads the state of an owner's slots.
fn read(wire: &mut Wire, owner: &str, slots: usize) -> State {
    let mut out = Vec::new();
    (0..slots).for_each(|slot| put(&mut out, &[b"GET", &key(owner, slot)]));
    wire.send(&out).unwrap();
    let mut state = [None; SLOTS];
    for (slot, writer) in state.iter_mut().enumerate().take(slots) {
        match wire.reply().unwrap() {
            Reply::Bulk(None) => {}
            Reply::Bulk(Some(found)) => *writer = Some(written_by(owner, slot, &found).unwrap()),
            other => panic!("{other:?}"),
        }
    }
    state
}

/// Kills the server in the middle of its start, recovery included.
fn kill_while_it_starts(data: &Path, random: &mut Random) {
    let mut child = command(&["kv", "serve", "--port", "0", "--memory", "64M", "--durability", "sync"])
        .arg("--data-dir")
        .arg(data)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(random.below(800)));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn killed_at_random_moments_under_load() {
    let kills = number("BEDPLATE_TEST_KILLS", 20);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("BEDPLATE_TEST_SEED", now.as_nanos() as u64);
    println!("seed {seed}, {kills} kills");
    let mut random = Random::new(seed);
    let data = tempfile::tempdir().unwrap();
    let mut owners: Vec<Owner> =
        (0..5).map(|i| Owner::new(format!("owner{i}"), /* may lose */ i >= 3)).collect();
    let mut pairs = [None; PAIRS];
    // The attempts of the round before.
    let mut attempts: Attempts = Default::default();
    let (mut acknowledged, mut more, mut starts) = (0, 0, Vec::new());
    for kill in 0..=kills {
        if random.below(8) == 0 {
            kill_while_it_starts(data.path(), &mut random);
        }
        let started = Instant::now();
        let server = Server::start(data.path(), &options(&mut random));
        starts.push(started.elapsed());
        let fail = |e: String| -> usize { panic!("seed {seed}, after kill {kill}: {e}") };
        let mut wire = Wire::connect(server.port).unwrap();
        for owner in &mut owners {
            let found = read(&mut wire, &owner.name, SLOTS);
            more += owner.check(&found).unwrap_or_else(fail);
        }
        let found = read(&mut wire, SHARED, 2 * PAIRS);
        for (pair, (base, attempts)) in pairs.iter_mut().zip(std::mem::take(&mut attempts)).enumerate() {
            let found = [found[2 * pair], found[2 * pair + 1]];
            if let Err(e) = check_pair(*base, &attempts.into_inner().unwrap(), found) {
                fail(format!("pair {pair}: {e}"));
            }
            *base = found[0];
        }
        drop(wire);
        if kill == kills {
            let (code, said) = server.end(Signal::TERM);
            assert_eq!(code, Some(0), "{said}");
            break;
        }

        let round = Round { port: server.port, ..Round::default() };
        std::thread::scope(|scope| {
            let (round, attempts) = (&round, &attempts);
            // The clients end with an error when the server ends.
            for owner in &mut owners {
                let random = Random::new(random.next());
                scope.spawn(move || write_own(round, owner, random));
            }
            for writer in 0..2 {
                let random = Random::new(random.next());
                scope.spawn(move || write_pairs(round, attempts, writer, random));
            }
            if random.below(2) == 0 {
                scope.spawn(move || take_checkpoints(round.port));
            }
            if random.below(3) == 0 {
                scope.spawn(move || change_options(round));
            }
            // The kill comes after a time, or after a number of acknowledgements.
            let (units, time) = (random.below(600), Duration::from_micros(random.below(150_000)));
            let by_time = random.below(2) == 0;
            let started = Instant::now();
            while match by_time {
                true => started.elapsed() < time,
                false => round.acknowledged.load(Ordering::Relaxed) < units && started.elapsed() < PATIENCE,
            } {
                std::thread::sleep(Duration::from_micros(200));
            }
            assert_eq!(server.end(Signal::KILL).0, None, "it ended before it was killed");
        });
        assert_eq!(*round.unexpected.lock().unwrap(), Vec::<String>::new(), "seed {seed}, kill {kill}");
        acknowledged += round.acknowledged.load(Ordering::Relaxed);
    }
    let deep = command(&["kv", "verify", "--deep", data.path().to_str().unwrap()]).output().unwrap();
    assert!(deep.status.success(), "{deep:?}");
    starts.sort();
    println!(
        "{acknowledged} units acknowledged, {more} more found; a restart took {:?}, at most {:?}",
        starts[starts.len() / 2],
        starts[starts.len() - 1]
    );
}
