//! Information about handlers for users, and runs of handlers for packets that were not received.

use std::time::Duration;

use crate::{
    HandlerCounts, HandlerKind, HandlerTarget, Result,
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

/// All handlers in the order of their names.
pub(crate) fn list(db: &Engine) -> Result<Vec<HandlerInfo>> {
    let info = |(name, handler): (&String, &RegisteredHandler)| {
        Ok(HandlerInfo {
            name: name.clone(),
            library: handler.library.to_string(),
            kind: handler.kind.clone(),
            targets: handler.targets(),
            counts: handler.counts()?,
        })
    };
    db.handlers.each(info).into_iter().collect()
}

/// Runs a handler of packets for a packet.
pub(crate) fn run(db: &Engine, name: &str, packet: &[u8], repeat: u32) -> Result<(i32, Duration)> {
    let (verdict, duration) = db.handlers.packet_program(name)?.run_packet(packet, repeat)?;
    Ok((verdict as i32, duration))
}
