//! Votes over the network: kerneldb's procedure called by CALL, and the same as a Redis Function called by FCALL (paper 6.4,
//! Figure 10a).
//!
//! Both servers run on the same cores without persistence, and the same load generator sends the same votes to both.
//! [`crate::net::measure`] defines the columns about processor time. A turn begins with tables that have no votes. After the
//! turn, every request has been answered, and the votes in the database are compared with the replies.
//!
//! Redis's allocator keeps its memory from turn to turn, as kerneldb does, so that neither server waits for the kernel to back
//! memory that it has used before.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::time::Duration;

use bedplate_kerneldb::VOTER_PROCEDURES;
use tempfile::TempDir;

use super::calls::{Dialect, Votes};
use super::tables::{Ballots, contestants, rows};
use super::tally::{Stored, Tally};
use crate::bpf::ProgramType;
use crate::net::load::Schedule;
use crate::net::measure::{Measured, calibrate_traffic, fill_row, measure_traffic};
use crate::net::server::Server;
use crate::sample::{Samples, interleave, samples};
use crate::{Error, Fields, Options, Report, Result, Target};

/// The procedures as a library of Redis Functions.
const FUNCTIONS: &str = include_str!("voter.lua");

/// Settings of Redis's allocator under both names that it may have: it returns no memory.
const KEEP_MEMORY: [(&str, &str); 2] = [
    ("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1"),
    ("JE_MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1"),
];

/// Memory limit of kerneldb's server in bytes.
const MEMORY: u64 = 2 << 30;

/// Time after a turn's preparation, in which the servers finish the deletion of earlier votes.
const SETTLING: Duration = Duration::from_millis(200);

/// Keys that one SCAN or MGET asks for.
const BATCH: usize = 1000;

/// A server under test.
pub(super) struct Side {
    pub(super) name: &'static str,
    server: Server,
    dialect: Dialect,
    /// Type of its programs that run in the client's context.
    client_programs: Option<ProgramType>,
    /// The library's file, which exists as long as the server.
    _files: Option<TempDir>,
}

impl Side {
    /// Redis with the procedures as Functions.
    pub(super) fn redis(options: &Options) -> Result<Side> {
        let environment = KEEP_MEMORY.map(|(name, value)| (name, OsStr::new(value)));
        let side = Side {
            name: "redis",
            server: Server::redis_with(options, &environment, &[])?,
            dialect: Dialect::Function,
            client_programs: None,
            _files: None,
        };
        let loaded: redis::RedisResult<String> =
            redis::cmd("FUNCTION").arg("LOAD").arg(FUNCTIONS).query(&mut side.connect()?);
        loaded.map_err(|error| Error::Missing {
            what: format!("redis-server takes no Function: {error}"),
            hint: "Redis has Functions since version 7",
        })?;
        Ok(side)
    }

    /// kerneldb's server with the procedures as a library, and further options of `kv serve`.
    fn kerneldb(options: &Options, name: &'static str, further: &[&str]) -> Result<Side> {
        let files = TempDir::new().map_err(Error::io("temporary directory"))?;
        let object = files.path().join("voter_procedures.bpf.o");
        std::fs::write(&object, VOTER_PROCEDURES).map_err(Error::io("write the library's file"))?;
        let procedure = format!("--procedure={}", object.display());
        let mut all = vec![procedure.as_str()];
        all.extend(further);
        Ok(Side {
            name,
            server: Server::bedplate(options, MEMORY, &all)?,
            dialect: Dialect::Call,
            client_programs: Some(ProgramType::SkSkb),
            _files: Some(files),
        })
    }

