//! `kv-cache`: a cache that is too small for its keys, against redis-server with the same limit on its memory.
//!
//! Each client reads keys of a Zipf distribution. If a key is missing, the client writes it. So the server evicts all the time, and
//! the share of reads that find their key shows how well it chooses. The keys take several times the memory. Values have 100 bytes.
//!
//! The sides are `redis`, the baseline, and `server`, Bedplate's server path. Both have the same policy, and the same limit on their
//! memory in bytes. Bedplate keeps a twelfth of it free. The column `hits` is the share of hits, `keys` the number of keys at the
//! end of the cell; the other columns are those of [`kv-net`](super).

use std::time::Duration;

use super::load::Schedule;
use super::measure::{Measured, calibrate_traffic, fill_row, measure_traffic};
use super::server::figure;
use super::sides::Side;
use super::wire::{KEY_LEN, KeyRequest, Reply, Traffic, Wire, error_reply};
use crate::bpf::ProgramType;
use crate::keys::{Distribution, KeyStream};
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-cache",
    about: "A cache that evicts all the time, against redis-server: share of hits, rate, processor time",
    run,
};

const VALUE_LEN: usize = 100;
const POLICIES: [&str; 3] = ["allkeys-lru", "allkeys-lfu", "allkeys-random"];
const ABSENT: &[u8] = b"$-1\r\n";

/// The requests of one thread of the load generator: GET, and SET of the keys that were missing.
struct Cache {
    wire: Wire,
    stream: KeyStream,
    /// Keys that were missing and are to be written.
    missing: Vec<u64>,
    gets: u64,
    hits: u64,
}

impl Traffic for Cache {
    type Request = KeyRequest;
    const ANSWERS_ALL: bool = false;

    fn request(&mut self, out: &mut Vec<u8>) -> KeyRequest {
        match self.missing.pop() {
            Some(key) => self.wire.append(out, key, true),
            None => self.wire.append(out, self.stream.next_key(), false),
        }
    }

    fn reply(&mut self, request: KeyRequest, received: &[u8]) -> Result<Option<(usize, Reply)>> {
        if received[0] == b'-' {
            return Ok(error_reply(received));
        }
        if request.set {
            return self.wire.check(request, received);
        }
        let absent = received.len().min(ABSENT.len());
        if received[..absent] == ABSENT[..absent] && received.get(1).is_none_or(|byte| *byte == b'-') {
            if absent < ABSENT.len() {
                return Ok(None);
            }
            self.missing.push(request.key);
            self.gets += 1;
            return Ok(Some((ABSENT.len(), Reply::Right)));
        }
        let checked = self.wire.check(request, received)?;
        self.gets += u64::from(checked.is_some());
        self.hits += u64::from(checked.is_some());
        Ok(checked)
    }
}

struct Plan {
    keys: u64,
    memory_bytes: u64,
    rounds: usize,
    /// Duration of the load that fills the cache, and lets the policy learn.
    fill: Duration,
    warm_up: Duration,
    window: Duration,
    connections: usize,
    pipeline: usize,
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let plan = Plan {
        keys: options.pick(1_000_000, 10_000_000),
        memory_bytes: options.pick(48 << 20, 512 << 20),
        rounds: options.pick(3, 7),
        fill: Duration::from_millis(options.pick(6000, 60_000)),
        warm_up: Duration::from_millis(options.pick(200, 500)),
        window: Duration::from_millis(options.pick(1500, 4000)),
        connections: 20,
        pipeline: 16,
    };
    let programs = Some(ProgramType::SkSkb);
    let sides = [Side::redis(options)?, Side::bedplate(options, "server", plan.memory_bytes, &[], programs)?];
    compare(&plan, &sides, options, sink)
}

