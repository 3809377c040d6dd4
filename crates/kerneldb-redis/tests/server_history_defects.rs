//! The checker of histories notices defects of the engine: one build takes no locks for reads, and in another one a reader
//! does not check that its snapshot is still there. The engine without defects passes in the same configuration.

mod common;
mod history;
mod server;

use bedplate_history::{Anomaly, Order, check};
use bedplate_kerneldb::EngineKind;
use bedplate_kerneldb::testing::with_objects;
use common::can_run;
use history::plan::Mix;
use history::rounds::Recorder;
use history::seed;
use history::servers::{Variant, compile, procedures};
use server::{config_with, start_with};

/// Number of transactions after which a defect must have been noticed. Most need some hundreds.
const TRANSACTIONS_MAX: usize = 30_000;

/// Number of transactions after which the history is checked again.
const TRANSACTIONS_BETWEEN_CHECKS: usize = 1000;

/// Few versions and snapshots that give way at once, so that readers whose transactions pause lose their snapshots.
const VARIANT: Variant =
    Variant { engine: EngineKind::Arena, partitions: 1, versions: 2, snapshot_grace_ms: 1, way: 0 };
const MIX: Mix = Mix { hang_ups: false, read_only_percent: 30, pause_ms: 10 };

/// Runs a server until the checker finds an anomaly, or until the clients have run `limit` transactions. The server's
/// programs of these names are replaced. `kernel_path`: whether the kernel answers.
fn first_anomaly(objects: &[(&str, &[u8])], kernel_path: bool, limit: usize) -> Option<Anomaly> {
    let config = config_with(kernel_path);
    let running = with_objects(objects, || start_with(VARIANT.database(), config));
    running.db.load_library("history", procedures(), false).unwrap();
    let mut recorder = Recorder::new(seed(), MIX);
    let mut anomaly = None;
    while anomaly.is_none() && recorder.history.transactions.len() < limit {
        let service = recorder.service(running.addr);
        recorder.take_new_keys(service.addr);
        recorder.run(&service, TRANSACTIONS_BETWEEN_CHECKS, |_, _| ());
        recorder.read_all(&service);
        anomaly = check(&recorder.history, Order::RealTime).err();
    }
    println!("{} transactions", recorder.history.transactions.len());
    running.finish();
    anomaly
}

const OPERATORS: &str = "../kerneldb/bpf/calls.bpf.c";
const SERVER: &str = "bpf/server.bpf.c";

#[test]
fn reads_without_locks_are_noticed() {
    if !can_run() {
        return;
    }
    let operators = compile(OPERATORS, &["-DKDB_DEFECT_READ_LOCK"]);
    let anomaly = first_anomaly(&[("kdb_call", &operators)], false, TRANSACTIONS_MAX);
    println!("{}", anomaly.expect("the checker notices it"));
}

#[test]
fn snapshots_that_are_not_validated_are_noticed() {
    if !can_run() {
        return;
    }
    let options = ["-DKDB_DEFECT_READ_VALIDATION"];
    let (operators, server) = (compile(OPERATORS, &options), compile(SERVER, &options));
    let objects: [(&str, &[u8]); 2] = [("kdb_call", &operators), ("kdb_server", &server)];
    let anomaly = first_anomaly(&objects, true, TRANSACTIONS_MAX);
    println!("{}", anomaly.expect("the checker notices it"));
}

#[test]
fn the_engine_without_defects_passes() {
    if !can_run() {
        return;
    }
    if let Some(anomaly) = first_anomaly(&[], true, 3 * TRANSACTIONS_BETWEEN_CHECKS) {
        panic!("{anomaly}");
    }
}
