//! `kv-checkpoint`: an online checkpoint from the mapped arenas against dumping the hash maps
//! through the `bpf` system call (paper 6.6), and its effect on writers.
//!
//! The baselines read every entry of every hash map of the hash-map engine, index and values, and write nothing
//! anywhere. One reads in batches of about a thousand entries (`BPF_MAP_LOOKUP_BATCH`). The other is the paper's: next
//! key and lookup, two system calls an entry, as `bpftool map dump` does. The candidate makes complete checkpoint
//! images, checksums included: once into a sink, like the baselines, and once into a file with fsync. All times are per
//! key of the database. `speedup_over_syscall_dump` is the time of the batched dump ÷ the candidate's time into the
//! sink; `speedup_over_entry_dump` is that of the paper's dump ÷ the candidate's. `speedup_of_a_plain_copy` is the
//! value that the first would have if the candidate only read the bytes. Each is the minimum over the cells.
//!
//! The writer's operations are due at a fixed rate, and their latency counts from when they were due. The effect of a
//! checkpoint is also compared with that of plain files of the same size.

use std::fs::File;
use std::io::{BufWriter, Write, sink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb::{Config, Database, DumpMethod, EngineKind, store::dump};

use crate::keys::Distribution;
use crate::latency::Latencies;
use crate::local::driver::{OnePerCall, Outcome};
use crate::local::run::{filled, memory_need, require_memory};
use crate::local::trace::{KEY_LEN, Workload, draw};
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "kv-checkpoint",
    about: "online checkpoint against dumping maps by system calls; writers' latency (paper 6.6)",
    run,
};

/// Ways to read everything out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ArenaToSink,
    ArenaToFile,
    HashMapsInBatches,
    HashMapsByEntry,
    PlainCopy,
}

const WAYS: [Way; 5] =
    [Way::ArenaToSink, Way::ArenaToFile, Way::HashMapsInBatches, Way::HashMapsByEntry, Way::PlainCopy];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::ArenaToSink => "arena snapshot to sink",
            Way::ArenaToFile => "arena snapshot to file, fsync",
            Way::HashMapsInBatches => "hash maps by bpf(2), in batches",
            Way::HashMapsByEntry => "hash maps by bpf(2), entry by entry",
            Way::PlainCopy => "floor: copy of as many bytes",
        }
    }
}

/// One reading of everything.
#[derive(Clone, Copy, Debug)]
struct Reading {
    entries: u64,
    took: Duration,
}

impl Reading {
    fn per_entry_ns(&self) -> f64 {
        self.took.as_nanos() as f64 / self.entries as f64
    }
}

