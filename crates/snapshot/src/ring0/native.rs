//! Threads that touch the memory natively are taken into ring 0, where it is ([`handlers::take_in`]). A task's thread has
//! its snapshot's tables again there.
//!
//! This is why a memory can be used like any other, and why nobody reads main's memory for a snapshot's.

use bedplate_ring0::handlers;

use super::frames::unavailable;
use super::space::Space;
use super::{registry, task};
use crate::Error;

/// Whether an address is in a memory that this thread has. A task sees no memory but its own.
fn is_ours(address: u64) -> bool {
    let its = |space: &Space| task::running_on().is_none_or(|number| number == space.number());
    registry::at(address).is_some_and(its)
}

/// Has threads taken in.
pub fn install() -> Result<(), Error> {
    handlers::take_in(is_ours).map_err(unavailable)
}
