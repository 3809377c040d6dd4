//! Bedplate's benchmarks: baseline and candidate run interleaved, and all reports have one format.
//!
//! A benchmark has a name, runs in a [`Mode`], reports its progress to a callback, and returns a
//! [`Report`]. A report renders itself as a table or as JSON. Nothing in this crate prints.
//!
//! ```no_run
//! use bedplate_bench::{Mode, Options};
//!
//! let options = Options::new(Mode::Quick);
//! let report = bedplate_bench::run("kv-net", &options, &mut |step| {
//!     eprintln!("{}/{} {}", step.done, step.total, step.label);
//! })?;
//! println!("{}", report.to_json());
//! # Ok::<(), bedplate_bench::Error>(())
//! ```
//!
//! Numbers that matter are ratios of sides that ran interleaved on the same machine; see [`sample`]. An
//! absolute number belongs to the [`Machine`] of its report.

pub mod bpf;
pub mod cpu;
pub mod keys;
pub mod latency;
pub mod local;
pub mod net;
pub mod sample;

mod checkpoint;
mod error;
#[cfg(target_arch = "x86_64")]
mod evict;
mod examples;
mod language;
mod limits;
mod machine;
mod memory;
mod nothing;
mod partitions;
mod pool;
mod postgres;
mod procedures;
mod programs;
mod registry;
mod report;
mod restart;
#[cfg(target_arch = "x86_64")]
mod ring0;
mod scan;
mod shootdown;
mod snapshot;
mod tpch;
mod versions;
mod voter;
mod wal;

pub use error::{Error, Result};
pub use limits::THREADS_MAX;
pub use machine::Machine;
pub use registry::{Benchmark, Mode, Options, Sink, Step, benchmarks, names, run};
pub use report::{Fields, Report, Target};

/// The names of the databases that `scan-tpch` measures.
pub fn engines() -> Vec<&'static str> {
    tpch::engines()
}
