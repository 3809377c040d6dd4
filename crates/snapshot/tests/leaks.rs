//! The resources of snapshots are released. This is a program of its own, because memory and descriptors belong to the process.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_snapshot::engine::Statistics;
use bedplate_snapshot::{Error, Memory, Task};
use common::{EndOnDrop, Random, memory, settings};

const MIB: usize = 1 << 20;

/// Memory of this process and of its shared files, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Maps all of the memory. After the end of a snapshot, parts may not be mapped, and `resident` counts only mapped pages.
fn touch(memory: &Memory) {
    memory.words().iter().step_by(512).for_each(|word| {
        word.fetch_add(0, Ordering::Relaxed);
    });
}

/// Takes a snapshot. The maximum number of ended children may not have been noticed yet.
fn spawn(memory: &Memory) -> Task {
    loop {
        match memory.spawn(|view| view.words()[0].to_le_bytes().to_vec()) {
            Err(Error::TooManySnapshots { .. }) => std::thread::sleep(Duration::from_millis(1)),
            task => return task.unwrap(),
        }
    }
}

#[test]
fn a_thousand_snapshots_leave_nothing_behind() {
    for setting in settings().filter(|setting| !setting.huge_pages) {
        let Some(memory) = memory(4 * MIB, setting) else { continue };
        memory.words().iter().for_each(|word| word.store(1, Ordering::Relaxed));
        let over = AtomicBool::new(false);
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(7);
                while !over.load(Ordering::Relaxed) {
                    let words = memory.words();
                    let index = random.below(words.len() as u64) as usize;
                    words[index].fetch_add(1, Ordering::Relaxed);
                }
            });
            let _end = EndOnDrop(&over);
            let (mut memory_before, mut descriptors_before) = (0, 0);
            for round in 0..1000 {
                if round == 20 {
                    touch(&memory);
                    (memory_before, descriptors_before) = (resident(), descriptors());
                }
                spawn(&memory).join().unwrap();
            }
            over.store(true, Ordering::Relaxed);
            let limit = Instant::now() + Duration::from_secs(20);
            // The ends of children are noticed a little later. Then `remap` makes all pages shared again.
            let takes = |statistics: &Statistics| statistics.active + statistics.pages_private;
            while takes(&memory.statistics()) > 0 && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(20));
            }
            touch(&memory);
            let statistics = memory.statistics();
            assert_eq!((statistics.snapshots, takes(&statistics)), (1000, 0), "{setting:?}");
            assert!(
                resident() < memory_before + 3 * MIB as u64,
                "{setting:?}: {memory_before} {}",
                resident()
            );
            assert!(descriptors() <= descriptors_before + 4, "{setting:?}");
        });
    }
}
