//! `kv-net`: the Redis-protocol server against redis-server over loopback TCP (paper 6.1).
//!
//! All servers are up at the same time, without persistence, on the same cores; those that are not
//! measured are idle. In every cell they take turns round by round. [`mod@measure`] defines the CPU columns, [`load`]
//! the two kinds of loop. The sides are:
//!
//! - `redis`, the baseline;
//! - `server`, Bedplate's server path as it is by default;
//! - `batched`, the same with `--batch-workers under-load`: the kernel's workers are in the scheduler's batch class while
//!   many clients are busy;
//! - `user`, Bedplate with its kernel path switched off, which shows the benefit of replies from the kernel;
//! - `local`, Bedplate with the fast path for local clients, where the build has it;
//! - `floor`, a server that receives, sends a constant and does nothing else ([`floor`](mod@floor)), in the cells whose
//!   replies are all the same. Its ratio of `cpu` is the part of Redis's time that a server cannot save as long as it
//!   receives a request and sends a reply with system calls.
//!
//! Ratios are the worst cell's, closed loops and open loops alike: the smallest of the cells' medians in `*_min`, the
//! largest in `*_max`. An open loop's latency counts from when a request was due. If the kernel does not report the run
//! time of eBPF programs, sides that have such programs get no ratio of `cpu`.

pub mod cache;
pub mod floor;
pub mod load;
pub mod measure;
pub mod mix;
pub mod server;
mod sides;
pub mod wire;

use std::time::Duration;

use crate::bpf::ProgramType;
use crate::keys::Distribution;
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};
use load::{Load, Loop, Schedule};
use measure::{Measured, calibrate_bpf, fill_row, measure};
use server::Server;
use sides::Side;

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-net",
    about: "Redis-protocol server against redis-server: rates, latencies, CPU per request (paper 6.1)",
    run,
};

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
struct Cell {
    connections: usize,
    pipeline: usize,
    value_len: usize,
    set_percent: u32,
}

/// Whether a side takes part in a cell. The floor does only in cells that write, one request at a time.
fn takes_part(side: &Side, cell: &Cell) -> bool {
    !side.is_constant() || (cell.pipeline == 1 && cell.set_percent == 100)
}

struct Plan {
    keys: u64,
    rounds: usize,
    warm_up: Duration,
    window: Duration,
    cells: Vec<Cell>,
}

