//! Random programs: they compile without a warning, the kernel's verifier accepts them, and each call has the reply and the effects
//! that an interpreter computes.
//!
//! `BEDPLATE_TEST_PROGRAMS=1000` tries as many procedures, and `BEDPLATE_TEST_SEED` repeats a run.

#[path = "../../tests/common/mod.rs"]
mod common;
mod interpreter;
mod writer;

use bedplate_kerneldb::{Database, Error};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use self::common::{can_run, contents, databases, object, seed};
use self::interpreter::{Rows, call, now_ms};
use crate::{compile, diagnostic::Errors, lexer, parser, syntax::File};

/// Procedures in a file, because headers take longer to compile than they do.
const PER_FILE: usize = 10;

/// Calls of each procedure.
const CALLS: usize = 40;

fn parse(source: &str) -> File {
    let mut errors = Errors::default();
    let tokens = lexer::tokens(source, &mut errors);
    parser::parse(tokens, &mut errors)
}

/// The keys that have not expired. Expiries in the next two minutes count as the same, because `now` differs.
fn visible(rows: impl IntoIterator<Item = (Vec<u8>, (Vec<u8>, Option<u64>))>) -> Rows {
    let now = now_ms();
    let soon = |expiry: u64| if expiry < now + 120_000 { 1 } else { expiry };
    rows.into_iter()
        .filter(|(_, (_, expiry))| expiry.is_none_or(|expiry| expiry > now))
        .map(|(key, (value, expiry))| (key, (value, expiry.map(soon))))
        .collect()
}

fn rows(database: &Database) -> Rows {
    let row =
        |(key, (value, expiry)): (Vec<u8>, (Vec<u8>, u64))| (key, (value, (expiry > 0).then_some(expiry)));
    visible(contents(database).into_iter().map(row))
}

#[test]
fn random_programs_do_what_an_interpreter_does() {
    if !can_run() {
        return;
    }
    let databases = databases();
    let mut sessions = databases.each_ref().map(|database| database.session().unwrap());
    let mut rng = SmallRng::seed_from_u64(seed());
    let procedures: usize =
        std::env::var("BEDPLATE_TEST_PROGRAMS").map_or(2 * PER_FILE, |count| count.parse().unwrap());
    let (mut model, mut replies, mut refusals) = (Rows::new(), 0, 0);
    let (files, mut file, mut too_large) = (procedures.div_ceil(PER_FILE), 0, 0);
    while file < files {
        let names: Vec<_> = (0..PER_FILE).map(|i| format!("p{i}")).collect();
        let source: String = names.iter().map(|name| writer::procedure(&mut rng, name)).collect();
        let elf = object(&compile(&source, "random.kdb").unwrap());
        let load = || databases.iter().try_for_each(|db| db.load_library("random", &elf, true).map(drop));
        match load() {
            Ok(()) => file += 1,
            // Loops in each other can have more paths than the verifier follows, which is E2BIG. Few files have such loops.
            Err(error) if error.to_string().contains("(os error 7)") && too_large <= files => {
                too_large += 1;
                continue;
            }
            Err(error) => panic!("file {file}: {error}\n{source}"),
        }
        let parsed = parse(&source);
        for round in 0..CALLS * PER_FILE {
            let (name, key) = (&names[round % PER_FILE], ["k", "key of the other", "7", "a", ""][round % 5]);
            let number = if rng.random_bool(0.7) { rng.random_range(-2..12) } else { rng.random::<i64>() };
            let (number, small) = (number.to_string(), rng.random_range(0..=10).to_string());
            let arguments = [key, &number, &small].map(str::as_bytes);
            let before = model.clone();
            let expected = call(&parsed, name, &arguments, &mut model);
            let results = sessions.each_mut().map(|session| match session.call(name, &arguments) {
                Ok(reply) => Some(Ok(reply)),
                Err(Error::Refused(text)) => Some(Err(text)),
                // A transaction has at most 128 keys, and the interpreter does not count them.
                Err(Error::TooManyLocks) => None,
                Err(error) => panic!("{error:?}: {name} {arguments:?}\n{source}"),
            });
            if results == [None, None] {
                model = before;
                continue;
            }
            *if expected.is_ok() { &mut replies } else { &mut refusals } += 1;
            let expected = Some(expected);
            assert!(
                results.iter().all(|result| *result == expected),
                "{name} {arguments:?}: {results:?}, not {expected:?}\n{source}"
            );
        }
        assert!(sessions.iter().all(|session| !session.in_transaction()));
        let expected = visible(model.clone());
        databases.iter().for_each(|database| assert_eq!(rows(database), expected, "{source}"));
    }
    println!("{replies} replies, {refusals} refusals");
    assert!(replies > 0 && refusals > 0);
    for database in &databases {
        database.verify().unwrap();
    }
}
