//! Records what clients of a server read and write in random transactions, for the checker in `bedplate-history`.
//!
//! The checker needs to know which version every read returned, and the order of the versions of a key. So every write
//! writes another value (`keys.rs`), and nearly every write follows a read of its key in the same transaction, whose
//! result the client receives (`plan.rs`). The exceptions are one blind write of each key, and writes whose replies were lost
//! with the connection.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod client;
pub mod keys;
pub mod plan;
pub mod rounds;
pub mod servers;

/// The number in an environment variable.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|number| number.parse().ok())
}

/// The seed of this run, which is printed: that of `BEDPLATE_TEST_SEED`, or a new one.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("BEDPLATE_TEST_SEED").unwrap_or(now.as_nanos() as u64 | 1);
    println!("BEDPLATE_TEST_SEED={seed}");
    seed
}
