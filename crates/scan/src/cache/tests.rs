//! Tests of a cache with real files: the content that readers get, the reads that they share, and the files that the cache
//! refuses.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::time::Duration;

use super::table::Span;
use super::{Arrival, Cache, Recipient};
use crate::engine::{Bell, Choice};
use crate::limits::{FRAMES_PER_SEGMENT, IDLE_TIME, MAX_RANGES_HELD, SEGMENTS_FOR_A_READY_ONE};
use crate::memory::Segment;
use crate::{Daemon, Error, FRAME, Fetch, Options, Service};

/// Minimum age of the last change of a file in these tests.
const SETTLING: Duration = Duration::from_millis(300);

/// Creates a service that caches files of this age.
pub(crate) fn service() -> Service {
    Service::builder().settling_time(SETTLING).build().unwrap()
}

/// Creates a file in `folder` whose last change is older than [`SETTLING`]. Returns `None` if its file system does not read past
/// the page cache.
pub(crate) fn settled(folder: &Path, bytes: usize) -> Option<(PathBuf, Vec<u8>)> {
    let path = folder.join("file");
    let content: Vec<u8> = (0..bytes).map(|at| (at / 4096 * 31 + at % 251) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    settle();
    let file = crate::source::File::open(&crate::Source::from(&path)).unwrap();
    if let Err(error) = file.direct {
        println!("skipped: the build's file system does not read past the page cache: {error}");
        return None;
    }
    Some((path, content))
}

/// Waits until earlier changes are old enough.
pub(crate) fn settle() {
    std::thread::sleep(SETTLING + Duration::from_millis(50));
}

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

/// Runs a test with a service in this process, and with one behind a daemon's socket.
pub(crate) fn both(test: impl Fn(&Service)) {
    test(&service());
    let place = tempfile::tempdir().unwrap();
    let daemon = Daemon::bind(service(), place.path().join("socket"), &Options::default()).unwrap();
    let (path, stopper) = (daemon.path(), daemon.stopper());
    let thread = std::thread::spawn(move || daemon.run());
    test(&Service::connect(&path).unwrap());
    stopper.stop();
    thread.join().unwrap().unwrap();
}

#[test]
fn ranges_are_those_of_the_file() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 5 * FRAME + 1234) else { return };
    both(|service| {
        let reader = service.reader(&path).unwrap();
        assert_eq!(reader.version().size(), content.len() as u64);
        let end = content.len();
        for (start, len) in
            [(0, 1), (0, FRAME), (4095, 2), (4097, FRAME - 4097), (end - 1, 1), (end - 5000, 5000), (7, 100)]
        {
            let range = reader.fetch(start as u64, len).unwrap().wait().unwrap();
            assert!(range[..] == content[start..start + len], "{start} {len}");
            assert_eq!(range.offset(), start as u64);
        }
        // All fetches run at the same time, and each thread waits for its own range.
        std::thread::scope(|scope| {
            for thread in 0..MAX_RANGES_HELD {
                let (reader, content) = (&reader, &content);
                scope.spawn(move || {
                    for round in 0..50 {
                        let start = (thread * 977 + round * 104_729) % (end - FRAME);
                        let len = FRAME - reader.alignment();
                        let range = reader.fetch(start as u64, len).unwrap().wait().unwrap();
                        assert!(range[..] == content[start..start + len]);
                    }
                });
            }
        });
        assert!(reader.version().is_current(std::fs::File::open(&path).unwrap()).unwrap());
    });
}

#[test]
fn limits_are_errors_one_past_them() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 4 * FRAME) else { return };
    both(|service| {
        let reader = service.reader(&path).unwrap();
        for (start, len) in [(0, 0), (0, FRAME + 1), (1, FRAME), (content.len() as u64, 1), (u64::MAX, 1)] {
            assert!(matches!(reader.fetch(start, len), Err(Error::Invalid(_))), "{start} {len}");
        }
        let fetches: Vec<Fetch> =
            (0..MAX_RANGES_HELD as u64).map(|at| reader.fetch(at, 100).unwrap()).collect();
        assert!(matches!(reader.fetch(0, 1), Err(Error::Held)));
        let pinned: Vec<_> = fetches.into_iter().map(|fetch| fetch.wait().unwrap()).collect();
        assert!(matches!(reader.fetch(0, 1), Err(Error::Held)));
        drop(pinned);
        // An abandoned fetch makes room for another one. Its data does not arrive as the data of the other one.
        for at in 0..100 {
            drop(reader.fetch(at, 4096).unwrap());
            assert!(
                reader.fetch(at + 1, 10).unwrap().wait().unwrap()[..] == content[at as usize + 1..][..10]
            );
        }
    });
}

