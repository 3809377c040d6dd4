//! The state of a page: one word of 8 bytes.
//!
//! | bits | content |
//! |---|---|
//! | 0..7 | number of shared holders |
//! | 7 | awaited: a thread waits to lock the page, and shared holders keep it waiting |
//! | 8 | cold: not used since the clock's hand passed, or since the page was read in |
//! | 9 | dirty: storage does not have the current content |
//! | 10 | locked: a thread holds the page exclusively, reads it in, or evicts it |
//! | 11 | present: the content is in memory |
//! | 12.. | version: counts changes of content and presence; if the word is in the page, 20 bits, with the page number above |
//!
//! Zero is the word of a page that is in storage only. So a table of words needs no initialisation.
//!
//! **Optimistic readers** write nothing. A reader loads the word, reads the page, and loads the word again. The read is
//! consistent if nothing from bit 10 on has changed. A thread that changes a page's content, its presence or its memory
//! holds the lock bit meanwhile and leaves another version. Memory is released only under the lock bit. So a reader
//! that touches it too late reads zeros or another page, and then finds the lock bit or another version.
//!
//! **Waiting writers** keep new shared holders out. A thread that wants the lock and finds shared holders sets the
//! awaited bit. While the bit is set, no thread gets the page shared, except to write it to storage, which lasts only
//! as long as a copy. So the page becomes free when the present holders have released it. The bit does not count as a
//! change of the content. It is set by compare-and-swap on an unlocked word that has shared holders. The next thread
//! that locks the page clears it. So a locked word never has the bit, and a word gets it only while a thread waits. A
//! thread stops waiting when it gets the lock, or when the page has become absent. Absence requires the lock too, so
//! the bit is never left behind.
//!
//! **Latch order.** A thread that holds a page shared and asks for another page may wait behind a writer. So all
//! threads must take pages in an order without circles, even if they take all of them shared. No thread may take a page
//! shared twice.
//!
//! **Stores instead of read-modify-writes.** The thread that holds the lock bit may store the whole word. Other threads
//! change only two bits of a locked word: cold, and dirty. The store sets these bits itself, or it may lose their
//! change (see [`PageState::mark_dirty`]).

use super::atomics::{AtomicU64, Ordering, fence};

/// The maximum number of shared holders, which is also the mask of their count. The next thread waits.
const SHARED: u64 = 0x7f;
/// A thread waits to lock the page.
const AWAITED: u64 = 1 << 7;
/// The page was not used since the clock's hand passed, or since it was read in.
pub const COLD: u64 = 1 << 8;
/// Storage does not have the page's current content.
pub const DIRTY: u64 = 1 << 9;
/// A thread holds the page exclusively, reads it in, or evicts it.
pub const LOCKED: u64 = 1 << 10;
/// The page's content is in memory.
pub const PRESENT: u64 = 1 << 11;
/// The lowest bit whose change makes an optimistic read inconsistent.
const CONTENT: u32 = 10;
const VERSION: u32 = 12;
/// The lowest bit of the page number, if the word is in the page itself.
const NUMBER: u32 = 32;

/// The bits that are the version.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    version: u64,
}

impl Layout {
    /// The word is outside the page: all upper bits are the version.
    pub const OUTSIDE: Layout = Layout { version: !0 << VERSION };
    /// The word is in the page's header: the upper half is the page number.
    #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
    pub const IN_PAGE: Layout = Layout { version: (1 << 32) - (1 << VERSION) };

    /// The condition under which a word belongs to `page`.
    #[inline(always)]
    pub fn owner(self, page: u64) -> Owner {
        let mask = !(self.version | ((1 << VERSION) - 1));
        Owner { mask, number: page << NUMBER & mask }
    }

    /// The word of a page that is being read in. It has the page number if the layout does.
    #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
    pub fn locked(self, page: u64, version: u64) -> u64 {
        page << NUMBER | version & self.version | LOCKED
    }

