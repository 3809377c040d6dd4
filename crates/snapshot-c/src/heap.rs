//! Heaps: memories from which blocks are allocated.
//!
//! In front of every block are 16 bytes: its size and alignment, and their [`seal`]. So a block needs no size to be freed, and
//! a pointer that is no block, or a block that was freed before, is found out. These bytes are in the heap's memory, which is
//! accessible whatever the program passes.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use allocator_api2::alloc::Allocator;
use bedplate_snapshot::Heap;

use crate::code::bp_snapshot_code::*;
use crate::code::{Refusal, answer};
use crate::memory::{Space, Store, bp_snapshot_memory, store_in_task};
use crate::seal::seal;

/// Bytes in front of a block, and the smallest alignment.
const HEADER: usize = 16;
/// BP_SNAPSHOT_LARGEST_ALIGNMENT
const LARGEST_ALIGNMENT: usize = 2 << 20;
/// Where the alignment's logarithm is in the word that has the size. No memory is as large as 2^46 bytes.
const ALIGNMENT_SHIFT: u32 = 56;

/// The heap of a handle, also in the child that runs a task on it.
fn heap_store(memory: bp_snapshot_memory) -> Result<Arc<Store>, Refusal> {
    Ok(store_in_task(memory)?)
}

fn heap(store: &Store) -> Result<&Heap, Refusal> {
    match &store.space {
        Space::Heap(heap) => Ok(heap),
        Space::Memory(_) => {
            let text = "the memory is not a heap: create it with BP_SNAPSHOT_HEAP";
            Err(Refusal::new(BP_SNAPSHOT_ERROR_NOT_A_HEAP, text))
        }
    }
}

/// A block as the heap has it: with the bytes in front.
#[derive(Clone, Copy)]
struct Block {
    bytes: usize,
    alignment: usize,
}

impl Block {
    fn new(bytes: usize, alignment: usize) -> Result<Self, Refusal> {
        let alignment = if alignment == 0 { HEADER } else { alignment };
        if !alignment.is_power_of_two() || alignment > LARGEST_ALIGNMENT {
            let text =
                format!("an alignment of {alignment}: a power of two up to {LARGEST_ALIGNMENT} can be had");
            return Err(Refusal::invalid(text));
        }
        Ok(Self { bytes, alignment: alignment.max(HEADER) })
    }

    /// The bytes in front, which keep what follows aligned, and the block's own. `None`: there cannot be so many.
    fn layout(self) -> Option<Layout> {
        Layout::from_size_align(self.bytes.checked_add(self.alignment)?, self.alignment).ok()
    }

    fn word(self) -> u64 {
        self.bytes as u64 | u64::from(self.alignment.trailing_zeros()) << ALIGNMENT_SHIFT
    }

    fn of_word(word: u64) -> Self {
        let (bytes, logarithm) = (word & ((1 << ALIGNMENT_SHIFT) - 1), word >> ALIGNMENT_SHIFT);
        Self { bytes: bytes as usize, alignment: 1 << (logarithm & 63) }
    }

    fn no_room(self, heap: &Heap) -> Refusal {
        let text = format!(
            "no room for a block of {} bytes in a heap of {} bytes, which cannot grow so far: \
             bp_snapshot_options.reserve says how far, and it does not grow in a task's child",
            self.bytes,
            heap.len()
        );
        Refusal::new(BP_SNAPSHOT_ERROR_NO_ROOM, text)
    }

    /// Writes the bytes in front of a new block, and gives where it is.
    ///
    /// # Safety
    /// `start` is where the heap has such a block, which nobody uses yet.
    unsafe fn begin(self, start: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: as the caller promised.
        let at = unsafe { start.add(self.alignment) };
        let word = self.word();
        // SAFETY: the bytes in front are the block's.
        let [first, second] = unsafe { words(at) };
        first.store(word, Relaxed);
        second.store(seal(at.as_ptr() as u64, &[word]), Relaxed);
        at
    }

    /// Takes a block from the program: it is none from here on. Gives where the heap has it.
    fn end(heap: &Heap, at: NonNull<u8>) -> Result<(Self, NonNull<u8>), Refusal> {
        let no_block = || {
            let text = "this is no block of this heap: it was freed before, or something has written over the bytes in front \
                        of it";
            Refusal::new(BP_SNAPSHOT_ERROR_BLOCK, text)
        };
        let address = at.as_ptr() as usize;
        let offset = address.checked_sub(heap.base().as_ptr() as usize).ok_or_else(no_block)?;
        if !address.is_multiple_of(HEADER) || !(HEADER..=heap.len()).contains(&offset) {
            return Err(no_block());
        }
        // SAFETY: the bytes in front are in the heap's memory, whatever they are.
        let [first, second] = unsafe { words(at) };
        let word = first.load(Relaxed);
        let expected = seal(address as u64, &[word]);
        // Of two threads that free a block, one finds the seal.
        second.compare_exchange(expected, 0, Relaxed, Relaxed).map_err(|_| no_block())?;
        let block = Self::of_word(word);
        // SAFETY: the seal is the library's, so the block begins so many bytes before.
        Ok((block, unsafe { at.sub(block.alignment) }))
    }
}

