//! What C cannot show: handles under many threads, panics, and numbers of uses that run out.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::code::{Refusal, answer, bp_scan_code};
use crate::input::{Sized, sized};
use crate::table::{Bad, Table};

#[test]
fn handles_of_the_past_are_known_as_such() {
    static TABLE: Table<String> = Table::new(7);
    let first = TABLE.insert("first".into()).unwrap();
    assert_eq!(*TABLE.enter(first).unwrap(), "first");
    assert_eq!(TABLE.remove::<Bad>(first, |_| Ok(())).unwrap(), "first");
    let second = TABLE.insert("second".into()).unwrap();
    assert_ne!(first, second);
    assert_eq!(TABLE.enter(first).err(), Some(Bad::Closed));
    assert_eq!(TABLE.remove::<Bad>(first, |_| Ok(())), Err(Bad::Closed));
    for wrong in [0, second + 1, second + (1 << 32), second + (1 << 50), second ^ 1 << 56, u64::MAX, 7 << 56]
    {
        assert_eq!(TABLE.enter(wrong).err(), Some(Bad::Unknown), "{wrong:#x}");
    }
    let inside = TABLE.enter(second).unwrap();
    assert_eq!(TABLE.enter(second).err(), Some(Bad::Busy));
    assert_eq!(TABLE.remove::<Bad>(second, |_| Ok(())), Err(Bad::Busy));
    drop(inside);
    assert_eq!(TABLE.remove(second, |_| Err(Bad::Broken)), Err(Bad::Broken));
    assert_eq!(*TABLE.enter(second).unwrap(), "second");
}

/// Threads enter, close and open the same handles; each object is closed once, and used by one thread at a time.
#[test]
fn threads_meet_in_handles() {
    static TABLE: Table<usize> = Table::new(8);
    static REMOVED: AtomicUsize = AtomicUsize::new(0);
    const OBJECTS: usize = 3000;
    let handles: Vec<u64> = (0..OBJECTS).map(|n| TABLE.insert(n * 1000).unwrap()).collect();
    let entered: usize = std::thread::scope(|scope| {
        let work = || {
            let mut entered = 0;
            for handle in &handles {
                if let Ok(mut inside) = TABLE.enter_in_turn(*handle) {
                    *inside += 1;
                    entered += 1;
                }
            }
            for (n, handle) in handles.iter().enumerate() {
                if let Ok(count) = TABLE.remove::<Bad>(*handle, |_| Ok(())) {
                    assert_eq!(count / 1000, n);
                    REMOVED.fetch_add(1, Ordering::Relaxed);
                }
            }
            entered
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(entered >= OBJECTS);
    assert_eq!(REMOVED.load(Ordering::Relaxed), OBJECTS);
    assert!(handles.iter().all(|handle| TABLE.enter(*handle).err() == Some(Bad::Closed)));
}

#[test]
fn no_panic_gets_out_and_what_it_left_is_not_used() {
    static TABLE: Table<u32> = Table::new(9);
    let handle = TABLE.insert(1).unwrap();
    let code = answer(|| {
        let _inside = TABLE.enter(handle)?;
        panic!("as it should");
    });
    assert_eq!(code, bp_scan_code::BP_SCAN_ERROR_INTERNAL as i32);
    assert_eq!(TABLE.enter(handle).err(), Some(Bad::Broken));
    // It can be closed, whatever the check would have said.
    assert_eq!(TABLE.remove(handle, |_| Err(Bad::Broken)), Ok(1));
    assert_eq!(TABLE.enter(handle).err(), Some(Bad::Closed));
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grown {
    size: usize,
    old: u64,
    new: u64,
}

// SAFETY: integers, without gaps.
unsafe impl Sized for Grown {
    const FIRST: usize = 16;
}

/// Programs that were compiled for earlier and later versions.
#[test]
fn structures_grow() {
    let read = |words: &[usize]| -> Result<Grown, Refusal> {
        // SAFETY: no size below is more than there is, or it is refused.
        unsafe { sized(words.as_ptr().cast(), "x") }
    };
    assert_eq!(read(&[16, 5, 99]).unwrap(), Grown { size: 16, old: 5, new: 0 });
    assert_eq!(read(&[24, 5, 6]).unwrap(), Grown { size: 24, old: 5, new: 6 });
    assert_eq!(read(&[32, 5, 6, 0]).unwrap(), Grown { size: 32, old: 5, new: 6 });
    for wrong in [&[32, 5, 6, 1][..], &[0, 5, 6], &[15, 5, 6], &[usize::MAX, 5, 6]] {
        assert_eq!(read(wrong).unwrap_err().code, bp_scan_code::BP_SCAN_ERROR_INVALID);
    }
    // SAFETY: NULL is refused.
    let refused = unsafe { sized::<Grown>(std::ptr::null(), "x") };
    assert_eq!(refused.unwrap_err().code, bp_scan_code::BP_SCAN_ERROR_NULL);
}

/// Each page that is missing is an error that says which one, and the next call is about the one after it.
#[test]
fn pages_that_are_missing_are_named() {
    use crate::*;
    use std::os::fd::AsRawFd;

    const PAGE: u64 = 8192;
    let file = tempfile::tempfile().unwrap();
    file.set_len(64 * PAGE).unwrap();
    let source = bp_scan_source { path: std::ptr::null(), fd: file.as_raw_fd(), flags: 1 };
    let range = bp_scan_range { start: 0, end: 64 * PAGE, file: 0, reserved: 0 };
    let options = bp_scan_options {
        size: size_of::<bp_scan_options>(),
        sources: &raw const source,
        source_count: 1,
        ranges: &raw const range,
        range_count: 0,
        page_size: PAGE as usize,
        ring_bytes: 0,
    };
    let mut channel = bp_scan_channel { handle: 0 };
    let own = bp_scan_service { handle: 0 };
    // SAFETY: what it points to is there.
    assert_eq!(unsafe { bp_scan_open(own, &raw const options, &raw mut channel) }, 0);
    file.set_len(10 * PAGE + 5000).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { bp_scan_notify_ranges(channel, &raw const range, 1) }, 0);
    let mut page = bp_scan_page {
        data: std::ptr::null(),
        len: 0,
        offset: 0,
        file: 0,
        reserved: 0,
        channel: 0,
        ticket: 0,
    };
    for number in 0..64 {
        // SAFETY: the page is writable.
        let code = unsafe { bp_scan_next_page(channel, &raw mut page, -1) };
        if number < 10 {
            assert_eq!((code, page.offset, page.len), (0, number * PAGE, PAGE as usize));
            // SAFETY: as above.
            assert_eq!(unsafe { bp_scan_put_page(channel, &raw const page) }, 0);
        } else {
            let missing = (number * PAGE).max(10 * PAGE + 5000);
            assert_eq!(code, bp_scan_code::BP_SCAN_ERROR_TRUNCATED as i32);
            assert_eq!((page.file, page.offset, page.len), (0, missing, 0));
        }
    }
    // SAFETY: as above.
    let code = unsafe { bp_scan_next_page(channel, &raw mut page, -1) };
    assert_eq!(code, bp_scan_code::BP_SCAN_END as i32);
    assert_eq!(bp_scan_close(channel), 0);
}
