//! The isolation of the server, seen from outside: random transactions of many clients have a serial order that agrees
//! with real time, also when connections break, the power fails and the server is killed.
//!
//! `BEDPLATE_TEST_TRANSACTIONS` is the number of transactions, `BEDPLATE_TEST_SEED` repeats the choices of a run.

mod common;
mod history;
mod server;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bedplate_history::Summary;
use bedplate_kerneldb::EngineKind;
use bedplate_kerneldb::testing::SimulatedDisk;
use common::can_run;
use history::client::Service;
use history::plan::Mix;
use history::rounds::Recorder;
use history::servers::{LocalServer, ServerProcess, Variant, procedures, serve_until_killed};
use history::{number, seed};
use server::Random;

/// Number of runs of the server after which clients use new keys.
const RUNS_WITH_THE_SAME_KEYS: usize = 3;

const MIX: Mix = Mix { hang_ups: true, read_only_percent: 15, pause_ms: 3 };

/// Splits a number of transactions into runs of the server.
fn runs(transactions: usize, least: usize, most: usize) -> (usize, usize) {
    let runs = transactions.div_ceil(most).max(least);
    (runs, transactions.div_ceil(runs))
}

/// Reads what the run before has left, and takes new keys from time to time.
fn prepare(recorder: &mut Recorder, service: &Service, run: usize) {
    if run > 0 {
        recorder.read_all(service);
    }
    if run.is_multiple_of(RUNS_WITH_THE_SAME_KEYS) {
        recorder.take_new_keys(service.addr);
    }
}

/// A history proves something only if its transactions met each other. Runs that end early have less than all
/// transactions.
fn assert_thorough(summary: Summary, planned: usize) {
    let transactions = summary.committed + summary.aborted + summary.unknown;
    assert!(transactions > planned / 3, "{summary:?}");
    assert!(summary.committed > transactions / 2, "{summary:?}");
    assert!(summary.aborted > transactions / 50, "{summary:?}");
    assert!(summary.unknown > 0, "{summary:?}");
    assert!(summary.write_read > transactions / 2 && summary.read_write > transactions / 2, "{summary:?}");
    assert!(summary.write_write > transactions / 4, "{summary:?}");
    assert!(summary.unordered < transactions / 20, "{summary:?}");
}

/// Stalls the disk now and then, until the clients have run a part of the transactions that is chosen at random.
fn stall(server: &LocalServer, begun: &AtomicUsize, limit: usize, random: &mut Random) {
    let end = limit / 2 + random.below(limit / 2);
    while begun.load(SeqCst) < end {
        server.hold_syncs(true);
        std::thread::sleep(Duration::from_micros(random.below(4000) as u64));
        server.hold_syncs(false);
        std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
    }
    server.hold_syncs(true);
    std::thread::sleep(Duration::from_micros(random.below(4000) as u64));
}

#[test]
fn transactions_are_serial_through_power_failures() {
    if !can_run() {
        return;
    }
    let engine = EngineKind::Arena;
    let one = Variant { engine, partitions: 1, versions: 4, snapshot_grace_ms: 3000, way: 0 };
    // Changes of partition, few versions, and snapshots that soon give way.
    let two = Variant { engine, partitions: 2, versions: 2, snapshot_grace_ms: 1, way: 2 };
    for variant in [one, two] {
        fail_power(variant, MIX);
    }
}

#[test]
fn transactions_on_hash_maps_are_serial_through_power_failures() {
    if !can_run() {
        return;
    }
    let engine = EngineKind::HashMap;
    let variant = Variant { engine, partitions: 1, versions: 4, snapshot_grace_ms: 3000, way: 0 };
    fail_power(variant, MIX);
}

/// Records a history of a server whose power fails several times, and checks it.
fn fail_power(variant: Variant, mix: Mix) {
    let transactions = number("BEDPLATE_TEST_TRANSACTIONS").unwrap_or(8_000) as usize / 2;
    let mut recorder = Recorder::new(seed(), mix);
    let mut disk = SimulatedDisk::new();
    let (runs, limit) = runs(transactions, 2, 10_000);
    for run in 0..runs {
        let server = LocalServer::start(disk, Variant { way: variant.way + run, ..variant }, procedures());
        let service = recorder.service(server.addr());
        prepare(&mut recorder, &service, run);
        let mut after = SimulatedDisk::new();
        recorder.run(&service, limit, |begun, random| {
            stall(&server, begun, limit, random);
            if run + 1 < runs {
                let mut ending = service.ending.write().unwrap();
                after = server.power_failure(random);
                *ending = true;
            }
            server.hold_syncs(false);
        });
        if run + 1 == runs {
            recorder.read_all(&service);
        }
        server.stop();
        disk = after;
    }
    assert_thorough(recorder.check(), transactions);
}

/// The process that is killed. The test starts it. Without the test's environment variables it does nothing.
#[test]
fn child() {
    serve_until_killed();
}

#[test]
fn transactions_are_serial_through_kills() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("history.o"), procedures()).unwrap();
    let mut recorder = Recorder::new(seed(), MIX);
    let transactions = number("BEDPLATE_TEST_TRANSACTIONS").unwrap_or(20_000) as usize / 10;
    let (runs, limit) = runs(transactions, 2, 5_000);
    for run in 0..runs {
        let mut server = ServerProcess::start(folder.path(), 2 * run);
        let service = recorder.service(server.addr);
        prepare(&mut recorder, &service, run);
        recorder.run(&service, limit, |begun, random| {
            let end = limit / 2 + random.below(limit / 2);
            while run + 1 < runs && begun.load(SeqCst) < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            if run + 1 < runs {
                *service.ending.write().unwrap() = true;
                server.kill();
            }
        });
        if run + 1 == runs {
            recorder.read_all(&service);
        }
    }
    assert_thorough(recorder.check(), transactions);
}
