//! The counts of a handler.

use std::os::fd::{AsFd, OwnedFd};

use crate::{
    Error, Result,
    bpf::{duplicate_map, read_element},
    layout::kdb_handler,
};

/// Counts of a handler since its library was loaded: `runs` = `committed` + `refused` + `failed`, except for runs that are going on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerCounts {
    /// Events.
    pub runs: u64,
    /// Events whose transactions were committed.
    pub committed: u64,
    /// Events that the handler has refused. Their transactions were rolled back.
    pub refused: u64,
    /// Events whose transactions were rolled back because of an error, or could not begin.
    pub failed: u64,
    /// Those of the failed ones that happened while another handler was running on the same processor.
    pub nested: u64,
    /// Attempts after a conflict with another transaction.
    pub retries: u64,
    /// The error of the last failure on the first processor that has one.
    pub last_error: Option<String>,
}

impl HandlerCounts {
    /// Adds counts of later events.
    pub(crate) fn add(&mut self, later: HandlerCounts) {
        self.runs += later.runs;
        self.committed += later.committed;
        self.refused += later.refused;
        self.failed += later.failed;
        self.nested += later.nested;
        self.retries += later.retries;
        self.last_error = later.last_error.or(self.last_error.take());
    }
}

/// The map in which programs count, with one `struct kdb_handler`.
pub(crate) struct CountsMap(OwnedFd);

impl CountsMap {
    pub fn new(map: OwnedFd) -> CountsMap {
        CountsMap(map)
    }

    pub fn duplicate(&self) -> Result<OwnedFd> {
        duplicate_map(&self.0)
    }

    /// The counts of all processors.
    ///
    /// # Errors
    ///
    /// [`Error::Library`] if it is a map of other values; [`Error::Io`] if it cannot be read.
    pub fn read(&self) -> Result<HandlerCounts> {
        let bytes = read_element(self.0.as_fd(), 0, size_of::<kdb_handler>())?;
        let bytes =
            bytes.ok_or_else(|| Error::Library("the counts of a handler have another size".into()))?;
        // SAFETY: the bytes are a whole `kdb_handler`, which is plain integers, so that every content is valid.
        let counts = unsafe { bytes.as_ptr().cast::<kdb_handler>().read_unaligned() };
        let mut sum = HandlerCounts::default();
        for counts in &counts.counts {
            sum.runs += counts.runs;
            sum.committed += counts.committed;
            sum.refused += counts.refused;
            sum.failed += counts.failed;
            sum.nested += counts.nested;
            sum.retries += counts.retries;
            if sum.last_error.is_none() && counts.last_error != 0 {
                sum.last_error = Some(Error::of_status(counts.last_error as u32).to_string());
            }
        }
        Ok(sum)
    }
}
