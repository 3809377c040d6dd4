//! Runs files of Redis's own test suite, called units, and reports the outcome of every test.
//!
//! The suite is a part of Redis's sources and is written in Tcl. `make setup` fetches it ([`folder`]). A unit runs in a
//! process of its own (`run`), by a script that reports the outcomes (`driver.tcl`, `report`). Its tests use either a
//! server that runs already, or servers that they start in a folder made for one unit ([`Workspace`]).
//!
//! This crate is for the tests of other crates only.

mod report;
mod run;
mod suite;
mod workspace;

pub use report::{Outcome, Outcomes};
pub use run::{Servers, run};
pub use suite::{folder, server_version, units, version};
pub use workspace::Workspace;
