//! The limbo list (section 4.1): copies of pages that active snapshots may use.
//!
//! A page is put into the list with an end epoch: the epoch of the youngest snapshot it was made for. No later
//! snapshot can use the page. It can therefore be given back when `end epoch < min(epochs of active snapshots)`
//! (condition P1).
//!
//! Handlers push pages without waiting, to a list in an array with a word for each frame. One reclaiming thread at
//! a time takes the whole list, and sorts the pages by end epoch ([`Waiting`]). Checking it therefore costs nothing
//! for pages that do not satisfy P1 yet.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use bedplate_ring0::word::{Atomic, Atomics};

use super::Epochs;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// The limbo list. See the module. Frames are numbered from 0.
#[derive(Debug)]
pub struct Limbo<A: Atomics> {
    head: A::U32,
    /// For each frame in a list, the next frame.
    next: Box<[A::U32]>,
    /// For each frame in a list, its end epoch.
    end: Box<[A::U64]>,
}

/// The waiting pages, by end epoch.
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

    /// Address and length of the memory that [`push`](Self::push) touches, except for this value itself.
    pub fn spans(&self) -> [(usize, usize); 2] {
        [
            (self.next.as_ptr() as usize, size_of_val(&*self.next)),
            (self.end.as_ptr() as usize, size_of_val(&*self.end)),
        ]
    }

    /// Pushes a frame that is not in the list.
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

    /// Gives back all pages that satisfy P1, by `give`, and returns their number. The caller must keep `waiting`
    /// from one call to the next. Only one thread may reclaim at a time.
    pub fn reclaim(&self, waiting: &mut Waiting, epochs: &Epochs<A>, mut give: impl FnMut(u32)) -> u64 {
        // The list is taken before the epochs are read. The snapshot of a page taken here is therefore found active
        // below, or has ended.
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
                // After `give`, the frame may be pushed again at once.
                let next = self.next[first as usize].load(Relaxed);
                give(first);
                first = next;
            }
        }
        given
    }
}

impl Waiting {
    /// Number of waiting pages.
    pub fn pages(&self) -> u64 {
        self.0.values().map(|chain| chain.pages).sum()
    }
}
