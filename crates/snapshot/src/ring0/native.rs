//! A thread that touches the memory in ring 3 enters ring 0 ([`handlers::take_in`]). A task's thread uses the
//! tables of its snapshot there.
//!
//! The memory can therefore be used like any other memory, and no thread reads main's memory instead of a
//! snapshot's.

use bedplate_ring0::handlers;

use super::frames::unavailable;
use super::space::Space;
use super::{registry, task};
use crate::Error;

/// Whether an address is in a memory that this thread can see. A task sees only its own memory.
fn is_ours(address: u64) -> bool {
    let its = |space: &Space| task::running_on().is_none_or(|number| number == space.number());
    registry::at(address).is_some_and(its)
}

/// Installs the check, so that threads enter ring 0 on such accesses.
pub fn install() -> Result<(), Error> {
    handlers::take_in(is_ours).map_err(unavailable)
}
