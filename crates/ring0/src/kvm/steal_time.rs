//! KVM's record of *steal time*, which says whether the threads of other processors run. KVM keeps it for guests
//! that ask for it.
//!
//! KVM marks a processor's record when Linux preempts the processor's thread. A guest can add a mark that makes KVM
//! drop the processor's translations before its next instruction. A shootdown therefore need not wait for a
//! preempted thread, which may not run for a long time.

use std::sync::atomic::{AtomicU8, Ordering};

/// The model-specific register with the address of the record.
pub const REGISTER: u32 = 0x4b56_4d03;
/// The bit of [`REGISTER`] that turns the record on.
pub const ENABLED: u64 = 1;
/// The CPUID leaf with KVM's features. [`FEATURES`] are the bits of its EAX for the record and for the mark that
/// drops translations.
pub const LEAF: u32 = 0x4000_0001;
/// See [`LEAF`].
pub const FEATURES: u32 = 1 << 5 | 1 << 9;

/// Mark: the thread does not run.
const PREEMPTED: u8 = 1;
/// Mark: KVM must drop all translations before the processor's next instruction.
const FLUSH: u8 = 2;

/// A processor's record, in KVM's layout.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StealTime {
    /// Times and counts, which are not used here.
    times: [u8; 16],
    state: AtomicU8,
    rest: [u8; 47],
}

const _: () = assert!(size_of::<StealTime>() == 64 && std::mem::offset_of!(StealTime, state) == 16);

impl Default for StealTime {
    fn default() -> StealTime {
        StealTime { times: [0; 16], state: AtomicU8::new(0), rest: [0; 47] }
    }
}

impl StealTime {
    /// If the processor's thread does not run, makes KVM drop all translations before the processor's next
    /// instruction. Returns whether it will. The caller must have changed the page-table entries before, with a
    /// fence in between.
    pub fn flush_when_resumed(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        // KVM swaps the marks out before it acts on them, so KVM has not yet seen a mark that is still set.
        state & PREEMPTED != 0
            && self.state.compare_exchange(state, state | FLUSH, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_threads_that_do_not_run_get_a_mark() {
        let record = StealTime::default();
        assert!(!record.flush_when_resumed());
        assert_eq!(record.state.load(Ordering::Relaxed), 0);
        record.state.store(PREEMPTED, Ordering::Relaxed);
        assert!(record.flush_when_resumed() && record.flush_when_resumed());
        assert_eq!(record.state.load(Ordering::Relaxed), PREEMPTED | FLUSH);
    }
}
