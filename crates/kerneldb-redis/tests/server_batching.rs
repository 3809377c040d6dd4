//! Tests when the kernel's workers, which send the replies, are in the scheduler's batch class. There is only one
//! test, because the whole machine uses the workers.

mod common;
mod server;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_kerneldb_redis::server::{Batching, ServerConfig};
use common::can_run;
use server::{Running, config, eventually, start};

const CLIENTS: u64 = 24;

/// Number of workers in the batch class.
fn in_batch_class() -> usize {
    let tasks = fs::read_dir("/proc").unwrap().flatten();
    tasks
        .filter(|task| {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            // The 41st field: the scheduling class.
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let class = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(38));
            name.starts_with("kworker/") && class == Some("3")
        })
        .count()
}

/// Lets clients send one request after the other while `during` runs. Returns the replies per second.
fn ask_busily(running: &Running, clients: u64, during: impl FnOnce()) -> u64 {
    let (stop, replies, started) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        for number in 0..clients {
            let (mut c, stop, replies) = (running.client(), &stop, &replies);
            scope.spawn(move || {
                let (set, get) = (format!("SET k{number} v{number:04}"), format!("GET k{number}"));
                let value = format!("$5\r\nv{number:04}");
                while !stop.load(Ordering::Relaxed) {
                    c.ask(&set, "+OK");
                    c.ask(&get, &value);
                    replies.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    (replies.into_inner() as f64 / started.elapsed().as_secs_f64()) as u64
}

/// Leaves no processor idle. All other work has priority.
fn occupied(during: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                // SAFETY: a call about the calling thread, without pointers.
                unsafe { libc::nice(19) };
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn workers_are_lent() {
    if !can_run() {
        return;
    }
    let before = in_batch_class();
    let running = start(ServerConfig { batch_workers: Batching::Always, ..config() });
    assert!(in_batch_class() > before);
    ask_busily(&running, 1, || ());
    assert!(in_batch_class() > before);
    running.finish();
    eventually("they are given back", || in_batch_class() <= before);

    let running = start(ServerConfig { batch_workers: Batching::UnderLoad, ..config() });
    let rate = ask_busily(&running, CLIENTS, || thread::sleep(Duration::from_secs(1)));
    if rate > 10_000 {
        occupied(|| {
            ask_busily(&running, CLIENTS, || eventually("they are lent", || in_batch_class() > before));
            eventually("they are given back when no client is busy", || in_batch_class() <= before);
        });
    } else {
        eprintln!("skipped: {rate} replies per second are no load");
    }
    ask_busily(&running, 1, || {
        thread::sleep(Duration::from_millis(300));
        assert!(in_batch_class() <= before, "one client is not many");
    });
    running.finish();
    eventually("they stay as they were", || in_batch_class() <= before);
}
