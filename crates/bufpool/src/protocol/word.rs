//! A page's state: one word, 8 bytes.
//!
//! | bits | what |
//! |---|---|
//! | 0..8 | how many hold it shared |
//! | 8 | cold: not used since the clock's hand passed, or since it was brought in |
//! | 9 | dirty: storage has not got its content |
//! | 10 | locked: somebody holds it exclusively, reads it in, or evicts it |
//! | 11 | present: its memory has its content |
//! | 12.. | version: how often its content or presence changed; of engines whose word is in the page itself, 20 bits, and the page's number above them |
//!
//! A word of zero is of a page that is in storage only, so that a table of words needs no initialisation.
//!
//! **Optimistic readers** write nothing: they load the word, read, and load it again. What they read counts if nothing
//! above bit 9 has changed. Whoever changes a page's content, its presence, or what its memory is, holds the lock bit
//! meanwhile and leaves another version behind. Memory is only released under the lock bit; so a reader that touches it
//! too late reads zeros, or another page, and then sees the lock bit or another version.
//!
//! **Stores instead of read-modify-writes.** Whoever holds the lock bit may store the whole word, for others only change
//! a locked word by bits that the store sets or may lose: cold, and dirty (see [`Word::soil`]).

use super::atomics::{AtomicU64, Ordering, fence};

const SHARED: u64 = 0xff;
/// Not used since the clock's hand passed, or since the page was brought in.
pub const COLD: u64 = 1 << 8;
/// Storage has not got the page's content.
pub const DIRTY: u64 = 1 << 9;
/// Somebody holds the page exclusively.
pub const LOCKED: u64 = 1 << 10;
/// The page's memory has its content.
pub const PRESENT: u64 = 1 << 11;
/// From here on, a change means that what was read does not count.
const CONTENT: u32 = 10;
const VERSION: u32 = 12;
/// From here on, of engines whose word is in the page itself, the page's number.
const NUMBER: u32 = 32;

/// Which bits are the version.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    version: u64,
}

impl Layout {
    /// The word is outside of the page: all upper bits.
    pub const OUTSIDE: Layout = Layout { version: !0 << VERSION };
    /// The word is the page's header: the upper half is the page's number.
    #[allow(dead_code, reason = "of engines whose state is in the page's header")]
    pub const IN_PAGE: Layout = Layout { version: (1 << 32) - (1 << VERSION) };

    /// Who has to be the word's owner for it to be the word of a page.
    #[inline(always)]
    pub fn owner(self, page: u64) -> Owner {
        let mask = !(self.version | ((1 << VERSION) - 1));
        Owner { mask, number: page << NUMBER & mask }
    }

    /// The word of a page that is being brought in, where it tells its page.
    pub fn locked(self, page: u64, version: u64) -> u64 {
        page << NUMBER | version & self.version | LOCKED
    }

    /// The version after this word's, in its place.
    pub fn next_version(self, word: u64) -> u64 {
        self.next(word) & self.version
    }

    fn next(self, word: u64) -> u64 {
        word & !self.version | word.wrapping_add(1 << VERSION) & self.version
    }
}

/// Whose a word has to be, where it tells its page; otherwise every word will do. A word that is found at a page's address
/// may be another page's, and at the next access yet another's: so this is asked of the very value that is compared and
/// swapped.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    mask: u64,
    number: u64,
}

impl Owner {
    /// Whoever it is.
    pub const ANY: Owner = Owner { mask: 0, number: 0 };

    /// Whether a word is the page's.
    #[inline(always)]
    pub fn has(self, word: u64) -> bool {
        word & self.mask == self.number
    }

    /// Whether it is, and the page is in its memory, or somebody has it locked to bring it there.
    pub fn has_in_use(self, word: u64) -> bool {
        self.has(word) && word & (LOCKED | PRESENT) != 0
    }

    fn check(self, word: u64) -> Result<(), Refusal> {
        if !self.has(word) {
            return Err(Refusal::Absent);
        }
        if word & (LOCKED | PRESENT) == PRESENT { Ok(()) } else { Err(refusal(word)) }
    }
}

/// Whether an access is a use that the clock is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is.
    Counted,
    /// It is the one for which the page was brought in, which every page has had; or it goes on with what another began; or it
    /// is not the user's.
    Uncounted,
}

impl Access {
    /// The word after the clock has been told.
    fn tell(self, word: u64) -> u64 {
        if self == Access::Counted { word & !COLD } else { word }
    }
}

