//! The model checker notices defects: each mutant of the engine fails at least one model.
//!
//! `BEDPLATE_TEST_MUTANT=NAME` runs one of them.

mod common;

use bedplate_kerneldb_model::Engine;
use bedplate_kerneldb_model::mutants::MUTANTS;
use bedplate_kerneldb_model::world::Stores;
use common::{CASES, Case, MODELS, Model, case};

/// Most schedules of a case that are tried on a mutant.
const MUTANT_SCHEDULES: u64 = 12_000;

#[test]
fn every_mutant_still_applies() {
    let gone: Vec<&str> =
        MUTANTS.iter().map(|mutant| mutant.name).filter(|name| Engine::mutant(name).is_none()).collect();
    assert!(gone.is_empty(), "the engine's text has changed; adapt these in src/mutants.rs: {gone:?}");
}

/// Whether a run fails. It has a thread of its own, because a failed execution must not affect the
/// next one.
fn fails(run: impl FnOnce() + Send + 'static) -> bool {
    std::thread::spawn(run).join().is_err()
}

/// The model that notices a mutant in a share of its executions, if there is one.
fn noticed_by_model(engine: Engine, share: f64) -> Option<&'static str> {
    let mut models = MODELS.iter();
    let notices = |model: &&Model| {
        let model: Model = **model;
        fails(move || model.explore(engine, (model.executions as f64 * share) as usize))
    };
    models.find(notices).map(|model| model.name)
}

/// The case that notices a mutant, if there is one: exhaustive search is deterministic.
fn noticed_by_case(engine: Engine) -> Option<&'static str> {
    let notices = |case: &&Case, stores| {
        fails({
            let case: Case = **case;
            move || _ = case.explore(engine, stores, MUTANT_SCHEDULES)
        })
    };
    [Stores::Sequential, Stores::Latest]
        .into_iter()
        .find_map(|stores| CASES.iter().find(|case| notices(case, stores)).map(|case| case.name))
}

/// The case that is tried first for a mutant which few random executions notice. This only saves time.
const FIRST_CASES: &[(&str, &str)] = &[
    ("auto_lock_without_second_look", "an entry's memory that serves another key, and a writer"),
    ("reader_ignores_clock", "a writer and a read before a snapshot"),
    ("snapshot_ignores_changes", "a snapshot and the removal of a tombstone with what it hides"),
    ("marker_without_second_look", "a snapshot and a session that begins its next transaction"),
    ("value_read_before_commit", "a read and a transaction that writes a key twice"),
    ("slab_with_interrupts", "an interrupt"),
    ("moved_value_without_second_look", "a value that moves while it is read and written"),
    ("tombstone_dropped_with_one_change", "a snapshot and a write that takes the place of a tombstone"),
    ("reaper_ignores_operator", "the reaper and a transaction"),
    ("reader_ignores_revocation", "a snapshot that gives way while it is read"),
];

fn noticed_by_first_case(mutant: &str, engine: Engine) -> Option<&'static str> {
    let case = *case(FIRST_CASES.iter().find(|(name, _)| *name == mutant)?.1);
    fails(move || _ = case.explore(engine, Stores::Sequential, 10 * MUTANT_SCHEDULES)).then_some(case.name)
}

fn noticed_by(mutant: &str, engine: Engine) -> Option<&'static str> {
    noticed_by_first_case(mutant, engine)
        .or_else(|| noticed_by_model(engine, 0.1))
        .or_else(|| noticed_by_case(engine))
        .or_else(|| noticed_by_model(engine, 2.0))
}

#[test]
fn every_mutant_is_noticed() {
    let mut missed = Vec::new();
    let only = std::env::var("BEDPLATE_TEST_MUTANT").ok();
    for mutant in MUTANTS.iter().filter(|mutant| only.as_deref().is_none_or(|only| only == mutant.name)) {
        let Some(engine) = Engine::mutant(mutant.name) else { continue };
        let start = std::time::Instant::now();
        match noticed_by(mutant.name, engine) {
            Some(model) => println!("{}: noticed by {model} after {:?}", mutant.name, start.elapsed()),
            None => missed.push(mutant.name),
        }
    }
    assert!(missed.is_empty(), "no model notices these: {missed:?}");
}
