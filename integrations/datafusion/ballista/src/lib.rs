//! Ballista clusters whose executors scan local Parquet files by Bedplate's scan service.
//!
//! Tables are at [`STORE`], a store that each process of a cluster maps to a folder of its own machine. So a plan names the same
//! files everywhere, and each executor reads its own copies of them. [`Engine`] applies the scan rule in an executor to the stages that
//! a scheduler sends: a plan loses its reader factories on the way between processes.

mod connections;
mod engine;
mod store;

pub use engine::Engine;
pub use store::{STORE, register, runtime, session_state};