fn plan(options: &Options) -> Plan {
    let sets: &[u32] = options.pick(&[10], &[0, 10, 50, 90, 100]);
    let mut cells = Vec::new();
    for value_len in [16, 1024] {
        for connections in [1, 50] {
            for pipeline in [1, 16] {
                for &set_percent in sets {
                    cells.push(Cell { connections, pipeline, value_len, set_percent });
                }
            }
        }
        if options.mode == crate::Mode::Quick {
            // The extremes of the mix, where writing costs most.
            cells.push(Cell { connections: 50, pipeline: 1, value_len, set_percent: 100 });
        }
    }
    Plan {
        keys: options.pick(50_000, 500_000),
        rounds: options.pick(3, 5),
        // Within this time, a server notices that its clients are busy, or no longer busy.
        warm_up: Duration::from_millis(options.pick(120, 150)),
        window: Duration::from_millis(options.pick(350, 600)),
        cells,
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let memory = options.pick(512 << 20, 3 << 30);
    let side = |name, further: &[&str], programs| Side::bedplate(options, name, memory, further, programs);
    let mut sides = vec![
        Side::redis(options)?,
        side("server", &[], Some(ProgramType::SkSkb))?,
        side("batched", &["--batch-workers=under-load"], Some(ProgramType::SkSkb))?,
        side("user", &["--no-kernel-path"], None)?,
        Side { name: "floor", server: Server::floor(options)?, client_programs: None },
    ];
    let skipped = Side::local(options, memory)?.map(|side| sides.push(side)).err();
    let mut report = compare(&plan(options), &sides, options, sink)?;
    if let Some(skipped) = skipped {
        report.config.set("skipped", skipped);
    }
    Ok(report)
}

/// Paired ratios of one candidate over Redis, one value per cell.
#[derive(Default)]
struct Ratios {
    rate: Vec<f64>,
    /// Empty or incomplete if the kernel does not report the run time of eBPF programs.
    cpu: Vec<Option<f64>>,
    both_cpu: Vec<f64>,
    machine_cpu: Vec<f64>,
    p50: Vec<f64>,
}

impl Ratios {
    fn add(&mut self, candidate: &[Measured], bpf_ns: Option<f64>, redis: &[Measured]) {
        let over = |f: &dyn Fn(&Measured) -> f64, g: &dyn Fn(&Measured) -> f64| {
            samples(candidate, f).over(&samples(redis, g))
        };
        let (rate, machine) = (|m: &Measured| m.seen.rate(), |m: &Measured| m.machine_cpu_ns());
        let p50 = |m: &Measured| m.seen.latencies.percentile(50.0) as f64;
        self.rate.push(over(&rate, &rate));
        let cpu = |bpf_ns: f64| over(&|m| m.server_cpu_ns(bpf_ns), &|m| m.server_cpu_ns(0.0));
        self.cpu.push(bpf_ns.map(cpu));
        self.both_cpu.push(over(&Measured::both_cpu_ns, &Measured::both_cpu_ns));
        self.machine_cpu.push(over(&machine, &machine));
        self.p50.push(over(&p50, &p50));
    }

    fn fill(&self, side: &str, report: &mut Report) {
        let of = |values: &[f64]| values.iter().copied().collect::<Samples>();
        let cpu: Option<Vec<f64>> = self.cpu.iter().copied().collect();
        for (name, values, worst_is_max) in [
            ("rate", &self.rate, false),
            ("cpu", &cpu.unwrap_or_default(), true),
            ("both_cpu", &self.both_cpu, true),
            ("machine_cpu", &self.machine_cpu, true),
            ("p50", &self.p50, true),
        ] {
            if values.is_empty() {
                continue;
            }
            let s = of(values);
            let (end, worst) = if worst_is_max { ("max", s.max()) } else { ("min", s.min()) };
            report.ratio(&format!("{side}_{name}_over_redis_{end}"), worst);
        }
    }
}

/// Measures all cells; `sides[0]` is the baseline.
fn compare(plan: &Plan, sides: &[Side], options: &Options, sink: Sink<'_>) -> Result<Report> {
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("keys", plan.keys)
        .with("key_bytes", wire::KEY_LEN)
        .with("rounds", plan.rounds)
        .with("window_ms", plan.window.as_millis() as u64)
        .with("distribution", Distribution::Uniform.name())
        .with("persistence", "none")
        .with("transport", "loopback TCP");
    let mut report = Report::new(BENCH.name, config);
    let mut ratios: Vec<Ratios> = sides.iter().map(|_| Ratios::default()).collect();
    let mut filled = 0;
    for (done, cell) in plan.cells.iter().enumerate() {
        if filled != cell.value_len {
            sink(Step { done, total: plan.cells.len(), label: "loading keys" });
            for side in sides.iter().filter(|side| !side.is_constant()) {
                load::fill(side.server.address(), plan.keys, cell.value_len)?;
            }
            filled = cell.value_len;
        }
        let label = format!(
            "c{} P{} {} B {} % SET",
            cell.connections, cell.pipeline, cell.value_len, cell.set_percent
        );
        sink(Step { done, total: plan.cells.len(), label: &label });
        let taking_part: Vec<usize> = (0..sides.len()).filter(|i| takes_part(&sides[*i], cell)).collect();
        let in_cell: Vec<&Side> = taking_part.iter().map(|i| &sides[*i]).collect();
        let closed = measure_cell(plan, &in_cell, cell, Loop::Closed)?;
        let rates: Vec<f64> = closed.rounds.iter().map(|r| samples(r, |m| m.seen.rate()).median()).collect();
        for (i, side) in in_cell.iter().enumerate() {
            report.rows.push(closed.row(cell, side, i, "closed"));
            ratios[taking_part[i]].add(&closed.rounds[i], closed.bpf_ns[i], &closed.rounds[0]);
        }
        if cell.pipeline == 1 && cell.connections > 1 {
            // Half of the slowest side's rate, so that every side gets the same load.
            let rate = (rates.iter().copied().fold(f64::INFINITY, f64::min) / 2.0).round();
            let open = measure_cell(plan, &in_cell, cell, Loop::Open { rate })?;
            for (i, side) in in_cell.iter().enumerate() {
                report.rows.push(open.row(cell, side, i, "open"));
                ratios[taking_part[i]].add(&open.rounds[i], open.bpf_ns[i], &open.rounds[0]);
            }
        }
    }
    for (side, ratios) in sides.iter().zip(&ratios).skip(1) {
        // Only the floor's smallest ratio counts.
        if side.is_constant() {
            if let Some(cpu) = ratios.cpu.iter().flatten().copied().reduce(f64::min) {
                report.ratio("floor_cpu_over_redis_min", cpu);
            }
            continue;
        }
        ratios.fill(side.name, &mut report);
    }
    Ok(report)
}

/// Results of one cell by side.
struct CellResult {
    rounds: Vec<Vec<Measured>>,
    bpf_ns: Vec<Option<f64>>,
}

impl CellResult {
    fn row(&self, cell: &Cell, side: &Side, index: usize, timing: &str) -> Fields {
        let mut row = Fields::new()
            .with("loop", timing)
            .with("clients", cell.connections)
            .with("pipeline", if timing == "open" { 0 } else { cell.pipeline })
            .with("value_bytes", cell.value_len)
            .with("set_pct", cell.set_percent)
            .with("side", side.name);
        fill_row(&mut row, &self.rounds[index], self.bpf_ns[index]);
        let (mine, redis) = (&self.rounds[index], &self.rounds[0]);
        let over = |f: &dyn Fn(&Measured) -> f64, g: &dyn Fn(&Measured) -> f64| {
            samples(mine, f).over(&samples(redis, g))
        };
        let (rate, p50) =
            (|m: &Measured| m.seen.rate(), |m: &Measured| m.seen.latencies.percentile(50.0) as f64);
        let mut ratios = vec![("rate", over(&rate, &rate)), ("p50", over(&p50, &p50))];
        if let Some(bpf_ns) = self.bpf_ns[index] {
            ratios.push(("cpu", over(&|m| m.server_cpu_ns(bpf_ns), &|m| m.server_cpu_ns(0.0))));
        }
        for (name, ratio) in &ratios {
            row.set(&format!("{name}_over_redis"), *ratio);
        }
        row.set("loses_in", losses(&ratios));
        row
    }
}

/// The ratios in which a side is worse than Redis by more than the noise of 5 %.
fn losses(ratios: &[(&str, f64)]) -> String {
    let worse = |name: &str, ratio: f64| if name == "rate" { ratio < 0.95 } else { ratio > 1.05 };
    let lost: Vec<&str> = ratios.iter().filter(|(name, r)| worse(name, *r)).map(|(name, _)| *name).collect();
    if lost.is_empty() { "-".into() } else { lost.join(" ") }
}

fn measure_cell(plan: &Plan, sides: &[&Side], cell: &Cell, timing: Loop) -> Result<CellResult> {
    let schedule =
        Schedule { timing, ..Schedule::closed(cell.connections, cell.pipeline, plan.warm_up, plan.window) };
    let load = |round: usize| Load {
        schedule,
        keys: plan.keys,
        value_len: cell.value_len,
        set_percent: cell.set_percent,
        distribution: Distribution::Uniform,
        seed: round as u64 * 1000 + 1,
    };
    let shorter = Schedule { window: plan.window / 2, ..schedule };
    let calibration = Load { schedule: shorter, ..load(usize::MAX / 2000) };
    let mut bpf_ns = Vec::new();
    for side in sides {
        bpf_ns.push(match side.client_programs {
            Some(kind) => calibrate_bpf(&side.server, &calibration, kind)?,
            None => Some(0.0),
        });
    }
    let rounds =
        interleave(plan.rounds, sides.len(), |side, round| measure(&sides[side].server, &load(round)))?;
    Ok(CellResult { rounds, bpf_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    /// Tests the instrument itself: Redis against Redis has every row, and every reply is right, in every kind of cell.
    #[test]
    fn redis_against_redis_has_every_row() {
        let options = Options::new(Mode::Quick);
        let side = |name| {
            let server = Server::redis(&options).unwrap();
            Side { name, server, client_programs: None }
        };
        let cell =
            |connections, pipeline, value_len| Cell { connections, pipeline, value_len, set_percent: 50 };
        let plan = Plan {
            keys: 1000,
            rounds: 2,
            warm_up: Duration::from_millis(20),
            // In a shorter window, a server may get no processor on a busy machine, which is an error.
            window: Duration::from_secs(1),
            cells: vec![cell(1, 1, 16), cell(50, 1, 16), cell(50, 16, 1024)],
        };
        let mut steps = 0;
        let report = compare(&plan, &[side("redis"), side("again")], &options, &mut |_| steps += 1).unwrap();
        assert!(steps >= plan.cells.len());
        assert_eq!(report.rows.len(), 3 * 2 + 2, "closed cells and one open cell, two sides each");
        for row in &report.rows {
            assert_eq!(row.number("refused"), Some(0.0));
            for key in ["rate_per_s", "p50_ns", "p99_ns", "p999_ns", "server_cpu_ns", "client_cpu_ns"] {
                assert!(row.number(key).unwrap() > 0.0, "{key} in {row:?}");
            }
            assert!(row.number("p50_ns") <= row.number("p999_ns"));
        }
        // Other programs on the machine may move the ratios away from 1.
        for name in ["again_rate_over_redis_min", "again_cpu_over_redis_max"] {
            assert!(
                report.ratios[name].is_finite() && report.ratios[name] > 0.0,
                "{name} = {}",
                report.ratios[name]
            );
        }
    }

    fn measured(replies: u64, process_ns: u64) -> Measured {
        let mut seen = load::Seen { replies, wall_ns: 1_000_000_000, ..load::Seen::default() };
        seen.latencies.record(1000);
        Measured { seen, process_ns, kernel_threads_ns: 0, busy_ns: 0 }
    }

    #[test]
    fn ratios_are_the_worst_cell_and_cpu_needs_the_kernels_statistics() {
        let redis = [measured(1000, 1000)];
        let mut ratios = Ratios::default();
        ratios.add(&[measured(2000, 1000)], Some(0.0), &redis);
        ratios.add(&[measured(900, 1800)], Some(0.0), &redis);
        let mut report = Report::new("kv-net", Fields::new());
        ratios.fill("server", &mut report);
        assert!((report.ratios["server_rate_over_redis_min"] - 0.9).abs() < 1e-9);
        assert!((report.ratios["server_cpu_over_redis_max"] - 2.0).abs() < 1e-9);
        assert!(report.ratios.keys().all(|name| !name.ends_with("median")));
        ratios.add(&[measured(1000, 1000)], None, &redis);
        let mut report = Report::new("kv-net", Fields::new());
        ratios.fill("server", &mut report);
        assert!(!report.ratios.contains_key("server_cpu_over_redis_max"));
        assert!(report.ratios.contains_key("server_rate_over_redis_min"));
    }

    #[test]
    fn losses_are_said() {
        assert_eq!(losses(&[("rate", 1.2), ("cpu", 0.8), ("p50", 1.0)]), "-");
        assert_eq!(losses(&[("rate", 0.9), ("cpu", 1.2), ("p50", 0.5)]), "rate cpu");
        assert_eq!(losses(&[("rate", 2.0), ("cpu", 0.5), ("p50", 1.06)]), "p50");
    }

    #[test]
    fn a_missing_server_is_reported_as_such() {
        let options = Options { redis: "no-such-server".into(), ..Options::new(Mode::Quick) };
        let e = Server::redis(&options).unwrap_err().to_string();
        assert!(e.contains("no-such-server"), "{e}");
        let options = Options { redis: "/bin/false".into(), ..Options::new(Mode::Quick) };
        assert!(Server::redis(&options).unwrap_err().to_string().contains("ended at once"));
    }

    #[test]
    fn a_server_is_gone_when_dropped() {
        let server = Server::redis(&Options::new(Mode::Quick)).unwrap();
        let (pid, address) = (server.pid(), server.address());
        drop(server);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        assert!(std::net::TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_refusing_server_is_an_error_when_filling() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut s, _) = listener.accept().unwrap();
            let mut buffer = [0; 100];
            s.read_exact(&mut buffer[..10]).unwrap();
            s.write_all(b"-OOM no memory\r\n").unwrap();
            s.read_to_end(&mut Vec::new()).ok();
        });
        assert!(load::fill(address, 1, 16).unwrap_err().to_string().contains("refused"));
        peer.join().unwrap();
    }
}
