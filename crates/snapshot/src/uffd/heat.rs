//! Which pages are worth arming ahead of the next snapshot: policy only.
//!
//! Arming a page at the snapshot costs some hundredth of a microsecond where most pages around it are armed with it; a
//! fault costs twenty. So arming ahead is only worth it for pages that almost certainly are not written before the next
//! snapshot: those that were written once and are cold now.
//!
//! Time is counted in sweeps of the worker. A page that is written again soon after it was armed gets hotter and is
//! left alone for longer, twice as long per level; one that stayed armed cools down. How many pages a sweep may arm
//! grows while few of them are written again, and shrinks fast when the faults take more than a small part of a
//! processor.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use rustix::io::Errno;

use crate::region::Table;

const LEVELS: u16 = 6;
const LEVEL_SHIFT: u32 = 13;
const STAMPS: u16 = 1 << LEVEL_SHIFT;
/// A page that stayed armed for so many sweeps was cold.
const COLD: u16 = 128;
/// Instead of a level: mapped anew, and not armed since. Such a page probably will be written soon, so it is left alone
/// like one of [`FRESH_LEVEL`], but nothing is known of it yet.
const FRESH: u16 = 7;
const FRESH_LEVEL: u16 = 4;

/// The level from which pages are not armed early, and are kept for snapshots before they are written.
const HOT: u16 = 5;

/// Faults per sweep, outside of snapshots, above which fewer pages are armed: at 20 µs a fault, 2 % of the processor time
/// from one sweep to the next.
const TOO_MANY: u64 = 50;
const FEW: u64 = TOO_MANY / 4;
/// Bounds of the pages that a sweep may arm.
const LEAST: u32 = 16;
const MOST: u32 = 1 << 17;

/// The pages' heat. A page's word is its level and a moment: when it was armed, or when it may be.
pub struct Heat {
    pages: Table<AtomicU16>,
    now: AtomicU32,
    allowance: AtomicU32,
}

impl Heat {
    pub fn new(pages: usize) -> Result<Self, Errno> {
        Ok(Self {
            pages: Table::new(pages, false)?,
            now: AtomicU32::new(0),
            allowance: AtomicU32::new(LEAST),
        })
    }

    fn now(&self) -> u16 {
        self.now.load(Ordering::Relaxed) as u16 % STAMPS
    }

    fn set(&self, page: usize, level: u16, sweeps_ahead: u32) {
        let stamp = (u32::from(self.now()) + sweeps_ahead) as u16 % STAMPS;
        self.pages[page].store(level << LEVEL_SHIFT | stamp, Ordering::Relaxed);
    }

    fn patience(level: u16) -> u32 {
        2 << level
    }

    /// How many pages this sweep may arm.
    pub fn allowance(&self) -> usize {
        self.allowance.load(Ordering::Relaxed) as usize
    }

    /// A page was mapped anew.
    pub fn mapped(&self, page: usize) {
        self.set(page, FRESH, Self::patience(FRESH_LEVEL));
    }

    /// A page was armed.
    pub fn armed(&self, page: usize) {
        let level = self.level(page);
        self.set(page, if level == FRESH { 0 } else { level }, 0);
    }

    fn level(&self, page: usize) -> u16 {
        self.pages[page].load(Ordering::Relaxed) >> LEVEL_SHIFT
    }

    /// A page that was armed is written.
    pub fn written(&self, page: usize) {
        let word = self.pages[page].load(Ordering::Relaxed);
        let (level, armed) = (word >> LEVEL_SHIFT, word % STAMPS);
        let level = match (self.now() + STAMPS - armed) % STAMPS {
            0..COLD => (level + 1).min(LEVELS),
            _ => level / 2,
        };
        self.set(page, level, Self::patience(level));
    }

    /// A page is not armed any more, whether it is written or not.
    pub fn exposed(&self, page: usize) {
        let level = self.level(page);
        self.set(page, level, Self::patience(level.min(LEVELS)));
    }

    /// A hot page is to show again that it is one.
    pub fn cooled(&self, page: usize) {
        self.set(page, HOT - 1, 0);
    }

    /// Whether a page that is not armed has been left alone for long enough.
    pub fn is_due(&self, page: usize) -> bool {
        let due = self.pages[page].load(Ordering::Relaxed) % STAMPS;
        (self.now() + STAMPS - due) % STAMPS < STAMPS / 2
    }

    /// Whether it is one of those that are written again and again.
    pub fn is_hot(&self, page: usize) -> bool {
        (HOT..=LEVELS).contains(&self.level(page))
    }

    /// A sweep begins; so many faults were taken since the one before, or there was a snapshot.
    pub fn tick(&self, faults: Option<u64>) {
        self.now.fetch_add(1, Ordering::Relaxed);
        let allowance = self.allowance.load(Ordering::Relaxed);
        let allowance = match faults {
            Some(TOO_MANY..) => allowance / 2,
            Some(..FEW) => allowance + allowance / 8,
            Some(_) => allowance,
            // It has written much that it will soon write again.
            None => LEAST,
        };
        self.allowance.store(allowance.clamp(LEAST, MOST), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweeps(heat: &Heat, sweeps: u32) {
        (0..sweeps).for_each(|_| heat.tick(Some(0)));
    }

    /// Sweeps until the page is due.
    fn wait(heat: &Heat, page: usize) -> u32 {
        (0..10_000)
            .find(|_| {
                heat.is_due(page) || {
                    heat.tick(None);
                    false
                }
            })
            .unwrap()
    }

    #[test]
    fn what_is_written_again_and_again_is_left_alone_longer() {
        let heat = Heat::new(2).unwrap();
        let mut waits = Vec::new();
        for _ in 0..10 {
            heat.armed(0);
            sweeps(&heat, 1);
            heat.written(0);
            waits.push(wait(&heat, 0));
        }
        assert!(waits.is_sorted() && waits[0] < waits[5], "{waits:?}");
        // It cools down again.
        for _ in 0..5 {
            heat.armed(0);
            sweeps(&heat, u32::from(COLD));
            heat.written(0);
        }
        assert!(wait(&heat, 0) <= 2);
    }

    #[test]
    fn few_faults_let_it_arm_more_and_many_much_less() {
        let heat = Heat::new(1).unwrap();
        let least = heat.allowance();
        sweeps(&heat, 100);
        let most = heat.allowance();
        assert!(most > 1000 * least, "{least} {most}");
        (0..3).for_each(|_| heat.tick(Some(TOO_MANY)));
        assert!(heat.allowance() <= most / 8);
        (0..100).for_each(|_| heat.tick(Some(TOO_MANY)));
        assert_eq!(heat.allowance(), least);
        sweeps(&heat, 100);
        heat.tick(None);
        assert_eq!(heat.allowance(), least);
    }

    #[test]
    fn a_new_page_becomes_hot_by_its_writes_only() {
        let heat = Heat::new(1).unwrap();
        heat.mapped(0);
        assert!(!heat.is_hot(0));
        for writes in 1..10 {
            heat.exposed(0);
            heat.armed(0);
            heat.written(0);
            assert_eq!(heat.is_hot(0), writes >= HOT, "{writes}");
        }
        heat.cooled(0);
        assert!(!heat.is_hot(0));
        heat.armed(0);
        heat.written(0);
        assert!(heat.is_hot(0));
    }

    #[test]
    fn moments_long_ago_are_due() {
        let heat = Heat::new(1).unwrap();
        heat.mapped(0);
        sweeps(&heat, 2000);
        assert!(heat.is_due(0));
    }
}