/// Why a page could not be had at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is in storage only, and nobody is reading it.
    Absent,
    /// Somebody holds it, reads it in, or evicts it: try again.
    Held,
}

/// Whether optimistic readers may begin at once, with nothing to do for the clock.
#[inline(always)]
pub fn is_ready(word: u64) -> bool {
    word & (LOCKED | PRESENT | COLD) == PRESENT
}

/// Whether what was read under a word counts, when the word is `now`.
#[inline(always)]
fn is_changed(seen: u64, now: u64) -> bool {
    (seen ^ now) >> CONTENT != 0
}

/// The state of a page.
#[repr(transparent)]
#[derive(Debug)]
pub struct Word(AtomicU64);

impl Word {
    /// The word of a page that is in storage only.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The word, for a reader that begins.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether what was read since `seen` was loaded is the page's content at one moment.
    #[inline(always)]
    pub fn is_unchanged(&self, seen: u64) -> bool {
        fence(Ordering::Acquire);
        !is_changed(seen, self.0.load(Ordering::Relaxed))
    }

    /// Begins an optimistic read, and tells the clock if that is to know.
    pub fn try_optimistic(&self, owner: Owner, access: Access) -> Result<u64, Refusal> {
        let now = self.load();
        owner.check(now)?;
        let told = access.tell(now);
        if told != now {
            // When it fails, something else happened to the page, which matters more.
            let _ = self.swap(now, told, Ordering::Relaxed);
        }
        Ok(now)
    }

    /// Locks the page. The result is what [`Word::unlock_modified`] is given.
    pub fn try_exclusive(&self, owner: Owner, access: Access) -> Result<u64, Refusal> {
        let now = self.0.load(Ordering::Relaxed);
        owner.check(now)?;
        if now & SHARED != 0 {
            return Err(Refusal::Held);
        }
        self.lock(now, access)
    }

    /// Locks the page if nothing has changed since an optimistic read began: the clock knows what it is to know.
    pub fn try_upgrade(&self, seen: u64) -> Option<u64> {
        loop {
            let now = self.0.load(Ordering::Relaxed);
            if is_changed(seen, now) || now & SHARED != 0 {
                return None;
            }
            // It fails when only the clock's bit or the dirty bit changed, too.
            if let Ok(before) = self.lock(now, Access::Uncounted) {
                return Some(before);
            }
        }
    }

    fn lock(&self, now: u64, access: Access) -> Result<u64, Refusal> {
        let before = access.tell(now);
        self.swap(now, before | LOCKED, Ordering::Acquire).map_err(|_| Refusal::Held)?;
        // Who reads something that is written from now on will not find the word unchanged.
        fence(Ordering::Release);
        Ok(before)
    }

    fn swap(&self, from: u64, to: u64, order: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(from, to, order, Ordering::Relaxed)
    }

    /// Sets the word of a frame that is the caller's alone.
    pub fn set(&self, word: u64) {
        self.0.store(word, Ordering::Release);
    }

    /// Lets go of a locked page whose content changed.
    pub fn unlock_modified(&self, before: u64, layout: Layout) {
        self.0.store(layout.next(before) | DIRTY, Ordering::Release);
    }

    /// Lets go of a locked page that is not in use any more, and as dirty as it was: whoever read it before must not believe
    /// it.
    pub fn unlock_freed(&self, before: u64, layout: Layout) {
        self.0.store(layout.next(before) | COLD, Ordering::Release);
    }

    /// The same if its content is not worth keeping.
    pub fn unlock_freed_clean(&self, before: u64, layout: Layout) {
        self.unlock_freed(before & !DIRTY, layout);
    }

    /// Lets go of a locked page that is as it was.
    pub fn unlock_unchanged(&self) {
        self.0.fetch_and(!LOCKED, Ordering::Release);
    }

    /// Holds the page shared.
    pub fn try_shared(&self, owner: Owner, access: Access) -> Result<(), Refusal> {
        self.share(owner, access, |_| true)
    }

    /// Holds the page shared, whichever it is, to write it: that is no use of it that the clock is told of.
    pub fn try_shared_to_write(&self) -> Result<(), Refusal> {
        self.try_shared(Owner::ANY, Access::Uncounted)
    }

