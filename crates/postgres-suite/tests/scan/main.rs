//! Tests the extension `bedplate_scan` in real servers. A scan returns the rows of a sequential scan under the same snapshot,
//! even beside writers, vacuum, checkpoints and crashes at any step of the scan.
//!
//! The tests run with every PostgreSQL that is installed with its headers. `BEDPLATE_TEST_STOCK=1` runs them without the
//! extension: comparisons pass, and tests that need its nodes fail.

mod common;
mod edges;
mod equal;
mod failures;
mod installcheck;
mod races;
mod standby;
mod torture;
