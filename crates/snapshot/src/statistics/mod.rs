//! The statistics of an engine, and reading them from other processes.
//!
//! Every engine fills in the same [`Statistics`]. A program may publish them. Its region then keeps them on a
//! *statistics page* ([`page`]), which other processes find and read ([`processes`]).

pub mod page;
mod pauses;
pub mod processes;

pub(crate) use pauses::PauseCounters;
pub use pauses::{PAUSE_BOUNDS, Pauses};

/// Statistics of an engine. Counts start when the memory is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Snapshots taken.
    pub snapshots: u64,
    /// Snapshots that could not be taken.
    pub failed: u64,
    /// Active snapshots. With `remap`, a child that has ended still counts as long as another child is alive.
    pub active: u64,
    /// Write faults that the engine handled.
    pub faults: u64,
    /// Snapshots that were abandoned because a page could not be kept for them.
    pub incomplete: u64,
    /// Pages whose old content was kept for a snapshot. With `remap`: pages of which writers got copies.
    pub pages_copied: u64,
    /// Pages that were write-protected during snapshots' pauses.
    pub pages_armed_at_snapshots: u64,
    /// With `ring0`: pages that were write-protected ahead of time.
    pub pages_armed_ahead: u64,
    /// With `uffd`: pages that are not write-protected now. The next snapshot must protect them.
    pub pages_unarmed: u64,
    /// Pages that are mapped privately now, copied or not.
    pub pages_private: u64,
    /// Pages that are in use now.
    pub pages_claimed: u64,
    /// Snapshots for which everything had been prepared before.
    pub instantaneous: u64,
    /// With `remap`: snapshots that began while another was active, or before everything was merged. For these,
    /// `fork` copied page tables of the memory, as it does without an engine.
    pub copied_as_usual: u64,
    /// With `remap`: completed merges. A merge begins when snapshots have ended, and is complete when the whole
    /// memory is shared.
    pub merges: u64,
    /// Duration of the latest completed merge, in nanoseconds.
    pub latest_merge_ns: u64,
    /// Total duration of all completed merges, in nanoseconds.
    pub merges_ns: u64,
    /// Bytes that snapshots use in addition to the memory itself, including everything prepared for them.
    pub extra_bytes: u64,
    /// The longest time for which a snapshot made writers wait, in nanoseconds. For a snapshot in a child, it
    /// includes the `fork`; for forked servers with `ring0` it does not.
    pub longest_pause_ns: u64,
    /// The latest of these times, in nanoseconds. See `longest_pause_ns`.
    pub latest_pause_ns: u64,
    /// All of these times.
    pub pauses: Pauses,
}

/// Number of values that [`Statistics::figures`] returns.
const FIGURES: usize = 20 + PAUSE_BOUNDS.len() + 1;

impl Statistics {
    /// All numbers, in the order of the page. Another order requires another version of the page's layout
    /// ([`page::VERSION`]).
    fn figures(&mut self) -> impl Iterator<Item = &mut u64> {
        let pauses = &mut self.pauses;
        let single: [&mut u64; FIGURES - (PAUSE_BOUNDS.len() + 1)] = [
            &mut self.snapshots,
            &mut self.failed,
            &mut self.active,
            &mut self.faults,
            &mut self.incomplete,
            &mut self.pages_copied,
            &mut self.pages_armed_at_snapshots,
            &mut self.pages_armed_ahead,
            &mut self.pages_unarmed,
            &mut self.pages_private,
            &mut self.pages_claimed,
            &mut self.instantaneous,
            &mut self.copied_as_usual,
            &mut self.merges,
            &mut self.latest_merge_ns,
            &mut self.merges_ns,
            &mut self.extra_bytes,
            &mut self.longest_pause_ns,
            &mut self.latest_pause_ns,
            &mut pauses.total_ns,
        ];
        single.into_iter().chain(&mut pauses.counts)
    }
}

/// Held by tests that create pages, or that look for pages in children they fork, because a child inherits all
/// existing pages.
#[cfg(test)]
fn one_test_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static TESTS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