    /// The version after that of `word`, at its position in the word.
    #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
    pub fn next_version(self, word: u64) -> u64 {
        self.next(word) & self.version
    }

    fn next(self, word: u64) -> u64 {
        word & !self.version | word.wrapping_add(1 << VERSION) & self.version
    }
}

/// The condition under which a word belongs to a page. If words have no page number, every word meets it. The word at a
/// page's address may belong to another page, and it may change with each access. So the condition is checked on the
/// same value that the compare-and-swap uses.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    mask: u64,
    number: u64,
}

impl Owner {
    /// Every word meets this condition.
    pub const ANY: Owner = Owner { mask: 0, number: 0 };

    /// Whether a word belongs to the page.
    #[inline(always)]
    pub fn has(self, word: u64) -> bool {
        word & self.mask == self.number
    }

    /// Whether a word belongs to the page, and the page is present or locked by a thread that reads it in.
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

/// Whether the clock counts an access as a use of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The access counts as a use.
    Counted,
    /// The access does not count. It is the access that the page was read in for, or it continues an earlier access, or
    /// the pool itself makes it.
    Uncounted,
}

impl Access {
    /// The word after the clock has noted the access.
    fn tell(self, word: u64) -> u64 {
        if self == Access::Counted { word & !COLD } else { word }
    }
}

/// The reason why a thread did not get a page at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The page is in storage only, and no thread is reading it in.
    Absent,
    /// A thread holds the page, reads it in, or evicts it. The caller tries again.
    Held,
}

/// Whether an optimistic read may begin at once, without a change of the cold bit.
#[inline(always)]
pub fn is_ready(word: u64) -> bool {
    word & (LOCKED | PRESENT | COLD) == PRESENT
}

/// Whether the content may have changed between the words `seen` and `now`.
#[inline(always)]
fn is_changed(seen: u64, now: u64) -> bool {
    (seen ^ now) >> CONTENT != 0
}

/// The state of a page.
#[repr(transparent)]
#[derive(Debug)]
pub struct PageState(AtomicU64);

impl PageState {
    /// The state of a page that is in storage only.
    #[allow(dead_code, reason = "engines' states are memory of zeros")]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The word, at the start of a read.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether everything read since `seen` was loaded is consistent: the content at one moment.
    #[inline(always)]
    pub fn is_unchanged(&self, seen: u64) -> bool {
        fence(Ordering::Acquire);
        !is_changed(seen, self.0.load(Ordering::Relaxed))
    }

    /// Begins an optimistic read. Notes the use for the clock if the access is counted.
    pub fn try_optimistic(&self, owner: Owner, access: Access) -> Result<u64, Refusal> {
        let now = self.load();
        owner.check(now)?;
        let told = access.tell(now);
        if told != now {
            // If the swap fails, another thread has changed the word, and that change matters more.
            let _ = self.swap(now, told, Ordering::Relaxed);
        }
        Ok(now)
    }

    /// Locks the page. The caller passes the result to [`PageState::unlock_modified`].
    pub fn try_exclusive(&self, owner: Owner, access: Access) -> Result<u64, Refusal> {
        let now = self.0.load(Ordering::Relaxed);
        owner.check(now)?;
        if now & SHARED != 0 {
            return Err(Refusal::Held);
        }
        self.lock(now, access)
    }

    /// Locks the page, or sets the awaited bit if other threads hold it shared. New shared holders wait then. The
    /// caller must try again until it has the page or finds it absent. `is_its` returns whether the word still belongs
    /// to the page, if the word itself does not tell. So the word of another page never gets the bit.
    pub fn try_exclusive_or_await(
        &self,
        owner: Owner,
        access: Access,
        is_its: impl FnOnce() -> bool,
    ) -> Result<u64, Refusal> {
        let result = self.try_exclusive(owner, access);
        if result == Err(Refusal::Held) {
            self.await_holders(owner, is_its);
        }
        result
    }

