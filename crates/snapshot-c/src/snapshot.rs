//! Snapshots that threads of this process hold and read, and the changes between two of them.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use bedplate_c_support::output;
use bedplate_c_support::table::{Bad, Table};
use bedplate_snapshot::{Bookmark, Snapshot};

use crate::code::bp_snapshot_code::*;
use crate::code::{Refusal, answer};
use crate::memory::{Space, bp_snapshot_memory, store};
use crate::seal::seal;

static SNAPSHOTS: Table<Held> = Table::new(b'V');

/// A memory as it was at one moment, for threads of this process. It ends when all of its handles are released.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot {
    /// The number of this handle; never 0.
    pub handle: u64,
}

/// A memory as it was, at the address where a thread or a task reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_view {
    /// The old bytes of the memory. They can only be read.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
    /// The owner's address of the memory. If this is `data`, pointers in the data can be followed. Otherwise they lead to the
    /// current content.
    pub home: *const u8,
}

/// The properties of a snapshot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_info {
    /// Its number. Later snapshots of a memory have greater numbers.
    pub epoch: u64,
    /// Nanoseconds for which it stopped the memory's writers.
    pub pause_ns: u64,
}

/// A part of a memory: the bytes from `start` up to `end`, exclusive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_range {
    /// The first byte, counted from the memory's beginning.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl From<Range<usize>> for bp_snapshot_range {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// The moment of a snapshot, for comparisons with later snapshots, even after the snapshot has ended. It holds no resources, and
/// can be copied. It is valid only in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_bookmark {
    /// For the library.
    pub word: [u64; 4],
}

#[derive(Clone)]
struct Held {
    snapshot: Snapshot,
    /// The owner's address of the memory.
    home: usize,
}

fn held(snapshot: bp_snapshot) -> Result<Held, Bad> {
    Ok(SNAPSHOTS.enter_in_turn(snapshot.handle)?.clone())
}

/// Makes a handle of a snapshot.
///
/// # Safety
/// `place` is writable.
unsafe fn give(held: Held, place: *mut bp_snapshot) -> Result<(), Refusal> {
    let handle = SNAPSHOTS.insert(held).map_err(Refusal::full)?;
    // SAFETY: guaranteed by the caller.
    unsafe { place.write_unaligned(bp_snapshot { handle }) };
    Ok(())
}

