//! Memories, of which snapshots are taken.

use std::ffi::{c_char, c_int};
use std::ptr::NonNull;
use std::sync::Arc;

use bedplate_c_support::input::{Sized, sized};
use bedplate_c_support::output;
use bedplate_c_support::table::{Bad, Table};
use bedplate_snapshot::{Choice, Heap, Kind, Memory};

use crate::code::bp_snapshot_code::*;
use crate::code::{Refusal, answer, in_c};
use crate::snapshot::bp_snapshot_range;
use crate::task;

static MEMORIES: Table<Arc<Store>> = Table::new(b'M');

const IN_CHILD: u32 = 0x1;
const TRACK_CHANGES: u32 = 0x2;
const HUGE_PAGES: u32 = 0x4;
const HEAP: u32 = 0x8;
const NOT_AHEAD: u32 = 0x10;
const ALL_FLAGS: u32 = 0x1f;

/// A memory of which snapshots are taken.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_memory {
    /// Its number; never 0.
    pub handle: u64,
}

/// The mechanism that makes snapshots. docs/snapshot.md describes the cost and the limits of each.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_snapshot_engine {
    /// The best one that works here and supports the request. The library tries them. It is not BP_SNAPSHOT_ENGINE_RING0.
    BP_SNAPSHOT_ENGINE_AUTO = 0,
    /// Page tables are moved, and the kernel copies pages. It has the shortest pause. The process can have one snapshot at a
    /// time.
    BP_SNAPSHOT_ENGINE_REMAP = 1,
    /// Write protection by userfaultfd. It has up to 16 snapshots at once, and can track changes.
    BP_SNAPSHOT_ENGINE_UFFD = 2,
    /// fork(). It only runs tasks in children.
    BP_SNAPSHOT_ENGINE_FORK = 3,
    /// Page tables in ring 0 of a processor. Tasks run in threads of this process, and see the memory at its own address.
    BP_SNAPSHOT_ENGINE_RING0 = 4,
}

/// The options of a memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_options {
    /// sizeof(struct bp_snapshot_options)
    pub size: usize,
    /// The memory's initial size in bytes, which is rounded up to whole pages of 4 KiB. At most 2^46.
    pub bytes: usize,
    /// Maximum size to which the memory can grow, in bytes; 0: it cannot grow. This reserves addresses, but no memory.
    pub reserve: usize,
    /// One of bp_snapshot_engine.
    pub engine: u32,
    /// A combination of BP_SNAPSHOT_IN_CHILD and the other flags, or 0.
    pub flags: u32,
    /// Number of snapshots that may be active at once; 0: 1. An engine that supports fewer is not chosen.
    pub snapshots_at_once: u32,
    /// For ring0: number of snapshots that can be taken in a row without copying page tables; 0: 2.
    pub ahead: u32,
    /// For ring0: number of threads that prepare page tables for that; 0: 1.
    pub copiers: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: integers, without gaps.
unsafe impl Sized for bp_snapshot_options {
    const FIRST: usize = 48;
}

/// The properties of a memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_memory_info {
    /// The first address of the memory. The program may read and write the memory until it is destroyed.
    pub base: *mut u8,
    /// Number of accessible bytes.
    pub len: usize,
    /// The engine that was chosen: one of bp_snapshot_engine.
    pub engine: u32,
    /// The flags with which it was created.
    pub flags: u32,
}