    #[cold]
    fn await_holders(&self, owner: Owner, is_its: impl FnOnce() -> bool) {
        let now = self.load();
        if owner.check(now).is_ok() && now & SHARED != 0 && now & AWAITED == 0 && is_its() {
            // The word has belonged to the page since it was loaded, because another page would have left another
            // version. If the swap fails, the next attempt sets the bit.
            let _ = self.swap(now, now | AWAITED, Ordering::AcqRel);
        }
    }

    /// Locks the page if it has not changed since an optimistic read began. The read has already noted its use for the
    /// clock.
    pub fn try_upgrade(&self, seen: u64) -> Option<u64> {
        loop {
            let now = self.0.load(Ordering::Relaxed);
            if is_changed(seen, now) || now & SHARED != 0 {
                return None;
            }
            // The swap also fails if only the cold bit or the dirty bit has changed.
            if let Ok(before) = self.lock(now, Access::Uncounted) {
                return Some(before);
            }
        }
    }

    fn lock(&self, now: u64, access: Access) -> Result<u64, Refusal> {
        let before = access.tell(now) & !AWAITED;
        self.swap(now, before | LOCKED, Ordering::Acquire).map_err(|_| Refusal::Held)?;
        // A reader that reads a later store of this thread finds the word changed.
        fence(Ordering::Release);
        Ok(before)
    }

    fn swap(&self, from: u64, to: u64, order: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(from, to, order, Ordering::Relaxed)
    }

    /// Sets the word of a frame that belongs to the caller alone. The caller may write the frame afterwards.
    #[cfg(all(feature = "ring0", target_arch = "x86_64"))]
    pub fn set(&self, word: u64) {
        self.0.store(word, Ordering::Release);
        // A stale translation may lead a reader to this frame. If it reads a later store of this thread, it also sees
        // this word or a later one.
        fence(Ordering::Release);
    }

    /// Unlocks a page whose content has changed.
    pub fn unlock_modified(&self, before: u64, layout: Layout) {
        self.0.store(layout.next(before) | DIRTY, Ordering::Release);
    }

    /// Unlocks a page that is no longer in use. It stays dirty if it was. The version changes, so earlier optimistic
    /// reads fail.
    pub fn unlock_freed(&self, before: u64, layout: Layout) {
        self.0.store(layout.next(before) | COLD, Ordering::Release);
    }

    /// Like [`PageState::unlock_freed`], for content that need not be written.
    pub fn unlock_freed_clean(&self, before: u64, layout: Layout) {
        self.unlock_freed(before & !DIRTY, layout);
    }

    /// Unlocks a page that has not changed.
    pub fn unlock_unchanged(&self) {
        self.0.fetch_and(!LOCKED, Ordering::Release);
    }

    /// Takes the page shared.
    pub fn try_shared(&self, owner: Owner, access: Access) -> Result<(), Refusal> {
        self.share(owner, access, |now| now & AWAITED == 0)
    }

    /// Takes the page shared, whichever page it is, to write it to storage. The clock does not count this as a use.
    /// Waiting writers do not keep the caller out, because it releases the page soon.
    pub fn try_shared_to_write(&self) -> Result<(), Refusal> {
        self.share(Owner::ANY, Access::Uncounted, |_| true)
    }

