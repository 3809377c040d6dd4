//! The uffd engine keeps pages for a snapshot before they are written, if they were written soon after each of those before.

mod common;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bedplate_snapshot::Kind;
use common::{memory, settings};

const MIB: usize = 1 << 20;
/// From one page to the next: far apart, so that none is served with another's fault.
const STRIDE: usize = (2 * MIB + 4096) / 8;
const PAGES: usize = 40;
/// Snapshots until a page counts as one that is written at once.
const SNAPSHOTS: usize = 8;

#[test]
fn what_is_written_after_every_snapshot_is_kept_beforehand() {
    for setting in settings().filter(|setting| setting.kind == Kind::Uffd) {
        let Some(memory) = memory(96 * MIB, setting) else { continue };
        let write = |value| {
            let words = memory.words().iter().step_by(STRIDE);
            words.take(PAGES).for_each(|word| word.store(value, Ordering::Relaxed));
        };
        for round in 0..SNAPSHOTS {
            write(2 * round as u64);
            let snapshot = memory.spawn(|_| vec![]).unwrap();
            write(2 * round as u64 + 1);
            snapshot.join().unwrap();
        }
        write(1000);
        let folder = tempfile::tempdir().unwrap();
        let over = folder.path().join("over");
        let wait = over.clone();
        let before = memory.statistics();
        let snapshot = memory.spawn(move |view| {
            while !wait.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let words = view.words().iter().step_by(STRIDE).take(PAGES);
            words.flat_map(|word| word.to_le_bytes()).collect()
        });
        let limit = Instant::now() + Duration::from_secs(20);
        while memory.statistics().pages_copied < before.pages_copied + PAGES as u64 {
            assert!(Instant::now() < limit, "{setting:?}: {before:?} {:?}", memory.statistics());
            std::thread::sleep(Duration::from_millis(5));
        }
        let kept = memory.statistics();
        write(2000);
        let after = memory.statistics();
        assert_eq!((after.faults, after.pages_copied), (kept.faults, kept.pages_copied), "{setting:?}");
        std::fs::write(&over, "").unwrap();
        let seen = snapshot.unwrap().join().unwrap();
        let seen = seen.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        assert!(seen.eq([1000; PAGES]), "{setting:?}");
    }
}