/// Measures all policies; `sides[0]` is the baseline.
fn compare(plan: &Plan, sides: &[Side], options: &Options, sink: Sink<'_>) -> Result<Report> {
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("keys", plan.keys)
        .with("memory_bytes", plan.memory_bytes)
        .with("key_bytes", KEY_LEN)
        .with("value_bytes", VALUE_LEN)
        .with("clients", plan.connections)
        .with("pipeline", plan.pipeline)
        .with("rounds", plan.rounds)
        .with("window_ms", plan.window.as_millis() as u64)
        .with("distribution", Distribution::Zipf.name())
        .with("persistence", "none")
        .with("transport", "loopback TCP");
    let mut report = Report::new(BENCH.name, config);
    let mut ratios = Ratios::default();
    for (done, policy) in POLICIES.into_iter().enumerate() {
        sink(Step { done, total: POLICIES.len(), label: policy });
        measure_policy(plan, sides, policy, &mut report, &mut ratios)?;
    }
    let of = |values: Vec<f64>| values.into_iter().collect::<Samples>();
    report.ratio("hits_over_redis_min", of(ratios.hits).min());
    report.ratio("rate_over_redis_min", of(ratios.rate).min());
    if ratios.cpu.len() == POLICIES.len() {
        report.ratio("cpu_over_redis_max", of(ratios.cpu).max());
    }
    Ok(report)
}

/// The figures of Bedplate over those of Redis, one for each policy.
#[derive(Default)]
struct Ratios {
    hits: Vec<f64>,
    rate: Vec<f64>,
    /// Incomplete if the kernel does not report the run time of eBPF programs.
    cpu: Vec<f64>,
}

/// A window, and the share of hits in it and in the time before it.
struct Turn {
    measured: Measured,
    hits: f64,
}

/// The requests of a turn, by thread.
fn traffic(keys: u64, turn: usize) -> impl Fn(usize) -> Cache {
    move |thread| Cache {
        wire: Wire::new(VALUE_LEN),
        stream: KeyStream::new(Distribution::Zipf, keys, turn as u64 * 1000 + thread as u64 + 1),
        missing: Vec::new(),
        gets: 0,
        hits: 0,
    }
}

fn schedule(plan: &Plan, window: Duration) -> Schedule {
    Schedule::closed(plan.connections, plan.pipeline, plan.warm_up, window)
}

fn measure_turn(plan: &Plan, side: &Side, window: Duration, turn: usize) -> Result<Turn> {
    let traffic = traffic(plan.keys, turn);
    let (measured, threads) = measure_traffic(&side.server, &schedule(plan, window), traffic)?;
    let sum = |count: fn(&Cache) -> u64| threads.iter().map(count).sum::<u64>() as f64;
    Ok(Turn { measured, hits: sum(|thread| thread.hits) / sum(|thread| thread.gets).max(1.0) })
}

