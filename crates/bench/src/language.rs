//! `kv-language`: procedures of the procedure language beside the same procedures in C.
//!
//! Both forms are compiled when the benchmark starts, by the same compiler, and each has a database of its own on the arena
//! engine. In each round, both forms get the same calls in turn. The arguments of the calls are made before a turn begins. The unit is
//! the thread's processor time for each call, that of the kernel included.

use bedplate_kerneldb::{Config, Database, Reply, Session, SetOptions};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::procedures::{Compiler, cpu_ns_per_call};
use crate::sample::{interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-language",
    about: "procedures of the procedure language beside the same procedures in C: processor time for each call",
    run,
};

/// The forms of each library.
const FORMS: [&str; 2] = ["C", "procedure language"];

/// Calls of a procedure in a turn.
const CALLS: usize = 20_000;

/// Memory limit of each database in bytes. The votes of a full run have room.
const MEMORY: u64 = 512 << 20;

const ACCOUNTS: u64 = 1000;
const AREAS: u64 = 200;
const CONTESTANTS: u64 = 12;

/// A procedure, and calls of it that succeed.
struct Procedure {
    name: &'static str,
    arguments: fn(&mut SmallRng) -> Vec<String>,
    is_right: fn(&Reply) -> bool,
}

/// Procedures that are there in both forms.
struct Library {
    name: &'static str,
    /// The source of each of the [`FORMS`].
    sources: [&'static str; 2],
    /// Writes the keys that the calls need.
    fill: fn(&mut Session) -> bedplate_kerneldb::Result<()>,
    procedures: &'static [Procedure],
}

const LIBRARIES: [Library; 2] = [
    Library {
        name: "accounts",
        sources: [
            include_str!("../../kerneldb/bpf/examples/accounts.bpf.c"),
            include_str!("../../procedure-language/examples/accounts.kdb"),
        ],
        fill: open_accounts,
        procedures: &[
            Procedure {
                name: "account_balance",
                arguments: |rng| vec![account(rng)],
                is_right: |reply| matches!(reply, Reply::Value(_)),
            },
            Procedure {
                name: "account_transfer",
                arguments: |rng| vec![account(rng), account(rng), "1".to_owned()],
                is_right: |reply| matches!(reply, Reply::Integer(_)),
            },
        ],
    },
    Library {
        name: "voter",
        sources: [
            include_str!("../../procedure-language/examples/voter.bpf.c"),
            include_str!("../../procedure-language/examples/voter.kdb"),
        ],
        fill: write_voter_tables,
        procedures: &[Procedure {
            name: "vote",
            arguments: vote,
            is_right: |reply| *reply == Reply::Integer(0),
        }],
    },
];

fn account(rng: &mut SmallRng) -> String {
    format!("account{}", rng.random_range(0..ACCOUNTS))
}

fn open_accounts(session: &mut Session) -> bedplate_kerneldb::Result<()> {
    (0..ACCOUNTS).try_for_each(|number| {
        session.call("account_open", &[format!("account{number}").as_bytes(), b"1000000"]).map(drop)
    })
}

/// A vote of one of 100 phones in each area. The limit is never reached.
fn vote(rng: &mut SmallRng) -> Vec<String> {
    let phone = rng.random_range(0..AREAS) * 10_000_000 + rng.random_range(0..100);
    let contestant = rng.random_range(1..=CONTESTANTS);
    vec![phone.to_string(), contestant.to_string(), "1000000".to_owned()]
}

fn write_voter_tables(session: &mut Session) -> bedplate_kerneldb::Result<()> {
    let areas = (0..AREAS).map(|number| (b'a', number));
    areas.chain((1..=CONTESTANTS).map(|number| (b'c', number))).try_for_each(|(table, number)| {
        let key = [&[table][..], &number.to_be_bytes()].concat();
        session.set(&key, b"row", SetOptions::default()).map(drop)
    })
}

/// A database for each of the [`FORMS`], with the library and the keys that its calls need.
fn databases(compiler: &Compiler, library: &Library) -> Result<Vec<Database>> {
    let [c, language] = library.sources;
    let compiled =
        bedplate_procedure_language::compile(language, library.name).expect("the examples compile");
    let open = |c: &str| {
        let database = Database::create(Config { memory_bytes: MEMORY, ..Config::default() })?;
        database.load_library(library.name, &compiler.object(c)?, false)?;
        (library.fill)(&mut database.session()?)?;
        Ok(database)
    };
    [c, &compiled].into_iter().map(open).collect()
}

/// Arguments of `calls` calls. Equal seeds make equal arguments.
fn arguments(procedure: &Procedure, calls: usize, seed: usize) -> Vec<Vec<String>> {
    let mut rng = SmallRng::seed_from_u64(seed as u64);
    (0..calls).map(|_| (procedure.arguments)(&mut rng)).collect()
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let rounds = options.pick(15, 45);
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("calls", CALLS)
        .with("persistence", "none");
    let mut report = Report::new(BENCH.name, config);
    measure(&mut report, rounds, CALLS, sink)?;
    Ok(report)
}

fn measure(report: &mut Report, rounds: usize, calls: usize, sink: Sink<'_>) -> Result<()> {
    let compiler = Compiler::new()?;
    let (mut done, total) = (0, LIBRARIES.iter().map(|library| library.procedures.len()).sum());
    for library in &LIBRARIES {
        sink(Step { done, total, label: &format!("compiling {}", library.name) });
        let databases = databases(&compiler, library)?;
        for procedure in library.procedures {
            sink(Step { done, total, label: procedure.name });
            done += 1;
            let turn = |form: usize, round: usize| {
                let arguments = arguments(procedure, calls, round);
                cpu_ns_per_call(&databases[form], procedure.name, &arguments, procedure.is_right)
            };
            // Touches the memory that the measured turns use.
            (0..FORMS.len()).try_for_each(|form| turn(form, rounds).map(drop))?;
            let times = interleave(rounds, FORMS.len(), turn)?;
            let [c, language] = [0, 1].map(|form: usize| samples(&times[form], |ns| *ns));
            for (form, ns) in FORMS.into_iter().zip([&c, &language]) {
                let row = Fields::new().with("procedure", procedure.name).with("form", form);
                report.rows.push(row.with("cpu_ns_per_call", ns.median()).with("spread", ns.spread()));
            }
            report.ratio(&format!("{}_language_over_c", procedure.name), language.over(&c));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_both_forms_of_each_procedure() {
        let mut report = Report::new(BENCH.name, Fields::new());
        measure(&mut report, 1, 200, &mut |_| {}).unwrap();
        for procedure in LIBRARIES.iter().flat_map(|library| library.procedures) {
            let is_of = |row: &&Fields| row.get("procedure").is_some_and(|name| name == procedure.name);
            let forms: Vec<_> =
                report.rows.iter().filter(is_of).map(|row| row.get("form").unwrap()).collect();
            assert_eq!(forms, FORMS, "{}", procedure.name);
            assert!(report.ratios[&format!("{}_language_over_c", procedure.name)] > 0.0);
        }
        assert!(report.rows.iter().all(|row| row.number("cpu_ns_per_call").unwrap() > 0.0));
    }
}
