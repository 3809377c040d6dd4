//! The errors of the page tables.

use super::PageSize;

/// The reason why a request was refused. No variant allocates memory, so handlers can create and drop errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PagingError {
    /// The address is outside of the process's half of the address space.
    #[error("address {address:#x} is not in the lower half of the address space")]
    OutOfRange {
        /// The address, or the end of the range.
        address: u64,
    },
    /// The range is empty.
    #[error("range {start:#x}..{end:#x} is empty")]
    EmptyRange {
        /// The requested start of the range.
        start: u64,
        /// The requested end of the range.
        end: u64,
    },
    /// The address is not a multiple of the page's size.
    #[error("{value:#x} is not a multiple of {} KiB", size.bytes() / 1024)]
    Unaligned {
        /// The address, virtual or physical.
        value: u64,
        /// The page size.
        size: PageSize,
    },
    /// A page is mapped at the address already, or a table of smaller pages is in the way.
    #[error("something is mapped at {address:#x} already")]
    AlreadyMapped {
        /// The address.
        address: u64,
    },
    /// Nothing is mapped at the address.
    #[error("nothing is mapped at {address:#x}")]
    NotMapped {
        /// The address.
        address: u64,
    },
    /// A huge page spans the address, and the operation does not split it.
    #[error("a huge page is in the way at {address:#x}")]
    HugePage {
        /// An address in the page.
        address: u64,
    },
    /// Another thread holds the lock bit of the entry. The caller can try again.
    #[error("the entry of {address:#x} is locked")]
    Locked {
        /// The address of the locked page.
        address: u64,
    },
    /// The source of frames for tables is empty.
    #[error("no frame is left for a page table")]
    OutOfTables,
}
