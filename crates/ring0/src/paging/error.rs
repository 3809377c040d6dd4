//! What can be wrong with a request to the page tables.

use super::PageSize;

/// Why a request was refused. Nothing here allocates, so handlers can make and drop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PagingError {
    /// Not an address of the process.
    #[error("address {address:#x} is not in the lower half of the address space")]
    OutOfRange {
        /// The address, or the end of the range.
        address: u64,
    },
    /// Nothing between the ends.
    #[error("range {start:#x}..{end:#x} is empty")]
    EmptyRange {
        /// Where it should start.
        start: u64,
        /// Where it should end.
        end: u64,
    },
    /// An address that is not a multiple of the page's size.
    #[error("{value:#x} is not a multiple of {} KiB", size.bytes() / 1024)]
    Unaligned {
        /// The address, virtual or physical.
        value: u64,
        /// What it must be a multiple of.
        size: PageSize,
    },
    /// Something is mapped there, or a table of smaller pages is.
    #[error("something is mapped at {address:#x} already")]
    AlreadyMapped {
        /// Where.
        address: u64,
    },
    /// Nothing is mapped there.
    #[error("nothing is mapped at {address:#x}")]
    NotMapped {
        /// Where.
        address: u64,
    },
    /// A huge page spans the address, and the operation does not split it.
    #[error("a huge page is in the way at {address:#x}")]
    HugePage {
        /// An address in the page.
        address: u64,
    },
    /// Somebody holds the lock bit of the entry: try again.
    #[error("the entry of {address:#x} is locked")]
    Locked {
        /// Where.
        address: u64,
    },
    /// No frame was left for a table.
    #[error("no frame is left for a page table")]
    OutOfTables,
}
