//! Both engines read the same data, in one thread, with any number of concurrent reads.

use std::os::unix::fs::FileExt;

use super::*;
use crate::memory::{FRAME, Frames};
use crate::source::{File, Source};

fn engines(bell: &Arc<Bell>) -> Vec<Box<dyn Engine>> {
    // Without io_uring, the test uses only the other engine.
    let kinds = [Kind::Uring, Kind::Threads];
    kinds.into_iter().filter_map(|kind| make(Choice::Only(kind), bell.clone()).ok()).collect()
}

fn all(engine: &mut dyn Engine, count: usize) -> Vec<Completion> {
    let mut complete = Vec::new();
    while complete.len() < count {
        engine.wait(Some(Duration::from_secs(10)), &mut complete);
    }
    complete.sort_by_key(|completion| completion.token);
    complete
}

#[test]
fn reads_of_every_number_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    let content: Vec<u8> = (0..FRAME + 5000).map(|i| (i / 4096) as u8 ^ i as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let bell = Arc::new(Bell::new().unwrap());
    for mut engine in engines(&bell) {
        let file = File::open(&Source::from(&path)).unwrap();
        let (file, memory) = (file.descriptor().clone(), Frames::new(2).unwrap().buffer());
        let (file, index) = (engine.add_file(file).unwrap(), engine.add_memory(memory.clone()).unwrap());
        // These are more reads than the ring's queue holds.
        for i in 0..512u64 {
            let at = i as usize * 4096;
            engine.submit(Read { token: i, file, offset: i * 4096, memory: index, at, len: 4096 });
        }
        let (offset, at, len) = (FRAME as u64, FRAME, 8192);
        engine.submit(Read { token: 512, file, offset, memory: index, at, len });
        let complete = all(&mut *engine, 513);
        assert!(complete[..512].iter().all(|c| c.result == Ok(4096)), "{}", engine.about());
        assert_eq!(complete[512].result, Ok(5000));
        // SAFETY: the range is within the mapping, and no read is in progress.
        let seen = unsafe { std::slice::from_raw_parts(memory.start(), content.len()) };
        assert!(seen == content, "{}", engine.about());
        engine.remove_file(file);
        engine.remove_memory(index);
    }
}

#[test]
fn a_bell_ends_the_wait_and_time_does() {
    let bell = Arc::new(Bell::new().unwrap());
    for mut engine in engines(&bell) {
        let mut none = Vec::new();
        let start = std::time::Instant::now();
        engine.wait(Some(Duration::from_millis(20)), &mut none);
        assert!(start.elapsed() >= Duration::from_millis(19), "{}", engine.about());
        for _ in 0..3 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    bell.ring();
                });
                let start = std::time::Instant::now();
                engine.wait(Some(Duration::from_secs(60)), &mut none);
                assert!(start.elapsed() < Duration::from_secs(30));
            });
        }
        assert!(none.is_empty());
        drop(engine);
        bell.quiet();
    }
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(folder.path().join("f")).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let bell = Arc::new(Bell::new().unwrap());
    for mut engine in engines(&bell) {
        // The file is open for writing only.
        let memory = engine.add_memory(Frames::new(1).unwrap().buffer()).unwrap();
        let index = engine.add_file(Arc::new(OwnedFd::from(file.try_clone().unwrap()))).unwrap();
        engine.submit(Read { token: 1, file: index, offset: 0, memory, at: 0, len: 4096 });
        assert_eq!(all(&mut *engine, 1), [Completion { token: 1, result: Err(Errno::BADF) }]);
    }
}
