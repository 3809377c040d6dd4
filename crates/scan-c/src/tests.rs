//! Tests that C programs cannot contain: panics, and pages that are missing one by one.

use crate::code::{answer, bp_scan_code};
use bedplate_c_support::table::{Bad, Table};

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
    // The handle can be closed. The check, which would refuse this, is not called.
    assert_eq!(TABLE.remove(handle, |_| Err(Bad::Broken)), Ok(1));
    assert_eq!(TABLE.enter(handle).err(), Some(Bad::Closed));
}

/// Each missing page is an error that names the page. The next call continues with the page after it.
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
        flags: 0,
        pages_held: 0,
    };
    let mut channel = bp_scan_channel { handle: 0 };
    let own = bp_scan_service { handle: 0 };
    // SAFETY: all pointers point to live objects.
    assert_eq!(unsafe { bp_scan_open(own, &raw const options, &raw mut channel) }, 0);
    file.set_len(10 * PAGE + 5000).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { bp_scan_notify_ranges(channel, &raw const range, 1) }, 0);
    let mut page = bp_scan_page {
        data: std::ptr::null(),
        len: 0,
        offset: 0,
        file: 0,
        flags: 0,
        read_began_ns: 0,
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
