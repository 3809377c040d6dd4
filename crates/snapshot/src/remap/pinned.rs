//! Memory into which devices write.
//!
//! A direct read (`O_DIRECT`) or a ring of io_uring *pins* pages: the device writes to their frames when its data
//! arrives. The kernel leaves a pinned page of private memory with the process that pinned it, and `fork` copies it
//! for the child at once. Moving page tables aside and merging would leave the frame with the snapshot, and the
//! data would be lost.
//!
//! The region therefore becomes private permanently before the program can pin pages. From then on, `fork` copies
//! its page tables. The file gives its pages up, because the owner has copies of them. Each page in use is copied
//! once, as if the owner had written to it, and is then removed from the file. The part of the region that is not
//! in use yet becomes anonymous memory without a file. Released pages of that part need no zero page in their
//! place.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, madvise, mmap_anonymous, mprotect};

use super::CHUNK;
use super::merge_back::Merged;
use super::region::{Region, State};
use crate::region::{NONE, backing, exclude_from_dumps};
use crate::{Error, PAGE};

/// Limit of pages that the file gives up in one step. A thread that claims pages waits for the end of the step.
const STEP: usize = CHUNK;

impl Region {
    pub(super) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// Pins all pages of the region.
    pub(super) fn pin_all(&self) -> Result<(), Error> {
        if self.is_pinned() {
            return Ok(());
        }
        {
            // No pages become accessible meanwhile.
            let _search = self.space.lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = self.lock();
            if self.is_pinned() {
                return Ok(());
            }
            self.make_private(&mut state).map_err(Error::system("making the region private"))?;
            self.make_rest_anonymous(state.private.end)
                .map_err(Error::system("making the rest of the region private"))?;
            state.anonymous = state.private.end;
            state.private = 0..self.pages;
            self.pinned.store(true, Ordering::Release);
        }
        // While children are alive, or if there is no memory now, the region's thread does the rest later.
        while self.give_up_some(&mut self.lock()) == Ok(Merged::Some) {
            self.give_way();
        }
        Ok(())
    }

    /// Replaces the pages from `start` on by anonymous memory. None of them may be in use. They become accessible
    /// again when they are used.
    fn make_rest_anonymous(&self, start: usize) -> Result<(), Errno> {
        if start == self.pages {
            return Ok(());
        }
        let (at, len) = (self.address(start), (self.pages - start) * PAGE);
        let place = std::ptr::without_provenance_mut(at);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // Even if this fails, these pages become accessible again before they are used.
        self.accessible.take_back(start);
        // This is a single mapping, so it is replaced as a whole or not at all. Linux before 6.12 may unmap the old
        // mapping if this fails. Then no more pages can become accessible, and allocators get memory outside of the
        // region.
        // SAFETY: the region's own mapping; no code uses these pages.
        unsafe { mmap_anonymous(place, len, NONE, flags) }?;
        exclude_from_dumps(at, len);
        Ok(())
    }

