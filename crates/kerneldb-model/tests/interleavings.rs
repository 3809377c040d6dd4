//! Interleavings of the engine itself, by chance and exhaustively.
//!
//! `BEDPLATE_TEST_MODEL=100` runs a hundred times as many; `SHUTTLE_RANDOM_SEED` repeats a failure.

mod common;

use bedplate_kerneldb_model::workload::{self, Client, TxStep, Work};
use bedplate_kerneldb_model::world::{Setup, Stores};
use bedplate_kerneldb_model::{Engine, schedule};
use common::model;

fn explore(name: &str) {
    let model = model(name);
    model.explore(Engine::real(), model.executions);
}

#[test]
fn random_histories_are_serializable() {
    explore("mixed");
}

#[test]
fn collected_entries_do_not_come_back() {
    explore("removal");
}

#[test]
fn snapshots_read_the_newest_version_at_their_timestamp() {
    explore("snapshots");
}

#[test]
fn no_update_is_lost() {
    explore("updates");
}

#[test]
fn no_lock_has_two_exclusive_owners() {
    explore("owners");
}

#[test]
fn no_block_is_handed_out_twice() {
    explore("blocks");
}

/// All schedules of two or three clients with at most `delays` delays, with and without store buffers.
fn exhaustive(delays: usize, before: &'static [Work], clients: impl Fn() -> Vec<Client> + Send + Sync + Clone + 'static) {
    for stores in [Stores::Sequential, Stores::Latest] {
        let clients = clients.clone();
        let covered = schedule::exhaustive(delays, 400_000, move || {
            workload::run(Engine::real(), &Setup { stores, ..Setup::default() }, before, &clients());
        });
        assert!(covered.complete, "there are more schedules than the bound: {covered:?}");
        assert!(covered.schedules > 100, "hardly anything was interleaved: {covered:?}");
        println!("{stores:?}: {covered:?}");
    }
}

#[test]
fn every_schedule_of_two_writers_of_an_absent_key() {
    exhaustive(2, &[], || {
        vec![Client::thread(0, vec![Work::Set(b'a', 8)]), Client::thread(1, vec![Work::Set(b'a', 8)])]
    });
}

#[test]
fn every_schedule_of_a_writer_and_a_snapshot() {
    exhaustive(2, &[Work::Set(b'a', 8)], || {
        vec![
            Client::thread(0, vec![Work::Set(b'a', 8)]),
            Client::thread(1, vec![Work::Snapshot(vec![b'a', b'a'])]),
        ]
    });
}

#[test]
fn every_schedule_of_a_commit_and_a_read() {
    exhaustive(2, &[Work::Set(b'a', 8)], || {
        vec![
            Client::thread(0, vec![Work::Commit(vec![TxStep::Set(b'a', 8)])]),
            Client::thread(1, vec![Work::Get(b'a'), Work::Get(b'a')]),
        ]
    });
}

#[test]
fn every_schedule_of_the_collector_and_a_writer() {
    const BEFORE: &[Work] = &[Work::Set(b'a', 8), Work::Del(b'a')];
    exhaustive(2, BEFORE, || {
        vec![Client::thread(0, vec![Work::Collect(1)]), Client::thread(1, vec![Work::Set(b'a', 8)])]
    });
}

#[test]
fn every_moment_of_an_interrupt() {
    exhaustive(1, &[Work::Set(b'a', 8)], || {
        vec![
            Client::thread(0, vec![Work::Commit(vec![TxStep::Get(b'a'), TxStep::Set(b'a', 100)])]),
            Client::interrupt(0, vec![Work::Set(b'a', 100), Work::Get(b'a')]),
        ]
    });
}
