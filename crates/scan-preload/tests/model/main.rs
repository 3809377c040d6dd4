//! Random readers under the library beside random writers, against a model. For each block, a read returns its content at some
//! moment between the begin and the end of the read.
//!
//! The writers are threads of this process, without the library. The readers are processes with it. All of them share the model
//! (`blocks`), which has the generations of each block that a read may return.
//!
//! `BEDPLATE_TEST_SECONDS` sets the duration, and `BEDPLATE_TEST_SEED` the seed.

#[path = "../common/mod.rs"]
mod common;

mod blocks;
mod reader;
mod writer;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::Setup;
use rustix::fs::{Advice, fadvise};

use blocks::{BLOCK, Blocks};
use writer::Kind;

/// Blocks of the file.
const BLOCKS: u64 = 12 << 10;
const READERS: usize = 3;
const WRITERS: usize = 3;

/// Ways of writing that the kernel keeps coherent with each other for readers through the page cache. Stores to a mapping beside writes
/// past the page cache are not.
const MIXTURES: [&[Kind]; 3] = [
    &[Kind::Write, Kind::Store, Kind::Punch],
    &[Kind::Write, Kind::WriteDirect, Kind::Punch],
    &[Kind::Write, Kind::Cut],
];

/// Default number of seconds.
const SECONDS: u64 = 24;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_is_read_but_what_is_there() {
    let Some(setup) = Setup::new() else { return };
    let time = Duration::from_secs(number("BEDPLATE_TEST_SECONDS").unwrap_or(SECONDS));
    let seed = number("BEDPLATE_TEST_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("BEDPLATE_TEST_SEED={seed}");
    let end = Instant::now() + time;
    // Long runs go through all of them repeatedly.
    let turn = (time / MIXTURES.len() as u32).min(Duration::from_secs(60));
    for (round, kinds) in (0..).zip(MIXTURES.iter().cycle()) {
        if Instant::now() >= end {
            break;
        }
        run(&setup, kinds, turn, seed + round);
    }
    let statistics = setup.statistics();
    println!("{statistics:?}");
    assert!(statistics["reads_served"] > 100 && statistics["files_changed"] > 0, "{statistics:?}");
}

fn run(setup: &Setup, kinds: &[Kind], time: Duration, seed: u64) {
    let file = setup.file("file", BLOCKS * BLOCK);
    let model = setup.folder.path().join("model");
    let blocks = Blocks::create(&model, BLOCKS);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let (file, blocks, is_over) = (&file, &blocks, &is_over);
            scope.spawn(move || writer::write(file, blocks, kinds, (number, WRITERS), seed, is_over));
        }
        // Files in the page cache are not served.
        scope.spawn(|| {
            let file = File::open(&file).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let readers: Vec<Child> =
            (0..READERS as u64).map(|reader| start(setup, &file, &model, time, seed * 31 + reader)).collect();
        let outputs: Vec<_> = readers.into_iter().map(|reader| reader.wait_with_output().unwrap()).collect();
        is_over.store(true, Ordering::Relaxed);
        for output in outputs {
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{kinds:?}, seed {seed}: {text}");
        }
    });
    std::fs::remove_file(file).unwrap();
}

/// Starts a process that reads.
fn start(setup: &Setup, file: &Path, model: &Path, time: Duration, seed: u64) -> Child {
    let mut command = setup.command(&std::env::current_exe().unwrap());
    command.args(["--exact", "reads", "--nocapture"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env(reader::FILE, file).env(reader::MODEL, model);
    command.env(reader::TIME, time.as_millis().to_string()).env(reader::SEED, seed.to_string());
    command.spawn().unwrap()
}

/// Runs a reading process. As a test it does nothing.
#[test]
fn reads() {
    if std::env::var_os(reader::FILE).is_some() {
        reader::run();
    }
}
