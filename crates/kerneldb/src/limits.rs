//! The limits of the database, and what happens at each of them.

use crate::layout;

/// Index entries in one hash chain, 256. Reads and writes of present keys go on at the limit; an operation that
/// would add another key to the chain ends in [`crate::Error::ChainFull`]. Random keys do not get near it: a
/// partition has at most four keys for each chain on average.
pub const CHAIN_ENTRIES_MAX: usize = layout::KDB_CHAIN_MAX as usize;
