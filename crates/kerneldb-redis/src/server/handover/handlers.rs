//! Handlers of events in the file for the next program. Their stand-ins stay attached meanwhile.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use bedplate_kerneldb::{HandlerCounts, SuspendedHandler};

/// A handler. Fields are only ever added.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CarriedHandler {
    name: String,
    /// Its events as text, and the descriptors that keep the stand-in attached.
    events: Vec<(String, Option<RawFd>)>,
    counts: CarriedCounts,
    counts_map: RawFd,
}

/// The counts of a handler.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct CarriedCounts {
    runs: u64,
    committed: u64,
    refused: u64,
    failed: u64,
    nested: u64,
    retries: u64,
    last_error: Option<String>,
}

impl CarriedHandler {
    pub(super) fn of(handler: &SuspendedHandler) -> CarriedHandler {
        let event = |(target, link): &(_, Option<OwnedFd>)| {
            (ToString::to_string(target), link.as_ref().map(AsRawFd::as_raw_fd))
        };
        let HandlerCounts { runs, committed, refused, failed, nested, retries, last_error } =
            handler.counts.clone();
        CarriedHandler {
            name: handler.name.clone(),
            events: handler.events.iter().map(event).collect(),
            counts: CarriedCounts { runs, committed, refused, failed, nested, retries, last_error },
            counts_map: handler.counts_map.as_raw_fd(),
        }
    }

    /// All descriptors.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.events.iter().filter_map(|(_, link)| *link).chain([self.counts_map])
    }

    /// The handler with its descriptors, which `own` takes. An event that this program does not know is nobody's any more.
    pub(super) fn into_suspended(self, own: impl Fn(RawFd) -> OwnedFd) -> SuspendedHandler {
        let CarriedHandler { name, events, counts, counts_map } = self;
        let CarriedCounts { runs, committed, refused, failed, nested, retries, last_error } = counts;
        let events = events.into_iter().filter_map(|(event, link)| {
            let link = link.map(&own);
            match event.parse() {
                Ok(target) => Some((target, link)),
                Err(error) => {
                    tracing::error!(handler = name, error, "the handler is not attached any more");
                    None
                }
            }
        });
        SuspendedHandler {
            events: events.collect(),
            counts: HandlerCounts { runs, committed, refused, failed, nested, retries, last_error },
            counts_map: own(counts_map),
            name,
        }
    }
}
