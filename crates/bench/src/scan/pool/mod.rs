//! `scan-pool`: clients that ingest one file at the same time through a buffer pool in virtual memory, and by scans (zicIO
//! paper, 5.6.5 and Figure 14).
//!
//! The paper compares with vmcache, which is an engine of this project's buffer pool. Its clients pin page after page of 4 KiB; a
//! page that is absent is read by the client that needs it, one page at a time. Each of the pool's engines runs with a *small*
//! memory, a quarter of the file, and a *large* one, which the file fits into. The paper has a fifth. `stock, reading ahead` goes
//! beyond the paper: each client asks for 512 KiB before it needs them. The other sides are scans with the memory of the small
//! pool: a channel for each client, and a pool of the scan service that all clients join. A channel takes at least 6 MiB, so many
//! channels have more memory than the pool.
//!
//! Clients consume at a pace, as queries do (paper 5.4.1). They begin together, with nothing in memory (*cold*). In a
//! large pool they begin a second time, with the whole file in memory (*warm*). Every client's sum is compared with the file's.
//!
//! The pool verifies the checksum of each page that it reads, which is in its CPU time. Scans verify nothing.
//!
//! A row compares its side with the shared scan in the same rounds. The ratios, each the worst over the numbers of
//! clients:
//!
//! - `time_of_vmcache_small`, `time_of_vmcache_large`, `time_of_vmcache_warm`: the time of the shared scan over that of vmcache.
//! - `time_of_best_small`, `time_of_best_large`, `time_of_best_warm`: the same over the fastest of the pool's engines.
//! - `cpu_of_vmcache_...`, `cpu_of_best_...`: the same for CPU time, with the engine that takes the least.
//! - `device_over_file_shared`, `device_over_file_channels`, `device_over_file_vmcache_small`: bytes that the device was asked for
//!   over those of the file.
//! - `time_N_over_1_shared`, `time_N_over_1_vmcache_small`: the time of the largest number of clients over that of one.

mod side;
mod table;

use bedplate_bufpool::Kind;
use bedplate_scan::FRAME;

use super::share::PACE;
use super::{report, short, write};
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step, Target};
use side::{Cost, Process, Question, Side, Way};
use table::Table;

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-pool",
    about: "clients that ingest one file through a buffer pool in virtual memory, and by scans (zicIO paper, Figure 14)",
    run,
};

/// The memory that a large pool has beside the file.
const SPARE: u64 = 16 << 20;

/// The part of the file that is in memory when the clients of a side begin, and the size of that memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Small,
    Large,
    Warm,
}

impl State {
    const ALL: [State; 3] = [State::Small, State::Large, State::Warm];

    fn name(self) -> &'static str {
        match self {
            State::Small => "small",
            State::Large => "large",
            State::Warm => "warm",
        }
    }
}

/// The costs of a side in each round, with one number of clients.
struct Seen {
    way: Way,
    state: State,
    clients: usize,
    costs: Vec<Cost>,
}

impl Seen {
    fn of(&self, quantity: impl Fn(&Cost) -> f64) -> Samples {
        samples(&self.costs, quantity)
    }

    fn time(&self) -> Samples {
        self.of(|cost| cost.wall_s)
    }

    fn cpu(&self) -> Samples {
        self.of(|cost| cost.cpu_s)
    }

    fn device_over(&self, size: u64) -> f64 {
        self.of(|cost| cost.device.map_or(f64::NAN, |bytes| bytes as f64 / size as f64)).median()
    }

