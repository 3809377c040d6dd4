//! The limbo list (4.1): copies of pages that active snapshots may use.
//!
//! A page is put here with an end epoch, that of the youngest snapshot it was made for. No later snapshot can reach
//! it, so it can be given back when `end epoch < min(epochs of active snapshots)` (P1).
//!
//! Handlers push, without waiting: a list through an array with a word for each frame. One reclaimer at a time takes
//! the whole list and keeps it by end epochs ([`Waiting`]), so that looking at it costs nothing for pages whose time
//! has not come.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use bedplate_ring0::word::{Atomic, Atomics};

use super::Epochs;

/// Ends a list.
const NONE: u32 = u32::MAX;

/// See the module. Frames are numbered from 0.
#[derive(Debug)]
pub struct Limbo<A: Atomics> {
    head: A::U32,
    /// For each frame in a list, the next one.
    next: Box<[A::U32]>,
    /// For each frame in a list, its end epoch.
    end: Box<[A::U64]>,
}

/// Pages that are waiting, by end epoch.
#[derive(Debug, Default)]
pub struct Waiting(BTreeMap<u64, Chain>);

#[derive(Debug)]
struct Chain {
    first: u32,
    pages: u64,
}

impl<A: Atomics> Limbo<A> {
    pub fn new(frames: usize) -> Self {
        Self {
            head: A::U32::new(NONE),
            next: (0..frames).map(|_| A::U32::new(NONE)).collect(),
            end: (0..frames).map(|_| A::U64::new(0)).collect(),
        }
    }

    /// Address and length of what [`push`](Self::push) touches besides this.
    pub fn spans(&self) -> [(usize, usize); 2] {
        [
            (self.next.as_ptr() as usize, size_of_val(&*self.next)),
            (self.end.as_ptr() as usize, size_of_val(&*self.end)),
        ]
    }

    /// Puts a frame here that is not here yet.
    #[inline]
    pub fn push(&self, frame: u32, end_epoch: u64) {
        self.end[frame as usize].store(end_epoch, Relaxed);
        let mut head = self.head.load(Relaxed);
        loop {
            self.next[frame as usize].store(head, Relaxed);
            match self.head.compare_exchange(head, frame, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }

    /// Gives pages back that satisfy P1, to `give`, and returns how many. `waiting` is the caller's from one call to
    /// the next; nobody else reclaims meanwhile.
    pub fn reclaim(&self, waiting: &mut Waiting, epochs: &Epochs<A>, mut give: impl FnMut(u32)) -> u64 {
        // In this order: a snapshot that a page taken here was made for is found active below, or has ended.
        let mut frame = self.head.swap(NONE, AcqRel);
        while frame != NONE {
            let next = self.next[frame as usize].load(Relaxed);
            let chain = waiting.0.entry(self.end[frame as usize].load(Relaxed));
            let chain = chain.or_insert(Chain { first: NONE, pages: 0 });
            self.next[frame as usize].store(chain.first, Relaxed);
            *chain = Chain { first: frame, pages: chain.pages + 1 };
            frame = next;
        }
        let oldest = epochs.oldest().unwrap_or(u64::MAX);
        let mut given = 0;
        while let Some(entry) = waiting.0.first_entry() {
            if *entry.key() >= oldest {
                break;
            }
            let Chain { mut first, pages } = entry.remove();
            given += pages;
            while first != NONE {
                // Given back, it may be here again at once.
                let next = self.next[first as usize].load(Relaxed);
                give(first);
                first = next;
            }
        }
        given
    }
}

impl Waiting {
    /// How many pages wait.
    pub fn pages(&self) -> u64 {
        self.0.values().map(|chain| chain.pages).sum()
    }
}
