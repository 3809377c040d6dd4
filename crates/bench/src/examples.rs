//! `kv-examples`: the costs of the handlers and procedures in `examples/kerneldb`, in a database with a log.
//!
//! - packet-quota: the time of the handler for a packet, by `BPF_PROG_TEST_RUN`. The packet that is not IPv4, for which the handler
//!   begins and commits an empty transaction, is the baseline.
//! - exec-audit: the time of the handler for each `execve`, by the kernel's statistics of programs.
//! - orders: processor time of the calling thread for each call, the kernel's included.
//!
//! In each round, all of them run in turn.

use std::process::Command;

use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Database, Durability, HandlerTarget, Reply, SetOptions, Store, StoreConfig};

use crate::bpf::{self, RunTimeStats};
use crate::procedures::{Compiler, cpu_ns_per_call};
use crate::sample::{interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-examples",
    about: "handlers and procedures of examples/kerneldb: time for each packet, execve and call",
    run,
};

const LIBRARIES: [(&str, &str); 3] = [
    ("packet_quota", include_str!("../../../examples/kerneldb/packet-quota/packet_quota.bpf.c")),
    ("exec_audit", include_str!("../../../examples/kerneldb/exec-audit/exec_audit.bpf.c")),
    ("orders", include_str!("../../../examples/kerneldb/orders/orders.bpf.c")),
];

/// Memory limit of the database in bytes. The orders and the lines of the log have room.
const MEMORY: u64 = 512 << 20;

/// A packet, and the last byte of the address 10.0.0.x that it comes from.
struct Packet {
    name: &'static str,
    ether_type: [u8; 2],
    host: u8,
}

const IPV4: [u8; 2] = [8, 0];
const ARP: [u8; 2] = [8, 6];

const PACKETS: [Packet; 5] = [
    Packet { name: "packet that is not IPv4", ether_type: ARP, host: 1 },
    Packet { name: "packet of an address without keys", ether_type: IPV4, host: 1 },
    Packet { name: "packet with a quota", ether_type: IPV4, host: 2 },
    Packet { name: "packet with a quota and a rate", ether_type: IPV4, host: 3 },
    Packet { name: "dropped packet with a quota and a rate", ether_type: IPV4, host: 4 },
];

/// The limits of the addresses. The packets of a run stay far below those that are large.
const LIMITS: [(&str, &str); 5] = [
    ("quota:10.0.0.2", "1000000000"),
    ("quota:10.0.0.3", "1000000000"),
    ("rate:10.0.0.3", "1000000000"),
    ("quota:10.0.0.4", "0"),
    ("rate:10.0.0.4", "1000000000"),
];

/// Makes the calls of a procedure for an order of this number, each with its arguments.
type Calls = fn(usize) -> Vec<Vec<String>>;

/// The procedures, in the order in which they run.
const CALLS: [(&str, Calls); 5] = [
    ("stock_add", |_| vec![words(&["nuts", "berlin", "100"])]),
    ("stock_transfer", |_| vec![words(&["nuts", "berlin", "paris", "20"])]),
    // One is completed, the other one is cancelled.
    ("order_reserve", |order| {
        ["a", "b"].map(|a| words(&[&format!("{a}{order}"), "nuts", "berlin", "30"])).into()
    }),
    ("order_complete", |order| vec![words(&[&format!("a{order}"), "nuts", "berlin"])]),
    ("order_cancel", |order| vec![words(&[&format!("b{order}"), "nuts", "berlin"])]),
];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The amount of work in a turn.
#[derive(Clone, Copy)]
struct Turn {
    /// Runs of the handler for each packet.
    packets: u32,
    programs: u64,
    orders: usize,
}

fn packet_ns(database: &Database, packet: &Packet, turn: Turn) -> Result<f64> {
    let mut bytes = [0; 64];
    bytes[12..14].copy_from_slice(&packet.ether_type);
    bytes[26..30].copy_from_slice(&[10, 0, 0, packet.host]);
    let (_, time) = database.run_handler("packet_quota", &bytes, turn.packets)?;
    Ok(time.as_secs_f64() * 1e9)
}

/// The runs of the handler at `execve`, and their nanoseconds.
fn audited(programs_before: &[u32]) -> Result<(u64, u64)> {
    let programs = bpf::programs();
    let found = programs.iter().find(|p| p.name == "exec_audit" && !programs_before.contains(&p.id));
    let program = found.ok_or_else(|| Error::engine("the kernel does not list the handler".to_owned()))?;
    Ok((program.runs, program.run_ns))
}

