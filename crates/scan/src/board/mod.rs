//! MEMSB, the memory switchboard (paper 3.2): one small shared memory per channel, written by a worker and the service.
//!
//! A board is a memfd: a head, then the buffer status table, then room for the segments of every entry and for what
//! is wrong with the units of its frame, which takes no memory until something is. It has no pointers, so both sides may be in different processes. It has no locks either: [`state`] says who may change what when,
//! [`doorbell`] how either side waits for the other.

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