/// The counts of a memory since it was created. Times are in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_statistics {
    /// Snapshots taken.
    pub snapshots: u64,
    /// Snapshots that could not be taken.
    pub failed: u64,
    /// Snapshots that have not ended.
    pub active: u64,
    /// Write faults that the engine handled.
    pub faults: u64,
    /// Snapshots that were abandoned because a page could not be kept for them.
    pub incomplete: u64,
    /// Pages whose old content was kept for a snapshot. With remap: pages of which writers got copies.
    pub pages_copied: u64,
    /// Pages that were write-protected during the pauses of snapshots.
    pub pages_armed_at_snapshots: u64,
    /// Pages that were write-protected ahead of time.
    pub pages_armed_ahead: u64,
    /// Pages that are not write-protected now.
    pub pages_unarmed: u64,
    /// Pages that are mapped privately now, copied or not.
    pub pages_private: u64,
    /// Pages that are in use now.
    pub pages_claimed: u64,
    /// Snapshots for which all preparations were complete before.
    pub instantaneous: u64,
    /// With remap: snapshots for which fork() copied page tables, because an earlier one was not merged.
    pub copied_as_usual: u64,
    /// With remap: number of merges after snapshots had ended.
    pub merges: u64,
    /// Time that the latest merge took.
    pub latest_merge_ns: u64,
    /// Time that all merges took.
    pub merges_ns: u64,
    /// Bytes that snapshots take in addition to the memory itself, including preparations for them.
    pub extra_bytes: u64,
    /// The longest time for which a snapshot stopped writers.
    pub longest_pause_ns: u64,
    /// The latest of these times.
    pub latest_pause_ns: u64,
    /// All of these times together.
    pub pauses_ns: u64,
    /// Histogram of these times: the numbers of times that were at most 8192 ns, at most 16384 ns, and so on. Each bound is twice
    /// the previous one, and each time is counted once. The last number is that of times above 8192 << 20.
    pub pauses: [u64; 22],
}

const _: () = assert!(22 == bedplate_snapshot::statistics::PAUSE_BOUNDS.len() + 1);
const _: () = assert!(bedplate_snapshot::statistics::PAUSE_BOUNDS[0] == 8192);

/// A memory as its program uses it.
pub(crate) enum Space {
    Memory(Memory),
    Heap(Heap),
}

/// A memory, which lives as long as its handle and the calls that use it.
pub(crate) struct Store {
    pub space: Space,
    about: String,
    pub flags: u32,
}

impl Store {
    pub fn base(&self) -> NonNull<u8> {
        match &self.space {
            Space::Memory(memory) => memory.base(),
            Space::Heap(heap) => heap.base(),
        }
    }

    pub fn len(&self) -> usize {
        match &self.space {
            Space::Memory(memory) => memory.len(),
            Space::Heap(heap) => heap.len(),
        }
    }

    fn kind(&self) -> Kind {
        match &self.space {
            Space::Memory(memory) => memory.kind(),
            Space::Heap(heap) => heap.kind(),
        }
    }

    /// Whether tasks run in children by default. Those of ring0 never do.
    pub fn runs_in_child(&self) -> bool {
        match self.kind() {
            Kind::Fork => true,
            Kind::Ring0 => false,
            _ => self.flags & IN_CHILD != 0,
        }
    }
}

/// The memory of a handle.
pub(crate) fn store(memory: bp_snapshot_memory) -> Result<Arc<Store>, Bad> {
    Ok(MEMORIES.enter_in_turn(memory.handle)?.clone())
}

/// The memory of a handle, also in a child that runs a task on it.
pub(crate) fn store_in_task(memory: bp_snapshot_memory) -> Result<Arc<Store>, Bad> {
    match store(memory) {
        Err(Bad::Forked) => task::own_store(memory.handle).ok_or(Bad::Forked),
        other => other,
    }
}

const ENGINES: [(bp_snapshot_engine, Kind); 4] = [
    (bp_snapshot_engine::BP_SNAPSHOT_ENGINE_REMAP, Kind::Remap),
    (bp_snapshot_engine::BP_SNAPSHOT_ENGINE_UFFD, Kind::Uffd),
    (bp_snapshot_engine::BP_SNAPSHOT_ENGINE_FORK, Kind::Fork),
    (bp_snapshot_engine::BP_SNAPSHOT_ENGINE_RING0, Kind::Ring0),
];

