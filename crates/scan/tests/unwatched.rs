//! Tests of scans that do not watch their files. Each byte is read and delivered once, also when the file changes. Each page has
//! the data by which a worker judges it.

mod common;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bedplate_scan::{
    Channel, Choice, Daemon, Error, FRAME, Got, Kind, Options, PoolOptions, Range, Scan, Service,
};
use common::{Fault, Faults, folder, is_right, write};
use rustix::time::{ClockId, clock_gettime};

const PAGE: usize = 8192;

fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps longer than a tick of the kernel's coarse clock, so that stamps of earlier changes are not racy.
fn rest() {
    std::thread::sleep(Duration::from_millis(30));
}

/// Whether stamps prove anything here, which needs a file that is read with direct I/O.
fn is_direct(path: &Path) -> bool {
    let channel = Service::start().unwrap().open(Scan::of([path])).unwrap();
    let direct = channel.is_direct(0).is_ok();
    if !direct {
        println!("skipped: the build is on a file system without O_DIRECT, of which no page is stable");
    }
    direct
}

/// Changes the file's stamp, but not its content.
fn touch(path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    file.write_all_at(&byte, 0).unwrap();
}

/// Checks the pages of a file that is not changed after it was opened.
fn at_rest(mut channel: Channel, opened: u64, len: u64) {
    let (mut seen, mut bytes) = (HashSet::new(), 0);
    while let Some(page) = channel.next_page().unwrap() {
        assert!(is_right(0, page.offset(), &page) && seen.insert(page.offset()));
        assert!((opened..=monotonic()).contains(&page.read_began()), "{}", page.read_began());
        assert!(page.is_stable() && page.unchanged().unwrap(), "at {}", page.offset());
        bytes += page.len() as u64;
    }
    assert_eq!((bytes, channel.statistics().unstable), (len, 0));
}

#[test]
fn pages_of_files_at_rest_are_stable_and_unchanged() {
    let folder = folder();
    let len = 3 * FRAME + 5000;
    let path = write(folder.path(), 0, len);
    if !is_direct(&path) {
        return;
    }
    rest();
    let service = Service::start().unwrap();
    let opened = monotonic();
    let scan = || Scan::of([&path]).page_size(PAGE).unwrap().unwatched();
    at_rest(service.open(scan()).unwrap(), opened, len as u64);
    let pool = service.make_pool(PoolOptions::of([&path]).unwatched()).unwrap();
    at_rest(service.join(pool.key(), PAGE).unwrap(), opened, len as u64);
    // The same through a daemon.
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let daemon = Daemon::bind(service, &socket, &Options::default()).unwrap();
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.run());
    let remote = Service::connect(&socket).unwrap();
    at_rest(remote.open(scan()).unwrap(), opened, len as u64);
    let other = remote.make_pool(PoolOptions::of([&path]).unwatched()).unwrap();
    for key in [pool.key(), other.key()] {
        at_rest(remote.join(key, PAGE).unwrap(), opened, len as u64);
    }
    stopper.stop();
    thread.join().unwrap().unwrap();
}

/// The file is written all the time. Nothing is read twice, no page is withdrawn, and every page comes.
#[test]
fn changes_take_nothing_back() {
    let folder = folder();
    let frames = 24;
    let path = write(folder.path(), 0, frames * FRAME);
    let over = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (over, path) = (over.clone(), path.clone());
        move || {
            while !over.load(Ordering::Relaxed) {
                touch(&path);
                std::thread::sleep(Duration::from_millis(3));
            }
        }
    });
    let service = Service::start().unwrap();
    let pool = service.make_pool(PoolOptions::of([&path]).unwatched()).unwrap();
    let channels =
        [service.open(Scan::of([&path]).unwatched()).unwrap(), service.join(pool.key(), FRAME).unwrap()];
    for mut channel in channels {
        let (mut seen, mut rested) = (HashSet::new(), false);
        while let Some(page) = channel.next_page().unwrap() {
            assert!(is_right(0, page.offset(), &page) && seen.insert(page.offset()));
            assert!(page.read_began() > 0);
            drop(page);
            if !rested {
                // In this time a service looks at the files that it watches.
                std::thread::sleep(Duration::from_millis(2500));
                rested = true;
            }
        }
        let now = channel.statistics();
        assert_eq!((seen.len(), now.read_again, now.reclaimed), (frames, 0, 0), "{now:?}");
    }
    // Each of the two channels reads the file once.
    assert_eq!(service.statistics().bytes_read, 2 * (frames * FRAME) as u64);
    over.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

