//! The common part of the engines [`crate::uffd`] and [`crate::remap`]: memory files of which snapshots are taken
//! on a stock kernel, without KVM.
//!
//! A *region* is a file without a name that is mapped at one address. It is the owner's memory, an
//! [`Arena`](crate::engine::Arena), and may be the owner's heap. Its threads ([`Service`](crate::engine::Service))
//! therefore do not allocate once they run. They have all signals blocked, because signal handlers belong to the
//! program. The data about a region is in mappings of its own (`mmap_box`).

mod above_standard;
mod accessible;
pub(crate) mod backing;
mod clock;
pub(crate) mod descriptor;
pub(crate) mod entries;
mod event_fd;
pub(crate) mod filter;
mod kernel;
mod mmap_box;
mod proc_maps;
pub(crate) mod protect;
mod sets;
#[cfg(test)]
mod sets_tests;
mod words;

pub(crate) use accessible::{Accessible, NONE, exclude_from_dumps};
pub(crate) use clock::now;
pub use descriptor::userfaultfd_of_engines;
pub(crate) use descriptor::{Descriptor, Purpose, Refusal};
pub(crate) use entries::Entries;
pub(crate) use event_fd::EventFd;
pub use kernel::counts_promises;
pub(crate) use mmap_box::{MmapArray, MmapBox};
pub(crate) use proc_maps::ProcMaps;
pub use proc_maps::has_mapped_ring;
pub(crate) use sets::Pages;

/// Methods of [`Engine`](crate::engine::Engine) that are the same for all regions. The regions use the same names
/// for the fields.
macro_rules! region_as_engine {
    ($kind:expr) => {
        fn kind(&self) -> crate::Kind {
            $kind
        }

        fn base(&self) -> usize {
            self.base
        }

        fn pages(&self) -> usize {
            self.pages
        }

        fn grow(&self, pages: std::ops::Range<usize>) -> Result<(), crate::Error> {
            // No other code claims pages.
            let what = "making more of the memory accessible";
            let grown = crate::engine::Arena::claim_exactly(self, pages);
            grown.then_some(()).ok_or(crate::Error::System { what, source: rustix::io::Errno::NOMEM })
        }

        fn freeze(&self) -> Result<crate::engine::Frozen<'_>, crate::Error> {
            Frozen::new(self).map(Into::into)
        }
    };
}
pub(crate) use region_as_engine;

/// Methods of [`Arena`](crate::engine::Arena) that are the same for all regions.
macro_rules! region_as_arena {
    () => {
        fn claim_anywhere(&self, count: usize, align: usize) -> Option<std::ops::Range<usize>> {
            let _search = self.space.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let pages = self.claimed.gap(self.used(), self.pages, count, align)?;
            self.accessible.extend(self.base, self.pages, pages.end).ok()?;
            self.claim(pages.clone());
            Some(pages)
        }

        fn claim_exactly(&self, pages: std::ops::Range<usize>) -> bool {
            let _search = self.space.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let free = pages.end <= self.pages
                && self.claimed.first(pages.clone(), true).is_none()
                && self.accessible.extend(self.base, self.pages, pages.end).is_ok();
            if free {
                self.claim(pages);
            }
            free
        }

        fn replace(&self, pages: std::ops::Range<usize>) -> bool {
            let _search = self.space.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if pages.end > self.pages || self.accessible.extend(self.base, self.pages, pages.end).is_err() {
                return false;
            }
            self.discard(pages.clone());
            let mut at = pages.start;
            while let Some(free) = self.claimed.run(at..pages.end, false) {
                at = free.end;
                self.claim(free);
            }
            true
        }

        fn release(&self, pages: std::ops::Range<usize>) {
            self.release(pages);
        }

        fn discard(&self, pages: std::ops::Range<usize>) {
            self.discard(pages);
        }

        fn publish_statistics(&self, why: &str) {
            if let Ok(page) = crate::statistics::page::Page::new(Some(crate::engine::Engine::kind(self)), why)
            {
                let _ = self.published.set(page);
            }
        }

        fn count_failure(&self) {
            self.counters.failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    };
}
pub(crate) use region_as_arena;