/// Takes a snapshot that any thread of this process can read, at another address than the memory's. With remap there is one at a
/// time, and with uffd up to 16. The other engines only support tasks.
///
/// # Safety
/// `taken` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_take(memory: bp_snapshot_memory, taken: *mut bp_snapshot) -> c_int {
    answer(|| {
        if taken.is_null() {
            return Err(Refusal::null("no place for the snapshot"));
        }
        let store = store(memory)?;
        let snapshot = match &store.space {
            Space::Memory(memory) => memory.snapshot(),
            Space::Heap(heap) => heap.snapshot(),
        }?;
        // SAFETY: guaranteed by the caller.
        unsafe { give(Held { snapshot, home: store.base().as_ptr() as usize }, taken) }?;
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Makes another handle of a snapshot, which is released separately: for a thread that may read longer than the others.
///
/// # Safety
/// `cloned` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_clone(snapshot: bp_snapshot, cloned: *mut bp_snapshot) -> c_int {
    answer(|| {
        if cloned.is_null() {
            return Err(Refusal::null("no place for the handle"));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { give(held(snapshot)?, cloned) }?;
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Releases a handle of a snapshot. After the last one is released, no thread may read the snapshot's bytes any more.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_release(snapshot: bp_snapshot) -> c_int {
    answer(|| {
        drop(SNAPSHOTS.remove_in_turn(snapshot.handle)?);
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Gives the address of a snapshot's bytes. They exist until its last handle is released. `size` is sizeof the structure.
///
/// # Safety
/// `view` has `size` writable bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_get_view(
    snapshot: bp_snapshot,
    view: *mut bp_snapshot_view,
    size: usize,
) -> c_int {
    answer(|| {
        if view.is_null() {
            return Err(Refusal::null("no place for the view"));
        }
        let Held { snapshot, home } = held(snapshot)?;
        let bytes = snapshot.bytes();
        let now = bp_snapshot_view {
            data: bytes.as_ptr(),
            len: bytes.len(),
            home: std::ptr::with_exposed_provenance(home),
        };
        // SAFETY: guaranteed by the caller; the structure has no gaps.
        unsafe { output::sized(&now, view, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Returns the address in a view of the `len` bytes that the owner had at its own address `owners`; NULL if not all of them are
/// in the view.
///
/// # Safety
/// `view` was filled in by bp_snapshot_get_view(), or is that of a task, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_bytes_at(
    view: *const bp_snapshot_view,
    owners: *const c_void,
    len: usize,
) -> *const c_void {
    if view.is_null() {
        return std::ptr::null();
    }
    // SAFETY: guaranteed by the caller.
    let view = unsafe { view.read_unaligned() };
    let inside = (owners as usize)
        .checked_sub(view.home as usize)
        .filter(|start| start.checked_add(len).is_some_and(|end| end <= view.len));
    inside.map_or(std::ptr::null(), |start| view.data.wrapping_add(start).cast())
}

/// Tells whether all bytes that were read from a snapshot before this call are the old content of the memory.
/// BP_SNAPSHOT_ERROR_INCOMPLETE: there was no memory for a page that it shared with its owner, so the bytes do not count. With
/// remap this never happens.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_check(snapshot: bp_snapshot) -> c_int {
    answer(|| {
        held(snapshot)?.snapshot.check()?;
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Gives a snapshot's number, and the time for which it stopped writers. `size` is sizeof the structure.
///
/// # Safety
/// `info` has `size` writable bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_get_info(
    snapshot: bp_snapshot,
    info: *mut bp_snapshot_info,
    size: usize,
) -> c_int {
    answer(|| {
        if info.is_null() {
            return Err(Refusal::null("no place for what the snapshot is"));
        }
        let Held { snapshot, .. } = held(snapshot)?;
        let now = bp_snapshot_info { epoch: snapshot.epoch(), pause_ns: snapshot.pause().as_nanos() as u64 };
        // SAFETY: guaranteed by the caller; the structure has no gaps.
        unsafe { output::sized(&now, info, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// The number that seals of bookmarks have in place of an address.
const BOOKMARK: u64 = b'B' as u64;

/// Gives the moment of a snapshot, for bp_snapshot_changed_since(). The memory must track changes.
///
/// # Safety
/// `bookmark` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_get_bookmark(
    snapshot: bp_snapshot,
    bookmark: *mut bp_snapshot_bookmark,
) -> c_int {
    answer(|| {
        if bookmark.is_null() {
            return Err(Refusal::null("no place for the bookmark"));
        }
        let words = held(snapshot)?.snapshot.bookmark()?.to_words();
        let [memory, epoch, bytes] = words;
        let word = [memory, epoch, bytes, seal(BOOKMARK, &words)];
        // SAFETY: guaranteed by the caller.
        unsafe { bookmark.write_unaligned(bp_snapshot_bookmark { word }) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Gives the parts of a memory that were written between an earlier snapshot, whose bookmark is `earlier`, and this snapshot:
/// ranges of whole pages, in ascending order, from the byte `from` on. A page is also in one if a thread began its first write to
/// it before this snapshot, and the write took effect after it. The last range is the part by which the memory has grown. The
/// function fills in at most `capacity` ranges, and their number at `count`. BP_SNAPSHOT_OK: there are no more. BP_SNAPSHOT_MORE:
/// call again, with `from` the end of the last range.
///
/// # Safety
/// `earlier` is readable or NULL; `ranges` has room for `capacity` ranges, or is NULL; `count` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_changed_since(
    snapshot: bp_snapshot,
    earlier: *const bp_snapshot_bookmark,
    from: usize,
    ranges: *mut bp_snapshot_range,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    answer(|| {
        if earlier.is_null() || ranges.is_null() || count.is_null() {
            return Err(Refusal::null(
                "no bookmark, no place for the ranges, or none for how many there are",
            ));
        }
        if capacity == 0 {
            return Err(Refusal::invalid("room for no range: there must be room for at least one"));
        }
        let Held { snapshot, .. } = held(snapshot)?;
        // SAFETY: guaranteed by the caller.
        let [memory, epoch, bytes, sealed] = unsafe { earlier.read_unaligned() }.word;
        let words = [memory, epoch, bytes];
        let genuine = Bookmark::from_words(words).filter(|_| seal(BOOKMARK, &words) == sealed);
        let Some(earlier) = genuine else {
            let text =
                "this is not a bookmark that this process has got: bp_snapshot_get_bookmark() gives them";
            return Err(Refusal::new(BP_SNAPSHOT_ERROR_BOOKMARK, text));
        };
        let mut changes = snapshot.changed_since(&earlier)?.starting_at(from);
        let mut found = 0;
        while found < capacity
            && let Some(range) = changes.next()
        {
            // SAFETY: guaranteed by the caller.
            unsafe { ranges.add(found).write_unaligned(range.into()) };
            found += 1;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { count.write_unaligned(found) };
        Ok(if found == capacity { BP_SNAPSHOT_MORE } else { BP_SNAPSHOT_OK })
    })
}
