//! Channels: one worker's stream of pages.
//!
//! In Rust, borrows ensure that a page is returned once and to its channel, and is not used afterwards. In C, every page has a
//! number, its *ticket*, and the channel knows the tickets of the pages that are out.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use bedplate_c_support::input::{Sized, sized};
use bedplate_c_support::output;
use bedplate_c_support::table::{Entered, Table};
use bedplate_scan::{Channel, Delivered, Error, OwnedGot, OwnedPage, Pages, Scan};

use crate::code::bp_scan_code::*;
use crate::code::{Answer, Refusal, answer};
use crate::input::{bp_scan_range, bp_scan_source, held, is_unwatched, null, ranges, sources};
use crate::service::{bp_scan_service, service};

struct Open {
    channel: Channel,
    tickets: u64,
    /// The pages that are out, by their tickets.
    out: Vec<(u64, OwnedPage)>,
}

impl Open {
    /// The index in `out` of a page that the program passes.
    fn find(&self, handle: u64, page: &bp_scan_page) -> Result<usize, Refusal> {
        if page.channel != handle {
            return Err(Refusal::new(BP_SCAN_ERROR_PAGE, "the page is not of this channel"));
        }
        if self.out.is_empty() {
            return Err(Error::NotHeld.into());
        }
        let of_page = |(ticket, _): &(u64, OwnedPage)| *ticket == page.ticket;
        let found = self.out.iter().position(of_page);
        found.ok_or_else(|| Refusal::new(BP_SCAN_ERROR_PAGE, "the page is not one that is out"))
    }
}

static CHANNELS: Table<Open> = Table::new(b'C');

/// One worker's stream of pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_channel {
    /// Its number; never 0.
    pub handle: u64,
}

/// The options of a scan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_options {
    /// sizeof(struct bp_scan_options)
    pub size: usize,
    /// The files.
    pub sources: *const bp_scan_source,
    /// Number of files.
    pub source_count: usize,
    /// The bytes to scan, in this order; NULL: all of every file. With `range_count` 0 and not NULL: none yet.
    pub ranges: *const bp_scan_range,
    /// Number of ranges.
    pub range_count: usize,
    /// The size of pages: a power of two from 4 KiB to 2 MiB; 0: 2 MiB. A page never crosses a multiple of its size in its file.
    pub page_size: usize,
    /// The memory of the channel: 4 MiB to 1 GiB; 0: 32 MiB. If several pages may be out, it must have 2 MiB for each of them,
    /// and 4 MiB more.
    pub ring_bytes: usize,
    /// 0 or BP_SCAN_UNWATCHED.
    pub flags: u32,
    /// Maximum number of pages that may be out at a time: 1 to BP_SCAN_PAGES_HELD_MAX; 0: 1.
    pub pages_held: u32,
}

// SAFETY: the structure has only pointers and integers, without padding.
unsafe impl Sized for bp_scan_options {
    const FIRST: usize = 56;
}

/// Some bytes of a file, in the memory that the device wrote them to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_page {
    /// The bytes. The program may read them until the page is returned.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
    /// The offset of the bytes in the file.
    pub offset: u64,
    /// The file of the scan, counted from 0.
    pub file: u32,
    /// 0 or BP_SCAN_PAGE_STABLE.
    pub flags: u32,
    /// The time before the read of the bytes was submitted, by CLOCK_MONOTONIC. 0 in a channel that watches its files. The clock
    /// is that of the process that reads: if a daemon reads in another time namespace, its clock has another offset.
    pub read_began_ns: u64,
    /// For the library, which identifies the page by it when the page is returned.
    pub channel: u64,
    /// Likewise.
    pub ticket: u64,
}

/// The kind of memory that pages are in.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_scan_memory {
    /// Another kind.
    BP_SCAN_MEMORY_OTHER = 0,
    /// Huge pages that the administrator reserved.
    BP_SCAN_MEMORY_RESERVED = 1,
    /// Transparent huge pages.
    BP_SCAN_MEMORY_TRANSPARENT = 2,
    /// Pages of 4 KiB.
    BP_SCAN_MEMORY_NORMAL = 3,
}