fn engine_number(kind: Kind) -> u32 {
    let engine = ENGINES.iter().find(|(_, of)| *of == kind).map(|(engine, _)| *engine);
    engine.unwrap_or(bp_snapshot_engine::BP_SNAPSHOT_ENGINE_AUTO) as u32
}

fn choice(engine: u32) -> Result<Choice, Refusal> {
    if engine == bp_snapshot_engine::BP_SNAPSHOT_ENGINE_AUTO as u32 {
        return Ok(Choice::Auto);
    }
    let found = ENGINES.iter().find(|(number, _)| *number as u32 == engine);
    let unknown = || Refusal::invalid(format!("there is no engine {engine}"));
    found.map(|(_, kind)| Choice::Only(*kind)).ok_or_else(unknown)
}

fn build(options: bp_snapshot_options) -> Result<Store, Refusal> {
    let bp_snapshot_options { size: _, bytes, reserve, engine, flags, .. } = options;
    if flags & !ALL_FLAGS != 0 {
        return Err(Refusal::invalid(format!("flags {:#x} of a memory", flags & !ALL_FLAGS)));
    }
    if options.reserved != 0 {
        return Err(Refusal::invalid("the field reserved of the options is not 0"));
    }
    if reserve != 0 && reserve < bytes {
        let text = format!("{bytes} bytes of memory with a reserve of {reserve} bytes, which is less");
        return Err(Refusal::invalid(text));
    }
    let mut builder = Memory::builder(bytes)
        .reserve(reserve)
        .engine(choice(engine)?)
        .in_child(flags & IN_CHILD != 0)
        .track_changes(flags & TRACK_CHANGES != 0)
        .huge_pages(flags & HUGE_PAGES != 0)
        .snapshots_at_once(options.snapshots_at_once.max(1) as usize);
    match (flags & NOT_AHEAD != 0, options.ahead) {
        (false, 0) => {}
        (false, ahead) => builder = builder.ahead(ahead as usize),
        (true, 0) => builder = builder.ahead(0),
        (true, _) => return Err(Refusal::invalid("BP_SNAPSHOT_NOT_AHEAD, and snapshots ahead")),
    }
    if options.copiers != 0 {
        builder = builder.copiers(options.copiers as usize);
    }
    let memory = builder.build()?;
    let about = match memory.why_not_better() {
        Some(why_not) => in_c(format!("{}; why no better engine: {why_not}", memory.kind())),
        None => memory.kind().to_string(),
    };
    let space = if flags & HEAP != 0 { Space::Heap(memory.into_heap()) } else { Space::Memory(memory) };
    Ok(Store { space, about, flags })
}

