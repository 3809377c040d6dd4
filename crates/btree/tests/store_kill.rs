//! Processes are killed at random points while they use or maintain a store. No committed transaction is lost, none is there in
//! part, and backups, loads and compactions have all of their effect or none.
//!
//! Half of the kills are at a system call, and half of them after a time. Both are counted from the beginning of a phase. They
//! are chosen at random within the extent that the phase has without a kill. All phases are chosen equally often, so short ones
//! are hit too.

#[path = "store_kill/calls.rs"]
mod calls;
#[path = "store_kill/child.rs"]
mod child;
#[path = "store_kill/oracle.rs"]
mod oracle;
#[path = "store_kill/workload.rs"]
mod workload;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use self::child::{FOLDER, Kill, Operation, TASK, Task};
use self::oracle::{Oracle, Outcome, Report};

/// Number of attempts to kill a process in a phase after which one must have succeeded. The chance that none has is less than one
/// in 10,000.
const ATTEMPTS: u64 = 30;

/// Indices of [`Operation::ALL`].
const RECOVER: usize = 1;
const COMMIT: usize = 2;
/// The first measured recovery is that of a process that has committed for this time.
const RECOVERED_MICROS: u64 = 100_000;

/// The extent of a phase without a kill.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    calls: u64,
    micros: u64,
}

/// Adds the measurements of a child that was not killed. A recovery may have had little to do, so the maximum of the calls
/// counts.
fn learn(extents: &mut BTreeMap<String, Extent>, phases: Vec<(String, Extent)>) {
    for (name, Extent { calls, micros }) in phases {
        let known = extents.entry(name).or_insert(Extent { calls, micros });
        *known = Extent { calls: known.calls.max(calls), micros: known.micros.midpoint(micros) };
    }
}

/// The kills in a phase.
#[derive(Debug, Default)]
struct Hits {
    /// Children that should be killed in it.
    attempts: u64,
    at_calls: u64,
    at_times: u64,
    /// Checks that found nothing, a part, or all of the operation's effect.
    nothing: u64,
    partial: u64,
    whole: u64,
}

/// The end of a child.
struct Ended {
    report: Report,
    /// The phase in which it was killed, if it was.
    killed_in: Option<String>,
    phases: Vec<(String, Extent)>,
    counts_calls: bool,
}

/// The process that is killed. The test starts it. Without the test's environment variables it does nothing.
#[test]
fn child() {
    child::run();
}