#[test]
fn readers_of_a_file_share_what_is_read() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 8 * FRAME) else { return };
    both(|service| {
        let readers: Vec<_> = (0..5).map(|_| service.reader(&path).unwrap()).collect();
        let before = service.statistics().bytes_read;
        for start in (0..content.len()).step_by(FRAME) {
            for reader in &readers {
                assert!(
                    reader.fetch(start as u64, FRAME).unwrap().wait().unwrap()[..]
                        == content[start..start + FRAME]
                );
            }
        }
        assert_eq!(service.statistics().bytes_read - before, content.len() as u64);
    });
}

#[test]
fn a_range_outlives_its_reader_and_service() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 2 * FRAME) else { return };
    let service = service();
    let reader = service.reader(&path).unwrap();
    let range = reader.fetch(10, 5000).unwrap().wait().unwrap();
    drop((reader, service));
    assert!(range[..] == content[10..5010]);
}

#[test]
fn a_file_that_changes_is_another_version() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 2 * FRAME) else { return };
    let service = service();
    let old = service.reader(&path).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    assert!(old.version().is_current(&file).unwrap());
    let other = std::fs::File::open("/dev/null").unwrap();
    assert!(!old.version().is_current(&other).unwrap(), "it is another file");
    file.write_all_at(b"new", 0).unwrap();
    assert!(!old.version().is_current(&file).unwrap());
    let patient = Service::builder().settling_time(Duration::from_secs(3600)).build().unwrap();
    let error = patient.reader(&path).unwrap_err();
    assert!(error.to_string().contains("changed a moment ago"), "{error}");
    settle();
    let new = service.reader(&path).unwrap();
    assert!(new.version().is_current(&file).unwrap());
    assert_eq!(&new.fetch(0, 3).unwrap().wait().unwrap()[..], b"new");
    assert_eq!(&new.fetch(3, 3).unwrap().wait().unwrap()[..], &content[3..6]);
    drop(old);
}

#[test]
fn a_file_that_is_cut_off_is_an_error() {
    let folder = folder();
    let Some((path, _)) = settled(folder.path(), 2 * FRAME) else { return };
    both(|service| {
        let reader = service.reader(&path).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        let error = reader.fetch(FRAME as u64, 100).unwrap().wait().unwrap_err();
        assert!(matches!(error, Error::Read { .. }), "{error}");
        assert!(!reader.version().is_current(std::fs::File::open(&path).unwrap()).unwrap());
        std::fs::File::options().write(true).open(&path).unwrap().set_len(2 * FRAME as u64).unwrap();
        settle();
    });
}

#[test]
fn files_in_memory_are_refused() {
    let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
        println!("skipped: there is no /dev/shm");
        return;
    };
    file.set_len(1 << 20).unwrap();
    let error = service().reader(file).unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
}

