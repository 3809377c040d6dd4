//! The `hashtable` engine: a hash table maps each page in memory to its frame. The other engines are compared with it.
//! A pool uses it if there is not enough address space for the others.
//!
//! The table is divided into partitions. Each has a lock, which a thread holds for one look-up or change. An entry is
//! inserted before its page is read in, and removed before its frame is given to another page. Both happen while the
//! frame's state is locked. So an entry may be stale when a thread uses it. The thread notices this from the frame's
//! state and the frame's page ([`Table::is_of`]).
//!
//! The locks of partitions are leaves: a thread that holds one waits for nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::frames::Frames;
use super::{FrameRef, Victim};
use crate::error::Result;
use crate::page::PageId;
use crate::page_size::PageSize;
use crate::protocol::frame_table::{FrameId, FrameTable};
use crate::protocol::page_state::Layout;

/// Number of partitions. PostgreSQL's buffer mapping table has the same number.
const PARTS: usize = 128;

type Part = RwLock<HashMap<u64, FrameId, BuildHasherDefault<Mixer>>>;

pub(crate) struct Table {
    frames: Frames,
    parts: Box<[Part]>,
}

impl Table {
    pub fn new(frames: usize, size: PageSize) -> Result<Self> {
        let part = || RwLock::new(HashMap::with_capacity_and_hasher(2 * frames / PARTS, Default::default()));
        Ok(Self { frames: Frames::new(frames, size)?, parts: (0..PARTS).map(|_| part()).collect() })
    }

    #[inline]
    fn part(&self, page: PageId) -> &Part {
        &self.parts[mix(page.0) as usize % PARTS]
    }

    fn write(&self, page: PageId) -> RwLockWriteGuard<'_, HashMap<u64, FrameId, BuildHasherDefault<Mixer>>> {
        self.part(page).write().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn read(&self, page: PageId) -> RwLockReadGuard<'_, HashMap<u64, FrameId, BuildHasherDefault<Mixer>>> {
        self.part(page).read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn find(&self, page: PageId) -> Option<FrameRef<'_>> {
        let frame = *self.read(page).get(&page.0)?;
        Some(self.frame_ref(frame))
    }

    #[inline]
    pub fn frame_ref(&self, frame: FrameId) -> FrameRef<'_> {
        self.frames.frame_ref(frame)
    }

    #[inline]
    pub fn is_of(&self, frames: &FrameTable, frame_ref: &FrameRef<'_>, page: PageId) -> bool {
        frames.page(self.frames.frame_of(frame_ref)) == page.0
    }

    pub fn claim(&self, frames: &FrameTable, frame: FrameId, page: PageId) -> Option<FrameRef<'_>> {
        let mut part = self.write(page);
        if part.contains_key(&page.0) {
            return None;
        }
        let frame_ref = self.frame_ref(frame);
        // The frame belongs to the caller and has no page, so no other thread locks its state.
        let claimed = frame_ref.state.try_claim();
        debug_assert!(claimed);
        frames.set_page(frame, page.0);
        part.insert(page.0, frame);
        Some(frame_ref)
    }

    pub fn abandon(&self, frames: &FrameTable, frame: FrameId, page: PageId) {
        self.write(page).remove(&page.0);
        frames.set_page(frame, 0);
        self.frame_ref(frame).state.abandon(Layout::OUTSIDE);
    }

    pub fn release(&self, victims: &[Victim]) {
        for victim in victims {
            self.write(victim.page).remove(&victim.page.0);
        }
    }
}

fn mix(page: u64) -> u64 {
    let product = u128::from(page) * 0x9e37_79b9_7f4a_7c15;
    (product >> 64) as u64 ^ product as u64
}

/// The hash function. A multiplication distributes page numbers well enough, because no attacker chooses them.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // Without the rotation, the bits that select the partition would also select the bucket.
        self.0 = mix(self.0 ^ word).rotate_left(32);
    }
}
