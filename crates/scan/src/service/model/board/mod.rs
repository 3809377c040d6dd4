//! The board with loom's words instead of the production ones, in memory of its own.

#[path = "../../../board/audit.rs"]
mod audit;
#[path = "../../../board/doorbell.rs"]
mod doorbell;
#[path = "../../../board/entry.rs"]
mod entry;
#[path = "../../../board/metrics.rs"]
mod metrics;
#[path = "../../../board/state.rs"]
mod state;
mod content {
    pub use crate::board::{Fault, Faults, Judgment, Segment};
}
mod words {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

pub use crate::board::Closed;
pub use audit::Audit;
pub use content::{Faults, Judgment};
pub use doorbell::{Wake, Want};
pub use entry::{Content, Entry};
use entry::{FaultWord, SegmentWords};
use metrics::{ServiceWords, WorkerWords};
pub use state::State;
use words::Ordering;

/// A board whose entries have one segment each, and a word for the faults of all of it.
pub struct Board {
    entries: Vec<Entry>,
    segments: Vec<SegmentWords>,
    faults: Vec<FaultWord>,
    worker: WorkerWords,
    service: ServiceWords,
}

impl Board {
    pub fn new(slots: usize) -> Self {
        Self {
            entries: (0..slots).map(|_| Entry::new()).collect(),
            segments: (0..slots).map(|_| SegmentWords::default()).collect(),
            faults: (0..slots).map(|_| FaultWord::default()).collect(),
            worker: WorkerWords::default(),
            service: ServiceWords::default(),
        }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn segments(&self, slot: usize) -> &[SegmentWords] {
        std::slice::from_ref(&self.segments[slot])
    }

    pub fn faults(&self, slot: usize) -> &[FaultWord] {
        std::slice::from_ref(&self.faults[slot])
    }

    pub fn worker(&self) -> &WorkerWords {
        &self.worker
    }

    pub fn service(&self) -> &ServiceWords {
        &self.service
    }

    pub fn close(&self, why: Closed) {
        let _ = self.service.closed.compare_exchange(0, why as u32, Ordering::Release, Ordering::Relaxed);
    }
}
