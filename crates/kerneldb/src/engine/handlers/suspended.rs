//! Handlers without their database.

use std::os::fd::OwnedFd;

use super::{HandlerCounts, HandlerTarget};

/// A handler without its database ([`Database::suspend_handlers`](crate::Database::suspend_handlers)). Its stand-in fails the events
/// meanwhile: a packet gets the verdict that the handler's author has chosen for failures, and the event is counted as failed. Dropping it
/// detaches the stand-in. The descriptors can be passed to another process.
#[derive(Debug)]
pub struct SuspendedHandler {
    /// Its name.
    pub name: String,
    /// Its events, and the descriptor that keeps the stand-in attached. A timer has none, and does not expire
    /// meanwhile. An interface that is not there has none either.
    pub events: Vec<(HandlerTarget, Option<OwnedFd>)>,
    /// Its counts without those in `counts_map`.
    pub counts: HandlerCounts,
    /// The map in which the stand-in counts, as the handler did before.
    pub counts_map: OwnedFd,
}
