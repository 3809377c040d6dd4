//! The promises of every engine, tested for every engine.

mod common;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use bedplate_snapshot::{Error, Kind, Memory, Task, View};
use common::{build, memory, settings};
use rustix::fs::{FileType, Mode};

/// Tests fork, so no other thread may hold a lock that a child needs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;
const WORDS_OF_A_PAGE: usize = 512;

#[test]
fn a_snapshot_is_what_was() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in settings() {
        let Some(memory) = memory(16 * MIB, setting) else { continue };
        let words = memory.words();
        for round in 1..4u64 {
            words.iter().for_each(|word| word.store(round, Ordering::Relaxed));
            let (go, gone) = mpsc::channel::<()>();
            // In a child, the channel's other end does not arrive, so the child sees the present content.
            let in_thread = !(setting.in_child || setting.kind == Kind::Fork);
            let snapshot = memory
                .spawn(move |view| {
                    if in_thread {
                        gone.recv().unwrap();
                    }
                    vec![u8::from(view.words().iter().all(|&word| word == round))]
                })
                .unwrap();
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let _ = go.send(());
            assert_eq!(snapshot.join().unwrap(), [1], "{setting:?}");
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0), "{setting:?}");
        }
    }
}

/// The position of a writer's number. Each writer has a quarter of every page.
fn place(writer: usize, number: u64, words: usize) -> usize {
    let page = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % (words / WORDS_OF_A_PAGE);
    page * WORDS_OF_A_PAGE + writer * WORDS_OF_A_PAGE / 4 + (number / 3 % 64) as usize
}

/// Checks that each writer's numbers are present up to some number and not beyond it. Returns these numbers.
fn prefixes(view: &View<'_>, writers: usize) -> Result<Vec<u64>, String> {
    let words = view.words();
    (0..writers)
        .map(|writer| {
            let mine = |index: usize| index % WORDS_OF_A_PAGE / (WORDS_OF_A_PAGE / 4) == writer;
            let latest =
                (0..words.len()).filter(|&index| mine(index)).map(|index| words[index]).max().unwrap();
            let mut expected = std::collections::HashMap::new();
            // Later numbers overwrite earlier ones.
            for number in 1..=latest {
                expected.insert(place(writer, number, words.len()), number);
            }
            for (&index, &number) in &expected {
                if words[index] != number {
                    return Err(format!(
                        "writer {writer}: {} instead of {number} at word {index}, the latest is {latest}",
                        words[index]
                    ));
                }
            }
            Ok(latest)
        })
        .collect()
}