fn run(options: &Options, progress: Sink<'_>) -> Result<Report> {
    let data: &[(u64, usize)] =
        options.pick(&[(300_000, 16), (50_000, 1024)], &[(4_000_000, 16), (1_000_000, 1024)]);
    let rounds = options.pick(3, 5);
    let writer_time = Duration::from_secs(options.pick(4, 15));
    let config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("writer_rate_per_s", WRITER_RATE)
        .with("writer_window_ms", writer_time.as_millis() as u64);
    let mut report = Report::new(BENCH.name, config);
    let (mut speedups, mut entry_speedups, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    let (mut over_before, mut over_files) = (Vec::new(), Vec::new());
    for (done, &(keys, value_len)) in data.iter().enumerate() {
        let label = format!("{keys} keys of {value_len} B");
        progress(Step { done, total: data.len(), label: &label });
        let workload = Workload { keys, value_len, set_percent: 100, distribution: Distribution::Uniform };
        require_memory(2 * memory_need(&workload, Config::default().versions))?;
        let arena = filled(&workload, Config::default())?;
        let hash =
            filled(&workload, Config { engine: EngineKind::HashMap, key_bytes: 16, ..Config::default() })?;
        let plain = vec![1; keys as usize * (KEY_LEN + value_len)];
        let readings = interleave(rounds, WAYS.len(), |side, _| match WAYS[side] {
            Way::ArenaToSink => to_sink(&arena),
            Way::ArenaToFile => to_file(&arena, options),
            Way::HashMapsInBatches => by_syscall(&hash, DumpMethod::Batched, keys),
            Way::HashMapsByEntry => by_syscall(&hash, DumpMethod::EntryByEntry, keys),
            Way::PlainCopy => Ok(plain_copy(&plain, keys)),
        })?;
        drop((hash, plain));
        for (way, readings) in WAYS.iter().zip(&readings) {
            let per_entry = samples(readings, Reading::per_entry_ns);
            report.rows.push(
                Fields::new()
                    .with("kind", "reading")
                    .with("keys", keys)
                    .with("value_bytes", value_len)
                    .with("way", way.name())
                    .with("entries", readings[0].entries)
                    .with("took_ns", samples(readings, |r| r.took.as_nanos() as f64).median())
                    .with("per_entry_ns", per_entry.median())
                    .with("spread", per_entry.spread()),
            );
        }
        let per_entry = |i: usize| samples(&readings[i], Reading::per_entry_ns);
        speedups.push(per_entry(2).over(&per_entry(0)));
        entry_speedups.push(per_entry(3).over(&per_entry(0)));
        floors.push(per_entry(2).over(&per_entry(4)));
        progress(Step { done, total: data.len(), label: &format!("{label}: writers") });
        let [before, files] = writers(&arena, &workload, writer_time, options, &mut report)?;
        over_before.push(before);
        over_files.push(files);
    }
    let samples_of = |values: Vec<f64>| values.into_iter().collect::<Samples>();
    let (speedups, floors) = (samples_of(speedups), samples_of(floors));
    report.ratio("speedup_over_syscall_dump", speedups.min());
    report.ratio("speedup_over_entry_dump", samples_of(entry_speedups).min());
    report.ratio("speedup_of_a_plain_copy", floors.min());
    report.ratio("writer_p99_during_over_before", samples_of(over_before).max());
    report.ratio("writer_p99_during_over_plain_files", samples_of(over_files).max());
    Ok(report)
}

fn to_sink(database: &Database) -> Result<Reading> {
    let start = Instant::now();
    let info = dump(database, &mut sink(), &mut |_| {})?;
    Ok(Reading { entries: info.entries, took: start.elapsed() })
}

fn to_file(database: &Database, options: &Options) -> Result<Reading> {
    let file = tempfile::tempfile_in(&options.directory).map_err(Error::io("create a checkpoint file"))?;
    let start = Instant::now();
    let info = dump_to(database, &file)?;
    Ok(Reading { entries: info, took: start.elapsed() })
}

/// Writes a checkpoint image to a file and makes it durable. Returns the number of keys in it.
fn dump_to(database: &Database, file: &File) -> Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let info = dump(database, &mut out, &mut |_| {})?;
    out.flush().map_err(Error::io("write a checkpoint"))?;
    out.get_ref().sync_all().map_err(Error::io("fsync a checkpoint"))?;
    Ok(info.entries)
}

/// Reads all entries of the hash maps, index and values. The database must have `keys` keys.
fn by_syscall(database: &Database, method: DumpMethod, keys: u64) -> Result<Reading> {
    let start = Instant::now();
    let mut bytes = 0u64;
    let elements =
        database.dump_hash_maps(method, &mut |key, value| bytes += (key.len() + value.len()) as u64)?;
    let took = start.elapsed();
    std::hint::black_box(bytes);
    if elements < 2 * keys {
        return Err(Error::engine(format!("{elements} elements are too few for {keys} keys")));
    }
    Ok(Reading { entries: keys, took })
}

/// Copies `bytes` once, in pieces that stay in the cache. No way to read them is faster.
fn plain_copy(bytes: &[u8], entries: u64) -> Reading {
    let mut piece = vec![0; 64 << 10];
    let start = Instant::now();
    for from in bytes.chunks(piece.len()) {
        piece[..from.len()].copy_from_slice(from);
        std::hint::black_box(&mut piece);
    }
    Reading { entries, took: start.elapsed() }
}

