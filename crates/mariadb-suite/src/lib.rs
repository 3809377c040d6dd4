//! Private MariaDB servers for the tests and benchmarks of `bedplate scan run` (`crates/scan-preload`).
//!
//! [`Installation`] is the distribution's MariaDB. [`Server`] is a server with a data directory of its own. It runs as an
//! ordinary user, listens at a socket in its folder only, and disappears when it is dropped. [`Launch`] selects whether it runs
//! plain or under `bedplate scan run`. [`Session`] is a connection, by the command-line client in batch mode. [`Statistics`] has
//! the preloaded library's counters. [`mtr`] is about MariaDB's own test suite.
//!
//! This crate is for tests and for `bedplate bench` only.

mod installation;
mod launch;
mod loader;
pub mod mtr;
mod server;
mod session;
mod statistics;

pub use bedplate_suite_support::{Result, processes, programs, run};
pub use installation::Installation;
pub use launch::{Launch, Preload};
pub use loader::Loader;
pub use server::{Server, Settings};
pub use session::{Row, Session};
pub use statistics::Statistics;