    /// Makes the whole region accessible in a child, as in children of regions that are not pinned.
    pub(super) fn make_rest_accessible(&self) -> Result<(), Errno> {
        let rest = self.accessible.end().min(self.pages)..self.pages;
        if rest.is_empty() {
            return Ok(());
        }
        let at = std::ptr::without_provenance_mut(self.address(rest.start));
        // SAFETY: the region's mapping; no code uses these pages.
        unsafe { mprotect(at, rest.len() * PAGE, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// Makes the file give up some of its pages. The owner gets copies of those in use.
    pub(super) fn give_up_some(&self, state: &mut State) -> Result<Merged, Errno> {
        if state.has_snapshots() {
            return Ok(Merged::Waits);
        }
        // Each page is tried only once. If the kernel cannot split a huge page, it keeps the file's page, filled
        // with zeros.
        let Some(part) = backing::next_data(&self.file, state.given_up..self.pages)? else {
            state.given_up = 0;
            return Ok(Merged::All);
        };
        let part = part.start..part.end.min(part.start + STEP);
        let mut at = part.start;
        while let Some(used) = self.claimed.run(at..part.end, true) {
            self.copy_pages(used.clone())?;
            at = used.end;
        }
        state.given_up = part.end;
        backing::punch(&self.file, part);
        Ok(Merged::Some)
    }

    /// Copies pages in use for the owner, except released pages, which are zero.
    fn copy_pages(&self, used: Range<usize>) -> Result<(), Errno> {
        let mut at = used.start;
        while let Some(run) = self.gone.run(at..used.end, false) {
            let (place, len) = (self.address(run.start), run.len() * PAGE);
            // SAFETY: faults pages of the region in as if they were written; their content stays.
            unsafe { madvise(std::ptr::without_provenance_mut(place), len, Advice::LinuxPopulateWrite) }?;
            at = run.end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Arena, Engine, Options};
    use crate::region::filter::tests::{refuse, set_filter};

    /// More pages than become accessible at once.
    const PAGES: usize = 64 * 512;

    /// The pages in use, with the value of the first byte of each.
    type Values = Vec<(usize, u8)>;

    fn address(region: &Region, page: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(region.address(page))
    }

    fn write(region: &Region, values: &mut Values, change: u8) {
        for (page, value) in values {
            *value = value.wrapping_add(change);
            // SAFETY: a page in use that only this test uses.
            unsafe { address(region, *page).write(*value) };
        }
    }

    fn has(region: &Region, values: &Values) -> bool {
        // SAFETY: pages in use that only this test uses.
        values.iter().all(|&(page, value)| unsafe { address(region, page).read() } == value)
    }

    /// Claims a page and writes to all pages, forks, writes to them again, and releases one. The child must see the
    /// owner's values of the moment of the fork, and may write.
    fn use_and_fork(region: &Region, values: &mut Values, page: usize) {
        assert!(has(region, values));
        assert!(region.claim_exactly(page..page + 1));
        values.push((page, 0));
        assert!(has(region, values));
        write(region, values, 1);
        let frozen = region.freeze().unwrap();
        // SAFETY: no code in between touches the region; the child exits without returning.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: the child of the fork above, with one thread.
            let is_right = unsafe { frozen.map_in_child() }.is_ok() && has(region, values) && {
                write(region, values, 100);
                has(region, values)
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        frozen.thaw();
        write(region, values, 1);
        let mut status = -1;
        // SAFETY: waits for the child.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        let (given_back, value) = values.last_mut().unwrap();
        region.discard(*given_back..*given_back + 1);
        *value = 0;
        assert!(has(region, values));
        // Merges private pages, unless the region is pinned.
        region.settle();
        assert!(has(region, values));
    }

    /// Every system call of pinning fails once. The region must then be either pinned or unchanged.
    #[test]
    fn a_region_whose_pinning_failed_is_used_and_forked_as_before() {
        let fixed = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let anonymous = fixed | libc::MAP_ANONYMOUS;
        let populate = libc::MADV_POPULATE_WRITE;
        let calls = [
            ("moving page tables", libc::SYS_mremap, None, true),
            ("mapping the used part privately", libc::SYS_mmap, Some((3, fixed)), false),
            ("making the rest anonymous", libc::SYS_mmap, Some((3, anonymous)), false),
            ("looking for pages of the file", libc::SYS_lseek, None, true),
            ("copying pages", libc::SYS_madvise, Some((2, populate)), true),
            ("giving pages of the file up", libc::SYS_fallocate, None, true),
        ];
        for (what, call, argument, is_pinned) in calls {
            let region = match Region::new(Options::new(PAGES * PAGE)) {
                Err(Error::Unavailable { reason, .. }) => {
                    println!("skipped: the remap engine does not work here: {reason}");
                    return;
                }
                region => region.unwrap(),
            };
            let region = &*region;
            assert!(region.claim_exactly(0..1000));
            let mut values: Values = (0..1000).map(|page| (page, 0)).collect();
            write(region, &mut values, 7);
            let fails = || {
                assert!(set_filter(call, argument, refuse(libc::ENOMEM)));
                region.pin()
            };
            let pinned = std::thread::scope(|scope| scope.spawn(fails).join().unwrap());
            assert_eq!((pinned.is_ok(), region.is_pinned()), (is_pinned, is_pinned), "{what}: {pinned:?}");
            println!("{what} failed: {pinned:?}");
            // Tests pages that were accessible before, and pages that were not.
            use_and_fork(region, &mut values, 1500);
            use_and_fork(region, &mut values, PAGES - 1);
            region.pin().unwrap();
            assert!(region.is_pinned());
            use_and_fork(region, &mut values, 2500);
        }
    }
}
