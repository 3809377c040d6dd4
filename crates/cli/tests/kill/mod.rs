//! The clients and the model of the tests that kill servers.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod load;
pub mod model;
pub mod wire;
