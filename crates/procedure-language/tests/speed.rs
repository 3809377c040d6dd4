//! A measurement: procedures of the language beside the same procedures in C. Rounds are interleaved, and each round's processor
//! time counts, that of the kernel included. Run it on an idle machine:
//!
//! `cargo test -p bedplate-procedure-language --test speed -- --ignored --nocapture`

mod common;

use bedplate_kerneldb::{ACCOUNTS, Database, Reply, Session, SetOptions};
use common::{can_run, compiled, database, example, file, object};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const ROUNDS: usize = 15;
const CALLS: u64 = 20_000;

/// Processor time of this thread in nanoseconds.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid, and the clock exists.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Prints nanoseconds per call of both forms, and the median of the rounds' ratios.
fn compare(name: &str, databases: &[Database; 2], call: impl Fn(&mut Session, &mut SmallRng)) {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        // The order alternates.
        for turn in 0..2 {
            let form = (round + turn) % 2;
            let mut session = databases[form].session().unwrap();
            let mut rng = SmallRng::seed_from_u64(round as u64);
            let start = cpu_ns();
            (0..CALLS).for_each(|_| call(&mut session, &mut rng));
            times[form].push((cpu_ns() - start) as f64 / CALLS as f64);
        }
    }
    let ratios: Vec<f64> = times[1].iter().zip(&times[0]).map(|(language, c)| language / c).collect();
    let (least, most) = ratios.iter().fold((f64::MAX, 0f64), |(a, b), ratio| (a.min(*ratio), b.max(*ratio)));
    let [c, language] = times.map(median);
    let ratio = median(ratios);
    println!(
        "{name}: C {c:.0} ns, language {language:.0} ns per call; ratio {ratio:.3} ({least:.3} to {most:.3})"
    );
}

#[test]
#[ignore = "a measurement, which needs an idle machine"]
fn language_and_c() {
    if !can_run() {
        return;
    }
    let forms = [ACCOUNTS.to_vec(), compiled(&example("accounts.kdb"))];
    let accounts = forms.map(|form| {
        let database = database();
        database.load_library("accounts", &form, false).unwrap();
        let mut session = database.session().unwrap();
        for i in 0..1000 {
            session.call("account_open", &[format!("account{i}").as_bytes(), b"1000000"]).unwrap();
        }
        database
    });
    let name = |rng: &mut SmallRng| format!("account{}", rng.random_range(0..1000)).into_bytes();
    compare("account_balance", &accounts, |session, rng| {
        assert!(matches!(session.call("account_balance", &[&name(rng)]), Ok(Reply::Value(_))));
    });
    compare("account_transfer", &accounts, |session, rng| {
        let (from, to) = (name(rng), name(rng));
        assert!(matches!(session.call("account_transfer", &[&from, &to, b"1"]), Ok(Reply::Integer(_))));
    });
    let by_hand = std::fs::read_to_string(file("forms/vote.bpf.c")).unwrap();
    let votes = [object(&by_hand), compiled(&example("voter.kdb"))].map(|form| {
        let database = database();
        database.load_library("voter", &form, false).unwrap();
        let mut session = database.session().unwrap();
        for (table, numbers) in [(b'a', 0..200u64), (b'c', 1..13)] {
            for number in numbers {
                let key = [&[table][..], &number.to_be_bytes()].concat();
                session.set(&key, b"row", SetOptions::default()).unwrap();
            }
        }
        database
    });
    compare("vote", &votes, |session, rng| {
        let phone = rng.random_range(0..200) * 10_000_000 + rng.random_range(0..100u64);
        let contestant = rng.random_range(1..=12u64);
        let arguments = [phone.to_string(), contestant.to_string(), "1000000".to_owned()];
        let reply = session.call("vote", &arguments.each_ref().map(String::as_bytes)).unwrap();
        assert_eq!(reply, Reply::Integer(0));
    });
}
