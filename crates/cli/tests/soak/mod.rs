//! What the soak consists of.

pub mod clients;
pub mod footprint;
