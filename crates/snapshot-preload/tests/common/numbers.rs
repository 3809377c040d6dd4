//! A sequence of numbers that is written to a server. An image of one moment has all of them up to some number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Commands, Connection};

use super::Server;

pub const KEYS: u64 = 40_000;

pub fn value(number: u64) -> String {
    format!("{number:012}{}", "x".repeat(500))
}

pub fn number_of(value: &str) -> u64 {
    value[..12].parse().unwrap()
}

/// Writes numbers to keys in turn, in pipelines, until it is stopped. Returns the latest number.
fn write(server: &Server, from: u64, over: &AtomicBool) -> u64 {
    let mut connection = server.connect();
    let mut number = from;
    while !over.load(Ordering::Relaxed) {
        let mut pipeline = redis::pipe();
        for _ in 0..50 {
            number += 1;
            // The keys are scattered in memory.
            pipeline.set(number.wrapping_mul(7919) % KEYS, value(number)).ignore();
        }
        let _: () = pipeline.query(&mut connection).unwrap();
    }
    number
}

pub fn fill(server: &Server) {
    let mut connection = server.connect();
    for start in (1..=KEYS).step_by(500) {
        let mut pipeline = redis::pipe();
        for number in start..(start + 500).min(KEYS + 1) {
            pipeline.set(number.wrapping_mul(7919) % KEYS, value(number)).ignore();
        }
        let _: () = pipeline.query(&mut connection).unwrap();
    }
}

/// Checks that a server has all numbers up to some number and none beyond it. Returns that number.
pub fn exact_prefix(connection: &mut Connection) -> u64 {
    let size: u64 = redis::cmd("DBSIZE").query(connection).unwrap();
    assert_eq!(size, KEYS);
    let mut numbers = HashMap::new();
    for start in (0..KEYS).step_by(1000) {
        let keys: Vec<u64> = (start..start + 1000).collect();
        let values: Vec<String> = connection.mget(&keys).unwrap();
        numbers.extend(keys.into_iter().zip(values.iter().map(|value| number_of(value))));
    }
    let latest = *numbers.values().max().unwrap();
    for number in latest + 1 - KEYS..=latest {
        let key = number.wrapping_mul(7919) % KEYS;
        assert_eq!(numbers[&key], number, "key {key}, of a prefix up to {latest}");
    }
    latest
}

/// Runs `f` while a thread writes.
pub fn under_load<T>(server: &Server, f: impl FnOnce() -> T) -> (T, u64) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(server, KEYS, &over));
        std::thread::sleep(Duration::from_millis(200));
        // The writer ends even if this panics.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        over.store(true, Ordering::Relaxed);
        let latest = writer.join().unwrap();
        (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), latest)
    })
}
