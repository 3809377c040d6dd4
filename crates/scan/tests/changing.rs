//! Tests of files that are written all the time. A worker gets no old page: a page is either current or an error.

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_scan::{Channel, Error, FRAME, Scan, Service};
use common::folder;

const FRAMES: u64 = 6;
/// The highest age of a page. The service checks files every second, and reading again takes some time on a busy machine.
const AGE: Duration = Duration::from_secs(4);
/// The time that a worker rests, with pages read ahead for it. It is so long that these pages reach their limit of repeated
/// reads.
const REST: Duration = Duration::from_secs(14);

/// Writes a number to every frame, and then successive numbers. Records the time when all frames have each number.
fn write_on(path: &Path, over: &AtomicBool, written: &Mutex<Vec<Instant>>) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    for number in 1u64.. {
        for frame in 0..FRAMES {
            file.write_all_at(&number.to_le_bytes(), frame * FRAME as u64).unwrap();
        }
        written.lock().unwrap().push(Instant::now());
        if over.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(Duration::from_millis(40));
    }
}

/// Reads all, with a rest in the middle. Every frame comes or is an error, some come, and none is too old.
fn read(mut channel: Channel, written: &Mutex<Vec<Instant>>) {
    let (mut frames, mut came, mut rested) = (0, 0, false);
    loop {
        match channel.next_page() {
            Ok(None) => break,
            Ok(Some(page)) => {
                came += 1;
                let number = u64::from_le_bytes(page[..8].try_into().unwrap());
                // The first newer number must not have been in the file for longer than `AGE`.
                let newer = written.lock().unwrap().get(number as usize).copied();
                let age = newer.map_or(Duration::ZERO, |newer| newer.elapsed());
                assert!(age < AGE, "the page at {} is {age:?} old", page.offset());
            }
            Err(Error::Changing { file: 0, offset }) => assert!(offset.is_multiple_of(FRAME as u64)),
            Err(error) => panic!("{error}"),
        }
        frames += 1;
        if !rested {
            std::thread::sleep(REST);
            rested = true;
        }
    }
    assert_eq!(frames, FRAMES);
    assert!(came > 0, "it gave up on all of them");
}

#[test]
fn pages_are_not_old() {
    let folder = folder();
    let path = folder.path().join("f");
    std::fs::write(&path, vec![0; FRAMES as usize * FRAME]).unwrap();
    let service = Service::start().unwrap();
    let (over, written) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let pool = service.create_pool([&path], 8 * FRAME).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| write_on(&path, &over, &written));
        let workers = [
            scope.spawn(|| read(service.open(Scan::of([&path])).unwrap(), &written)),
            scope.spawn(|| read(service.join(pool.key(), FRAME).unwrap(), &written)),
        ];
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        over.store(true, Ordering::Relaxed);
        assert_eq!(failed, 0);
    });
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