/// The properties of a channel, and its counts so far.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_statistics {
    /// Bytes of the scan, with the ranges that were added.
    pub total_bytes: u64,
    /// The size of pages.
    pub page_size: u64,
    /// The kind of its memory: one of bp_scan_memory.
    pub memory: u32,
    /// Number of files of the scan.
    pub files: u32,
    /// Frames of up to 2 MiB that the worker has finished.
    pub frames: u64,
    /// Bytes in these frames.
    pub bytes: u64,
    /// Nanoseconds that the worker spent on them.
    pub ingest_ns: u64,
    /// Number of times that there was no page when the worker wanted one.
    pub starved: u64,
    /// Nanoseconds that it waited for a page.
    pub starved_ns: u64,
    /// System calls that it made.
    pub calls: u64,
    /// Bytes that were read from files for this channel alone.
    pub bytes_read: u64,
    /// Number of pages that were read again because their file changed meanwhile.
    pub read_again: u64,
    /// Frames that were taken back before the worker used them.
    pub reclaimed: u64,
    /// Frames that are ready now and unread.
    pub unread: u64,
    /// Current maximum of that number.
    pub watermark: u64,
    /// Bytes that were cancelled.
    pub cancelled: u64,
    /// Pages that the worker got without BP_SCAN_PAGE_STABLE, in a channel that does not watch its files.
    pub unstable: u64,
    /// Maximum number of pages that may be out at a time.
    pub pages_held: u64,
}

/// Makes a handle for a channel.
///
/// # Safety
/// `place` is writable.
pub unsafe fn give(channel: Channel, place: *mut bp_scan_channel) -> Answer {
    let full = |_| Refusal::new(BP_SCAN_ERROR_FULL, "there are too many channels");
    let handle = CHANNELS.insert(Open { channel, tickets: 0, out: Vec::new() }).map_err(full)?;
    // SAFETY: the caller guarantees this.
    unsafe { place.write_unaligned(bp_scan_channel { handle }) };
    Ok(BP_SCAN_OK)
}

/// Opens a channel (zicio_open). Reading begins at once.
///
/// # Safety
/// `options` is NULL or as long as its size says, with arrays of the stated lengths; `opened` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_open(
    service: bp_scan_service,
    options: *const bp_scan_options,
    opened: *mut bp_scan_channel,
) -> c_int {
    answer(|| {
        if opened.is_null() {
            return Err(null("no place for the channel"));
        }
        // SAFETY: the caller guarantees this.
        let options = unsafe { sized(options, "the options") }?;
        // SAFETY: the caller guarantees this.
        let mut scan = Scan::of(unsafe { sources(options.sources, options.source_count) }?);
        if !options.ranges.is_null() || options.range_count != 0 {
            // SAFETY: the caller guarantees this.
            scan = scan.ranges(unsafe { ranges(options.ranges, options.range_count) }?);
        }
        if options.page_size != 0 {
            scan = scan.page_size(options.page_size)?;
        }
        if options.ring_bytes != 0 {
            scan = scan.ring_bytes(options.ring_bytes)?;
        }
        if is_unwatched(options.flags)? {
            scan = scan.unwatched();
        }
        scan = scan.pages_held(held(options.pages_held))?;
        let channel = self::service(service)?.open(scan)?;
        // SAFETY: the caller guarantees this.
        unsafe { give(channel, opened) }
    })
}

/// Closes a channel (zicio_close). Fails with BP_SCAN_ERROR_HELD while a page is out, because its memory would be unmapped.
#[unsafe(no_mangle)]
pub extern "C" fn bp_scan_close(channel: bp_scan_channel) -> c_int {
    answer(|| {
        let held = |open: &Open| match open.out.as_slice() {
            [] => Ok(()),
            _ => Err(Refusal::from(Error::Held)),
        };
        drop(CHANNELS.remove(channel.handle, held)?);
        Ok(BP_SCAN_OK)
    })
}

/// Closes a channel even if pages are out, to clean up after errors. No thread may read these pages any more.
#[unsafe(no_mangle)]
pub extern "C" fn bp_scan_abandon(channel: bp_scan_channel) -> c_int {
    answer(|| {
        drop(CHANNELS.remove::<Refusal>(channel.handle, |_| Ok(()))?);
        Ok(BP_SCAN_OK)
    })
}

/// Returns the next page (zicio_get_page), if it is ready. This never waits, and in steady state it makes no system call.
///
/// - BP_SCAN_OK: `page` is filled in. Return it with bp_scan_put_page().
/// - BP_SCAN_NOT_YET: the page has not been read yet. The call may have made a system call, which tells the service that the page
///   is wanted.
/// - BP_SCAN_END: the scan is over.
/// - BP_SCAN_ERROR_READ and the three codes after it: a page cannot be delivered. `page` says which one. The next call concerns
///   the page after it.
/// - BP_SCAN_ERROR_HELD: the maximum number of pages is out. With this and all other errors, `page` stays as it is.
///
/// # Safety
/// `page` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_get_page(channel: bp_scan_channel, page: *mut bp_scan_page) -> c_int {
    // SAFETY: the caller guarantees this.
    answer(|| unsafe { next(channel, page, Some(0)) })
}

