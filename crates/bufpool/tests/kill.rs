//! A process that is killed at random points: what its log has is in its pages after recovery.

mod common;
#[path = "common/wal.rs"]
mod wal;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bedplate_bufpool::{Choice, Kind, PAGE, PageId, Pool};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wal::{Content, WORDS, Wal, words};

const FOLDER: &str = "BEDPLATE_TEST_POOL";
const FRAMES: usize = 256;
const PAGES: usize = 4 * FRAMES;

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

/// Redo, and what is in pages then; they are the log's.
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

/// What the killed process does: three threads change pages, one of them takes checkpoints, and each tells which of its
/// records are durable. The test starts it as a process of its own; otherwise there is nothing to do.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let (pool, wal, content) = recover(&folder, Kind::Stock);
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
    for _ in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let numbers = out.lines().map_while(Result::ok).filter_map(|line| line.parse::<u64>().ok());
            numbers.max().unwrap_or(0)
        });
        std::thread::sleep(Duration::from_millis(random.random_range(100..1000)));
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        told = told.max(reader.join().unwrap());
        let (pool, wal, _) = recover(folder.path(), Kind::Hashtable);
        assert!(wal.commit().unwrap() >= told, "a record that was said to be durable is lost");
        drop(pool);
    }
    assert!(told > 0);
    let archive = std::fs::metadata(folder.path().join("log").with_extension("archive")).unwrap();
    assert!(archive.len() > 0, "no checkpoint cut the log");
}