#[test]
fn snapshots_under_load_are_exact_prefixes() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const WRITERS: usize = 3;
    const SNAPSHOTS: usize = 25;
    for setting in settings() {
        // The other engines wait, or fail because there are too many snapshots.
        let at_once = if setting.kind == Kind::Ring0 { SNAPSHOTS } else { 1 };
        let Some(memory) = build(Memory::builder(8 * MIB).snapshots_at_once(at_once), setting) else {
            continue;
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (memory, over) = (&memory, &over);
                scope.spawn(move || {
                    let words = memory.words();
                    for number in 1..=200_000 {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        words[place(writer, number, words.len())].store(number, Ordering::Release);
                        if number.is_multiple_of(64) {
                            std::hint::spin_loop();
                        }
                    }
                });
            }
            let mut snapshots = Vec::new();
            for _ in 0..SNAPSHOTS {
                let snapshot = memory.spawn(|view| match prefixes(view, WRITERS) {
                    Ok(latest) => latest.iter().flat_map(|latest| latest.to_le_bytes()).collect(),
                    Err(what) => panic!("{what}"),
                });
                match snapshot {
                    Ok(snapshot) => snapshots.push(snapshot),
                    Err(Error::TooManySnapshots { .. }) => {}
                    Err(error) => panic!("{setting:?}: {error}"),
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let mut before = vec![0; WRITERS];
            for snapshot in snapshots {
                let bytes = snapshot.join().unwrap_or_else(|error| panic!("{setting:?}: {error}"));
                let latest: Vec<u64> =
                    bytes.as_chunks().0.iter().map(|&chunk| u64::from_le_bytes(chunk)).collect();
                assert!(latest.iter().zip(&before).all(|(new, old)| new >= old), "{setting:?}");
                before = latest;
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn as_many_as_there_can_be_and_no_more() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in settings().filter(|setting| setting.kind != Kind::Fork) {
        let Some(memory) = memory(MIB, setting) else { continue };
        let mut snapshots = Vec::new();
        // A process that opens the FIFO to read waits until another one opens it to write, so nothing polls.
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        rustix::fs::mknodat(rustix::fs::CWD, &gate, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = loop {
            if snapshots.len() == 100 {
                break None;
            }
            memory.words()[0].fetch_add(1, Ordering::Relaxed);
            let gate = gate.clone();
            let spawned = memory.spawn(move |view| {
                std::fs::File::open(gate).unwrap();
                view.words()[0].to_le_bytes().to_vec()
            });
            match spawned {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(error) => break Some(error),
            }
        };
        let _open = std::fs::File::options().read(true).write(true).open(&gate).unwrap();
        let is_limited = !(setting.kind == Kind::Remap && setting.in_child);
        match error {
            None => assert!(!is_limited, "{setting:?}"),
            Some(Error::TooManySnapshots { limit }) => {
                assert!(is_limited && limit == snapshots.len(), "{setting:?}")
            }
            Some(error) => panic!("{error} after {} of {setting:?}", snapshots.len()),
        }
        // All snapshots were active at once, and each has its own content.
        for (index, snapshot) in snapshots.into_iter().enumerate() {
            assert_eq!(snapshot.epoch(), index as u64 + 1);
            assert_eq!(snapshot.join().unwrap(), (index as u64 + 1).to_le_bytes(), "{setting:?}");
        }
    }
}

#[test]
fn a_task_that_fails_harms_nobody() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in settings() {
        let Some(memory) = memory(MIB, setting) else { continue };
        let snapshot = memory.spawn(|_| panic!("expected by this test")).unwrap();
        assert!(matches!(snapshot.join(), Err(Error::Task(_))), "{setting:?}");
        if setting.in_child {
            // SAFETY: ends the child that runs it.
            let killed = memory.spawn(|_| unsafe {
                libc::kill(libc::getpid(), libc::SIGKILL);
                vec![]
            });
            memory.words().iter().for_each(|word| word.store(2, Ordering::Relaxed));
            assert!(matches!(killed.unwrap().join(), Err(Error::Task(what)) if what.contains("signal 9")));
        }
        memory.words().iter().for_each(|word| word.store(3, Ordering::Relaxed));
        let snapshot = memory.spawn(|view| view.words()[7].to_le_bytes().to_vec()).unwrap();
        assert_eq!(snapshot.join().unwrap(), 3u64.to_le_bytes(), "{setting:?}");
    }
}

/// The kernel writes into memory too: a read from a file goes to a page that a snapshot shares.
#[test]
fn what_the_kernel_writes_is_kept_from_snapshots() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in settings() {
        let Some(memory) = memory(MIB, setting) else { continue };
        memory.bytes().iter().for_each(|byte| byte.store(1, Ordering::Relaxed));
        memory.settle();
        let (go, gone) = mpsc::channel::<()>();
        let in_thread = !setting.in_child;
        let snapshot = memory
            .spawn(move |view| {
                if in_thread {
                    gone.recv().unwrap();
                } else {
                    std::thread::sleep(Duration::from_millis(50));
                }
                vec![u8::from(view.bytes().iter().all(|&byte| byte == 1))]
            })
            .unwrap();
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: the whole memory, which no other thread uses now.
        let read = unsafe {
            libc::read(std::os::fd::AsRawFd::as_raw_fd(&zeros), memory.base().as_ptr().cast(), memory.len())
        };
        assert_eq!(read, memory.len() as isize, "{setting:?}");
        let _ = go.send(());
        assert_eq!(snapshot.join().unwrap(), [1], "{setting:?}");
        assert!(memory.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
    }
}

#[test]
fn sizes_that_cannot_be_are_errors() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for bytes in [0, usize::MAX, (1 << 46) + 1] {
        assert!(matches!(Memory::builder(bytes).build(), Err(Error::Size { .. })));
    }
    let memory = Memory::builder(1).build().unwrap();
    assert_eq!(memory.len(), bedplate_snapshot::PAGE);
}

/// The host's signal handlers must run on its own threads only.
#[test]
fn threads_of_an_engine_take_no_signals() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in settings() {
        let Some(memory) = memory(MIB, setting) else { continue };
        memory.words()[0].store(1, Ordering::Relaxed);
        let name = match setting.kind {
            Kind::Remap => "bedplate-merge",
            Kind::Uffd => "bedplate-fault",
            _ => continue,
        };
        let (threads, signals) = bedplate_threads::deliverable(1, |its| its == name).unwrap();
        assert!(threads > 0, "{setting:?}");
        assert_eq!(signals, 0, "{setting:?}");
    }
}

/// A pipe has room for 64 KiB. A child that sends more still ends if its owner only asks whether it has ended.
#[test]
fn a_task_that_returns_much_ends_while_its_owner_polls() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for setting in settings() {
        let Some(memory) = memory(MIB, setting) else { continue };
        for len in [0, 1, 64 << 10, (5 << 20) + 1] {
            let content = move |at: usize| (at / 7) as u8;
            let task = memory.spawn(move |_| (0..len).map(content).collect()).unwrap();
            let limit = std::time::Instant::now() + Duration::from_secs(120);
            while !task.is_finished() {
                assert!(std::time::Instant::now() < limit, "{setting:?}: {len} bytes");
                std::thread::sleep(Duration::from_millis(1));
            }
            let bytes = task.join().unwrap();
            assert!(bytes.into_iter().eq((0..len).map(content)), "{setting:?}: {len} bytes");
        }
    }
}

