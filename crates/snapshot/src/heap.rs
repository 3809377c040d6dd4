//! An allocator whose blocks are in a memory that supports snapshots.
//!
//! `dlmalloc` keeps the heap's list of free blocks next to the blocks. One lock guards it. Threads that allocate
//! hold the lock. A thread that forks a child holds it during the fork, so the child finds a consistent heap, and
//! unlocks its copy of the lock.

use std::alloc::Layout;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use allocator_api2::alloc::{AllocError, Allocator};
use dlmalloc::Dlmalloc;

use crate::engine::Statistics;
use crate::{Error, Kind, Memory, PAGE, Snapshot, Task, View};

/// Minimum number of bytes by which the heap takes more of the memory.
const STEP: usize = 256 << 10;

/// An allocator on a [`Memory`], for `hashbrown::HashMap`, `allocator_api2::vec::Vec` and every other type that
/// takes an `allocator_api2` allocator. A clone allocates from the same heap.
///
/// The heap grows up to the [reserved](crate::Builder::reserve) size. Freed blocks are reused; their memory is not
/// returned to the kernel. One lock serializes all threads.
///
/// Blocks keep their address, which is also their address in a child. A task in a [child](Self::spawn_in_child) can
/// therefore read any structure directly. A [`Snapshot`] is at another address, and pointers in its data point into
/// the live memory. Only flat data can be read there, by [`View::bytes_at`].
///
/// ```
/// # fn main() -> Result<(), bedplate_snapshot::Error> {
/// use bedplate_snapshot::Memory;
/// use hashbrown::{DefaultHashBuilder, HashMap};
///
/// let heap = Memory::builder(1 << 20).reserve(1 << 30).build()?.into_heap();
/// let mut map = HashMap::with_hasher_in(DefaultHashBuilder::default(), heap.clone());
/// map.insert("a", 1);
/// // The child sees the map as it is now.
/// let task = heap.spawn_in_child(|_| vec![map["a"]])?;
/// map.insert("a", 2);
/// assert_eq!(task.join()?, [1]);
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # fn main() -> Result<(), bedplate_snapshot::Error> {
/// # use bedplate_snapshot::{Error, Memory};
/// # let heap = Memory::builder(1 << 20).build()?.into_heap();
/// let mut values = allocator_api2::vec::Vec::new_in(heap.clone());
/// values.extend([1u8, 2, 3]);
/// let snapshot = match heap.snapshot() {
///     Err(Error::Unavailable { .. }) => return Ok(()), // There is no userfaultfd here.
///     snapshot => snapshot?,
/// };
/// let (at, len) = (values.as_ptr(), values.len());
/// values.clear();
/// values.push(9);
/// let sum = snapshot.read(|view| view.bytes_at(at, len).unwrap().iter().sum::<u8>())?;
/// assert_eq!(sum, 6);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Heap {
    state: Arc<State>,
}

struct State {
    memory: Arc<Memory>,
    blocks: Mutex<Dlmalloc<Source>>,
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap").field("memory", &self.state.memory).finish_non_exhaustive()
    }
}

/// The source of the heap's memory.
struct Source {
    memory: Arc<Memory>,
    /// Number of bytes of the memory that the heap has taken.
    taken: Cell<usize>,
}

