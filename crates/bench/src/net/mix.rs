//! `kv-mix`: the commands of real traffic, in RESP2 and RESP3, against redis-server.
//!
//! The shares are those of cluster 22 of Twitter's cache traces of March 2020 (72 % reads, 10 % writes with an expiry, 18 %
//! increments). They are traces of memcached, which has no EXISTS and no EXPIRE, and where a read may name several keys. So the
//! reads here are 56 % GET, 8 % MGET of four keys and 8 % EXISTS, the writes are 8 % SET with EX and 2 % EXPIRE. Every fourth
//! GET is of a key that does not exist. Keys have 16 bytes and values 16.
//!
//! The sides are `redis`, the baseline; `server`, Bedplate's server path; `user`, the same with its kernel path switched off; and
//! `local`, with the fast path for local clients, where the build has it. `in_kernel` is the share of commands that the kernel
//! answered. The other columns are those of [`kv-net`](super).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::load::{self, Schedule};
use super::measure::{Measured, calibrate_traffic, fill_row, measure_traffic};
use super::server::figure;
use super::sides::Side;
use super::wire::{KEY_LEN, Reply, Traffic, digits, error_reply, wrong};
use crate::bpf::ProgramType;
use crate::keys::{Distribution, KeyStream};
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-mix",
    about: "Commands of real traffic (GET, SET EX, MGET, INCR, EXISTS, EXPIRE) against redis-server",
    run,
};

const VALUE_LEN: usize = 16;
/// Longest wait for the reply to HELLO.
const GREETING_LIMIT: Duration = Duration::from_secs(60);
/// Keys of an MGET.
const MGET_KEYS: u64 = 4;

/// A command of the mix. Its key exists, except for [`Command::Miss`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Get,
    Miss,
    Mget,
    Exists,
    SetEx,
    Expire,
    Incr,
}

/// The commands and their shares of 100 requests.
const SHARES: [(Command, u32); 7] = [
    (Command::Get, 42),
    (Command::Miss, 14),
    (Command::Mget, 8),
    (Command::Exists, 8),
    (Command::SetEx, 8),
    (Command::Expire, 2),
    (Command::Incr, 18),
];

/// A request whose reply is checked.
#[derive(Clone, Copy, Debug)]
struct Request {
    command: Command,
    key: u64,
}

/// The requests of one thread of the load generator.
struct Mix {
    stream: KeyStream,
    keys: u64,
    /// Version of the protocol: 2 or 3.
    version: u32,
}

impl Mix {
    fn draw(&mut self) -> Request {
        use rand::RngExt;
        let mut at = self.stream.rng().random_range(0..100);
        let key = self.stream.next_key();
        for (command, share) in SHARES {
            if at < share {
                return Request { command, key };
            }
            at -= share;
        }
        unreachable!("the shares are 100 together")
    }

    /// Length of the value of a key at the beginning of `rest`; `None` if more bytes are needed.
    fn value(&self, key: u64, rest: &[u8]) -> Result<Option<usize>> {
        let mut expected = *b"$16\r\n000000000000xxxx\r\n";
        expected[5..][..KEY_LEN - 4].copy_from_slice(&digits(key));
        whole(rest, &expected)
    }
}

/// The length of `expected`, which `rest` must begin with; `None` if more bytes are needed.
fn whole(rest: &[u8], expected: &[u8]) -> Result<Option<usize>> {
    let n = rest.len().min(expected.len());
    if rest[..n] != expected[..n] {
        return Err(wrong(rest, "an unexpected reply"));
    }
    Ok((n == expected.len()).then_some(n))
}

/// The length of a positive integer at the beginning of `rest`; `None` if more bytes are needed.
fn positive(rest: &[u8]) -> Result<Option<usize>> {
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let is_positive =
        end > 1 && rest[0] == b':' && rest[1..end].iter().all(u8::is_ascii_digit) && rest[1] != b'0';
    if !is_positive {
        return Err(wrong(rest, "no positive integer"));
    }
    Ok(Some(end + 2))
}

/// Appends the part of a request that ends with the digits of a key.
fn append(out: &mut Vec<u8>, head: &str, key: u64) {
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(&digits(key));
    out.extend_from_slice(b"\r\n");
}

impl Traffic for Mix {
    type Request = Request;
    const ANSWERS_ALL: bool = false;

