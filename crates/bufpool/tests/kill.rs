//! A process is killed at random moments. After recovery, the pages contain everything that the log contains.

mod common;
#[path = "common/wal.rs"]
mod wal;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bedplate_bufpool::{Choice, Kind, PAGE, PageId, Pool};
use common::{kinds_of_here, scaled};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wal::{Content, WORDS, Wal, words};

const FOLDER: &str = "BEDPLATE_TEST_POOL";
/// The environment variable that selects the engine of the killed process.
const ENGINE: &str = "BEDPLATE_TEST_ENGINE";
const FRAMES: usize = 256;
const PAGES: usize = 4 * FRAMES;
/// Number of processes that are killed, one after another.
const PROCESSES: usize = 8;

fn open(folder: &Path, wal: &Arc<Wal>, kind: Kind) -> Pool {
    Pool::builder(folder.join("pool"))
        .memory(FRAMES * PAGE)
        .batch(64)
        .capacity(1 << 30)
        .engine(Choice::Only(kind))
        .log(wal.clone())
        .open()
        .unwrap()
}

/// Runs redo, and checks that the pages have the content of the log.
fn recover(folder: &Path, kind: Kind) -> (Pool, Arc<Wal>, Content) {
    let wal = Arc::new(Wal::open(&folder.join("log")));
    let pool = open(folder, &wal, kind);
    assert_eq!(wal.redo(&pool), 0, "torn pages are the pool's business");
    let mut content = Content::new();
    wal.apply_archive(&mut content);
    wal.apply(&mut content);
    for (page, expected) in &content {
        assert_eq!(&words(&pool.pin_shared(*page).unwrap()), expected, "page {page}");
    }
    pool.reclaim(|page| content.contains_key(&page));
    (pool, wal, content)
}

/// The process that is killed. Three threads change pages, and one of them also makes checkpoints. Each thread prints
/// the log sequence number of its commits. The test starts this process. Without the test's environment variable it
/// does nothing.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let engines: Vec<Kind> = kinds_of_here().collect();
    let engine = std::env::var(ENGINE).expect("the test sets it").parse().expect("a number");
    let (pool, wal, content) =
        recover(&folder, engines.into_iter().cycle().nth(engine).expect("there is an engine"));
    let mut pages: Vec<PageId> = content.into_keys().collect();
    while pages.len() < PAGES {
        let mut page = pool.allocate().unwrap();
        wal.set(&mut page, 0, 1, false);
        pages.push(page.page());
    }
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (pool, wal, pages) = (&pool, &wal, &pages);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(u64::from(std::process::id()) << 8 | seed);
                loop {
                    let page = pages[random.random_range(0..PAGES)];
                    let mut page = pool.pin_exclusive(page).unwrap();
                    wal.set(&mut page, random.random_range(0..WORDS), random.random(), false);
                    drop(page);
                    match random.random_range(0..1000) {
                        0..20 => println!("{}", wal.commit().unwrap()),
                        20 if seed == 0 => wal.checkpoint(pool).unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
}

#[test]
fn what_was_durable_before_a_kill_is_there_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = SmallRng::seed_from_u64(5);
    let mut told = 0;
    let archive = folder.path().join("log.archive");
    let has_archive = || std::fs::metadata(&archive).is_ok_and(|archive| archive.len() > 0);
    for process in 0..PROCESSES {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .env(ENGINE, process.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The kill comes after a number of commits and not after a time, because a process may take seconds to start.
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut commits = out.lines().map_while(Result::ok).filter_map(|line| line.parse::<u64>().ok());
        for _ in 0..random.random_range(1..scaled(320)) {
            told = told.max(commits.next().expect("the process goes on until it is killed"));
        }
        // The last process also runs until it has made a checkpoint.
        while process == PROCESSES - 1 && !has_archive() {
            told = told.max(commits.next().expect("the process goes on until it is killed"));
        }
        // This sends SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        told = commits.fold(told, u64::max);
        let (pool, wal, _) = recover(folder.path(), Kind::Hashtable);
        assert!(wal.commit().unwrap() >= told, "a record that was said to be durable is lost");
        drop(pool);
    }
    assert!(told > 0);
    assert!(has_archive(), "no checkpoint cut the log");
}
