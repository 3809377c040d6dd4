//! The model checker notices defects: each mutant of the engine fails at least one model.

mod common;

use bedplate_kerneldb_model::Engine;
use bedplate_kerneldb_model::mutants::MUTANTS;
use common::MODELS;

#[test]
fn every_mutant_still_applies() {
    let gone: Vec<&str> =
        MUTANTS.iter().map(|mutant| mutant.name).filter(|name| Engine::mutant(name).is_none()).collect();
    assert!(gone.is_empty(), "the engine's text has changed; adapt these in src/mutants.rs: {gone:?}");
}

/// The model that notices a mutant, if one does.
fn noticed_by(engine: Engine) -> Option<&'static str> {
    for round in 1..=4 {
        for model in MODELS {
            // A thread of its own: a failed execution leaves nothing to the next one.
            let failed = std::thread::spawn(move || model.explore(engine, model.executions * round / 4)).join();
            if failed.is_err() {
                return Some(model.name);
            }
        }
    }
    None
}

#[test]
fn every_mutant_is_noticed() {
    let mut missed = Vec::new();
    for mutant in MUTANTS {
        let Some(engine) = Engine::mutant(mutant.name) else { continue };
        let start = std::time::Instant::now();
        match noticed_by(engine) {
            Some(model) => println!("{}: noticed by {model} after {:?}", mutant.name, start.elapsed()),
            None => missed.push(mutant.name),
        }
    }
    assert!(missed.is_empty(), "no model notices these: {missed:?}");
}
