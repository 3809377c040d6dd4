//! Private PostgreSQL servers for the tests and benchmarks of the extension `bedplate_scan` (`integrations/postgresql`).
//!
//! [`Installation`] is a PostgreSQL on this machine: the distribution's, and PostgreSQL 18 where `make setup` has fetched
//! it. [`Cluster`] is a server with a data directory of its own. It runs as an ordinary user, listens at a socket in its
//! folder only, and disappears when it is dropped. [`extension`] builds the extension for an installation. [`Gate`] stops a
//! scan at one of its steps, so that a test makes a race instead of waiting for it. [`plan`] reads a scan's counters from its
//! plan. [`suite`] is about PostgreSQL's own regression tests.
//!
//! This crate is for the tests of the extension and for `bedplate bench` only.

mod cluster;
pub mod extension;
mod gate;
mod installation;
pub mod plan;
pub mod suite;

pub use bedplate_suite_support::processes::cpu_ns;
pub use bedplate_suite_support::{Result, run};
pub use cluster::{Cluster, Settings, Stop, execute, rows};
pub use gate::{Gate, Step};
pub use installation::{Installation, cache_folder};
pub use postgres;
