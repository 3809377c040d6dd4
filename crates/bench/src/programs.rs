//! `scan-programs`: ordinary programs that read a file that is in no cache, as they are and under `bedplate scan run`.
//!
//! The programs are those of every system: they count lines, search, copy, and compute a checksum, and a Python program loads the file in
//! blocks. Each round takes the file out of the page cache before each run. Both sides must print the same.
//!
//! One daemon reads for all programs, so that its processor time can be counted. It serves a file whose last change is ten seconds ago, so
//! the first run waits for that.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tempfile::TempDir;

use crate::cpu::CpuTime;
use crate::sample::{Samples, interleave, samples};
use crate::tpch::daemon::{self, Daemons};
use crate::tpch::{cold, fresh, read_ahead};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-programs",
    about: "wc, grep, dd, sha256sum and a Python loader on a cold file, plain and under `bedplate scan run`",
    run,
};

/// Reads the file in blocks of 1 MiB, and prints a sum over the first bytes of blocks and the number of bytes.
const LOADER: &str = "\
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
buffer = bytearray(1 << 20)
total = at = 0
while (size := os.preadv(fd, [buffer], at)) > 0:
    total += buffer[0]
    at += size
print(total, at)
";

/// A program that reads the whole file and prints something about it.
struct Program {
    /// The name in the report.
    name: &'static str,
    /// The command. The file's path follows.
    command: &'static [&'static str],
    /// The form of the argument that has the path, before the path.
    prefix: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program { name: "wc", command: &["wc", "-l"], prefix: "" },
    Program { name: "grep", command: &["grep", "-c", "7f3"], prefix: "" },
    Program { name: "dd", command: &["dd", "bs=1M", "of=/dev/null", "status=none"], prefix: "if=" },
    Program { name: "sha256sum", command: &["sha256sum"], prefix: "" },
    Program { name: "python", command: &["python3", "-c", LOADER], prefix: "" },
];

const PLAIN: usize = 0;
const SERVED: usize = 1;
const SIDES: [&str; 2] = ["plain", "scan run"];

/// Time for which a file must be unchanged before the service reads it, with a margin.
const SETTLING: Duration = Duration::from_millis(10_500);

/// The cost and the output of a run.
struct Passed {
    wall_ns: f64,
    /// Processor time of the program and of the daemon.
    cpu_ns: f64,
    device_bytes: Option<f64>,
    output: Vec<u8>,
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    run_sized(options, options.pick(512 << 20, 4 << 30), options.pick(3, 7), sink)
}

fn run_sized(options: &Options, size: u64, rounds: usize, sink: Sink<'_>) -> Result<Report> {
    let place = crate::scan::directory(options)?;
    let _setting = options.read_ahead.map(|kib| read_ahead::ReadAhead::set(&place, kib)).transpose()?;
    let mut config = Fields::new()
        .with("mode", options.mode.name())
        .with("rounds", rounds)
        .with("file_bytes", size)
        .with("read_ahead_kib", read_ahead::of(&place));
    let found: Vec<&Program> = PROGRAMS.iter().filter(|program| program.is_there()).collect();
    for program in PROGRAMS.iter().filter(|program| !program.is_there()) {
        config.set(&format!("without_{}", program.name), "it is not installed");
    }
    let mut report = Report::new(BENCH.name, config);
    let total = 1 + found.len();
    sink(Step { done: 0, total, label: "writing the file" });
    let folder = tempfile::Builder::new().prefix("bedplate-programs-").tempdir_in(&place);
    let folder = folder.map_err(Error::io("create a directory for the file to read"))?;
    let written = Instant::now();
    let file = write(&folder, size)?;
    let mut daemons = Daemons::new(daemon::program(options)?)?;
    daemons.start(1, None)?;
    std::thread::sleep(SETTLING.saturating_sub(written.elapsed()));
    for (number, program) in found.iter().enumerate() {
        sink(Step { done: 1 + number, total, label: program.name });
        let passes =
            interleave(rounds, SIDES.len(), |side, _| program.pass(side == SERVED, &file, size, &daemons))?;
        if let Some(other) = passes.iter().flatten().find(|pass| pass.output != passes[PLAIN][0].output) {
            let said = String::from_utf8_lossy(&other.output).into_owned();
            return Err(Error::Store { store: program.name, problem: format!("other output: {said}") });
        }
        let served = served_bytes(&daemons)?;
        for (side, passes) in passes.iter().enumerate() {
            report.rows.push(
                row(program.name, SIDES[side], passes)
                    .with("served_of_file", (side == SERVED).then(|| served / (rounds as u64 * size) as f64)),
            );
        }
        let over = |quantity: fn(&Passed) -> f64| {
            samples(&passes[SERVED], quantity).over(&samples(&passes[PLAIN], quantity))
        };
        report.ratio(&format!("{}_time_of_plain", program.name), over(|pass| pass.wall_ns));
        report.ratio(&format!("{}_cpu_of_plain", program.name), over(|pass| pass.cpu_ns));
    }
    Ok(report)
}

