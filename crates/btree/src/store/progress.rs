//! The progress of operations that take long.

/// The progress of a long operation. Its callback receives it repeatedly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Pages, or bytes of a dump, that are done.
    pub done: u64,
    /// The total, as far as it is known now; 0 if it is not.
    pub total: u64,
}

impl Progress {
    pub(crate) fn new(done: u64, total: u64) -> Self {
        Self { done, total: total.max(done) }
    }
}
