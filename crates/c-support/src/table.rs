//! Handles are numbers that replace pointers, so that a wrong one is found before memory is touched.
//!
//! A handle has a kind (8 bits), a slot (24 bits) and the number of the slot's use (32 bits, from 1). A slot whose numbers are
//! used up is not used again. There are no locks, because a lock that another thread holds during a `fork` stays locked in the
//! child. The word of a slot says which thread may access its object, and changes only by compare-and-swap or by the thread that
//! made the slot busy.
//!
//! | step | |
//! |---|---|
//! | free → busy → idle | `insert` |
//! | idle → busy → idle | `enter`: one thread at a time |
//! | busy → broken | a panic while the object was in use: it is not used again, only closed |
//! | idle or broken → busy → free | `remove`; the handle is closed from then on |
//!
//! A forked child cannot use the objects that it inherits, because the library's threads do not exist in it. A slot records the
//! process in which it was filled. In other processes, every use of it is an error that says so.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

use bedplate_threads::forks;

const STATES: u64 = 3;
const FREE: u64 = 0;
const IDLE: u64 = 1;
const BUSY: u64 = 2;
const BROKEN: u64 = 3;

const CHUNKS: usize = 64;
const SLOTS: usize = 1024;

/// The reason why a handle cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The handle was never given out, or is of another kind.
    Unknown,
    /// The handle was closed.
    Closed,
    /// Another thread is using the object.
    Busy,
    /// The handle belongs to the parent process.
    Forked,
    /// A panic happened in the object before.
    Broken,
}

struct Slot<T> {
    /// The number of the use, and the state.
    word: AtomicU64,
    forks: AtomicU32,
    object: UnsafeCell<Option<T>>,
}

/// All objects of a kind.
pub struct Table<T: 'static> {
    kind: u8,
    /// The slot at which the search for a free slot begins: the lowest one that may be free, as far as is known. The search
    /// continues from the first slot, so that no slot is missed.
    search_from: AtomicUsize,
    chunks: [AtomicPtr<[Slot<T>; SLOTS]>; CHUNKS],
}

// SAFETY: an object is accessed only by the thread that made its slot busy, so by one thread at a time.
unsafe impl<T: Send> Sync for Table<T> {}

impl<T> Table<T> {
    /// Creates an empty table. The kind must not be 0, and must not be that of another table.
    pub const fn new(kind: u8) -> Self {
        Self {
            kind,
            search_from: AtomicUsize::new(0),
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
        }
    }