fn execve_ns(database: &Database, programs_before: &[u32], turn: Turn) -> Result<f64> {
    let target = HandlerTarget::Tracepoint("sched_process_exec".to_owned());
    database.attach_handler("exec_audit", &target)?;
    let before = audited(programs_before)?;
    let statistics = RunTimeStats::enable().map_err(Error::io("switching the statistics of programs on"))?;
    for _ in 0..turn.programs {
        Command::new("/bin/true").status().map_err(Error::io("running /bin/true"))?;
    }
    drop(statistics);
    let after = audited(programs_before)?;
    database.detach_handler("exec_audit", &target)?;
    if after.0 - before.0 < turn.programs {
        return Err(Error::engine("the handler has missed programs".to_owned()));
    }
    Ok((after.1 - before.1) as f64 / (after.0 - before.0) as f64)
}

/// Processor time for each call of the procedures. The orders have numbers from `first`.
fn call_ns(database: &Database, first: usize, turn: Turn) -> Result<[f64; CALLS.len()]> {
    let is_right = |reply: &Reply| matches!(reply, Reply::Integer(_));
    let mut times = [0.0; CALLS.len()];
    let orders = first..first + turn.orders;
    for (time, (name, calls)) in times.iter_mut().zip(CALLS) {
        let calls: Vec<_> = orders.clone().flat_map(calls).collect();
        *time = cpu_ns_per_call(database, name, &calls, is_right)?;
    }
    Ok(times)
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let rounds = options.pick(11, 45);
    let turn = Turn { packets: 10_000, programs: 200, orders: 1000 };
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("packets", turn.packets)
        .with("programs", turn.programs)
        .with("orders", turn.orders)
        .with("persistence", "log, async");
    let mut report = Report::new(BENCH.name, config);
    measure(&mut report, rounds, turn, sink)?;
    Ok(report)
}

fn measure(report: &mut Report, rounds: usize, turn: Turn, sink: Sink<'_>) -> Result<()> {
    let folder = tempfile::tempdir().map_err(Error::io("creating a folder for the data"))?;
    let config = StoreConfig {
        database: Config { memory_bytes: MEMORY, ..Config::default() },
        wal: Some(WalConfig { durability: Durability::Async, ..WalConfig::default() }),
        ..StoreConfig::default()
    };
    let programs_before = bpf::program_ids();
    let (store, _) = Store::open(config, folder.path(), &mut |_| ())?;
    let compiler = Compiler::new()?;
    for (done, (name, source)) in LIBRARIES.into_iter().enumerate() {
        sink(Step { done, total: LIBRARIES.len(), label: &format!("compiling {name}") });
        store.load_library(name, &compiler.object(source)?, false)?;
    }
    let database = store.database();
    let mut session = database.session()?;
    for (key, value) in LIMITS {
        session.set(key.as_bytes(), value.as_bytes(), SetOptions::default())?;
    }

    // Packets, then the handler at `execve`, then the procedures. The first round touches the memory and does not count.
    let (exec, sides) = (PACKETS.len(), PACKETS.len() + 2);
    let mut measure_side = |side: usize, round: usize| -> Result<Vec<f64>> {
        sink(Step { done: round, total: rounds + 1, label: "measuring" });
        Ok(match side {
            _ if side < exec => vec![packet_ns(database, &PACKETS[side], turn)?],
            _ if side == exec => vec![execve_ns(database, &programs_before, turn)?],
            _ => call_ns(database, round * turn.orders, turn)?.to_vec(),
        })
    };
    let names = PACKETS.iter().map(|packet| packet.name).chain(["execve"]).chain(CALLS.map(|(name, _)| name));
    let mut results = interleave(rounds + 1, sides, &mut measure_side)?;
    results.iter_mut().for_each(|rounds| drop(rounds.remove(0)));
    let columns = results
        .iter()
        .flat_map(|rounds| (0..rounds[0].len()).map(move |number| samples(rounds, |values| values[number])));
    for (name, ns) in names.zip(columns) {
        report.rows.push(
            Fields::new()
                .with("event or procedure", name)
                .with("ns", ns.median())
                .with("spread", ns.spread()),
        );
    }
    let failed: u64 = database.handlers()?.iter().map(|handler| handler.counts.failed).sum();
    if failed > 0 {
        return Err(Error::engine(format!("handlers failed {failed} times")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_a_row_for_each_event_and_procedure() {
        let mut report = Report::new(BENCH.name, Fields::new());
        let turn = Turn { packets: 10, programs: 3, orders: 10 };
        measure(&mut report, 1, turn, &mut |_| {}).unwrap();
        assert_eq!(report.rows.len(), PACKETS.len() + 1 + CALLS.len());
        assert!(report.rows.iter().all(|row| row.number("ns").unwrap() > 0.0));
    }
}