    fn connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(format!("redis://{}/", self.server.address()))?.get_connection()
    }

    fn connect(&self) -> Result<redis::Connection> {
        self.connection().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: redis::RedisError) -> Error {
        Error::Protocol { server: self.name.to_owned(), problem: error.to_string() }
    }

    /// Deletes everything and writes the tables of area codes and contestants.
    pub(super) fn prepare(&self) -> Result<()> {
        let mut connection = self.connect()?;
        let mut load = redis::pipe();
        load.cmd("FLUSHALL").ignore();
        rows().for_each(|(key, value)| {
            load.cmd("SET").arg(key).arg(value).ignore();
        });
        load.query::<()>(&mut connection).map_err(|error| self.failed(error))?;
        std::thread::sleep(SETTLING);
        Ok(())
    }

    /// Compares the votes in the database with the replies.
    pub(super) fn check(&self, tally: Tally) -> Result<()> {
        self.stored().map_err(|error| self.failed(error))?.check(tally)
    }

    /// The votes in the database.
    fn stored(&self) -> redis::RedisResult<Stored> {
        let mut connection = self.connection()?;
        let mut stored = Stored::default();
        // SCAN may return a key twice.
        let mut phones: HashMap<Vec<u8>, u64> = HashMap::new();
        let mut records: HashSet<Vec<u8>> = HashSet::new();
        let mut cursor = 0u64;
        loop {
            let (next, keys): (u64, Vec<Vec<u8>>) =
                redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(BATCH).query(&mut connection)?;
            let (of_phones, others): (Vec<_>, Vec<_>) =
                keys.into_iter().partition(|key| key.starts_with(b"phone:"));
            for keys in of_phones.chunks(BATCH) {
                let votes: Vec<u64> = redis::cmd("MGET").arg(keys).query(&mut connection)?;
                phones.extend(keys.iter().cloned().zip(votes));
            }
            records.extend(others.into_iter().filter(|key| key.starts_with(b"vote:")));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        phones.values().for_each(|votes| stored.add_phone(*votes));
        stored.records = records.len() as u64;
        let mut of_contestants = 0;
        for (number, _) in contestants() {
            let votes: u64 = match self.dialect {
                Dialect::Call => {
                    redis::cmd("CALL").arg("voter_results").arg(number).query(&mut connection)?
                }
                Dialect::Function => {
                    redis::cmd("FCALL").arg("voter_results").arg(0).arg(number).query(&mut connection)?
                }
            };
            of_contestants += votes;
        }
        stored.of_contestants = Some(of_contestants);
        Ok(stored)
    }

    /// One turn: prepares the tables, runs the votes, and checks them.
    fn turn<T>(&self, run: impl FnOnce() -> Result<(T, Vec<Votes>)>) -> Result<T> {
        self.prepare()?;
        let (result, votes) = run()?;
        self.check(votes.iter().map(|votes| votes.tally).collect())?;
        Ok(result)
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) connections: usize,
    /// Requests per batch; 1 = one request per round trip.
    pub(super) pipeline: usize,
}

/// The extent of the comparison.
pub(super) struct Plan {
    pub(super) rounds: usize,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
    pub(super) cells: Vec<Cell>,
}

impl Plan {
    pub(super) fn new(options: &Options) -> Plan {
        let pipelines: &[usize] = options.pick(&[1, 16], &[1, 4, 16]);
        let connections: &[usize] = options.pick(&[1, 50], &[1, 8, 50]);
        let cells = connections
            .iter()
            .flat_map(|&connections| pipelines.iter().map(move |&pipeline| Cell { connections, pipeline }));
        Plan {
            rounds: options.pick(5, 9),
            warm_up: Duration::from_millis(150),
            window: Duration::from_millis(options.pick(400, 1000)),
            cells: cells.collect(),
        }
    }
}

/// The servers that are compared; the first one is the baseline.
pub(super) fn sides(options: &Options) -> Result<Vec<Side>> {
    let mut sides = vec![Side::redis(options)?, Side::kerneldb(options, "server", &[])?];
    if options.mode == crate::Mode::Full {
        sides.push(Side::kerneldb(options, "batched", &["--batch-workers=under-load"])?);
    }
    Ok(sides)
}

/// Ratios of one side over Redis, one value per cell.
#[derive(Default)]
struct Ratios {
    rate: Vec<f64>,
    /// Incomplete if the kernel does not report the run time of eBPF programs.
    cpu: Vec<Option<f64>>,
    p50: Vec<f64>,
    /// The value that the target compares: the rate, or where the load generator bounds the rate, the better of rate and processor
    /// time.
    gain: Vec<f64>,
}