/// The words in front of a block.
///
/// # Safety
/// The bytes in front of `at`, which is aligned, are in a memory.
unsafe fn words<'a>(at: NonNull<u8>) -> [&'a AtomicU64; 2] {
    let first = at.as_ptr().wrapping_sub(HEADER).cast::<u64>();
    // SAFETY: as the caller promised.
    unsafe { [AtomicU64::from_ptr(first), AtomicU64::from_ptr(first.add(1))] }
}

/// # Safety
/// `place` is writable or NULL.
unsafe fn allocate(
    memory: bp_snapshot_memory,
    bytes: usize,
    alignment: usize,
    zeroed: bool,
    place: *mut *mut c_void,
) -> crate::code::Answer {
    if place.is_null() {
        return Err(Refusal::null("no place for the block"));
    }
    let store = heap_store(memory)?;
    let heap = heap(&store)?;
    let block = Block::new(bytes, alignment)?;
    let start = block.layout().and_then(|layout| {
        if zeroed { heap.allocate_zeroed(layout).ok() } else { heap.allocate(layout).ok() }
    });
    let start = start.ok_or_else(|| block.no_room(heap))?;
    // SAFETY: it is new; the place as the caller promised.
    unsafe { place.write_unaligned(block.begin(start.cast()).as_ptr().cast()) };
    Ok(BP_SNAPSHOT_OK)
}

/// Allocates a block of a heap. `alignment` is a power of two up to BP_SNAPSHOT_LARGEST_ALIGNMENT; 0: 16, as malloc() has it. A
/// block takes as many bytes more as it is aligned to, at least 16. Its content is not defined.
///
/// # Safety
/// `block` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_allocate(
    memory: bp_snapshot_memory,
    bytes: usize,
    alignment: usize,
    block: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(|| unsafe { allocate(memory, bytes, alignment, false, block) })
}

/// As bp_snapshot_allocate(), with zeros in the block.
///
/// # Safety
/// `block` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_allocate_zeroed(
    memory: bp_snapshot_memory,
    bytes: usize,
    alignment: usize,
    block: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(|| unsafe { allocate(memory, bytes, alignment, true, block) })
}

/// Makes a block larger or smaller. Its content stays, as far as there is room; its alignment, too. `resized` gets where it is
/// now, which may be elsewhere; then nobody may look at the old block. If it cannot be done the block stays as it is. A block of
/// NULL is a new one.
///
/// # Safety
/// `block` is NULL or a block that nobody else uses meanwhile; `resized` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_resize(
    memory: bp_snapshot_memory,
    block: *mut c_void,
    bytes: usize,
    resized: *mut *mut c_void,
) -> c_int {
    answer(|| {
        if resized.is_null() {
            return Err(Refusal::null("no place for the block"));
        }
        let Some(at) = NonNull::new(block.cast::<u8>()) else {
            // SAFETY: as the caller promised.
            return unsafe { allocate(memory, bytes, 0, false, resized) };
        };
        let store = heap_store(memory)?;
        let heap = heap(&store)?;
        let (old, start) = Block::end(heap, at)?;
        let new = Block { bytes, alignment: old.alignment };
        let moved = old.layout().zip(new.layout()).and_then(|(old, new)| {
            // SAFETY: the heap has it there, with this layout.
            unsafe {
                if new.size() < old.size() {
                    heap.shrink(start, old, new).ok()
                } else {
                    heap.grow(start, old, new).ok()
                }
            }
        });
        let Some(moved) = moved else {
            // SAFETY: it is as it was.
            unsafe { old.begin(start) };
            return Err(new.no_room(heap));
        };
        // SAFETY: the heap has it there; the place as the caller promised.
        unsafe { resized.write_unaligned(new.begin(moved.cast()).as_ptr().cast()) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Frees a block. NULL is no block, and nothing happens.
///
/// # Safety
/// `block` is NULL or a block that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_snapshot_free(memory: bp_snapshot_memory, block: *mut c_void) -> c_int {
    answer(|| {
        let store = heap_store(memory)?;
        let heap = heap(&store)?;
        let Some(at) = NonNull::new(block.cast::<u8>()) else { return Ok(BP_SNAPSHOT_OK) };
        let (block, start) = Block::end(heap, at)?;
        if let Some(layout) = block.layout() {
            // SAFETY: the heap has it there, with this layout.
            unsafe { heap.deallocate(start, layout) };
        }
        Ok(BP_SNAPSHOT_OK)
    })
}