fn row(program: &str, side: &str, passes: &[Passed]) -> Fields {
    let times = samples(passes, |pass| pass.wall_ns);
    let device: Option<Samples> = passes
        .iter()
        .map(|pass| pass.device_bytes)
        .collect::<Option<Vec<_>>>()
        .map(|all| all.into_iter().collect());
    Fields::new()
        .with("program", program)
        .with("side", side)
        .with("time_ns", times.median())
        .with("time_spread", times.spread())
        .with("cpu_ns", samples(passes, |pass| pass.cpu_ns).median())
        .with("device_bytes", device.map(|device| device.median()))
}

/// The path of the statistics of programs that were served.
fn statistics(daemons: &Daemons) -> PathBuf {
    daemons.folder().join("statistics")
}

/// The bytes that programs were served since the last call.
fn served_bytes(daemons: &Daemons) -> Result<f64> {
    let path = statistics(daemons);
    let lines = fs::read_to_string(&path).unwrap_or_default();
    if !lines.is_empty() {
        fs::remove_file(&path).map_err(Error::io("remove the statistics"))?;
    }
    Ok(daemon::statistic(&lines, "bytes_served"))
}

/// Writes lines of hexadecimal numbers, which no device can compress much.
fn write(folder: &TempDir, size: u64) -> Result<PathBuf> {
    let path = folder.path().join("lines");
    let failed = || Error::io("write the file to read");
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(failed())?);
    let mut random = SmallRng::seed_from_u64(1);
    let mut left = size as usize;
    while left > 0 {
        let line = format!("{:016x} {:016x}\n", random.random::<u64>(), random.random::<u64>());
        let bytes = &line.as_bytes()[..line.len().min(left)];
        file.write_all(bytes).map_err(failed())?;
        left -= bytes.len();
    }
    file.into_inner().map_err(|error| failed()(error.into_error()))?.sync_all().map_err(failed())?;
    Ok(path)
}

impl Program {
    fn is_there(&self) -> bool {
        let mut command = Command::new(self.command[0]);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Runs the program once on the file, which is in no cache.
    fn pass(&self, is_served: bool, file: &Path, size: u64, daemons: &Daemons) -> Result<Passed> {
        let mut command =
            Command::new(if is_served { daemons.program() } else { Path::new(self.command[0]) });
        if is_served {
            let socket =
                daemons.socket(0).ok_or_else(|| Error::engine("the daemon does not run".to_owned()))?;
            command.args(["scan", "run", "--socket"]).arg(socket);
            command.args(["--minimum", &size.to_string(), "--statistics"]).arg(statistics(daemons));
            command.arg("--").arg(self.command[0]);
        }
        let mut last = std::ffi::OsString::from(self.prefix);
        last.push(file);
        command.args(&self.command[1..]).arg(last);
        command.env("LC_ALL", "C").stdin(Stdio::null());
        cold::forget_file(&File::open(file).map_err(Error::io("open the file to read"))?)
            .map_err(Error::io("drop the file from the page cache"))?;
        fresh::touch(size);
        let folder = file.parent().unwrap_or(Path::new("/"));
        let (device, cpu, daemon) = (cold::device_bytes(folder), CpuTime::of_children(), daemons.cpu_ns()?);
        let start = Instant::now();
        let output = command.output().map_err(Error::io("run a program"))?;
        let wall_ns = start.elapsed().as_nanos() as f64;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Store { store: self.name, problem: said });
        }
        let read = device.zip(cold::device_bytes(folder));
        let cpu = CpuTime::of_children().since(cpu).total_ns() + daemons.cpu_ns()?.saturating_sub(daemon);
        Ok(Passed {
            wall_ns,
            cpu_ns: cpu as f64,
            device_bytes: read.map(|(before, now)| now.saturating_sub(before) as f64),
            output: output.stdout,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    #[test]
    fn the_file_has_lines_and_the_size_that_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder, 1000).unwrap();
        let content = fs::read_to_string(path).unwrap();
        assert_eq!(content.len(), 1000);
        assert_eq!(content.lines().next().unwrap().len(), 33);
    }

    /// Without a `bedplate` that serves, only the plain side can be tested here. The command's own tests run the rest.
    #[test]
    fn a_program_that_fails_is_an_error() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = write(&folder, 4096).unwrap();
        let daemons = Daemons::new("/nonexistent".into()).unwrap();
        let pass = PROGRAMS[0].pass(false, &path, 4096, &daemons).unwrap();
        assert!(pass.output.starts_with(b"120 "), "{}", String::from_utf8_lossy(&pass.output));
        let failing = Program { name: "false", command: &["false"], prefix: "" };
        assert!(failing.pass(false, &path, 4096, &daemons).is_err());
        let options = Options {
            bedplate: Some("/nonexistent".into()),
            directory: folder.path().to_owned(),
            ..Options::new(Mode::Quick)
        };
        assert!(run_sized(&options, 4096, 1, &mut |_| {}).is_err());
    }
}