    fn chunk(&self, number: usize) -> Option<&'static [Slot<T>; SLOTS]> {
        // SAFETY: null, or a chunk that was leaked.
        unsafe { self.chunks.get(number)?.load(Acquire).as_ref() }
    }

    fn chunk_or_new(&self, number: usize) -> &'static [Slot<T>; SLOTS] {
        if let Some(chunk) = self.chunk(number) {
            return chunk;
        }
        let slot = |_| Slot {
            word: AtomicU64::new(1 << 2 | FREE),
            forks: AtomicU32::new(0),
            object: UnsafeCell::new(None),
        };
        let new = Box::into_raw(Box::new(std::array::from_fn(slot)));
        match self.chunks[number].compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
            // SAFETY: the chunk is leaked from here on.
            Ok(_) => unsafe { &*new },
            Err(theirs) => {
                // SAFETY: no other code has seen the chunk.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: chunks are leaked.
                unsafe { &*theirs }
            }
        }
    }

    /// Adds an object, and returns its handle. The error contains the object: there are too many objects, or there is no memory.
    pub fn insert(&self, object: T) -> Result<u64, T> {
        if !forks::watch() {
            return Err(object);
        }
        let from = self.search_from.load(Relaxed);
        for at in (from..CHUNKS * SLOTS).chain(0..from) {
            let slot = &self.chunk_or_new(at / SLOTS)[at % SLOTS];
            let word = slot.word.load(Relaxed);
            let uses = word >> 2;
            let usable = word & STATES == FREE && uses <= u64::from(u32::MAX);
            if !usable || slot.word.compare_exchange(word, word & !STATES | BUSY, Acquire, Relaxed).is_err() {
                continue;
            }
            self.search_from.store(at + 1, Relaxed);
            // SAFETY: this thread made the slot busy.
            unsafe { *slot.object.get() = Some(object) };
            slot.forks.store(forks::count(), Relaxed);
            slot.word.store(word & !STATES | IDLE, Release);
            return Ok(u64::from(self.kind) << 56 | (at as u64) << 32 | uses);
        }
        Err(object)
    }

    fn find(&self, handle: u64) -> Result<(&'static Slot<T>, u64), Bad> {
        let (kind, at, uses) = ((handle >> 56) as u8, (handle >> 32) as usize & 0xff_ffff, handle as u32);
        if kind != self.kind {
            return Err(Bad::Unknown);
        }
        let slot = &self.chunk(at / SLOTS).ok_or(Bad::Unknown)?[at % SLOTS];
        let word = slot.word.load(Relaxed);
        let (state, now) = (word & STATES, word >> 2);
        match u64::from(uses) {
            uses if uses == 0 || uses > now => Err(Bad::Unknown),
            uses if uses < now => Err(Bad::Closed),
            _ if state == FREE => Err(Bad::Unknown),
            _ if slot.forks.load(Relaxed) != forks::count() => Err(Bad::Forked),
            _ => Ok((slot, word)),
        }
    }

    /// Uses an object, if no other thread is using it.
    pub fn enter(&self, handle: u64) -> Result<Entered<T>, Bad> {
        let (slot, word) = self.find(handle)?;
        match word & STATES {
            BUSY => return Err(Bad::Busy),
            BROKEN => return Err(Bad::Broken),
            _ => {}
        }
        // The exchange fails only if another thread has used or closed the object since.
        match slot.word.compare_exchange(word, word & !STATES | BUSY, Acquire, Relaxed) {
            Ok(_) => Ok(Entered { slot, idle: word }),
            Err(_) => Err(Bad::Busy),
        }
    }

    /// Uses an object that other threads may use, too. Waits while another thread is using it, which must not take long.
    pub fn enter_in_turn(&self, handle: u64) -> Result<Entered<T>, Bad> {
        let mut turns = 0;
        loop {
            match self.enter(handle) {
                Err(Bad::Busy) => wait_a_moment(&mut turns),
                other => return other,
            }
        }
    }

    /// Removes an object, and returns it, if it passes `check` or is broken.
    pub fn remove<E: From<Bad>>(&self, handle: u64, check: impl FnOnce(&T) -> Result<(), E>) -> Result<T, E> {
        let (slot, word) = self.find(handle)?;
        if word & STATES == BUSY
            || slot.word.compare_exchange(word, word & !STATES | BUSY, Acquire, Relaxed).is_err()
        {
            return Err(Bad::Busy.into());
        }
        let mut entered = Entered { slot, idle: word };
        if word & STATES == IDLE {
            check(&entered)?;
        }
        // SAFETY: this thread made the slot busy.
        let object = unsafe { (*slot.object.get()).take() };
        entered.idle = (word >> 2).wrapping_add(1) << 2 | FREE;
        drop(entered);
        self.search_from.fetch_min((handle >> 32) as usize & 0xff_ffff, Relaxed);
        Ok(object.expect("slots that are not free have objects"))
    }

    /// Removes an object, and returns it. Waits while another thread is using it, which must not take long.
    pub fn remove_in_turn(&self, handle: u64) -> Result<T, Bad> {
        self.remove_in_turn_if(handle, |_| Ok(()))
    }

    /// Removes an object, and returns it, if it passes `check` or is broken. Waits while another thread is using it, which must
    /// not take long. `check` is called at most once.
    pub fn remove_in_turn_if<E: From<Bad>>(
        &self,
        handle: u64,
        mut check: impl FnMut(&T) -> Result<(), E>,
    ) -> Result<T, E> {
        let mut turns = 0;
        loop {
            let mut refused = None;
            let removed = self.remove(handle, |object| {
                check(object).map_err(|error| {
                    refused = Some(error);
                    Bad::Busy
                })
            });
            match (removed, refused) {
                (_, Some(error)) => return Err(error),
                (Err(Bad::Busy), None) => wait_a_moment(&mut turns),
                (removed, None) => return removed.map_err(E::from),
            }
        }
    }
}

