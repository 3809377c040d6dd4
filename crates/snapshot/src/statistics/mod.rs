//! Statistics of an engine, and how other processes can read them.
//!
//! Every engine fills in the same [`Statistics`]. A program may publish them: then its region keeps them on a *statistics
//! page* ([`page`]), which other processes find and read ([`processes`]).

pub mod page;
mod pauses;
pub mod processes;

pub(crate) use pauses::PauseCounters;
pub use pauses::{PAUSE_BOUNDS, Pauses};

/// Statistics of an engine. Counts since the memory was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Snapshots taken.
    pub snapshots: u64,
    /// Snapshots that could not be taken.
    pub failed: u64,
    /// Snapshots that have not ended. With `remap`, a child that has ended counts as long as another child lives.
    pub active: u64,
    /// Write faults that the engine handled.
    pub faults: u64,
    /// Snapshots that were given up because a page could not be kept for them.
    pub incomplete: u64,
    /// Pages whose old content was kept for a snapshot; of `remap`: of which writers got copies.
    pub pages_copied: u64,
    /// Pages that were write-protected during snapshots' pauses.
    pub pages_armed_at_snapshots: u64,
    /// With `ring0`: pages that were write-protected ahead of time.
    pub pages_armed_ahead: u64,
    /// With `uffd`: pages that are not write-protected now, which the next snapshot has to protect.
    pub pages_unarmed: u64,
    /// Pages that are mapped privately now, copied or not.
    pub pages_private: u64,
    /// Pages that are in use now.
    pub pages_claimed: u64,
    /// Snapshots for which everything had been made ready before.
    pub instantaneous: u64,
    /// With `remap`: snapshots that began while another was active, or before all was merged. For these, `fork` copied
    /// page tables of the memory, as it does without an engine.
    pub copied_as_usual: u64,
    /// With `remap`: times at which all was merged after snapshots had ended.
    pub merges: u64,
    /// How long the latest of them took, in nanoseconds.
    pub latest_merge_ns: u64,
    /// How long all of them took, in nanoseconds.
    pub merges_ns: u64,
    /// Bytes that snapshots take beside the memory itself, with what is made ahead for them.
    pub extra_bytes: u64,
    /// The longest and the latest time for which a snapshot held up writers, in nanoseconds: of one in a child with its
    /// `fork`. Of `ring0` it is that of forked servers without `fork`.
    pub longest_pause_ns: u64,
    /// See `longest_pause_ns`.
    pub latest_pause_ns: u64,
    /// All of these times.
    pub pauses: Pauses,
}

/// How many numbers [`Statistics::figures`] gives.
const FIGURES: usize = 20 + PAUSE_BOUNDS.len() + 1;

impl Statistics {
    /// All numbers, in the order in which the page has them. Another order is another version of the page's layout
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

/// Tests that make pages, or look for pages in children that they fork, hold this: a child inherits all pages that there are.
#[cfg(test)]
fn one_test_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static TESTS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