/// Does the same as bp_scan_get_page(), but waits up to `timeout_ns` nanoseconds for a page; BP_SCAN_FOREVER: without a limit.
///
/// # Safety
/// `page` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_next_page(
    channel: bp_scan_channel,
    page: *mut bp_scan_page,
    timeout_ns: i64,
) -> c_int {
    answer(|| {
        let most = match timeout_ns {
            -1 => None,
            0.. => Some(timeout_ns as u64),
            _ => {
                let text = format!("a time of {timeout_ns} nanoseconds");
                return Err(Refusal::new(BP_SCAN_ERROR_INVALID, text));
            }
        };
        // SAFETY: the caller guarantees this.
        unsafe { next(channel, page, most) }
    })
}

/// # Safety
/// `place` is writable or NULL.
unsafe fn next(channel: bp_scan_channel, place: *mut bp_scan_page, most: Option<u64>) -> Answer {
    if place.is_null() {
        return Err(null("no place for the page"));
    }
    let mut open = CHANNELS.enter(channel.handle)?;
    let mut page = bp_scan_page {
        data: ptr::null(),
        len: 0,
        offset: 0,
        file: 0,
        flags: 0,
        read_began_ns: 0,
        channel: 0,
        ticket: 0,
    };
    let answer = match got(&mut open, most) {
        Ok(OwnedGot::Page(owned)) => {
            /// BP_SCAN_PAGE_STABLE
            const STABLE: u32 = 1;
            let piece = owned.piece();
            open.tickets += 1;
            page = bp_scan_page {
                data: piece.start,
                len: piece.len,
                offset: piece.offset,
                file: piece.file,
                flags: if piece.is_stable() { STABLE } else { 0 },
                read_began_ns: piece.read_began_ns,
                channel: channel.handle,
                ticket: open.tickets,
            };
            open.out.push((page.ticket, owned));
            Ok(BP_SCAN_OK)
        }
        Ok(OwnedGot::NotYet) => Ok(BP_SCAN_NOT_YET),
        Ok(OwnedGot::End) => Ok(BP_SCAN_END),
        Err(error) => {
            (page.file, page.offset) = match error {
                Error::Read { file, offset, .. }
                | Error::Truncated { file, offset }
                | Error::Changing { file, offset }
                | Error::Replaced { file, offset } => (file, offset),
                // Other errors leave the structure unchanged, because it may describe a page that is out.
                error => return Err(error.into()),
            };
            Err(error.into())
        }
    };
    // SAFETY: the caller guarantees this.
    unsafe { place.write_unaligned(page) };
    answer
}

fn got(open: &mut Open, most: Option<u64>) -> Result<OwnedGot, Error> {
    match most {
        Some(0) => open.channel.get_owned(),
        most => open.channel.wait_for_owned(most.map(Duration::from_nanos)),
    }
}

/// Returns a page (zicio_put_page). If several are out, they can be returned in any order.
///
/// # Safety
/// `page` is readable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_put_page(channel: bp_scan_channel, page: *const bp_scan_page) -> c_int {
    answer(|| {
        if page.is_null() {
            return Err(null("no page"));
        }
        // SAFETY: the caller guarantees this.
        let page = unsafe { page.read_unaligned() };
        let mut open = CHANNELS.enter(channel.handle)?;
        let place = open.find(channel.handle, &page)?;
        drop(open.out.swap_remove(place));
        Ok(BP_SCAN_OK)
    })
}

/// Tells whether the file of a page is unchanged since before the page was read. This makes one statx() call, and compares the
/// file's stamp (see BP_SCAN_PAGE_STABLE) with the one from before the read. The channel must not watch its files, and the page
/// must be out. `unchanged` is false if equal stamps would prove nothing. That is so for block devices and for files of network
/// file systems. It is also so for a file that was changed just before it was read, where the kernel's time stamps are coarse.
///
/// # Safety
/// `page` is readable or NULL, and `unchanged` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_unchanged(
    channel: bp_scan_channel,
    page: *const bp_scan_page,
    unchanged: *mut bool,
) -> c_int {
    answer(|| {
        if page.is_null() || unchanged.is_null() {
            return Err(null("no page, or no place for the answer"));
        }
        // SAFETY: the caller guarantees this.
        let page = unsafe { page.read_unaligned() };
        let open = CHANNELS.enter(channel.handle)?;
        let place = open.find(channel.handle, &page)?;
        let is_unchanged = open.out[place].1.unchanged()?;
        // SAFETY: the caller guarantees this.
        unsafe { unchanged.write(is_unchanged) };
        Ok(BP_SCAN_OK)
    })
}

