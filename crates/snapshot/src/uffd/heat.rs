//! Which pages are worth arming ahead of the next snapshot: policy only.
//!
//! Time is counted in sweeps of the keeper. A page that is written again soon after it was armed gets hotter and is
//! left alone for longer, twice as long per level; one that stayed armed cools down. When faults outside of
//! snapshots take more than a small part of a processor all the same, everything is left alone for longer.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use rustix::io::Errno;

use super::own::Table;

const LEVELS: u16 = 6;
const LEVEL_SHIFT: u32 = 13;
const STAMPS: u16 = 1 << LEVEL_SHIFT;
/// The longest that a page can be left alone, in sweeps.
const LONGEST: u32 = 2000;
/// A page that stayed armed for so many sweeps was cold.
const COLD: u16 = 128;
/// Instead of a level: mapped anew, and not armed since. Such a page probably will be written soon, so it is left alone
/// like one of [`FRESH_LEVEL`], but nothing is known of it yet.
const FRESH: u16 = 7;
const FRESH_LEVEL: u16 = 4;

/// The level from which pages are not armed early.
const HOT: u16 = 3;
/// The level from which pages are kept before they are written.
const HOTTEST: u16 = 5;

/// Faults per sweep, outside of snapshots, above which pages are left alone for longer: 2 % of a processor at 4 µs a
/// fault and ten sweeps a second.
const TOO_MANY: u64 = 500;
const FEW: u64 = TOO_MANY / 4;
const MOST_PATIENT: u32 = 6;

/// The pages' heat. A page's word is its level and a moment: when it was armed, or when it may be.
pub struct Heat {
    pages: Table<AtomicU16>,
    now: AtomicU32,
    patience: AtomicU32,
}

impl Heat {
    pub fn new(pages: usize) -> Result<Self, Errno> {
        Ok(Self { pages: Table::new(pages, false)?, now: AtomicU32::new(0), patience: AtomicU32::new(0) })
    }

    fn now(&self) -> u16 {
        self.now.load(Ordering::Relaxed) as u16 % STAMPS
    }

    fn set(&self, page: usize, level: u16, sweeps_ahead: u32) {
        let stamp = (u32::from(self.now()) + sweeps_ahead) as u16 % STAMPS;
        self.pages[page].store(level << LEVEL_SHIFT | stamp, Ordering::Relaxed);
    }

    fn patience(&self, level: u16) -> u32 {
        (2u32 << level << self.patience.load(Ordering::Relaxed)).min(LONGEST)
    }

    /// A page was mapped anew.
    pub fn mapped(&self, page: usize) {
        self.set(page, FRESH, self.patience(FRESH_LEVEL));
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
        self.set(page, level, self.patience(level));
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

    /// Whether it was written soon after each of the latest snapshots.
    pub fn is_hottest(&self, page: usize) -> bool {
        (HOTTEST..=LEVELS).contains(&self.level(page))
    }

    /// A sweep begins; so many faults were taken since the one before, or it was a snapshot's time.
    pub fn tick(&self, faults: Option<u64>) {
        self.now.fetch_add(1, Ordering::Relaxed);
        let patience = self.patience.load(Ordering::Relaxed);
        match faults {
            Some(TOO_MANY..) if patience < MOST_PATIENT => {
                self.patience.store(patience + 1, Ordering::Relaxed);
            }
            Some(..FEW) if patience > 0 && self.now().is_multiple_of(16) => {
                self.patience.store(patience - 1, Ordering::Relaxed);
            }
            _ => {}
        }
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
    fn too_many_faults_make_it_patient_and_few_impatient() {
        let heat = Heat::new(1).unwrap();
        heat.written(0);
        let usual = wait(&heat, 0);
        (0..3).for_each(|_| heat.tick(Some(TOO_MANY)));
        heat.written(0);
        let patient = wait(&heat, 0);
        assert!(patient >= 4 * usual, "{usual} {patient}");
        sweeps(&heat, 200);
        heat.written(0);
        heat.armed(0);
        sweeps(&heat, u32::from(COLD));
        heat.written(0);
        assert!(wait(&heat, 0) <= usual);
    }

    #[test]
    fn a_new_page_becomes_hot_by_its_writes_only() {
        let heat = Heat::new(1).unwrap();
        heat.mapped(0);
        assert!(!heat.is_hot(0) && !heat.is_hottest(0));
        for writes in 1..10 {
            heat.armed(0);
            heat.written(0);
            assert_eq!(heat.is_hot(0), writes >= HOT, "{writes}");
            assert_eq!(heat.is_hottest(0), writes >= HOTTEST, "{writes}");
        }
    }

    #[test]
    fn moments_long_ago_are_due() {
        let heat = Heat::new(1).unwrap();
        heat.mapped(0);
        sweeps(&heat, LONGEST);
        assert!(heat.is_due(0));
    }
}