/// Whether the load generator needs more processor time for a vote than this side's server, so that a faster server would
/// hardly raise the rate.
fn client_bounds(rounds: &[Measured], bpf_ns: Option<f64>) -> bool {
    let of = |f: &dyn Fn(&Measured) -> f64| samples(rounds, f).median();
    of(&Measured::client_cpu_ns) > of(&|m| m.server_cpu_ns(bpf_ns.unwrap_or(0.0)))
}

impl Ratios {
    /// Adds a cell, and returns the fields about it in the side's row.
    fn add(&mut self, candidate: &[Measured], bpf_ns: Option<f64>, redis: &[Measured]) -> Fields {
        let over = |f: &dyn Fn(&Measured) -> f64, g: &dyn Fn(&Measured) -> f64| {
            samples(candidate, f).over(&samples(redis, g))
        };
        let (rate, p50) =
            (|m: &Measured| m.seen.rate(), |m: &Measured| m.seen.latencies.percentile(50.0) as f64);
        let (rate, p50) = (over(&rate, &rate), over(&p50, &p50));
        let cpu = bpf_ns.map(|bpf_ns| over(&|m| m.server_cpu_ns(bpf_ns), &|m| m.server_cpu_ns(0.0)));
        let bounds = client_bounds(candidate, bpf_ns);
        self.rate.push(rate);
        self.p50.push(p50);
        self.cpu.push(cpu);
        self.gain.push(match cpu {
            Some(cpu) if bounds => rate.max(1.0 / cpu),
            _ => rate,
        });
        Fields::new()
            .with("rate_over_redis", rate)
            .with("cpu_over_redis", cpu)
            .with("p50_over_redis", p50)
            .with("bound_by", if bounds { "client" } else { "server" })
    }

    /// Adds the worst cell of each ratio.
    fn fill(&self, side: &str, report: &mut Report) {
        let of = |values: &[f64]| values.iter().copied().collect::<Samples>();
        report.ratio(&format!("{side}_rate_over_redis_min"), of(&self.rate).min());
        report.ratio(&format!("{side}_p50_over_redis_max"), of(&self.p50).max());
        if let Some(cpu) = self.cpu.iter().copied().collect::<Option<Vec<f64>>>() {
            report.ratio(&format!("{side}_cpu_over_redis_max"), of(&cpu).max());
        }
    }
}