/// Creates a memory, filled with zeros.
///
/// # Safety
/// `options` is NULL or as long as its size says; `created` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_create(
    options: *const bp_snapshot_options,
    created: *mut bp_snapshot_memory,
) -> c_int {
    answer(|| {
        if created.is_null() {
            return Err(Refusal::null("no place for the memory"));
        }
        // SAFETY: guaranteed by the caller.
        let store = build(unsafe { sized(options, "the options") }?)?;
        let handle = MEMORIES.insert(Arc::new(store)).map_err(Refusal::full)?;
        // SAFETY: guaranteed by the caller.
        unsafe { created.write_unaligned(bp_snapshot_memory { handle }) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Destroys a memory. No thread may access it at its own address any more, nor any block of a heap. Its snapshots can still be
/// read until they are released, and its tasks continue.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_destroy(memory: bp_snapshot_memory) -> c_int {
    answer(|| {
        drop(MEMORIES.remove_in_turn(memory.handle)?);
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Gives the address of a memory, its current size, and its engine. `size` is sizeof the structure. A child that runs a task on
/// the memory may also call it.
///
/// # Safety
/// `info` has `size` writable bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_get_memory_info(
    memory: bp_snapshot_memory,
    info: *mut bp_snapshot_memory_info,
    size: usize,
) -> c_int {
    answer(|| {
        if info.is_null() {
            return Err(Refusal::null("no place for what the memory is"));
        }
        let store = store_in_task(memory)?;
        let now = bp_snapshot_memory_info {
            base: store.base().as_ptr(),
            len: store.len(),
            engine: engine_number(store.kind()),
            flags: store.flags,
        };
        // SAFETY: guaranteed by the caller; the structure has no gaps.
        unsafe { output::sized(&now, info, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Describes the engine of a memory, and why it has no better one. The text is cut off after `bytes` bytes, with a zero at the
/// end.
///
/// # Safety
/// `text` has room for `bytes` bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_about(
    memory: bp_snapshot_memory,
    text: *mut c_char,
    bytes: usize,
) -> c_int {
    answer(|| {
        if text.is_null() {
            return Err(Refusal::null("no place for the text"));
        }
        let store = store(memory)?;
        // SAFETY: guaranteed by the caller.
        unsafe { output::text(&store.about, text, bytes) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Makes `bytes` more of a memory accessible, rounded up to whole pages, up to the reserve. The new bytes are zero. Earlier
/// snapshots do not have them. `grown` gets their range in the memory; it may be NULL.
///
/// # Safety
/// `grown` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_grow(
    memory: bp_snapshot_memory,
    bytes: usize,
    grown: *mut bp_snapshot_range,
) -> c_int {
    answer(|| {
        let store = store(memory)?;
        let Space::Memory(memory) = &store.space else {
            return Err(Refusal::new(
                BP_SNAPSHOT_ERROR_A_HEAP,
                "the memory is a heap, which grows by itself",
            ));
        };
        let range = memory.grow(bytes)?;
        if !grown.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { grown.write_unaligned(range.into()) };
        }
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Prepares the next snapshot as far as possible, or waits until this is done. With the engine uffd, this write-protects all
/// pages that were written since the previous snapshot. That shortens the next pause, and makes the next write to each of these
/// pages slower. The other engines prepare by themselves.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_settle(memory: bp_snapshot_memory) -> c_int {
    answer(|| {
        match &store(memory)?.space {
            Space::Memory(memory) => memory.settle(),
            Space::Heap(heap) => heap.settle(),
        }
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Gives the counts of a memory so far. `size` is sizeof the structure.
///
/// # Safety
/// `statistics` has `size` writable bytes, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_get_statistics(
    memory: bp_snapshot_memory,
    statistics: *mut bp_snapshot_statistics,
    size: usize,
) -> c_int {
    answer(|| {
        if statistics.is_null() {
            return Err(Refusal::null("no place for the statistics"));
        }
        let now = statistics_of(&*store(memory)?);
        // SAFETY: guaranteed by the caller; the structure has no gaps.
        unsafe { output::sized(&now, statistics, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

fn statistics_of(store: &Store) -> bp_snapshot_statistics {
    let now = match &store.space {
        Space::Memory(memory) => memory.statistics(),
        Space::Heap(heap) => heap.statistics(),
    };
    bp_snapshot_statistics {
        snapshots: now.snapshots,
        failed: now.failed,
        active: now.active,
        faults: now.faults,
        incomplete: now.incomplete,
        pages_copied: now.pages_copied,
        pages_armed_at_snapshots: now.pages_armed_at_snapshots,
        pages_armed_ahead: now.pages_armed_ahead,
        pages_unarmed: now.pages_unarmed,
        pages_private: now.pages_private,
        pages_claimed: now.pages_claimed,
        instantaneous: now.instantaneous,
        copied_as_usual: now.copied_as_usual,
        merges: now.merges,
        latest_merge_ns: now.latest_merge_ns,
        merges_ns: now.merges_ns,
        extra_bytes: now.extra_bytes,
        longest_pause_ns: now.longest_pause_ns,
        latest_pause_ns: now.latest_pause_ns,
        pauses_ns: now.pauses.total_ns,
        pauses: now.pauses.counts,
    }
}
