//! The uffd engine binds writers to processors while there are snapshots. Nothing stays bound.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use bedplate_snapshot::Kind;
use common::{Setting, memory, settings};

/// What one test starts while writers are bound is not to be the other's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;
const WORDS_OF_A_PAGE: usize = 512;

/// Writers are bound to a processor while there are snapshots, and nothing that they start for one is.
#[test]
fn writers_run_where_they_may_again() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let processors = || rustix::thread::sched_getaffinity(None).unwrap().count();
    let all = processors();
    for setting in settings().filter(|setting| setting.kind == Kind::Uffd && !setting.huge_pages) {
        let Some(memory) = memory(16 * MIB, setting) else { continue };
        memory.settle();
        let folder = tempfile::tempdir().unwrap();
        let over = folder.path().join("over");
        let wait = over.clone();
        let first = memory.spawn(move |_| {
            while !wait.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            vec![]
        });
        memory.words().iter().step_by(WORDS_OF_A_PAGE).for_each(|word| word.store(1, Ordering::Relaxed));
        let second = memory.spawn(move |_| processors().to_le_bytes().to_vec()).unwrap();
        assert_eq!(second.join().unwrap(), all.to_le_bytes(), "{setting:?}");
        std::fs::write(&over, "").unwrap();
        first.unwrap().join().unwrap();
        let limit = std::time::Instant::now() + Duration::from_secs(20);
        while processors() != all {
            assert!(std::time::Instant::now() < limit, "{setting:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What a writer starts while it is bound inherits that. It is let go with the writer; what its program bound is not.
#[test]
fn threads_that_writers_start_run_where_they_may_again() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let processors = || rustix::thread::sched_getaffinity(None).unwrap();
    let all = processors();
    if all.count() == 1 {
        println!("skipped: there is one processor");
        return;
    }
    let setting = Setting { kind: Kind::Uffd, in_child: false, huge_pages: false };
    let Some(memory) = memory(16 * MIB, setting) else { return };
    let (go, gone) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        // Bound by its program, before: one on each processor.
        let mut others = Vec::new();
        for processor in (0..rustix::thread::CpuSet::MAX_CPU).filter(|&processor| all.is_set(processor)) {
            let (stop, stopped) = mpsc::channel::<()>();
            let mut only = rustix::thread::CpuSet::new();
            only.set(processor);
            let (ready, is_ready) = mpsc::channel();
            let other = scope.spawn(move || {
                rustix::thread::sched_setaffinity(None, &only).unwrap();
                ready.send(()).unwrap();
                let _ = stopped.recv();
                assert_eq!(processors(), only);
            });
            is_ready.recv().unwrap();
            others.push((stop, other));
        }
        // Ticks of the clock by which starts are told.
        std::thread::sleep(Duration::from_millis(30));
        memory.settle();
        let snapshot = memory.spawn(move |_| {
            let _ = gone.recv();
            vec![]
        });
        let limit = std::time::Instant::now() + Duration::from_secs(20);
        for words in memory.words().chunks(WORDS_OF_A_PAGE).cycle() {
            words[0].fetch_add(1, Ordering::Relaxed);
            if processors().count() == 1 {
                break;
            }
            assert!(std::time::Instant::now() < limit, "the writer was never bound");
        }
        let heir = scope.spawn(move || {
            tell.send(processors().count()).unwrap();
            let limit = std::time::Instant::now() + Duration::from_secs(20);
            while processors() != all {
                assert!(std::time::Instant::now() < limit, "it is still bound");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(told.recv().unwrap(), 1, "nothing is inherited here");
        drop(go);
        snapshot.unwrap().join().unwrap();
        heir.join().unwrap();
        for (stop, other) in others {
            drop(stop);
            other.join().unwrap();
        }
    });
}
