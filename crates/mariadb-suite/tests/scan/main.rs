//! MariaDB with MyISAM and Aria tables under `bedplate scan run`: queries have the answers that a plain server gives, whatever other
//! sessions do to the tables meanwhile, and the library serves what it is meant to serve.
//!
//! `BEDPLATE_TEST_STOCK=1` runs all servers plain: comparisons pass, and tests that need the library's statistics fail.

mod common;
mod equal;
mod failures;
mod suite;
mod writers;
