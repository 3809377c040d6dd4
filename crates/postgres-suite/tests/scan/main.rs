//! The extension `bedplate_scan` in real servers: scans give what a sequential scan gives under the same snapshot, whatever
//! writers, vacuum, checkpoints, crashes and the steps of the scan do meanwhile.
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
