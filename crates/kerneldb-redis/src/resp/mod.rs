//! The Redis wire protocol: requests in (RESP arrays of bulk strings and inline commands), replies out
//! (RESP2 and RESP3).
//!
//! It owns no sockets and no commands. [`RequestParser`] takes the received bytes in any portions, and returns
//! one request at a time, whose arguments are borrowed from its buffer. [`Writer`] appends replies to
//! a byte vector. Threads share nothing of this module.

mod args;
mod float;
mod inline;
mod number;
mod parser;
#[cfg(test)]
mod tests;
mod writer;

pub use args::{Args, OwnedArgs};
pub use float::LongDouble;
pub use inline::split_args;
pub use number::parse_i64;
pub use parser::{Limits, ProtocolError, RequestParser};
pub use writer::{Protocol, Writer};