// SAFETY: it hands out every part of the memory once. The parts stay accessible and keep their addresses.
unsafe impl dlmalloc::Allocator for Source {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        const NONE: (*mut u8, usize, u32) = (std::ptr::null_mut(), 0, 0);
        let at = self.taken.get();
        let Some(end) = size.checked_next_multiple_of(PAGE).and_then(|size| at.checked_add(size)) else {
            return NONE;
        };
        // No other code grows the memory, so the new part follows the old one.
        let missing = end.saturating_sub(self.memory.len());
        if missing > 0 && self.memory.grow(missing).is_err() {
            return NONE;
        }
        self.taken.set(end);
        // SAFETY: the address is inside the memory.
        (unsafe { self.memory.base().as_ptr().add(at) }, end - at, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        // The owner may have written to the memory before it became a heap.
        false
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

impl Heap {
    pub(crate) fn new(memory: Memory) -> Self {
        let memory = Arc::new(memory);
        let mut blocks = Dlmalloc::new_with_allocator(Source { memory: memory.clone(), taken: Cell::new(0) });
        let is_set = blocks.set_granularity(STEP);
        debug_assert!(is_set, "it is a power of two");
        Self { state: Arc::new(State { memory, blocks: Mutex::new(blocks) }) }
    }

    fn blocks(&self) -> MutexGuard<'_, Dlmalloc<Source>> {
        self.state.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine of the heap's memory.
    pub fn kind(&self) -> Kind {
        self.state.memory.kind()
    }

    /// The first address of the heap's memory.
    pub fn base(&self) -> NonNull<u8> {
        self.state.memory.base()
    }

    /// Number of accessible bytes of the memory. It is the initial size, or the part that the heap has taken if
    /// that is larger.
    pub fn len(&self) -> usize {
        self.state.memory.len()
    }

    /// Always false: a memory has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Takes a snapshot for threads of this process; see [`Memory::snapshot`].
    ///
    /// # Errors
    /// The same as for [`Memory::snapshot`].
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.state.memory.snapshot()
    }

    /// Takes a snapshot and runs `task` on it in a child process; see [`Memory::spawn_in_child`]. All blocks have
    /// the same addresses there. The child can allocate from the free blocks, but its heap does not grow.
    ///
    /// # Errors
    /// The same as for [`Memory::spawn_in_child`].
    pub fn spawn_in_child(&self, task: impl FnOnce(&View<'_>) -> Vec<u8>) -> Result<Task, Error> {
        let mut lock = ManuallyDrop::new(self.blocks());
        let in_child = &raw mut lock;
        let result = self.state.memory.spawn_in_child(|view| {
            // SAFETY: this is the child. Its only thread has a copy of the caller's stack, and of the lock that the
            // caller holds. The parent unlocks its own lock below.
            unsafe { ManuallyDrop::drop(&mut *in_child) };
            task(view)
        });
        drop(ManuallyDrop::into_inner(lock));
        result
    }

    /// See [`Memory::settle`].
    pub fn settle(&self) {
        self.state.memory.settle();
    }

    /// See [`Memory::statistics`].
    pub fn statistics(&self) -> Statistics {
        self.state.memory.statistics()
    }
}

/// Returns a block, or an error if the address is null.
fn block(at: *mut u8, len: usize) -> Result<NonNull<[u8]>, AllocError> {
    NonNull::new(at).map(|at| NonNull::slice_from_raw_parts(at, len)).ok_or(AllocError)
}

/// A block without bytes, which has no memory.
fn nothing(layout: Layout) -> NonNull<[u8]> {
    let at = std::ptr::without_provenance_mut(layout.align());
    NonNull::slice_from_raw_parts(NonNull::new(at).expect("an alignment is not 0"), 0)
}

// SAFETY: blocks keep their place until they are freed, as long as a clone exists, because clones share the memory.
unsafe impl Allocator for Heap {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        // SAFETY: the size is not 0.
        block(unsafe { self.blocks().malloc(layout.size(), layout.align()) }, layout.size())
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        // SAFETY: the size is not 0.
        block(unsafe { self.blocks().calloc(layout.size(), layout.align()) }, layout.size())
    }

    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: a block of this heap, by the caller's promise.
            unsafe { self.blocks().free(at.as_ptr(), layout.size(), layout.align()) };
        }
    }

    unsafe fn grow(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() > 0 && old.align() == new.align() {
            // SAFETY: a block of this heap, by the caller's promise; the new size is not smaller than the old one.
            let at = unsafe { self.blocks().realloc(at.as_ptr(), old.size(), old.align(), new.size()) };
            return block(at, new.size());
        }
        let bigger = self.allocate(new)?;
        // SAFETY: two blocks, the second of which is at least as large.
        unsafe {
            at.copy_to_nonoverlapping(bigger.cast(), old.size());
            self.deallocate(at, old);
        }
        Ok(bigger)
    }

    unsafe fn shrink(&self, at: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if new.size() > 0 && old.align() == new.align() {
            // SAFETY: a block of this heap, by the caller's promise; the new size is not 0.
            let at = unsafe { self.blocks().realloc(at.as_ptr(), old.size(), old.align(), new.size()) };
            return block(at, new.size());
        }
        let smaller = self.allocate(new)?;
        // SAFETY: two blocks, the first of which is at least as large.
        unsafe {
            at.copy_to_nonoverlapping(smaller.cast(), new.size());
            self.deallocate(at, old);
        }
        Ok(smaller)
    }
}