fn measure_policy(
    plan: &Plan,
    sides: &[Side],
    policy: &str,
    report: &mut Report,
    ratios: &mut Ratios,
) -> Result<()> {
    let mut bpf_ns = Vec::new();
    for side in sides {
        side.server.command("FLUSHALL")?;
        side.server.command(&format!("CONFIG SET maxmemory {}", plan.memory_bytes))?;
        side.server.command(&format!("CONFIG SET maxmemory-policy {policy}"))?;
        measure_turn(plan, side, plan.fill, plan.rounds)?;
        // Run time of the programs in the client's context, for each reply.
        bpf_ns.push(match side.client_programs {
            Some(kind) => {
                let traffic = traffic(plan.keys, plan.rounds + 1);
                calibrate_traffic(&side.server, &schedule(plan, plan.window / 2), traffic, kind)?.0
            }
            None => Some(0.0),
        });
    }
    let rounds: Vec<Vec<Turn>> = interleave(plan.rounds, sides.len(), |side, round| {
        measure_turn(plan, &sides[side], plan.window, round)
    })?;
    for (i, side) in sides.iter().enumerate() {
        let mut row = Fields::new().with("policy", policy).with("side", side.name);
        let measured: Vec<Measured> = rounds[i].iter().map(|turn| turn.measured.clone()).collect();
        fill_row(&mut row, &measured, bpf_ns[i]);
        let over = |f: &dyn Fn(&Turn) -> f64| samples(&rounds[i], f).over(&samples(&rounds[0], f));
        let [hits, rate] = [over(&|turn| turn.hits), over(&|turn| turn.measured.seen.rate())];
        row.set("hits", samples(&rounds[i], |turn: &Turn| turn.hits).median());
        row.set(
            "keys",
            side.server.command("DBSIZE")?.trim_start_matches(':').parse::<u64>().unwrap_or_default(),
        );
        row.set("evicted", figure(&side.server.command("INFO stats")?, "evicted_keys")?);
        row.set("hits_over_redis", hits);
        row.set("rate_over_redis", rate);
        let cpu = bpf_ns[i].map(|bpf_ns| {
            samples(&rounds[i], |turn| turn.measured.server_cpu_ns(bpf_ns))
                .over(&samples(&rounds[0], |turn| turn.measured.server_cpu_ns(0.0)))
        });
        if let Some(cpu) = cpu {
            row.set("cpu_over_redis", cpu);
        }
        report.rows.push(row);
        if i > 0 {
            ratios.hits.push(hits);
            ratios.rate.push(rate);
            ratios.cpu.extend(cpu);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    fn cache() -> Cache {
        Cache {
            wire: Wire::new(VALUE_LEN),
            stream: KeyStream::new(Distribution::Zipf, 1000, 7),
            missing: Vec::new(),
            gets: 0,
            hits: 0,
        }
    }

    #[test]
    fn a_missing_key_is_written_next() {
        let (mut cache, mut sent) = (cache(), Vec::new());
        let request = cache.request(&mut sent);
        assert!(!request.set);
        for end in 1..ABSENT.len() {
            assert_eq!(cache.reply(request, &ABSENT[..end]).unwrap(), None);
        }
        assert_eq!(cache.reply(request, ABSENT).unwrap(), Some((5, Reply::Right)));
        assert_eq!((cache.gets, cache.hits), (1, 0));
        sent.clear();
        let write = cache.request(&mut sent);
        assert!(write.set && write.key == request.key && sent.starts_with(b"*3\r\n$3\r\nSET\r\n"));
        assert_eq!(cache.reply(write, b"+OK\r\n").unwrap(), Some((5, Reply::Right)));
        assert_eq!(cache.reply(write, b"-OOM x\r\n").unwrap(), Some((8, Reply::Refused)));
        assert!(!cache.request(&mut sent).set);
    }

    #[test]
    fn a_hit_is_the_value_of_the_key() {
        let mut cache = cache();
        let request = KeyRequest { key: 5, set: false };
        let value = [b"$100\r\n000000000005".as_slice(), &[b'x'; 88], b"\r\n"].concat();
        for end in 1..value.len() {
            assert_eq!(cache.reply(request, &value[..end]).unwrap(), None);
        }
        assert_eq!(cache.reply(request, &value).unwrap(), Some((value.len(), Reply::Right)));
        assert_eq!((cache.gets, cache.hits), (1, 1));
        assert!(cache.reply(KeyRequest { key: 6, set: false }, &value).is_err());
    }

    /// Tests the instrument itself: Redis against Redis has every row, and evicts.
    #[test]
    fn redis_against_redis_has_every_row() {
        let options = Options::new(Mode::Quick);
        let plan = Plan {
            keys: 100_000,
            memory_bytes: 8 << 20,
            rounds: 1,
            fill: Duration::from_millis(1500),
            warm_up: Duration::from_millis(20),
            // In a shorter window, a server may get no processor on a busy machine, which is an error.
            window: Duration::from_secs(1),
            connections: 5,
            pipeline: 16,
        };
        let sides = [Side::redis(&options).unwrap(), Side::redis(&options).unwrap()];
        let report = compare(&plan, &sides, &options, &mut |_| {}).unwrap();
        assert_eq!(report.rows.len(), 2 * POLICIES.len());
        for row in &report.rows {
            assert_eq!(row.number("refused"), Some(0.0));
            assert!((0.1..1.0).contains(&row.number("hits").unwrap()));
        }
    }
}