    fn greet(&self, socket: &mut TcpStream) -> std::io::Result<()> {
        if self.version == 2 {
            return Ok(());
        }
        socket.set_read_timeout(Some(GREETING_LIMIT))?;
        socket.write_all(b"HELLO 3\r\n")?;
        let mut reader = BufReader::new(socket);
        let mut line = String::new();
        // The modules are the last part of the reply.
        while line != "modules\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 || line.starts_with('-') {
                return Err(std::io::Error::other(format!("HELLO 3: {}", line.trim_end())));
            }
        }
        let mut modules = [0; 4];
        reader.read_exact(&mut modules)?;
        if modules != *b"*0\r\n" {
            return Err(std::io::Error::other("HELLO 3: the server has modules"));
        }
        reader.get_ref().set_read_timeout(None)
    }

    fn request(&mut self, out: &mut Vec<u8>) -> Request {
        let request = self.draw();
        let key = request.key;
        match request.command {
            Command::Get => append(out, "*2\r\n$3\r\nGET\r\n$16\r\nkey:", key),
            Command::Miss => append(out, "*2\r\n$3\r\nGET\r\n$16\r\nnot:", key),
            Command::Mget => {
                append(out, "*5\r\n$4\r\nMGET\r\n$16\r\nkey:", key);
                for i in 1..MGET_KEYS {
                    append(out, "$16\r\nkey:", (key + i) % self.keys);
                }
            }
            Command::Exists => append(out, "*2\r\n$6\r\nEXISTS\r\n$16\r\nkey:", key),
            Command::SetEx => {
                append(out, "*5\r\n$3\r\nSET\r\n$16\r\nkey:", key);
                out.extend_from_slice(b"$16\r\n");
                out.extend_from_slice(&digits(key));
                out.extend_from_slice(b"xxxx\r\n$2\r\nEX\r\n$5\r\n86400\r\n");
            }
            Command::Expire => {
                append(out, "*3\r\n$6\r\nEXPIRE\r\n$16\r\nkey:", key);
                out.extend_from_slice(b"$5\r\n86400\r\n");
            }
            Command::Incr => append(out, "*2\r\n$4\r\nINCR\r\n$16\r\ncnt:", key),
        }
        request
    }

    fn reply(&mut self, request: Request, received: &[u8]) -> Result<Option<(usize, Reply)>> {
        if received[0] == b'-' {
            return Ok(error_reply(received));
        }
        let length = match request.command {
            Command::Get => self.value(request.key, received)?,
            Command::Miss if self.version == 3 => whole(received, b"_\r\n")?,
            Command::Miss => whole(received, b"$-1\r\n")?,
            Command::Mget => {
                let mut length = whole(received, b"*4\r\n")?;
                for i in 0..MGET_KEYS {
                    let Some(before) = length else { break };
                    let value = self.value((request.key + i) % self.keys, &received[before..])?;
                    length = value.map(|value| before + value);
                }
                length
            }
            Command::Exists | Command::Expire => whole(received, b":1\r\n")?,
            Command::SetEx => whole(received, b"+OK\r\n")?,
            Command::Incr => positive(received)?,
        };
        Ok(length.map(|length| (length, Reply::Right)))
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
struct Cell {
    connections: usize,
    pipeline: usize,
    version: u32,
}

/// The commands that a side has executed so far, and how many of them in the kernel; `None` for Redis.
fn commands(side: &Side) -> Result<Option<(u64, u64)>> {
    if side.name == "redis" {
        return Ok(None);
    }
    let kernel = figure(&side.server.command("INFO bedplate")?, "kernel_commands")?;
    let all = figure(&side.server.command("INFO stats")?, "total_commands_processed")?;
    Ok(Some((all, kernel)))
}

struct Plan {
    keys: u64,
    rounds: usize,
    warm_up: Duration,
    window: Duration,
    cells: Vec<Cell>,
}

fn plan(options: &Options) -> Plan {
    let mut cells = Vec::new();
    for version in [2, 3] {
        for connections in [1, 50] {
            for pipeline in [1, 16] {
                cells.push(Cell { connections, pipeline, version });
            }
        }
    }
    Plan {
        keys: options.pick(50_000, 500_000),
        rounds: options.pick(3, 5),
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
        side("user", &["--no-kernel-path"], None)?,
    ];
    let skipped = Side::local(options, memory)?.map(|side| sides.push(side)).err();
    let mut report = compare(&plan(options), &sides, options, sink)?;
    if let Some(skipped) = skipped {
        report.config.set("skipped", skipped);
    }
    Ok(report)
}

/// Measures all cells; `sides[0]` is the baseline.
fn compare(plan: &Plan, sides: &[Side], options: &Options, sink: Sink<'_>) -> Result<Report> {
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("keys", plan.keys)
        .with("key_bytes", KEY_LEN)
        .with("value_bytes", VALUE_LEN)
        .with("rounds", plan.rounds)
        .with("window_ms", plan.window.as_millis() as u64)
        .with("distribution", Distribution::Zipf.name())
        .with("commands", SHARES.map(|(command, share)| format!("{command:?} {share} %")).join(", "))
        .with("persistence", "none")
        .with("transport", "loopback TCP");
    let mut report = Report::new(BENCH.name, config);
    sink(Step { done: 0, total: plan.cells.len(), label: "loading keys" });
    for side in sides {
        load::fill(side.server.address(), plan.keys, VALUE_LEN)?;
    }
    let mut ratios: Vec<Ratios> = sides.iter().map(|_| Ratios::default()).collect();
    for (done, cell) in plan.cells.iter().enumerate() {
        let label = format!("c{} P{} RESP{}", cell.connections, cell.pipeline, cell.version);
        sink(Step { done, total: plan.cells.len(), label: &label });
        measure_cell(plan, sides, *cell, &mut report, &mut ratios)?;
    }
    for (side, ratios) in sides.iter().zip(&ratios).skip(1) {
        ratios.fill(side.name, &mut report);
    }
    Ok(report)
}

/// A side's figures, one for each cell.
#[derive(Default)]
struct Ratios {
    rate: Vec<f64>,
    /// Incomplete if the kernel does not report the run time of eBPF programs.
    cpu: Vec<f64>,
    in_kernel: Vec<f64>,
}

impl Ratios {
    /// The worst cell of each.
    fn fill(&self, side: &str, report: &mut Report) {
        let of = |values: &[f64]| values.iter().copied().collect::<Samples>();
        report.ratio(&format!("{side}_rate_over_redis_min"), of(&self.rate).min());
        if self.cpu.len() == self.rate.len() {
            report.ratio(&format!("{side}_cpu_over_redis_max"), of(&self.cpu).max());
        }
        if side != "user" {
            report.ratio(&format!("{side}_in_kernel_min"), of(&self.in_kernel).min());
        }
    }
}

/// Measures one cell, adds its rows to the report, and its figures to those of the sides.
fn measure_cell(
    plan: &Plan,
    sides: &[Side],
    cell: Cell,
    report: &mut Report,
    ratios: &mut [Ratios],
) -> Result<()> {
    let schedule = Schedule::closed(cell.connections, cell.pipeline, plan.warm_up, plan.window);
    let traffic = |round: usize| {
        let keys = plan.keys;
        move |thread: usize| Mix {
            stream: KeyStream::new(Distribution::Zipf, keys, round as u64 * 1000 + thread as u64 + 1),
            keys,
            version: cell.version,
        }
    };
    let shorter = Schedule { window: plan.window / 2, ..schedule };
    let mut bpf_ns = Vec::new();
    for side in sides {
        bpf_ns.push(match side.client_programs {
            Some(kind) => calibrate_traffic(&side.server, &shorter, traffic(plan.rounds), kind)?.0,
            None => Some(0.0),
        });
    }
    let before = sides.iter().map(commands).collect::<Result<Vec<_>>>()?;
    let rounds: Vec<Vec<Measured>> = interleave(plan.rounds, sides.len(), |side, round| {
        measure_traffic(&sides[side].server, &schedule, traffic(round)).map(|(measured, _)| measured)
    })?;
    for (i, side) in sides.iter().enumerate() {
        let mut row = Fields::new()
            .with("resp", cell.version)
            .with("clients", cell.connections)
            .with("pipeline", cell.pipeline)
            .with("side", side.name);
        fill_row(&mut row, &rounds[i], bpf_ns[i]);
        let over = |f: &dyn Fn(&Measured) -> f64, g: &dyn Fn(&Measured) -> f64| {
            samples(&rounds[i], f).over(&samples(&rounds[0], g))
        };
        let rate = over(&|m| m.seen.rate(), &|m| m.seen.rate());
        row.set("rate_over_redis", rate);
        ratios[i].rate.push(rate);
        if let Some(bpf_ns) = bpf_ns[i] {
            let cpu = over(&|m| m.server_cpu_ns(bpf_ns), &|m| m.server_cpu_ns(0.0));
            row.set("cpu_over_redis", cpu);
            ratios[i].cpu.push(cpu);
        }
        if let (Some(before), Some(after)) = (before[i], commands(side)?) {
            let share = (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64;
            row.set("in_kernel", share);
            ratios[i].in_kernel.push(share);
        }
        report.rows.push(row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;
    use crate::net::wire::Stream;

    fn mix(version: u32) -> Mix {
        Mix { stream: KeyStream::new(Distribution::Zipf, 1000, 7), keys: 1000, version }
    }

    #[test]
    fn the_shares_are_a_hundred_and_are_drawn() {
        assert_eq!(SHARES.iter().map(|(_, share)| share).sum::<u32>(), 100);
        let mut mix = mix(2);
        let drawn: Vec<_> = (0..10_000).map(|_| mix.draw().command).collect();
        for (command, share) in SHARES {
            let seen = drawn.iter().filter(|drawn| **drawn == command).count() as f64 / 100.0;
            assert!((seen - f64::from(share)).abs() < 2.5, "{command:?}: {seen} % of {share} %");
        }
    }

    #[test]
    fn wrong_replies_are_noticed_and_incomplete_ones_waited_for() {
        let cases: [(Command, &[u8], &[u8]); 6] = [
            (Command::Get, b"$16\r\n000000000005xxxx\r\n", b"$16\r\n000000000006xxxx\r\n"),
            (Command::Miss, b"$-1\r\n", b"_\r\n"),
            (Command::Exists, b":1\r\n", b":0\r\n"),
            (Command::SetEx, b"+OK\r\n", b"$-1\r\n"),
            (Command::Expire, b":1\r\n", b":0\r\n"),
            (Command::Incr, b":12\r\n", b":0\r\n"),
        ];
        let mut mix = mix(2);
        for (command, right, bad) in cases {
            let request = Request { command, key: 5 };
            assert_eq!(mix.reply(request, right).unwrap(), Some((right.len(), Reply::Right)), "{command:?}");
            for end in 1..right.len() {
                assert_eq!(mix.reply(request, &right[..end]).unwrap(), None, "{command:?}");
            }
            assert!(mix.reply(request, bad).is_err(), "{command:?}");
            assert_eq!(mix.reply(request, b"-ERR no\r\n").unwrap(), Some((9, Reply::Refused)));
        }
        let request = Request { command: Command::Mget, key: 998 };
        let values: Vec<u8> = [998u64, 999, 0, 1]
            .iter()
            .flat_map(|key| [b"$16\r\n", &digits(*key)[..], b"xxxx\r\n"].concat())
            .collect();
        let right = [b"*4\r\n", &values[..]].concat();
        assert_eq!(mix.reply(request, &right).unwrap(), Some((right.len(), Reply::Right)));
        for end in 1..right.len() {
            assert_eq!(mix.reply(request, &right[..end]).unwrap(), None);
        }
    }

    /// Tests the instrument itself: Redis against Redis has every row, and every reply is right.
    #[test]
    fn redis_against_redis_has_every_row() {
        let options = Options::new(Mode::Quick);
        let side = || Side::redis(&options).unwrap();
        let plan = Plan {
            keys: 1000,
            rounds: 1,
            warm_up: Duration::from_millis(20),
            // In a shorter window, a server may get no processor on a busy machine, which is an error.
            window: Duration::from_secs(1),
            cells: vec![
                Cell { connections: 2, pipeline: 1, version: 2 },
                Cell { connections: 5, pipeline: 16, version: 3 },
            ],
        };
        let report = compare(&plan, &[side(), side()], &options, &mut |_| {}).unwrap();
        assert_eq!(report.rows.len(), 4);
        for row in &report.rows {
            assert_eq!(row.number("refused"), Some(0.0));
            assert!(row.number("rate_per_s").unwrap() > 0.0);
        }
    }

    #[test]
    fn requests_are_answered_in_order() {
        let mut mix = mix(2);
        let mut stream = Stream::default();
        stream.append(1, |out| mix.request(out));
        assert!(stream.unsent().starts_with(b"*") && stream.unsent().ends_with(b"\r\n"));
        assert_eq!(stream.pending(), 1);
    }
}