/// Lets other threads run. A thread with real-time priority must sleep for this, because if it only yielded, an ordinary thread
/// would not run.
fn wait_a_moment(turns: &mut u32) {
    const YIELDS: u32 = 50;
    *turns += 1;
    if *turns <= YIELDS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// An object in use. Dropping it lets other threads use the object.
pub struct Entered<T: 'static> {
    slot: &'static Slot<T>,
    idle: u64,
}

impl<T> Deref for Entered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread made the slot busy.
        unsafe { (*self.slot.object.get()).as_ref() }.expect("slots that are not free have objects")
    }
}

impl<T> DerefMut for Entered<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { (*self.slot.object.get()).as_mut() }.expect("slots that are not free have objects")
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        let broken = std::thread::panicking() && self.idle & STATES == IDLE;
        let word = if broken { self.idle & !STATES | BROKEN } else { self.idle };
        self.slot.word.store(word, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

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
        for wrong in
            [0, second + 1, second + (1 << 32), second + (1 << 50), second ^ 1 << 56, u64::MAX, 7 << 56]
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

    /// Tests that all slots are used before there are too many objects, and that the lowest slot that was freed is used next.
    #[test]
    fn all_slots_are_used_and_freed_ones_are_found() {
        static TABLE: Table<usize> = Table::new(9);
        let handles: Vec<u64> = (0..CHUNKS * SLOTS).map(|n| TABLE.insert(n).unwrap()).collect();
        assert_eq!(TABLE.insert(7), Err(7));
        for freed in [5, 60_000, 5, 0, CHUNKS * SLOTS - 1, 3000] {
            let handle = handles[freed];
            // The slot may have been used again since.
            let now = (1..9).map(|uses| handle & !0xffff_ffff | uses).find(|now| TABLE.enter(*now).is_ok());
            TABLE.remove_in_turn(now.unwrap()).unwrap();
            assert_eq!(TABLE.insert(freed).unwrap() >> 32, handle >> 32);
            assert_eq!(TABLE.insert(7), Err(7));
        }
        for freed in [40_000, 100, 20_000] {
            let now = (1..9).map(|uses| handles[freed] & !0xffff_ffff | uses);
            TABLE.remove_in_turn(now.into_iter().find(|now| TABLE.enter(*now).is_ok()).unwrap()).unwrap();
        }
        let places = [(); 3].map(|()| TABLE.insert(1).unwrap() >> 32 & 0xff_ffff);
        assert_eq!(places, [100, 20_000, 40_000]);
    }

    #[test]
    fn a_check_that_refuses_leaves_the_object_where_it_is() {
        static TABLE: Table<u32> = Table::new(6);
        #[derive(Debug, PartialEq)]
        enum Why {
            Bad(Bad),
            Refused(u32),
        }
        impl From<Bad> for Why {
            fn from(bad: Bad) -> Self {
                Self::Bad(bad)
            }
        }
        let handle = TABLE.insert(7).unwrap();
        assert_eq!(
            TABLE.remove_in_turn_if(handle, |object| Err(Why::Refused(*object))),
            Err(Why::Refused(7))
        );
        // The call waits for a thread that is using the object.
        let inside = TABLE.enter(handle).unwrap();
        let thread = std::thread::spawn(move || TABLE.remove_in_turn_if(handle, |_| Ok::<_, Why>(())));
        drop(inside);
        assert_eq!(thread.join().unwrap(), Ok(7));
        assert_eq!(TABLE.remove_in_turn_if(handle, |_| Ok(())), Err(Why::Bad(Bad::Closed)));
    }

    /// Threads use, close and open the same handles. Each object must be closed once, and used by one thread at a time.
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
}