/// Measures all cells; `sides[0]` is the baseline, and the target is about `sides[1]`. `progress` gets the name of each cell
/// before it is measured.
pub(super) fn compare(
    plan: &Plan,
    sides: &[Side],
    report: &mut Report,
    mut progress: impl FnMut(&str),
) -> Result<()> {
    let mut ratios: Vec<Ratios> = sides.iter().map(|_| Ratios::default()).collect();
    let mut seed = 0;
    for cell in &plan.cells {
        progress(&format!("{} connections, pipeline {}", cell.connections, cell.pipeline));
        let schedule = Schedule::closed(cell.connections, cell.pipeline, plan.warm_up, plan.window);
        let votes = |side: &Side, seed: u64| {
            let dialect = side.dialect;
            move |thread: usize| Votes::new(dialect, Ballots::new(seed + thread as u64))
        };
        // The first turn of each side also touches the memory that the next ones use.
        let mut bpf_ns = Vec::new();
        for side in sides {
            let votes = votes(side, seed);
            bpf_ns.push(side.turn(|| match side.client_programs {
                Some(kind) => calibrate_traffic(&side.server, &schedule, votes, kind),
                None => measure_traffic(&side.server, &schedule, votes).map(|(_, votes)| (Some(0.0), votes)),
            })?);
        }
        let rounds = interleave(plan.rounds, sides.len(), |index, round| {
            let side = &sides[index];
            let votes = votes(side, seed + 100 * (round as u64 + 1));
            side.turn(|| measure_traffic(&side.server, &schedule, votes))
        })?;
        seed += 10_000;
        for (index, side) in sides.iter().enumerate() {
            let mut row = Fields::new()
                .with("clients", cell.connections)
                .with("pipeline", cell.pipeline)
                .with("side", side.name);
            fill_row(&mut row, &rounds[index], bpf_ns[index]);
            row.extend(ratios[index].add(&rounds[index], bpf_ns[index], &rounds[0]));
            report.rows.push(row);
        }
    }
    for (side, ratios) in sides.iter().zip(&ratios).skip(1) {
        ratios.fill(side.name, report);
    }
    if let Some(gain) = ratios.get(1).map(|ratios| ratios.gain.iter().copied().collect::<Samples>()) {
        report.target("networked_over_redis_function", gain.min(), Target::AtLeast(1.43));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    /// Tests the instrument itself: Redis against Redis has every row, and keeps the invariants, which are checked in each turn.
    #[test]
    fn redis_against_redis_has_every_row() {
        let options = Options::new(Mode::Quick);
        let sides = [Side::redis(&options).unwrap(), Side::redis(&options).unwrap()];
        let plan = Plan {
            rounds: 1,
            warm_up: Duration::from_millis(20),
            window: Duration::from_millis(500),
            cells: vec![Cell { connections: 1, pipeline: 1 }, Cell { connections: 20, pipeline: 16 }],
        };
        let mut report = Report::new("kv-voter", Fields::new());
        let mut cells = 0;
        compare(&plan, &sides, &mut report, |_| cells += 1).unwrap();
        assert_eq!((cells, report.rows.len()), (2, 2 * 2 + 1), "two sides in each cell, and the target");
        for row in &report.rows[..4] {
            assert_eq!(row.number("refused"), Some(0.0));
            for key in ["rate_per_s", "p50_ns", "p99_ns", "server_cpu_ns", "client_cpu_ns", "rate_over_redis"]
            {
                assert!(row.number(key).unwrap() > 0.0, "{key} in {row:?}");
            }
        }
        for name in ["networked_over_redis_function", "redis_cpu_over_redis_max"] {
            assert!(report.ratios[name] > 0.0, "{name}");
        }
        // The check notices a vote that no client has counted.
        let side = &sides[0];
        side.prepare().unwrap();
        side.check(Tally::default()).unwrap();
        let mut connection = side.connect().unwrap();
        let vote = |connection: &mut redis::Connection, contestant: u64| -> u64 {
            let mut call = redis::cmd("FCALL");
            call.arg("voter_vote").arg(1).arg(2_120_000_001u64).arg(contestant).arg(2);
            call.query(connection).unwrap()
        };
        let outcomes = [7, 8, 7, 999].map(|contestant| vote(&mut connection, contestant));
        assert_eq!(outcomes, [0, 0, 2, 1]);
        let right = Tally { requests: 4, accepted: 2, over_limit: 1, no_contestant: 1, failed: 0 };
        side.check(right).unwrap();
        assert!(side.check(Tally { requests: 3, accepted: 1, ..right }).is_err());
    }

    #[test]
    fn the_gain_is_of_the_rate_unless_the_client_bounds_it() {
        let measured = |replies: u64, process_ns: u64, client_ns: u64| {
            let mut seen = crate::net::load::Seen { replies, wall_ns: 1_000_000_000, ..Default::default() };
            seen.latencies.record(1000);
            seen.cpu.system_ns = client_ns;
            Measured { seen, process_ns, kernel_threads_ns: 0, busy_ns: 0 }
        };
        let redis = [measured(1000, 8000, 2000)];
        let mut ratios = Ratios::default();
        // 1.2 times the rate at a fourth of the processor time, and the server is the smaller part.
        ratios.add(&[measured(1200, 2400, 2500)], Some(0.0), &redis);
        // The same, and the server is the larger part.
        ratios.add(&[measured(1200, 2400, 2300)], Some(0.0), &redis);
        // Nobody knows its processor time.
        ratios.add(&[measured(1200, 2400, 2500)], None, &redis);
        for (gain, expected) in ratios.gain.iter().zip([4.0, 1.2, 1.2]) {
            assert!((gain - expected).abs() < 1e-9, "{gain} {expected}");
        }
    }
}
