//! Information about handlers for users, and runs of handlers for packets that were not received.

use std::time::Duration;

use super::operators::error;
use crate::{
    HandlerKind, HandlerTarget, Result,
    engine::{Engine, RegisteredHandler},
};

/// A handler of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerInfo {
    /// Its name.
    pub name: String,
    /// The library that it is in.
    pub library: String,
    /// The events that it is for.
    pub kind: HandlerKind,
    /// The events that it is attached to.
    pub targets: Vec<HandlerTarget>,
    /// The outcomes of the events.
    pub counts: HandlerCounts,
}

/// Counts of a handler since its library was loaded: `runs` = `committed` + `refused` + `failed`, except for runs that are going on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerCounts {
    /// Events.
    pub runs: u64,
    /// Events whose transactions were committed.
    pub committed: u64,
    /// Events that the handler has refused. Their transactions were rolled back.
    pub refused: u64,
    /// Events whose transactions were rolled back because of an error, or could not begin.
    pub failed: u64,
    /// Those of the failed ones that happened while another handler was running on the same processor.
    pub nested: u64,
    /// Attempts after a conflict with another transaction.
    pub retries: u64,
    /// The error of the last failure on the first processor that has one.
    pub last_error: Option<String>,
}

impl HandlerCounts {
    fn of(handler: &RegisteredHandler) -> Result<HandlerCounts> {
        let mut sum = HandlerCounts::default();
        for counts in &handler.counts()?.counts {
            sum.runs += counts.runs;
            sum.committed += counts.committed;
            sum.refused += counts.refused;
            sum.failed += counts.failed;
            sum.nested += counts.nested;
            sum.retries += counts.retries;
            if sum.last_error.is_none() && counts.last_error != 0 {
                sum.last_error = Some(error(counts.last_error as u32).to_string());
            }
        }
        Ok(sum)
    }
}

/// All handlers in the order of their names.
pub(crate) fn list(db: &Engine) -> Result<Vec<HandlerInfo>> {
    let info = |(name, handler): (&String, &RegisteredHandler)| {
        Ok(HandlerInfo {
            name: name.clone(),
            library: handler.library.to_string(),
            kind: handler.kind.clone(),
            targets: handler.targets(),
            counts: HandlerCounts::of(handler)?,
        })
    };
    db.handlers.each(info).into_iter().collect()
}

/// Runs a handler of packets for a packet.
pub(crate) fn run(db: &Engine, name: &str, packet: &[u8], repeat: u32) -> Result<(i32, Duration)> {
    let (verdict, duration) = db.handlers.packet_program(name)?.run_packet(packet, repeat)?;
    Ok((verdict as i32, duration))
}