#[test]
fn memory_of_files_without_readers_is_given_back() {
    let folder = folder();
    let Some((path, _)) = settled(folder.path(), FRAME) else { return };
    let service = service();
    let cache = service.shared().unwrap().cache().unwrap();
    let reader = service.reader(&path).unwrap();
    drop(reader.fetch(0, 10).unwrap().wait().unwrap());
    let memory = {
        let state = cache.state();
        Arc::downgrade(&state.files.values().next().unwrap().segments[0])
    };
    drop(reader);
    let begin = std::time::Instant::now();
    while memory.upgrade().is_some() {
        assert!(begin.elapsed() < IDLE_TIME + Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the number of frames that the cache has made for files, and whether the ready segment has all frames that it should
/// have.
fn frames_of(service: &Service) -> (usize, bool) {
    let state = service.shared().unwrap().cache().unwrap().state();
    let made = state.files.values().flat_map(|file| &file.segments).map(|segment| segment.made()).sum();
    (made, !state.is_ready_missing())
}

#[test]
fn memory_is_made_when_it_is_needed() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 12 * FRAME) else { return };
    let service = service();
    let readers: Vec<_> = (0..3).map(|_| service.reader(&path).unwrap()).collect();
    assert_eq!(frames_of(&service), (0, true), "nothing was fetched");
    let range = readers[0].fetch(0, FRAME).unwrap().wait().unwrap();
    assert_eq!(frames_of(&service), (1, true));
    drop((range, readers));
    // One reader that holds one range at a time needs few frames.
    let reader = service.reader(&path).unwrap();
    for start in (0..content.len()).step_by(FRAME) {
        let range = reader.fetch(start as u64, FRAME).unwrap().wait().unwrap();
        assert!(range[..] == content[start..start + FRAME]);
    }
    assert!(frames_of(&service).0 <= 2, "{:?}", frames_of(&service));
    // If several readers share the file, the whole file is soon in memory.
    let _other = service.reader(&path).unwrap();
    let begin = std::time::Instant::now();
    while frames_of(&service).0 < 12 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", frames_of(&service));
        for start in (0..content.len()).step_by(FRAME) {
            drop(reader.fetch(start as u64, FRAME).unwrap().wait().unwrap());
        }
    }
}

#[test]
fn files_without_readers_give_their_memory_to_files_with_readers() {
    let place = tempfile::tempdir().unwrap();
    let (first, second) = (folder(), folder());
    let Some((first, content)) = settled(first.path(), FRAME).map(|(path, content)| ((path, first), content))
    else {
        return;
    };
    let Some((other, _)) = settled(second.path(), FRAME) else { return };
    let mut options = Options::default();
    options.limits.memory = (FRAMES_PER_SEGMENT * FRAME) as u64;
    let daemon = Daemon::bind(service(), place.path().join("socket"), &options).unwrap();
    let (socket, stopper) = (daemon.path(), daemon.stopper());
    let thread = std::thread::spawn(move || daemon.run());
    let client = Service::connect(&socket).unwrap();
    for _ in 0..5 {
        for path in [&first.0, &other] {
            let begin = std::time::Instant::now();
            let reader = loop {
                match client.reader(path) {
                    Ok(reader) => break reader,
                    // The daemon has not yet detected the end of the previous reader.
                    Err(error) => assert!(begin.elapsed() < IDLE_TIME / 2, "{error}"),
                }
            };
            assert!(reader.fetch(0, FRAME).unwrap().wait().unwrap()[..] == content[..]);
            let another = if path == &other { &first.0 } else { &other };
            assert!(matches!(client.reader(another), Err(Error::Refused(_))), "a reader has all memory");
        }
    }
    stopper.stop();
    thread.join().unwrap().unwrap();
}

/// A recipient that ignores its arrivals.
struct Deaf;

impl Recipient for Deaf {
    fn arrive(&mut self, _arrival: Arrival) -> Option<Waker> {
        None
    }
}

#[test]
fn the_segment_that_is_ready_serves_readers_that_wait_already() {
    let folder = folder();
    let Some((path, _)) = settled(folder.path(), 4 * FRAME) else { return };
    // This cache has no threads, so their pending work stays visible.
    let cache = Arc::new(Cache {
        state: Mutex::default(),
        to_make: Condvar::new(),
        bell: Arc::new(Bell::new().unwrap()),
        options: super::Options { choice: Choice::default(), reserved_pages: false, settling_time: SETTLING },
        add_bytes: Box::new(|_| {}),
    });
    let attach = || {
        let file = crate::source::File::open(&crate::Source::from(&path)).unwrap();
        cache.attach(file, &|_| Ok(Box::new(())), Box::new(Deaf)).unwrap()
    };
    let first = attach();
    first.fetch(0, Span { start: 0, len: 100 }).unwrap();
    assert!(cache.state().loads.is_empty(), "there is no frame yet");
    let segment = Arc::new(Segment::new(false).unwrap());
    segment.make_frame().unwrap();
    cache.state().ready = Some(segment);
    let _second = attach();
    let state = cache.state();
    assert_eq!(state.loads.len(), 1, "the range of the first reader is read into the first frame");
    assert!(state.ready.is_none() && state.files[&state.loads[0].0].segments.len() == 1);
    drop(state);
}

