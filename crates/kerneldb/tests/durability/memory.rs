//! The memory limit, while the log's writer still needs values that were overwritten.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb::{Durability, Error, SetOptions};

use super::super::{LONG, config, open, set};

/// Keys whose memory is free for overwriting others. They take less than a slab of 64 KiB, so that the memory
/// stays in slabs of values of this size.
const SPARE: u32 = 12;

/// A write that does not fit gets an error, although another client goes on overwriting, so that the log's
/// writer always has something to read. That client, whose memory does come back, never gets the error.
#[test]
fn full_is_full_however_much_is_overwritten() {
    let data = tempfile::tempdir().unwrap();
    let (store, _) = open(config(Durability::Async), data.path());
    let value = [1; 4096];
    let mut session = store.database().session().unwrap();
    let mut keys = 0u32;
    let full = loop {
        match set(&mut session, &keys.to_le_bytes(), &value) {
            Ok(_) => keys += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoMemory) && keys > 1000, "{full} after {keys} keys");
    for key in 0..SPARE {
        session.delete(&key.to_le_bytes()).unwrap();
    }
    // Wait until deleted memory is collected, and so available again.
    let started = Instant::now();
    while set(&mut session, &SPARE.to_le_bytes(), &value).is_err() {
        assert!(started.elapsed() < LONG, "deleted keys' memory does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (stop, overwritten) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let overwriter = scope.spawn(|| {
            let mut session = store.database().session().unwrap();
            while !stop.load(Ordering::Relaxed) {
                let key = SPARE + overwritten.fetch_add(1, Ordering::Relaxed) % (keys - SPARE);
                set(&mut session, &key.to_le_bytes(), &value).unwrap();
            }
        });
        let (mut refused, mut waited) = (0, 0);
        let started = Instant::now();
        while refused < 20 || waited == 0 || overwritten.load(Ordering::Relaxed) < 50 * SPARE {
            assert!(
                started.elapsed() < LONG && !overwriter.is_finished(),
                "refused {refused}, waited {waited}"
            );
            match session.set(b"new", &[2; 60_000], SetOptions::default()) {
                Err(Error::NoMemory) => refused += 1,
                Err(Error::MemoryInLog) => waited += 1,
                other => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(store.database().verify().is_ok());
}
