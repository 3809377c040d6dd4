//! Tests MariaDB with MyISAM and Aria tables under `bedplate scan run`. Queries have the answers of a plain server, even if other
//! sessions change the tables meanwhile, and the library serves the files that it should serve.
//!
//! `BEDPLATE_TEST_STOCK=1` runs all servers plain: comparisons pass, and tests that need the library's statistics fail.

mod common;
mod equal;
mod failures;
mod suite;
mod writers;