/// The file changes between the two reads of its stamp, or after both. The page is then unstable, or no longer unchanged.
#[test]
fn a_page_says_when_its_file_was_changed() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAME);
    if !is_direct(&path) {
        return;
    }
    let (changes, target) = (Arc::new(AtomicU64::new(0)), path.clone());
    let left = changes.clone();
    let faults = Faults::new(|_, _| None).after_reading(move |_| {
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            touch(&target);
        }
    });
    let service =
        Service::builder().engine(Choice::Only(Kind::Threads)).wrap(faults.around()).build().unwrap();
    for during in [1, 0] {
        rest();
        changes.store(during, Ordering::SeqCst);
        let mut channel = service.open(Scan::of([&path]).unwatched()).unwrap();
        let page = channel.next_page().unwrap().unwrap();
        assert!(is_right(0, 0, &page));
        assert_eq!((page.is_stable(), page.unchanged().unwrap()), (during == 0, during == 0));
        rest();
        touch(&path);
        assert!(!page.unchanged().unwrap());
        drop(page);
        assert_eq!(channel.statistics().unstable, during);
        assert!(channel.next_page().unwrap().is_none());
    }
    assert_eq!(faults.reads.load(Ordering::Relaxed), 2);
}

/// If time stamps are coarse, a stamp from right after a change proves nothing. If they are fine, the two writes make different
/// stamps.
#[test]
fn a_change_in_the_same_tick_is_never_taken_for_none() {
    let folder = folder();
    let path = folder.path().join("f");
    std::fs::write(&path, vec![0; FRAME]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let service = Service::start().unwrap();
    for round in 1..200u64 {
        file.write_all_at(&round.to_le_bytes(), 0).unwrap();
        let mut channel = service.open(Scan::of([&path]).unwatched()).unwrap();
        let page = channel.next_page().unwrap().unwrap();
        let seen = u64::from_le_bytes(page[..8].try_into().unwrap());
        assert_eq!(seen, round);
        file.write_all_at(&(1000 + round).to_le_bytes(), 0).unwrap();
        assert!(!page.unchanged().unwrap(), "round {round}");
    }
}

#[test]
fn a_truncated_file_is_an_error_where_it_ends_and_the_scan_goes_on() {
    let folder = folder();
    let len = 10 * FRAME;
    let path = write(folder.path(), 0, len);
    let other = write(folder.path(), 1, FRAME);
    let service = Service::start().unwrap();
    let scan = Scan::of([&path, &other]).page_size(PAGE).unwrap().unwatched().ranges([]);
    let mut channel = service.open(scan).unwrap();
    let end = 3 * FRAME as u64 + 5000;
    OpenOptions::new().write(true).open(&path).unwrap().set_len(end).unwrap();
    let ranges =
        [Range { file: 0, start: 0, end: len as u64 }, Range { file: 1, start: 0, end: FRAME as u64 }];
    channel.notify_ranges(&ranges).unwrap();
    let (mut pages, mut missing) = (0, 0);
    loop {
        match channel.next_page() {
            Ok(Some(page)) => {
                assert!(is_right(page.file(), page.offset(), &page));
                assert!(page.file() == 1 || page.offset() + PAGE as u64 <= end);
                pages += 1;
            }
            Ok(None) => break,
            Err(Error::Truncated { file: 0, offset }) => {
                assert!(offset >= end);
                missing += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let good = (end as usize) / PAGE + FRAME / PAGE;
    assert_eq!((pages, missing), (good, (len + FRAME) / PAGE - good));
}

/// The scan reads the file that it opened, also after its name is deleted or taken by another file.
#[test]
fn a_file_that_is_replaced_or_deleted_is_read_on() {
    let folder = folder();
    let frames = 30;
    let path = write(folder.path(), 0, frames * FRAME);
    let other = write(folder.path(), 1, frames * FRAME);
    let service = Service::start().unwrap();
    let mut channels = [true, false].map(|replaces| {
        let mut channel = service.open(Scan::of([&path]).unwatched()).unwrap();
        channel.next_page().unwrap().unwrap();
        if replaces {
            // For a while another file has the name.
            let away = folder.path().join("away");
            std::fs::rename(&path, &away).unwrap();
            std::fs::rename(&other, &path).unwrap();
            std::fs::rename(&away, &path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        channel
    });
    std::thread::sleep(Duration::from_millis(1200));
    for channel in &mut channels {
        let mut pages = 1;
        while let Some(page) = channel.next_page().unwrap() {
            assert!(is_right(0, page.offset(), &page));
            pages += 1;
        }
        assert_eq!(pages, frames);
    }
}

/// A file system in memory may accept `O_DIRECT` and still copy from the page cache. So it may copy half of a write.
#[test]
fn pages_of_files_in_memory_are_not_stable() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: there is no /dev/shm");
        return;
    };
    let path = write(folder.path(), 0, FRAME + 5000);
    rest();
    let mut channel = Service::start().unwrap().open(Scan::of([&path]).unwatched()).unwrap();
    channel.is_direct(0).unwrap_err();
    let mut bytes = 0;
    while let Some(page) = channel.next_page().unwrap() {
        assert!(is_right(0, page.offset(), &page) && !page.is_stable());
        assert!(page.unchanged().unwrap(), "that is a matter of stamps alone");
        bytes += page.len();
    }
    assert_eq!((bytes, channel.statistics().unstable), (FRAME + 5000, 2));
}

/// A channel that watches its files cannot judge pages, and returns an error.
#[test]
fn watched_pages_are_not_judged() {
    let folder = folder();
    let path = write(folder.path(), 0, FRAME);
    let service = Service::start().unwrap();
    let mut channel = service.open(Scan::of([&path])).unwrap();
    let page = channel.next_page().unwrap().unwrap();
    assert_eq!((page.read_began(), page.is_stable()), (0, false));
    let error = page.unchanged().unwrap_err();
    assert!(matches!(&error, Error::Invalid(text) if text.contains("unwatched")), "{error}");
}

/// In another channel, the page's file index may be of another file.
#[test]
fn a_page_is_judged_by_its_own_channel_only() {
    let folder = folder();
    let paths = [0, 1].map(|file| write(folder.path(), file, FRAME));
    let service = Service::start().unwrap();
    let [mut one, mut other] =
        paths.each_ref().map(|path| service.open(Scan::of([path]).unwatched()).unwrap());
    let Got::Page(piece) = one.wait_for_page(None).unwrap() else { panic!("there is a page") };
    let owned = other.next_owned().unwrap().unwrap();
    one.unchanged(&piece).unwrap();
    other.unchanged(&owned).unwrap();
    for error in [one.unchanged(&owned).unwrap_err(), other.unchanged(&piece).unwrap_err()] {
        assert!(matches!(&error, Error::Invalid(text) if text.contains("another channel's")), "{error}");
    }
}

/// Each page has the time before its own read. A later read has a later time.
#[test]
fn reads_begin_after_they_were_announced() {
    let folder = folder();
    let path = write(folder.path(), 0, 4 * FRAME);
    let faults = Faults::new(|_, _| Some(Fault::Slow(Duration::from_millis(20))));
    let service = Service::builder().wrap(faults.around()).build().unwrap();
    let mut channel = service.open(Scan::of([&path]).unwatched().ranges([])).unwrap();
    for frame in 0..4 {
        let announced = monotonic();
        let (start, end) = (frame * FRAME as u64, (frame + 1) * FRAME as u64);
        channel.notify_ranges(&[Range { file: 0, start, end }]).unwrap();
        let page = channel.next_page().unwrap().unwrap();
        let now = monotonic();
        // The fault delays the read after its submission, and `read_began` is the time before that.
        assert!(announced <= page.read_began() && page.read_began() + 20_000_000 <= now);
    }
}