fn run_child(folder: &Path, task: Task) -> Ended {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(TASK, task.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut report = Report::default();
    let mut begins: Vec<(String, Extent)> = Vec::new();
    let mut counts_calls = true;
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    loop {
        line.clear();
        // A line that the kill cut off has no end.
        if lines.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
            break;
        }
        let Some(at) = line.find('@') else { continue };
        let words: Vec<_> = line[at + 1..].trim_end().splitn(4, ' ').collect();
        match words[..] {
            ["committed", thread, n] => {
                report.committed[thread.parse::<usize>().unwrap()] = n.parse().unwrap();
            }
            ["created", name] => report.created.push(name.to_owned()),
            ["phase", calls, micros, name] => {
                if begins.is_empty() {
                    report.committed_before = report.committed;
                }
                let extent = Extent { calls: calls.parse().unwrap(), micros: micros.parse().unwrap() };
                begins.push((name.to_owned(), extent));
            }
            ["uncounted", ..] => counts_calls = false,
            _ => {}
        }
    }
    let status = child.wait().unwrap();
    report.is_done = begins.last().is_some_and(|(name, _)| name == "end");
    let was_killed = status.signal() == Some(libc::SIGKILL);
    assert!(was_killed || status.success() && report.is_done, "{task:?}: {status}");
    let phases = begins.windows(2).map(|pair| {
        let (begin, end) = (pair[0].1, pair[1].1);
        let extent = Extent { calls: end.calls - begin.calls, micros: end.micros - begin.micros };
        (pair[0].0.clone(), extent)
    });
    let phases = phases.collect();
    let killed_in = was_killed.then(|| begins.pop().map_or("start".to_owned(), |(name, _)| name));
    Ended { report, killed_in, phases, counts_calls }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn a_killed_process_leaves_each_commit_and_each_maintenance_whole() {
    let seed = number("BEDPLATE_TEST_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    println!("BEDPLATE_TEST_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let kills = number("BEDPLATE_TEST_KILLS");
    let default = if kills.is_some() { u64::MAX / 2 } else { 20 };
    let limit = Duration::from_secs(number("BEDPLATE_TEST_SECONDS").unwrap_or(default));

    let folder = tempfile::tempdir().unwrap();
    let mut oracle = Oracle::new(folder.path());
    let mut extents: BTreeMap<String, Extent> = BTreeMap::new();
    let mut counts_calls = true;
    let all: Vec<_> = (0..Operation::ALL.len())
        .filter(|operation| *operation != RECOVER)
        .flat_map(|operation| {
            (0..Operation::ALL[operation].phases().len()).map(move |phase| (operation, phase))
        })
        .collect();
    for operation in 0..Operation::ALL.len() {
        let kind = Operation::ALL[operation];
        let task = Task { operation, odd: oracle.odd(kind), phase: 0, kill: Kill::Never };
        let mut report = Report::default();
        if kind == Operation::Recover {
            // Recovery repeats the log of a process that was killed.
            let commits = Task { operation: COMMIT, kill: Kill::Micros(RECOVERED_MICROS), ..task };
            report = run_child(folder.path(), commits).report;
        }
        let ended = run_child(folder.path(), task);
        report.is_done |= ended.report.is_done;
        let report = if kind == Operation::Recover { report } else { ended.report };
        assert_eq!(oracle.check(kind, &report, true), Outcome::Whole, "{kind:?}");
        counts_calls &= ended.counts_calls;
        learn(&mut extents, ended.phases);
    }
    if !counts_calls {
        println!("this kernel or container forbids to count system calls: all kills are after a time");
    }

    // The time begins here, so that a slow machine does not use all of it before the first kill.
    let start = Instant::now();
    let mut hits: BTreeMap<String, Hits> = BTreeMap::new();
    let (mut killed, mut round) = (0, Vec::new());
    while killed == 0 || killed < kills.unwrap_or(u64::MAX) && start.elapsed() < limit {
        // Each phase is chosen once in a round.
        if round.is_empty() {
            round.clone_from(&all);
        }
        let (operation, phase) = round.swap_remove(random.random_range(0..round.len()));
        let kind = Operation::ALL[operation];
        // In one of three runs, the recovery is killed too.
        let is_recovered = random.random_ratio(1, 3);
        let mut draw = |operation: usize, phase: usize| {
            let name = Operation::ALL[operation].phases()[phase];
            let Extent { calls, micros } = extents[name];
            let kill = if counts_calls && random.random() {
                Kill::Call(random.random_range(1..=calls.max(1)))
            } else {
                Kill::Micros(random.random_range(0..=micros))
            };
            Task { operation, odd: oracle.odd(kind), phase, kill }
        };
        let mut tasks = vec![draw(operation, phase)];
        if is_recovered {
            tasks.push(draw(RECOVER, 0));
        }
        let mut report = None;
        let mut hit = Vec::new();
        for task in tasks {
            let ended = run_child(folder.path(), task);
            hits.entry(task.phase().to_owned()).or_default().attempts += 1;
            match ended.killed_in {
                Some(phase) => hit.push((phase, task.kill)),
                None => learn(&mut extents, ended.phases),
            }
            report.get_or_insert(ended.report);
        }
        // The next child recovers the store, or opens one that was closed.
        let outcome = oracle.check(kind, &report.unwrap(), random.random());
        for (phase, kill) in hit {
            killed += 1;
            let hit = hits.entry(phase).or_default();
            match kill {
                Kill::Call(_) => hit.at_calls += 1,
                _ => hit.at_times += 1,
            }
            match outcome {
                Outcome::Nothing => hit.nothing += 1,
                Outcome::Partial => hit.partial += 1,
                Outcome::Whole => hit.whole += 1,
            }
        }
    }

    println!("{killed} kills in {:.0} s", start.elapsed().as_secs_f64());
    println!("phase                    attempts at call at time nothing partial whole  calls micros");
    for (name, hit) in &hits {
        let Hits { attempts, at_calls, at_times, nothing, partial, whole } = hit;
        let Extent { calls, micros } = extents.get(name).copied().unwrap_or_default();
        println!(
            "{name:24} {attempts:8} {at_calls:7} {at_times:7} {nothing:7} {partial:7} {whole:5} {calls:6} {micros:6}"
        );
    }
    for (name, hit) in &hits {
        assert!(hit.attempts < ATTEMPTS || hit.at_calls + hit.at_times > 0, "no kill in {name}");
    }
}
