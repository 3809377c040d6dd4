//! The parts of the soak.

pub mod clients;
pub mod footprint;
