//! Heaps: memories from which blocks are allocated.
//!
//! In front of every block are 16 bytes: its size and alignment, and their [`seal`]. So a block can be freed without its size,
//! and a pointer to no block, or to a freed one, is detected. These bytes are in the heap's memory, which is accessible whatever
//! the program passes.

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
/// The bit position of the alignment's logarithm in the word that has the size. No memory is as large as 2^46 bytes.
const ALIGNMENT_SHIFT: u32 = 56;

/// The heap of a handle, also in a child that runs a task on it.
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

/// A block as the heap sees it: with the bytes in front.
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

    /// The layout of the bytes in front, which keep the block aligned, and of the block itself. `None`: the size is too large.
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

    /// Writes the bytes in front of a new block, and returns its address.
    ///
    /// # Safety
    /// `start` is the heap's address of such a block, which no other thread uses yet.
    unsafe fn begin(self, start: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: guaranteed by the caller.
        let at = unsafe { start.add(self.alignment) };
        let word = self.word();
        // SAFETY: the bytes in front are the block's.
        let [first, second] = unsafe { words(at) };
        first.store(word, Relaxed);
        second.store(seal(at.as_ptr() as u64, &[word]), Relaxed);
        at
    }

    /// Takes a block from the program, so that it is no longer a block. Returns its address in the heap.
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
        // SAFETY: the bytes in front are in the heap's memory, whatever their content.
        let [first, second] = unsafe { words(at) };
        let word = first.load(Relaxed);
        let expected = seal(address as u64, &[word]);
        // If two threads free a block, only one of them finds the seal.
        second.compare_exchange(expected, 0, Relaxed, Relaxed).map_err(|_| no_block())?;
        let block = Self::of_word(word);
        // SAFETY: the library made the seal, so the block begins this number of bytes before.
        Ok((block, unsafe { at.sub(block.alignment) }))
    }
}

/// The words in front of a block.
///
/// # Safety
/// The bytes in front of `at`, which is aligned, are in a memory.
unsafe fn words<'a>(at: NonNull<u8>) -> [&'a AtomicU64; 2] {
    let first = at.as_ptr().wrapping_sub(HEADER).cast::<u64>();
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: the block is new; the place is guaranteed by the caller.
    unsafe { place.write_unaligned(block.begin(start.cast()).as_ptr().cast()) };
    Ok(BP_SNAPSHOT_OK)
}

/// Allocates a block of a heap. `alignment` is a power of two up to BP_SNAPSHOT_LARGEST_ALIGNMENT; 0: 16, like malloc(). A block
/// takes as many additional bytes as its alignment, at least 16. Its content is undefined.
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
    // SAFETY: guaranteed by the caller.
    answer(|| unsafe { allocate(memory, bytes, alignment, false, block) })
}

/// Does the same as bp_snapshot_allocate(), and fills the block with zeros.
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
    // SAFETY: guaranteed by the caller.
    answer(|| unsafe { allocate(memory, bytes, alignment, true, block) })
}

/// Makes a block larger or smaller. It keeps its alignment, and its content up to the smaller size. `resized` gets its address,
/// which may be new. Then no thread may use the old block any more. If the call fails, the block stays unchanged. If `block` is
/// NULL, the call allocates a new one.
///
/// # Safety
/// `block` is NULL or a block that no other thread uses meanwhile; `resized` is writable or NULL.
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
            // SAFETY: guaranteed by the caller.
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
            // SAFETY: the block is unchanged.
            unsafe { old.begin(start) };
            return Err(new.no_room(heap));
        };
        // SAFETY: the heap has it there; the place is guaranteed by the caller.
        unsafe { resized.write_unaligned(new.begin(moved.cast()).as_ptr().cast()) };
        Ok(BP_SNAPSHOT_OK)
    })
}

/// Frees a block. If `block` is NULL, the call does nothing.
///
/// # Safety
/// `block` is NULL or a block that no thread uses any more.
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
