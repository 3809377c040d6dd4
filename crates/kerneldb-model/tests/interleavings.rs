//! Interleavings of the engine itself, at random and exhaustively.
//!
//! `BEDPLATE_TEST_MODEL=100` runs a hundred times as many; `SHUTTLE_RANDOM_SEED` repeats a failure.

mod common;

use bedplate_kerneldb_model::Engine;
use bedplate_kerneldb_model::world::Stores;
use common::{case, model};

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

#[test]
fn a_transaction_is_committed_or_reaped() {
    explore("reaped");
}

#[test]
fn a_snapshot_that_gives_way_returns_no_wrong_value() {
    explore("revoked");
}

#[test]
fn values_move_unnoticed() {
    explore("moved");
}

/// Runs without and with store buffers.
fn every_schedule(name: &str) {
    for stores in [Stores::Sequential, Stores::Latest] {
        let covered = case(name).explore(Engine::real(), stores, 400_000);
        assert!(covered.complete, "there are more schedules than the bound: {covered:?}");
        assert!(covered.schedules > 100, "hardly anything was interleaved: {covered:?}");
        println!("{name}, {stores:?}: {covered:?}");
    }
}

#[test]
fn every_schedule_of_two_writers_of_an_absent_key() {
    every_schedule("two writers of an absent key");
}

#[test]
fn every_schedule_of_a_writer_and_a_snapshot() {
    every_schedule("a writer and a snapshot");
}

#[test]
fn every_schedule_of_a_writer_and_a_read_before_a_snapshot() {
    every_schedule("a writer and a read before a snapshot");
}

#[test]
fn every_schedule_of_a_commit_and_reads() {
    every_schedule("a commit and reads");
}

#[test]
fn every_schedule_of_a_read_and_a_key_that_is_written_twice() {
    every_schedule("a read and a transaction that writes a key twice");
}

#[test]
fn every_schedule_of_two_read_modify_writes() {
    every_schedule("two read-modify-writes");
}

#[test]
fn every_schedule_of_the_collector_and_a_writer() {
    every_schedule("the collector and a writer");
}

#[test]
fn every_schedule_of_reused_memory_and_a_writer() {
    every_schedule("an entry's memory that serves another key, and a writer");
}

#[test]
fn every_schedule_of_a_snapshot_and_the_removal_of_a_tombstone() {
    every_schedule("a snapshot and the removal of a tombstone with what it hides");
}

#[test]
fn every_schedule_of_a_snapshot_and_a_write_in_place_of_a_tombstone() {
    every_schedule("a snapshot and a write that takes the place of a tombstone");
}

#[test]
fn every_schedule_of_a_read_and_a_transaction_in_place_of_a_tombstone() {
    every_schedule("a read and a transaction that takes the place of a tombstone");
}

#[test]
fn every_schedule_of_a_snapshot_and_a_session_that_goes_on() {
    every_schedule("a snapshot and a session that begins its next transaction");
}

#[test]
fn every_moment_of_an_interrupt() {
    every_schedule("an interrupt");
}

#[test]
fn every_schedule_of_the_reaper_and_a_transaction() {
    every_schedule("the reaper and a transaction");
}

#[test]
fn every_schedule_of_a_snapshot_that_gives_way() {
    every_schedule("a snapshot that gives way while it is read");
}

#[test]
fn every_schedule_of_a_value_that_moves() {
    every_schedule("a value that moves while it is read and written");
}
