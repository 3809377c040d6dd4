//! The number of connections for which this process may have descriptors.
//!
//! A process without free descriptors could neither accept a client, to tell it so, nor open a file of the log. The server
//! therefore keeps [`DESCRIPTORS_RESERVED`] descriptors for other uses than connections.

use std::fs;

use bedplate_kerneldb::{Error, Result};
use rustix::process::{Resource, getrlimit};

use crate::limits::DESCRIPTORS_RESERVED;

const ADVICE: &str =
    "raise its limit on open files (LimitNOFILE= of a service, `ulimit -n` in a shell of root)";

/// The most connections at once, if `wanted` are to be possible and `open` of `limit` descriptors are in use.
fn connections_within(limit: u64, open: u64, wanted: u32) -> u32 {
    let available = limit.saturating_sub(open).saturating_sub(DESCRIPTORS_RESERVED);
    u32::try_from(available).unwrap_or(u32::MAX).min(wanted)
}

/// The most connections at once: `wanted`, or fewer with a warning. The descriptors of the server itself must be open, and those of
/// `connected` connections are open as well.
///
/// # Errors
///
/// [`Error::Config`] if there is no descriptor for a connection.
pub(super) fn connections(wanted: u32, connected: usize) -> Result<u32> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = fs::read_dir("/proc/self/fd").map_err(|e| Error::io("list the open files", e))?.count() as u64;
    let possible = connections_within(limit, open.saturating_sub(connected as u64), wanted);
    if possible == 0 {
        return Err(Error::Config(format!(
            "this process may have {limit} open files, which leaves none for connections: {ADVICE}"
        )));
    }
    if possible < wanted {
        tracing::warn!(
            "this process may have {limit} open files: the server has at most {possible} connections at once instead of {wanted}; {ADVICE}"
        );
    }
    Ok(possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_left_for_other_uses() {
        assert_eq!(connections_within(u64::MAX, 100, 4000), 4000);
        assert_eq!(connections_within(100 + DESCRIPTORS_RESERVED + 4000, 100, 4000), 4000);
        assert_eq!(connections_within(100 + DESCRIPTORS_RESERVED + 3999, 100, 4000), 3999);
        assert_eq!(connections_within(100 + DESCRIPTORS_RESERVED, 100, 4000), 0);
        assert_eq!(connections_within(10, 100, 4000), 0);
    }
}