    /// Takes the page shared if it has not changed since an optimistic read began. The read has already noted its use
    /// for the clock.
    pub fn try_share_since(&self, seen: u64) -> bool {
        loop {
            let mut refused = false;
            let result = self.share(Owner::ANY, Access::Uncounted, |now| {
                refused = is_changed(seen, now) || now & AWAITED != 0;
                !refused
            });
            if result.is_ok() || refused {
                return !refused;
            }
            // The swap failed because of one of the lower bits, unless the content has changed: the lock bit counts as
            // a change too.
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

    /// Releases a page that is held shared.
    pub fn unlock_shared(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Claims an absent page. Until the claim ends, the caller alone may read the page into its memory.
    pub fn try_claim(&self) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        if now & (LOCKED | PRESENT) != 0 || self.swap(now, now | LOCKED, Ordering::Acquire).is_err() {
            return false;
        }
        fence(Ordering::Release);
        true
    }

    /// Ends a claim: the page is in memory, and all threads may use it. No thread has used it yet.
    pub fn publish(&self, layout: Layout) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(layout.next(now) & !LOCKED | PRESENT | COLD, Ordering::Release);
    }

    /// Ends a claim: the page is in memory, and the caller keeps it locked for the first use. The caller passes the
    /// result to [`PageState::unlock_modified`].
    pub fn publish_locked(&self) -> u64 {
        let now = self.0.load(Ordering::Relaxed) | PRESENT | COLD;
        self.0.store(now, Ordering::Relaxed);
        now & !LOCKED
    }

    /// Ends a claim: the page could not be read in. Its memory may have changed.
    pub fn abandon(&self, layout: Layout) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(layout.next(now) & !LOCKED, Ordering::Release);
    }

    /// Passes the clock's hand over the page. A page that was used since the last pass becomes cold. A cold page
    /// becomes a victim unless `may_stay` returns true. A clean victim is locked on return.
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
        if self.swap(now, now & !AWAITED | LOCKED, Ordering::Acquire).is_err() {
            return Passed::Busy;
        }
        fence(Ordering::Release);
        Passed::Locked
    }

    /// Whether storage does not have the page's current content.
    pub fn is_dirty(&self) -> bool {
        self.0.load(Ordering::Acquire) & DIRTY != 0
    }

    /// Whether the page is in memory, was not used since the clock's hand passed, and is dirty. When the hand comes, such a page
    /// must be written before it can be evicted.
    pub fn is_cold_and_dirty(&self) -> bool {
        const WHICH: u64 = PRESENT | LOCKED | COLD | DIRTY | SHARED;
        self.0.load(Ordering::Relaxed) & WHICH == PRESENT | COLD | DIRTY
    }

    /// Whether storage has the page's current content, and no thread may be changing it.
    pub fn is_settled(&self) -> bool {
        self.0.load(Ordering::Acquire) & (DIRTY | LOCKED) == 0
    }

    /// Clears the dirty bit. The caller holds the page shared and has copied it to be written.
    pub fn clean(&self) {
        self.0.fetch_and(!DIRTY, Ordering::Relaxed);
    }

    /// Sets the dirty bit again, because the copy could not be written. Another thread may hold the lock meanwhile and
    /// store the whole word. Such a thread leaves the page dirty, or leaves no content to write, or is an evictor,
    /// which checks again.
    pub fn mark_dirty(&self) {
        self.0.fetch_or(DIRTY, Ordering::Release);
    }

    /// Marks the locked page as absent: its memory has been released, and it is in storage only.
    pub fn retire(&self, layout: Layout) {
        let now = self.0.load(Ordering::Relaxed);
        let kept = layout.next(now) & !(LOCKED | PRESENT | COLD | DIRTY | AWAITED | SHARED);
        self.0.store(kept, Ordering::Release);
    }
}

/// The result of a pass of the clock's hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// A thread uses the page.
    Busy,
    /// The page was used since the last pass, and is cold now.
    Cooled,
    /// The page was not used since the last pass, but it stays.
    Spared,
    /// The page becomes a victim after it has been written.
    Dirty,
    /// The page is a victim, and the caller has locked it.
    Locked,
}

fn refusal(word: u64) -> Refusal {
    if word & (LOCKED | PRESENT) == 0 { Refusal::Absent } else { Refusal::Held }
}

#[cfg(test)]
impl PageState {
    /// Whether a thread waits to lock the page, according to the word.
    #[allow(dead_code, reason = "a model asks, and it has a copy of this file")]
    pub fn is_awaited(&self) -> bool {
        self.load() & AWAITED != 0
    }
}