    fn row(&self, all: &[Seen], size: u64) -> Fields {
        let fields = Fields::new()
            .with("side", self.way.name())
            .with("memory", self.state.name())
            .with("memory_bytes", self.costs.first().map(|cost| cost.memory))
            .with("clients", self.clients)
            .with("wall_s", self.time().median())
            .with("spread", self.time().spread())
            .with("cpu_s", self.cpu().median())
            .with("device_over_file", self.device_over(size));
        let shared = all.iter().find(|one| one.way == Way::Shared && one.clients == self.clients);
        match shared.filter(|_| self.way != Way::Shared) {
            Some(shared) => fields
                .with("time_of_shared", shared.time().over(&self.time()))
                .with("cpu_of_shared", shared.cpu().over(&self.cpu())),
            None => fields,
        }
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let (rounds, size) = options.pick((3, 64 << 20), (5, 1 << 30));
    let counts: &[usize] = options.pick(&[1, 2, 4, 8], &[1, 2, 4, 8, 16, 32]);
    let most = counts.iter().copied().max().unwrap_or(1);
    // A pool of scans takes a frame for each client, and three more.
    let small = (size as usize / 4).max((most + 3) * FRAME);
    let large = (size + SPARE) as usize;
    let mut report = report(&BENCH, options, rounds, size);
    report.config.set("client_bytes_per_s", PACE);
    sink(Step { done: 0, total: 1, label: "writing the file" });
    let data = write(options, size)?;
    let table = Table::copy(&data)?;
    let mut processes = start(small, large, &table, &mut report.config)?;
    let total = rounds * counts.len() * processes.len();
    let (mut done, mut seen) = (0, Vec::new());
    for &clients in counts {
        let answers = interleave(rounds, processes.len(), |index, _| {
            let (side, process) = &mut processes[index];
            let label = format!("{clients} × {} in {}", side.way.name(), short(side.memory as u64));
            sink(Step { done, total, label: &label });
            done += 1;
            process.ask(&Question { clients, pace: PACE, again: side.memory == large })
        })?;
        for ((side, _), answers) in processes.iter().zip(answers) {
            let way = side.way;
            let of = |time: usize| answers.iter().filter_map(|costs| costs.get(time).copied()).collect();
            if side.memory == large {
                seen.push(Seen { way, state: State::Large, clients, costs: of(0) });
                seen.push(Seen { way, state: State::Warm, clients, costs: of(1) });
            } else {
                seen.push(Seen { way, state: State::Small, clients, costs: of(0) });
            }
        }
    }
    report.rows.extend(seen.iter().map(|one| one.row(&seen, size)));
    judge(&mut report, &seen, size);
    Ok(report)
}

/// All sides that this machine supports. The configuration has the reasons why others are missing.
fn start(small: usize, large: usize, table: &Table, config: &mut Fields) -> Result<Vec<(Side, Process)>> {
    let pools = [
        Way::Pool(Kind::Vmcache),
        Way::Pool(Kind::Stock),
        Way::Ahead(Kind::Stock),
        Way::Pool(Kind::Array),
        Way::Pool(Kind::Ring0),
    ];
    let in_memory = |memory| pools.into_iter().map(move |way| Side { way, memory });
    let scans = [Way::Channels, Way::Shared].map(|way| Side { way, memory: small });
    let mut processes = Vec::new();
    for side in in_memory(small).chain(in_memory(large)).chain(scans) {
        match side.start(table)? {
            Ok(process) => processes.push((side, process)),
            Err(reason) if side.way == Way::Pool(Kind::Ring0) => config.set("no_ring0", reason),
            Err(reason) => return Err(crate::Error::engine(reason)),
        }
    }
    Ok(processes)
}

/// The ratios.
fn judge(report: &mut Report, all: &[Seen], size: u64) {
    let shared: Vec<&Seen> = all.iter().filter(|seen| seen.way == Way::Shared).collect();
    let worst = |values: Vec<f64>| values.into_iter().fold(f64::NAN, f64::max);
    type Quantity = fn(&Seen) -> Samples;
    let quantities: [(&str, Quantity); 2] = [("time", Seen::time), ("cpu", Seen::cpu)];
    for (name, quantity) in quantities {
        for state in State::ALL {
            let over = |is_one: &dyn Fn(Way) -> bool| {
                let of = |ours: &&Seen| {
                    let sides = all.iter().filter(|seen| seen.clients == ours.clients && seen.state == state);
                    let sides = sides.filter(|seen| is_one(seen.way)).map(quantity);
                    let best = sides.min_by(|a, b| a.median().total_cmp(&b.median()))?;
                    Some(quantity(ours).over(&best))
                };
                worst(shared.iter().filter_map(of).collect())
            };
            let vmcache = over(&|way| way == Way::Pool(Kind::Vmcache));
            let ratio = format!("{name}_of_vmcache_{}", state.name());
            match (name, state) {
                ("time", State::Small) => report.target(&ratio, vmcache, Target::AtMost(1.0)),
                _ => report.ratio(&ratio, vmcache),
            }
            report.ratio(&format!("{name}_of_best_{}", state.name()), over(&Way::is_pool));
        }
    }
    let small = |way: Way| move |seen: &&Seen| seen.way == way && seen.state == State::Small;
    for (name, way) in
        [("shared", Way::Shared), ("channels", Way::Channels), ("vmcache_small", Way::Pool(Kind::Vmcache))]
    {
        let sides: Vec<&Seen> = all.iter().filter(small(way)).collect();
        let device = worst(sides.iter().map(|seen| seen.device_over(size)).collect());
        match way {
            Way::Shared => report.target("device_over_file_shared", device, Target::AtMost(1.1)),
            _ => report.ratio(&format!("device_over_file_{name}"), device),
        }
        let by_clients = |seen: &&&Seen| seen.clients;
        let (least, most) = (sides.iter().min_by_key(by_clients), sides.iter().max_by_key(by_clients));
        let (Some(least), Some(most)) = (least, most) else { continue };
        if way != Way::Channels && least.clients == 1 && most.clients > 1 {
            let time = most.time().over(&least.time());
            report.ratio(&format!("time_{}_over_1_{name}", most.clients), time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(way: Way, state: State, clients: usize, wall_s: f64, device: u64) -> Seen {
        let cost = Cost { wall_s, cpu_s: wall_s / 2.0, device: Some(device), memory: 1 };
        Seen { way, state, clients, costs: vec![cost; 3] }
    }

    #[test]
    fn ratios_are_the_worst_over_the_numbers_of_clients_and_misses_are_told() {
        let vmcache = |state, clients, wall_s| seen(Way::Pool(Kind::Vmcache), state, clients, wall_s, 15);
        let all = [
            seen(Way::Shared, State::Small, 1, 1.0, 10),
            seen(Way::Shared, State::Small, 8, 3.0, 12),
            seen(Way::Channels, State::Small, 8, 3.0, 80),
            vmcache(State::Small, 1, 4.0),
            vmcache(State::Small, 8, 2.0),
            vmcache(State::Large, 1, 2.0),
            vmcache(State::Warm, 1, 0.5),
            seen(Way::Ahead(Kind::Stock), State::Small, 1, 2.0, 15),
        ];
        let mut report = Report::new(BENCH.name, Fields::new());
        judge(&mut report, &all, 10);
        let expected = [
            ("time_of_vmcache_small", 1.5),
            ("cpu_of_vmcache_small", 1.5),
            ("time_of_best_small", 1.5),
            ("time_of_vmcache_large", 0.5),
            ("time_of_best_warm", 2.0),
            ("device_over_file_shared", 1.2),
            ("device_over_file_channels", 8.0),
            ("device_over_file_vmcache_small", 1.5),
            ("time_8_over_1_shared", 3.0),
            ("time_8_over_1_vmcache_small", 0.5),
        ];
        for (name, value) in expected {
            assert_eq!(report.ratios.get(name), Some(&value), "{name}: {:?}", report.ratios);
        }
        assert_eq!(report.rows.iter().filter(|row| row.get("verdict").unwrap() == "MISSED").count(), 2);
        // A side's row compares it with the shared scan in the same rounds; the shared scan's own row does not.
        let row = all[4].row(&all, 10);
        assert_eq!((row.number("time_of_shared"), row.number("device_over_file")), (Some(1.5), Some(1.5)));
        assert_eq!(all[0].row(&all, 10).number("time_of_shared"), None);
    }
}