/// SETs per second of the writer: well below its capacity, so that latency is not queueing.
const WRITER_RATE: u64 = 20_000;

/// The work that another thread repeats without a pause while the writer writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Checkpoints,
    /// Durable files of a checkpoint's size, which show the effect of the bytes alone.
    PlainFiles,
}

const PHASES: [(Beside, &str); 3] = [
    (Beside::Nothing, "before"),
    (Beside::Checkpoints, "during"),
    (Beside::PlainFiles, "floor: plain files"),
];

/// Measures the latencies of a paced writer before and during checkpoints into files, and during plain files of their
/// size. Returns the p99 during checkpoints over that before, and over that during plain files.
fn writers(
    database: &Database,
    workload: &Workload,
    time: Duration,
    options: &Options,
    report: &mut Report,
) -> Result<[f64; 2]> {
    let mut writer = OnePerCall::new(database, workload)?;
    let trace = draw(workload, 1 << 16, 11);
    let mut write = |goes_on: &dyn Fn() -> bool| -> Result<(Latencies, Outcome)> {
        let (mut latencies, mut outcome) = (Latencies::default(), Outcome::default());
        let start = Instant::now();
        for (i, op) in trace.iter().cycle().enumerate() {
            let due = Duration::from_nanos(i as u64 * 1_000_000_000 / WRITER_RATE);
            while start.elapsed() < due {
                std::hint::spin_loop();
            }
            if due >= time && !goes_on() {
                break;
            }
            writer.one(*op, &mut outcome)?;
            latencies.record((start.elapsed() - due).as_nanos() as u64);
        }
        Ok((latencies, outcome))
    };
    let mut size = 0;
    let mut p99s = Vec::new();
    for (beside, phase) in PHASES {
        let bytes = vec![1; size as usize];
        let once = || -> Result<u64> {
            let mut file =
                tempfile::tempfile_in(&options.directory).map_err(Error::io("create a checkpoint file"))?;
            match beside {
                Beside::Nothing => return Ok(0),
                Beside::Checkpoints => _ = dump_to(database, &file)?,
                Beside::PlainFiles => {
                    let written = file.write_all(&bytes).and_then(|()| file.sync_all());
                    written.map_err(Error::io("write a plain file"))?;
                }
            }
            Ok(file.metadata().map_err(Error::io("look at a checkpoint file"))?.len())
        };
        let (stop, finished) = (AtomicBool::new(false), AtomicBool::new(beside == Beside::Nothing));
        let (written, files) = std::thread::scope(|scope| {
            let other = scope.spawn(|| -> Result<(u64, u64)> {
                let (mut files, mut size) = (0, Ok(0));
                while beside != Beside::Nothing && size.is_ok() && !stop.load(Ordering::Relaxed) {
                    size = once();
                    files += 1;
                }
                finished.store(true, Ordering::Relaxed);
                Ok((files, size?))
            });
            let written = write(&|| {
                stop.store(true, Ordering::Relaxed);
                !finished.load(Ordering::Relaxed)
            });
            stop.store(true, Ordering::Relaxed);
            (written, other.join().expect("the other thread does not panic"))
        });
        let ((latencies, outcome), (files, of)) = (written?, files?);
        size = size.max(of);
        let mut row = Fields::new()
            .with("kind", "writer")
            .with("keys", workload.keys)
            .with("value_bytes", workload.value_len)
            .with("phase", phase)
            .with("files", files)
            .with("writes", outcome.done)
            .with("rolled_back", outcome.rolled_back);
        latencies.fill(&mut row);
        report.rows.push(row);
        p99s.push(latencies.percentile(99.0) as f64);
    }
    Ok([p99s[1] / p99s[0], p99s[1] / p99s[2]])
}
