//! Memories: what snapshots are taken of.

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

/// Memory of which snapshots are taken.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_memory {
    /// Its number; never 0.
    pub handle: u64,
}

/// What makes snapshots. docs/snapshot.md says what each of them costs and what it cannot do.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_snapshot_engine {
    /// The best one that works here and has what is asked for, found by trying. It is not BP_SNAPSHOT_ENGINE_RING0.
    BP_SNAPSHOT_ENGINE_AUTO = 0,
    /// Page tables are moved, and the kernel copies pages. It has the shortest pause, and one snapshot at a time in the process.
    BP_SNAPSHOT_ENGINE_REMAP = 1,
    /// Write protection by userfaultfd. It has 16 snapshots at once, and can keep track of changes.
    BP_SNAPSHOT_ENGINE_UFFD = 2,
    /// fork(). It runs tasks in children only.
    BP_SNAPSHOT_ENGINE_FORK = 3,
    /// Page tables in ring 0 of a processor. Tasks run in threads of this process, and see the memory at its own address.
    BP_SNAPSHOT_ENGINE_RING0 = 4,
}

/// A memory to be created.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_options {
    /// sizeof(struct bp_snapshot_options)
    pub size: usize,
    /// The memory's size to begin with, in bytes; it is rounded up to whole pages of 4 KiB. At most 2^46.
    pub bytes: usize,
    /// The size to which the memory can grow, in bytes; 0: it cannot grow. Addresses are reserved for it, but no memory.
    pub reserve: usize,
    /// One of bp_snapshot_engine.
    pub engine: u32,
    /// BP_SNAPSHOT_IN_CHILD and the like, or 0.
    pub flags: u32,
    /// How many snapshots may be active at once; 0: 1. An engine that has fewer is not chosen.
    pub snapshots_at_once: u32,
    /// For ring0: how many snapshots can be taken in a row without copying page tables; 0: 2.
    pub ahead: u32,
    /// For ring0: how many threads make page tables ready for that; 0: 1.
    pub copiers: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: integers, without gaps.
unsafe impl Sized for bp_snapshot_options {
    const FIRST: usize = 48;
}

/// What a memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_snapshot_memory_info {
    /// Where it begins. The program may read and write it from there until the memory is destroyed.
    pub base: *mut u8,
    /// How many bytes of it are accessible.
    pub len: usize,
    /// The engine that was chosen: one of bp_snapshot_engine.
    pub engine: u32,
    /// The flags with which it was created.
    pub flags: u32,
}

/// What has happened to a memory since it was created. Times are in nanoseconds.
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
    /// Snapshots that were given up because a page could not be kept for them.
    pub incomplete: u64,
    /// Pages whose old content was kept for a snapshot; of remap: of which writers got copies.
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
    /// Snapshots for which everything had been made ready before.
    pub instantaneous: u64,
    /// With remap: snapshots for which fork() copied page tables, because an earlier one was not merged.
    pub copied_as_usual: u64,
    /// With remap: times at which all was merged after snapshots had ended.
    pub merges: u64,
    /// How long the latest of them took.
    pub latest_merge_ns: u64,
    /// How long all of them took.
    pub merges_ns: u64,
    /// Bytes that snapshots take beside the memory itself, with what is made ahead for them.
    pub extra_bytes: u64,
    /// The longest time for which a snapshot held up writers.
    pub longest_pause_ns: u64,
    /// The latest of these times.
    pub latest_pause_ns: u64,
    /// All of these times together.
    pub pauses_ns: u64,
    /// How many of these times were at most 8192 ns, at most 16384 ns, and so on, each bound twice the one before and each
    /// time counted once; the last number is of those above 8192 << 20.
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

    /// Whether tasks run in children unless told otherwise. Those of ring0 never do.
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

/// The memory of a handle, also in the child that runs a task on it.
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
/// `options` is NULL or as long as it says; `created` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_create(
    options: *const bp_snapshot_options,
    created: *mut bp_snapshot_memory,
) -> c_int {
    answer(|| {
        if created.is_null() {
            return Err(Refusal::null("no place for the memory"));
        }
        // SAFETY: as the caller promised.
        let store = build(unsafe { sized(options, "the options") }?)?;
        let handle = MEMORIES.insert(Arc::new(store)).map_err(Refusal::full)?;
        // SAFETY: as the caller promised.
        unsafe { created.write_unaligned(bp_snapshot_memory { handle }) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Destroys a memory. Nobody may access it at its own address any more, nor any block of a heap. Its snapshots can still be
/// read, until they are released; its tasks go on.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_destroy(memory: bp_snapshot_memory) -> c_int {
    answer(|| {
        drop(MEMORIES.remove_in_turn(memory.handle)?);
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Where a memory is, how large it is now, and which engine it has. `size` is sizeof the structure. Also in a child that runs a
/// task on the memory.
///
/// # Safety
/// `info` is writable, as many bytes as `size` says, or NULL.
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
        // SAFETY: as the caller promised; the structure has no gaps.
        unsafe { output::sized(&now, info, size) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Which engine a memory has, and why not a better one, in words: as much as `bytes` has room for, with a zero at the end.
///
/// # Safety
/// `text` has room for so many bytes, or is NULL.
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
        // SAFETY: as the caller promised.
        unsafe { output::text(&store.about, text, bytes) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Makes `bytes` more of a memory accessible, rounded up to whole pages, up to the reserve. The new bytes are zero. Snapshots
/// that were taken before do not have them. `grown` gets where they are in the memory; it may be NULL.
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
            // SAFETY: as the caller promised.
            unsafe { grown.write_unaligned(range.into()) };
        }
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Does what can be done ahead of the next snapshot, or waits until it is done. With the engine uffd this write-protects all
/// pages that were written since the snapshot before, which shortens the next pause; the next write to each of them is slower. The
/// other engines work ahead by themselves.
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

/// What has happened to a memory so far. `size` is sizeof the structure.
///
/// # Safety
/// `statistics` is writable, as many bytes as `size` says, or NULL.
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
        // SAFETY: as the caller promised; the structure has no gaps.
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