/// A task's result is complete when its own process has ended. Tasks that begin at the same time do not delay it.
#[test]
fn tasks_that_begin_together_do_not_wait_for_each_other() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const TASKS: usize = 6;
    /// Waits for room, which a child that has ended releases a little later.
    fn spawn(memory: &Memory, work: impl Fn(&View<'_>) -> Vec<u8> + Send + Clone + 'static) -> Task {
        loop {
            match memory.spawn(work.clone()) {
                Err(Error::TooManySnapshots { .. }) => std::thread::sleep(Duration::from_millis(10)),
                task => return task.unwrap(),
            }
        }
    }
    for setting in settings().filter(|setting| setting.in_child && !setting.huge_pages) {
        let Some(memory) = memory(MIB, setting) else { continue };
        for round in 0..20 {
            let (gate, open) = rustix::pipe::pipe().unwrap();
            let (gate_of_child, open_of_child) = (gate.as_raw_fd(), open.as_raw_fd());
            let mut open = Some(open);
            let long: Vec<_> = std::thread::scope(|scope| {
                let long = scope.spawn(|| {
                    // The children end when no process has the other end any more.
                    let wait = |gate: std::os::fd::RawFd, open: std::os::fd::RawFd| {
                        move |_: &View<'_>| {
                            // SAFETY: the child's own copies, which no other code in it uses.
                            unsafe { libc::close(open) };
                            let mut byte = [0u8; 1];
                            // SAFETY: as above.
                            unsafe { libc::read(gate, byte.as_mut_ptr().cast(), 1) };
                            Vec::new()
                        }
                    };
                    (0..TASKS).map(|_| spawn(&memory, wait(gate_of_child, open_of_child))).collect::<Vec<_>>()
                });
                let short: Vec<_> = (0..TASKS).map(|_| spawn(&memory, |_| vec![7])).collect();
                let long = long.join().unwrap();
                for task in short {
                    let (joined, is_joined) = mpsc::channel();
                    scope.spawn(move || joined.send(task.join().unwrap()));
                    let bytes = is_joined.recv_timeout(Duration::from_secs(120));
                    if bytes.is_err() {
                        // This lets the other children end, so that the test ends.
                        drop(open.take());
                    }
                    assert_eq!(bytes, Ok(vec![7]), "{setting:?}, round {round}");
                }
                long
            });
            drop(open);
            long.into_iter().for_each(|task| assert_eq!(task.join().unwrap(), []));
        }
    }
}

#[test]
fn a_thread_that_panics_meanwhile_holds_up_no_child() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // The first task makes the library change the hook.
    let Some(first) = settings().find_map(|setting| memory(MIB, setting).filter(|_| setting.in_child)) else {
        return;
    };
    first.spawn(|_| Vec::new()).unwrap().join().unwrap();
    let (in_hook, is_in_hook) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |_| {
        let _ = in_hook.send(());
        let _ = wait.lock().unwrap().recv();
    }));
    let panicking = std::thread::spawn(|| panic!("on purpose"));
    is_in_hook.recv().unwrap();
    let mut results = Vec::new();
    for setting in settings().filter(|setting| setting.in_child) {
        let Some(memory) = memory(MIB, setting) else { continue };
        let (joined, is_joined) = mpsc::channel();
        std::thread::spawn(move || joined.send(memory.spawn(|_| vec![7]).unwrap().join().unwrap()));
        results.push((setting, is_joined.recv_timeout(Duration::from_secs(120))));
    }
    drop(go_on);
    assert!(panicking.join().is_err());
    std::panic::set_hook(before);
    for (setting, result) in results {
        assert_eq!(result, Ok(vec![7]), "{setting:?}");
    }
}
