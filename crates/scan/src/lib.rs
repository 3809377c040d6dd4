//! Table scans whose data is ready in time (zicIO, "Rapid Data Ingestion through DB-OS Co-design"), on stock kernels.
//!
//! A worker only consumes data. It takes pages from a [`Channel`] and returns them, by atomic operations on shared memory: no
//! system call, no copy, no page cache. A [`Service`] watches the pace of the worker and reads the next pages just in time.
//!
//! ```no_run
//! # fn main() -> Result<(), bedplate_scan::Error> {
//! use bedplate_scan::{Scan, Service};
//!
//! let service = Service::start()?;
//! let mut channel = service.open(Scan::of(["lineitem.1", "lineitem.2"]).page_size(8192)?)?;
//! let mut zeroes = 0;
//! while let Some(page) = channel.next_page()? {
//!     zeroes += page.iter().filter(|byte| **byte == 0).count();
//! }
//! println!("{zeroes} zeroes");
//! # Ok(())
//! # }
//! ```
//!
//! Names of the paper: the worker's side (UzicIO) is [`Channel`], the board that both sides share (MEMSB) is `board`, the
//! control loop (KzicIO) is `service`. Processes share pages through a [`Daemon`], to which others connect
//! ([`Service::connect`]).

#![cfg(target_os = "linux")]

mod bits;
mod board;
mod cache;
mod clock;
mod daemon;
mod engine;
mod error;
mod extents;
mod file_system;
mod lease;
mod limits;
mod memory;
mod plan;
mod ranges;
mod reactor;
mod reader;
mod remote;
mod residency;
mod scan;
mod service;
mod source;
mod wire;
mod worker;

pub use clock::Clock;
pub use daemon::{Daemon, Limits, Options, Stopper};
pub use engine::{Bell, Choice, Completion, Engine, Kind, Read};
pub use error::{Error, Result};
pub use limits::{
    DEFAULT_PATIENCE, MAX_PAGES_HELD, MAX_PATIENCE, MAX_PENDING_RANGES, MAX_POOL_PAGES_HELD, MAX_RANGE_BYTES,
    MAX_RANGES_HELD, MIN_PATIENCE, SETTLING_TIME, SPARE_FRAMES,
};
pub use memory::{Buffer, FRAME, Frames, Pages};
pub use plan::Range;
pub use reader::{Fetch, PinnedRange, RangeReader};
pub use residency::resident_bytes;
pub use scan::{MIN_PAGE, Scan};
pub use service::{AccessKey, Builder, Pool, PoolOptions, Service, Statistics as ServiceStatistics};
pub use source::{FileVersion, Source};
pub use worker::{Channel, Delivered, Got, OwnedGot, OwnedPage, Page, PageStream, Piece, Statistics};

/// For the fuzzer: every message that another process may send.
#[cfg(fuzzing)]
pub use wire::arbitrary_packet;
