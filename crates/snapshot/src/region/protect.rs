//! Write protection that is verified afterwards.
//!
//! Before Linux 6.5 the kernel may report that it has protected pages although it has not. This happens if another
//! thread touches a huge page of the file after the page was split, and before its small pages have entries. The
//! page is then mapped as a huge page again, and skipped. Later kernels retry by themselves. The error affects all
//! pages of a page table at once, so one page of each table is verified. Only regions that have huge pages, or may
//! get them unasked, need this.

use std::ops::Range;

use rustix::io::Errno;

use super::{Descriptor, Entries, kernel};
use crate::PAGE;

/// Number of pages of a last-level page table.
const TABLE: usize = 512;
/// Limit of attempts.
const TRIES: usize = 1000;

/// Whether the kernel may have this error.
pub fn needs_a_look() -> bool {
    !kernel::is_at_least(6, 5)
}

/// Protects pages of a region that begins at `base`. With `entries`, it also verifies the result.
///
/// # Errors
/// There is no memory for the page tables; the entries cannot be read; `EBUSY` if the pages were mapped as huge
/// pages again at every attempt. Some pages may be protected after an error.
pub fn protect(
    descriptor: &Descriptor,
    entries: Option<&Entries>,
    base: usize,
    pages: Range<usize>,
) -> Result<(), Errno> {
    protect_once(descriptor, base, pages.clone())?;
    let Some(entries) = entries else { return Ok(()) };
    let mut at = pages.start;
    while at < pages.end {
        let part = at..pages.end.min((at / TABLE + 1) * TABLE);
        at = part.end;
        let mut tries = 0;
        while !entries.is_protected(base + part.start * PAGE)? {
            tries += 1;
            if tries == TRIES {
                return Err(Errno::BUSY);
            }
            protect_once(descriptor, base, part.clone())?;
        }
    }
    Ok(())
}

/// Older kernels accept only a part of one mapping at a time, and the range may contain several mappings.
fn protect_once(descriptor: &Descriptor, base: usize, pages: Range<usize>) -> Result<(), Errno> {
    match descriptor.protect(base + pages.start * PAGE, pages.len() * PAGE) {
        Err(Errno::NOENT) if pages.len() > 1 => {
            let middle = pages.start + pages.len() / 2;
            protect_once(descriptor, base, pages.start..middle)?;
            protect_once(descriptor, base, middle..pages.end)
        }
        other => other,
    }
}
