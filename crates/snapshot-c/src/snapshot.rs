//! Snapshots that threads of this process hold and read, and what changed between two of them.

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

/// A memory as it was at one moment, for threads of this process. It ends when all handles of it are released.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot {
    /// The number of this handle; never 0.
    pub handle: u64,
}

/// A memory as it was, where a thread or a task reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_view {
    /// The memory's bytes as they were. They can only be read.
    pub data: *const u8,
    /// How many there are.
    pub len: usize,
    /// Where the owner has them. If this is `data`, pointers in the data can be followed; otherwise they lead to what is there
    /// now.
    pub home: *const u8,
}

/// What a snapshot is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_info {
    /// Its number: later snapshots of a memory have greater ones.
    pub epoch: u64,
    /// For how many nanoseconds the memory's writers stood still for it.
    pub pause_ns: u64,
}

/// A part of a memory: the bytes from `start` to before `end`.
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

/// The moment of a snapshot, for later snapshots to be compared with, also when it has ended itself. It takes nothing that
/// would have to be freed, and can be copied. It means nothing in another process, nor after this one has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_bookmark {
    /// The library's.
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
    // SAFETY: as the caller promised.
    unsafe { place.write_unaligned(bp_snapshot { handle }) };
    Ok(())
}

/// Takes a snapshot that any thread of this process can read, at another address than the memory's. remap has one at a time,
/// uffd has 16; the other engines have none, only tasks.
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
        // SAFETY: as the caller promised.
        unsafe { give(Held { snapshot, home: store.base().as_ptr() as usize }, taken) }?;
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Makes another handle of a snapshot, to be released on its own: for a thread that may read longer than the others.
///
/// # Safety
/// `cloned` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_clone(snapshot: bp_snapshot, cloned: *mut bp_snapshot) -> c_int {
    answer(|| {
        if cloned.is_null() {
            return Err(Refusal::null("no place for the handle"));
        }
        // SAFETY: as the caller promised.
        unsafe { give(held(snapshot)?, cloned) }?;
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Releases a handle of a snapshot. After the last one nobody may look at the snapshot's bytes any more.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_release(snapshot: bp_snapshot) -> c_int {
    answer(|| {
        drop(SNAPSHOTS.remove_in_turn(snapshot.handle)?);
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Where the bytes of a snapshot are. They are there until its last handle is released. `size` is sizeof the structure.
///
/// # Safety
/// `view` is writable, as many bytes as `size` says, or NULL.
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
        // SAFETY: as the caller promised; the structure has no gaps.
        unsafe { output::sized(&now, view, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Where a view has what the owner had in `len` bytes at its own address `owners`. NULL if not all of them are in the view.
///
/// # Safety
/// `view` is one that bp_snapshot_get_view() has filled in, or a task's, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_bytes_at(
    view: *const bp_snapshot_view,
    owners: *const c_void,
    len: usize,
) -> *const c_void {
    if view.is_null() {
        return std::ptr::null();
    }
    // SAFETY: as the caller promised.
    let view = unsafe { view.read_unaligned() };
    let inside = (owners as usize)
        .checked_sub(view.home as usize)
        .filter(|start| start.checked_add(len).is_some_and(|end| end <= view.len));
    inside.map_or(std::ptr::null(), |start| view.data.wrapping_add(start).cast())
}

/// Whether all that was read from a snapshot before this call is what the memory was. BP_SNAPSHOT_ERROR_INCOMPLETE: there was no
/// memory for a page that it shared with its owner, so what was read does not count. With remap it always is.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_check(snapshot: bp_snapshot) -> c_int {
    answer(|| {
        held(snapshot)?.snapshot.check()?;
        Ok(BP_SNAPSHOT_OK)
    })
}

/// A snapshot's number, and how long writers stood still for it. `size` is sizeof the structure.
///
/// # Safety
/// `info` is writable, as many bytes as `size` says, or NULL.
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
        // SAFETY: as the caller promised; the structure has no gaps.
        unsafe { output::sized(&now, info, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// The number that seals of bookmarks have in the place of an address.
const BOOKMARK: u64 = b'B' as u64;

/// Gives the moment of a snapshot, for bp_snapshot_changed_since(). The memory must keep track of changes.
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
        // SAFETY: as the caller promised.
        unsafe { bookmark.write_unaligned(bp_snapshot_bookmark { word }) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Gives the parts of a memory that were written between an earlier snapshot, of which this is the bookmark, and this snapshot:
/// ranges of whole pages, in ascending order, from the byte `from` on. A page is also in one if a thread began its first write to
/// it before this snapshot, and the write took effect after it. The last range is the part by which the memory has grown. The
/// function fills in at most `capacity` ranges, and their number at `count`. BP_SNAPSHOT_OK: there are no more.
/// BP_SNAPSHOT_MORE: call again, with `from` the end of the last range.
///
/// # Safety
/// `earlier` is readable or NULL; `ranges` has room for so many, or is NULL; `count` is writable or NULL.
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
        // SAFETY: as the caller promised.
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
            // SAFETY: as the caller promised.
            unsafe { ranges.add(found).write_unaligned(range.into()) };
            found += 1;
        }
        // SAFETY: as the caller promised.
        unsafe { count.write_unaligned(found) };
        Ok(if found == capacity { BP_SNAPSHOT_MORE } else { BP_SNAPSHOT_OK })
    })
}
