//! MEMSB, the memory switchboard (paper 3.2): one small shared memory per channel. The worker and the service both write it.
//!
//! A board is a memfd. It holds a head, the buffer status table, the segments of every entry, and the faults of every entry's
//! frame. The kernel allocates memory for the faults only when a frame has one. A board contains no pointers, so the two sides
//! may be in different processes. It contains no locks: [`state`] defines which side may change an entry and when. [`doorbell`]
//! defines how either side waits for the other.

mod audit;
#[cfg(test)]
mod audit_tests;
mod content;
pub mod doorbell;
pub mod entry;
mod head;
pub mod metrics;
#[cfg(test)]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the protocol's files are in it a second time, and not all is used"
)]
mod model;
pub mod state;
mod words;

pub use audit::Audit;
pub use content::{Fault, Faults, Judgment, Segment, StampWords, UNIT};
pub use doorbell::{SLEEPS, Wake, Want};
pub use entry::{Content, Entry};
pub use head::{Board, Closed, SEGMENTS};
pub use state::State;