#[test]
fn a_daemon_has_memory_ready_if_it_may_have_much() {
    let place = tempfile::tempdir().unwrap();
    let ready = SEGMENTS_FOR_A_READY_ONE * (FRAMES_PER_SEGMENT * FRAME) as u64;
    for (memory, is_kept) in [(ready - 1, false), (ready, true)] {
        let folder = folder();
        let Some((path, content)) = settled(folder.path(), FRAME) else { return };
        let service = service();
        let shared = service.shared().unwrap().clone();
        let mut options = Options::default();
        options.limits.memory = memory;
        let daemon = Daemon::bind(service, place.path().join("socket"), &options).unwrap();
        let (socket, stopper) = (daemon.path(), daemon.stopper());
        let thread = std::thread::spawn(move || daemon.run());
        let client = Service::connect(&socket).unwrap();
        let ready = || shared.cache().unwrap().state().ready.clone();
        let wait_for_ready = || {
            let begin = std::time::Instant::now();
            while is_kept && ready().is_none_or(|segment| segment.made() < FRAMES_PER_SEGMENT) {
                assert!(begin.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
            ready()
        };
        let first = wait_for_ready();
        assert_eq!(first.is_some(), is_kept);
        let reader = client.reader(&path).unwrap();
        assert!(reader.fetch(0, FRAME).unwrap().wait().unwrap()[..] == content[..]);
        if let Some(first) = first {
            let state = shared.cache().unwrap().state();
            let file = state.files.values().next().unwrap();
            assert!(Arc::ptr_eq(&file.segments[0], &first), "the file has taken it");
            assert_eq!(file.table.made() as usize, FRAMES_PER_SEGMENT);
            drop(state);
            assert!(!Arc::ptr_eq(&wait_for_ready().unwrap(), &first), "another one is ready");
        }
        stopper.stop();
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn a_daemon_that_ends_is_an_error_for_its_readers() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), FRAME) else { return };
    let place = tempfile::tempdir().unwrap();
    let daemon = Daemon::bind(service(), place.path().join("socket"), &Options::default()).unwrap();
    let (socket, stopper) = (daemon.path(), daemon.stopper());
    let thread = std::thread::spawn(move || daemon.run());
    let service = Service::connect(&socket).unwrap();
    let reader = service.reader(&path).unwrap();
    let range = reader.fetch(0, 4096).unwrap().wait().unwrap();
    stopper.stop();
    thread.join().unwrap().unwrap();
    assert!(range[..] == content[..4096], "what is pinned stays");
    let gone = reader.fetch(0, 4096).and_then(Fetch::wait);
    assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
    assert!(matches!(reader.fetch(0, 4096), Err(Error::Gone)));
}

/// Number of descriptors of this process that are open for a file.
fn descriptors_of(path: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter(|entry| std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|to| to == path)).count()
}

#[test]
fn a_file_without_readers_is_not_open_and_is_read_again_from_memory() {
    let folder = folder();
    let Some((path, content)) = settled(folder.path(), 2 * FRAME) else { return };
    let service = service();
    let mut since = std::time::Instant::now();
    let mut read = 0;
    for round in 0..3 {
        let is_kept = round > 0 && since.elapsed() < IDLE_TIME / 2;
        let reader = service.reader(&path).unwrap();
        let range = reader.fetch(0, FRAME).unwrap().wait().unwrap();
        assert!(range[..] == content[..FRAME]);
        let more =
            service.statistics().bytes_read - std::mem::replace(&mut read, service.statistics().bytes_read);
        assert!(more == 0 || !is_kept, "round {round}: it is still there");
        assert!(descriptors_of(&path) > 0);
        drop((range, reader));
        since = std::time::Instant::now();
        let begin = since;
        while descriptors_of(&path) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(30), "the file stays open");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // The service opens the file again in order to read it.
    let reader = service.reader(&path).unwrap();
    assert!(reader.fetch(FRAME as u64, FRAME).unwrap().wait().unwrap()[..] == content[FRAME..]);
}
