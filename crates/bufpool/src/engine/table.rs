//! Frames, and a hash table that tells which page is in which: what virtual memory is compared with, and what is used
//! where there is not enough address space.
//!
//! The table is in parts with a lock each, held for a look-up only. A page's entry is made before the page is brought in
//! and removed before its frame is given away, both while the frame's word is locked. So an entry may be out of date when
//! it is used, which the frame's word and the slot's page tell ([`Table::is_of`]).
//!
//! Parts' locks are leaves.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Place, Victim};
use crate::error::Result;
use crate::page::{PAGE, PageId};
use crate::protocol::slots::{Slot, Slots};
use crate::protocol::word::{Layout, Word};
use crate::region::Region;

/// As many parts as the busiest pools of other systems have.
const PARTS: usize = 128;

type Part = RwLock<HashMap<u64, Slot, BuildHasherDefault<Mixer>>>;

pub(crate) struct Table {
    frames: Region,
    words: Box<[Word]>,
    parts: Box<[Part]>,
}

impl Table {
    pub fn new(frames: usize) -> Result<Self> {
        let part = || RwLock::new(HashMap::with_capacity_and_hasher(2 * frames / PARTS, Default::default()));
        Ok(Self {
            frames: Region::new(frames * PAGE)?,
            words: (0..frames).map(|_| Word::new()).collect(),
            parts: (0..PARTS).map(|_| part()).collect(),
        })
    }

    #[inline]
    fn part(&self, page: PageId) -> &Part {
        &self.parts[mix(page.0) as usize % PARTS]
    }

    fn write(&self, page: PageId) -> RwLockWriteGuard<'_, HashMap<u64, Slot, BuildHasherDefault<Mixer>>> {
        self.part(page).write().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn read(&self, page: PageId) -> RwLockReadGuard<'_, HashMap<u64, Slot, BuildHasherDefault<Mixer>>> {
        self.part(page).read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn find(&self, page: PageId) -> Option<Place<'_>> {
        let slot = *self.read(page).get(&page.0)?;
        Some(self.place(slot))
    }

    #[inline]
    pub fn place(&self, slot: Slot) -> Place<'_> {
        let memory = self.frames.base().wrapping_add(slot as usize * PAGE);
        Place { word: &self.words[slot as usize], memory }
    }

    #[inline]
    pub fn is_of(&self, slots: &Slots, place: &Place<'_>, page: PageId) -> bool {
        let slot = (place.memory.addr() - self.frames.base().addr()) / PAGE;
        slots.page(slot as Slot) == page.0
    }

    pub fn claim(&self, slots: &Slots, slot: Slot, page: PageId) -> Option<Place<'_>> {
        let mut part = self.write(page);
        if part.contains_key(&page.0) {
            return None;
        }
        let place = self.place(slot);
        // The slot is the caller's, and has no page: nobody else locks its word.
        let claimed = place.word.try_claim();
        debug_assert!(claimed);
        slots.set_page(slot, page.0);
        part.insert(page.0, slot);
        Some(place)
    }

    pub fn abandon(&self, slots: &Slots, slot: Slot, page: PageId) {
        self.write(page).remove(&page.0);
        slots.set_page(slot, 0);
        self.words[slot as usize].abandon(Layout::OUTSIDE);
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

/// Page numbers are no secret and no attack: a multiplication spreads them.
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
        // Not the part's bits again.
        self.0 = mix(self.0 ^ word).rotate_left(32);
    }
}