/// Cancels ranges that were announced: bytes of them that have not been handed out will not be. `cancelled`, which may be NULL,
/// gets the number of these bytes. Ranges that are announced again afterwards are delivered. Pools do not support this.
///
/// # Safety
/// `ranges` points to `range_count` ranges, or is NULL; `cancelled` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_cancel_ranges(
    channel: bp_scan_channel,
    ranges: *const bp_scan_range,
    range_count: usize,
    cancelled: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: the caller guarantees this.
        let ranges = unsafe { self::ranges(ranges, range_count) }?;
        let bytes = CHANNELS.enter(channel.handle)?.channel.cancel_ranges(&ranges)?;
        if !cancelled.is_null() {
            // SAFETY: the caller guarantees this.
            unsafe { cancelled.write_unaligned(bytes) };
        }
        Ok(BP_SCAN_OK)
    })
}

/// Gives a descriptor that poll(), epoll and similar calls report as readable when bp_scan_get_page() would return anything else
/// than BP_SCAN_NOT_YET. It may be readable once in vain, until bp_scan_get_page() has returned that. It belongs to the channel,
/// and is closed with it: do not read from it or close it.
///
/// # Safety
/// `descriptor` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_descriptor(channel: bp_scan_channel, descriptor: *mut c_int) -> c_int {
    answer(|| {
        if descriptor.is_null() {
            return Err(null("no place for the descriptor"));
        }
        let number = CHANNELS.enter(channel.handle)?.channel.descriptor()?.as_raw_fd();
        // SAFETY: the caller guarantees this.
        unsafe { descriptor.write_unaligned(number) };
        Ok(BP_SCAN_OK)
    })
}

/// Adds ranges to the scan (zicio_notify_ranges), after its present ranges. At most 1048576 may be announced and not read yet,
/// and each call counts as one more. Pools do not support this.
///
/// # Safety
/// `ranges` points to `range_count` ranges, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_notify_ranges(
    channel: bp_scan_channel,
    ranges: *const bp_scan_range,
    range_count: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller guarantees this.
        let ranges = unsafe { self::ranges(ranges, range_count) }?;
        CHANNELS.enter(channel.handle)?.channel.notify_ranges(&ranges)?;
        Ok(BP_SCAN_OK)
    })
}

/// Tells whether reads of a file of the scan bypass the page cache.
///
/// # Safety
/// `direct` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_is_direct(channel: bp_scan_channel, file: u32, direct: *mut bool) -> c_int {
    answer(|| {
        if direct.is_null() {
            return Err(null("no place for the answer"));
        }
        let open = CHANNELS.enter(channel.handle)?;
        if file as usize >= open.channel.files() {
            return Err(Refusal::new(BP_SCAN_ERROR_INVALID, format!("the scan has no file {file}")));
        }
        // SAFETY: the caller guarantees this.
        unsafe { direct.write(open.channel.is_direct(file).is_ok()) };
        Ok(BP_SCAN_OK)
    })
}

/// Gives the properties of a channel, and its counts so far. `size` is sizeof the structure.
///
/// # Safety
/// `statistics` has `size` writable bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_get_statistics(
    channel: bp_scan_channel,
    statistics: *mut bp_scan_statistics,
    size: usize,
) -> c_int {
    answer(|| {
        if statistics.is_null() {
            return Err(null("no place for the statistics"));
        }
        let now = of(&CHANNELS.enter(channel.handle)?);
        // SAFETY: the caller guarantees this. The structure has no padding.
        unsafe { output::sized(&now, statistics, size) };
        Ok(BP_SCAN_OK)
    })
}

fn of(open: &Entered<Open>) -> bp_scan_statistics {
    let (channel, now) = (&open.channel, open.channel.statistics());
    let memory = match channel.memory() {
        Pages::Reserved => bp_scan_memory::BP_SCAN_MEMORY_RESERVED,
        Pages::Transparent => bp_scan_memory::BP_SCAN_MEMORY_TRANSPARENT,
        Pages::Normal => bp_scan_memory::BP_SCAN_MEMORY_NORMAL,
        _ => bp_scan_memory::BP_SCAN_MEMORY_OTHER,
    };
    bp_scan_statistics {
        total_bytes: channel.total_bytes(),
        page_size: channel.page_size() as u64,
        memory: memory as u32,
        files: channel.files() as u32,
        frames: now.frames,
        bytes: now.bytes,
        ingest_ns: now.ingest_ns,
        starved: now.starved,
        starved_ns: now.starved_ns,
        calls: now.calls,
        bytes_read: now.bytes_read,
        read_again: now.read_again,
        reclaimed: now.reclaimed,
        unread: now.unread,
        watermark: now.watermark,
        cancelled: now.cancelled,
        unstable: now.unstable,
        pages_held: channel.pages_held() as u64,
    }
}
