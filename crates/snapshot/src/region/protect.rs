//! Write protection that is looked at afterwards.
//!
//! Before Linux 6.5 the kernel says that it has protected pages and has not, if another thread touches a huge page of the
//! file in the moment between its being taken apart and its small pages' getting entries: then it is mapped as one again,
//! and passed over. (Later kernels try again by themselves.) That concerns all pages of a page table at once, so one of
//! each is looked at, where it matters: by whoever has huge pages, or may have them without wanting them.

use std::ops::Range;

use rustix::io::Errno;

use super::{Descriptor, Entries, kernel};
use crate::PAGE;

/// Pages of a last-level page table.
const TABLE: usize = 512;
/// How often it is tried.
const TRIES: usize = 1000;

/// Whether the kernel is one of those.
pub fn needs_a_look() -> bool {
    !kernel::is_at_least(6, 5)
}

/// Protects pages of a region that begins at `base`, and looks whether they are if there are `entries` to look at.
///
/// # Errors
/// No memory for their tables; they cannot be looked at; `EBUSY`: they were mapped as huge pages again each time. Some may be
/// protected.
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

/// Older kernels do it for a part of one mapping at a time only, and there may be several.
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