    /// Holds the page shared if nothing has changed since an optimistic read began: the clock knows what it is to know.
    pub fn try_share_since(&self, seen: u64) -> bool {
        loop {
            let mut changed = false;
            let result = self.share(Owner::ANY, Access::Uncounted, |now| {
                changed = is_changed(seen, now);
                !changed
            });
            if result.is_ok() || changed {
                return !changed;
            }
            // The lock bit is a change, too: this was one of the lower bits.
            if !self.is_unchanged(seen) || self.load() & SHARED == SHARED {
                return false;
            }
        }
    }

    fn share(&self, owner: Owner, access: Access, may: impl FnOnce(u64) -> bool) -> Result<(), Refusal> {
        let now = self.0.load(Ordering::Relaxed);
        if !may(now) {
            return Err(Refusal::Held);
        }
        owner.check(now)?;
        if now & SHARED == SHARED {
            return Err(Refusal::Held);
        }
        self.swap(now, access.tell(now) + 1, Ordering::Acquire).map(drop).map_err(|_| Refusal::Held)
    }

    /// Lets go of a page held shared.
    pub fn unlock_shared(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Takes it on oneself to bring the page in, whose memory is the caller's until then.
    pub fn try_claim(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        if now & (LOCKED | PRESENT) != 0 || self.swap(now, now | LOCKED, Ordering::Acquire).is_err() {
            return false;
        }
        fence(Ordering::Release);
        true
    }

    /// The claimed page is in its memory, for everybody; nobody has used it yet.
    pub fn publish(&self, layout: Layout) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(layout.next(now) & !LOCKED | PRESENT | COLD, Ordering::Release);
    }

    /// The claimed page is in its memory, for the caller, whose use is the first. The result is what
    /// [`Word::unlock_modified`] is given.
    pub fn publish_locked(&self) -> u64 {
        let now = self.0.load(Ordering::Relaxed) | PRESENT | COLD;
        self.0.store(now, Ordering::Relaxed);
        now & !LOCKED
    }

    /// The claimed page could not be brought in. Its memory may have changed.
    pub fn abandon(&self, layout: Layout) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(layout.next(now) & !LOCKED, Ordering::Release);
    }

    /// What the clock's hand does to a page: one that was used since the hand passed becomes cold, a cold one is a
    /// victim unless it `may_stay`. A clean victim is locked when this returns.
    pub fn pass(&self, may_stay: impl FnOnce() -> bool) -> Passed {
        let now = self.0.load(Ordering::Relaxed);
        if now & (LOCKED | PRESENT) != PRESENT || now & SHARED != 0 {
            return Passed::Busy;
        }
        if now & COLD == 0 {
            return match self.swap(now, now | COLD, Ordering::Relaxed) {
                Ok(_) => Passed::Cooled,
                Err(_) => Passed::Busy,
            };
        }
        if may_stay() {
            return Passed::Spared;
        }
        if now & DIRTY != 0 {
            return Passed::Dirty;
        }
        if self.swap(now, now | LOCKED, Ordering::Acquire).is_err() {
            return Passed::Busy;
        }
        fence(Ordering::Release);
        Passed::Locked
    }

    /// Whether storage has not got the page's content.
    pub fn is_dirty(&self) -> bool {
        self.0.load(Ordering::Acquire) & DIRTY != 0
    }

    /// Whether storage has the page's content, and nobody is about to change it.
    pub fn is_settled(&self) -> bool {
        self.0.load(Ordering::Acquire) & (DIRTY | LOCKED) == 0
    }

    /// The page, held shared by the caller, has been copied to be written.
    pub fn clean(&self) {
        self.0.fetch_and(!DIRTY, Ordering::Relaxed);
    }

    /// The copy could not be written. Whoever holds the lock now either leaves the page dirty or no content to write, or
    /// is an evictor, which looks again.
    pub fn soil(&self) {
        self.0.fetch_or(DIRTY, Ordering::Release);
    }

    /// The locked page's memory has been released: it is in storage only.
    pub fn retire(&self, layout: Layout) {
        let now = self.0.load(Ordering::Relaxed);
        let kept = layout.next(now) & !(LOCKED | PRESENT | COLD | DIRTY | SHARED);
        self.0.store(kept, Ordering::Release);
    }
}

/// What the clock's hand found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Somebody uses it.
    Busy,
    /// It was used since the hand passed before.
    Cooled,
    /// It was not, and stays nevertheless.
    Spared,
    /// It is to be evicted once it is written.
    Dirty,
    /// It is to be evicted, and locked for that.
    Locked,
}

fn refusal(word: u64) -> Refusal {
    if word & (LOCKED | PRESENT) == 0 { Refusal::Absent } else { Refusal::Held }
}
