//! The engines that are compared, each with a memory of its own.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_snapshot::{Choice, Kind, Memory, PAGE};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::mm::{Advice, madvise};

use crate::{Error, Result};

pub const WORDS_OF_A_PAGE: usize = PAGE / 8;

/// An engine and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub name: &'static str,
    kind: Kind,
    huge_pages: bool,
    in_child: bool,
}

pub const FORK: Side = Side { name: "fork", kind: Kind::Fork, huge_pages: false, in_child: true };
pub const FORK_HUGE: Side = Side { name: "fork, huge pages", huge_pages: true, ..FORK };
/// A child process reads the snapshot, at the same addresses.
pub const REMAP: Side = Side { name: "remap", kind: Kind::Remap, huge_pages: true, in_child: true };
pub const REMAP_SMALL: Side = Side { name: "remap, small pages", huge_pages: false, ..REMAP };
/// A thread of the same process reads the snapshot.
pub const REMAP_THREAD: Side = Side { name: "remap, thread", in_child: false, ..REMAP };
/// A thread of the same process reads the snapshot.
pub const UFFD: Side = Side { name: "uffd", kind: Kind::Uffd, huge_pages: false, in_child: false };
/// On large folios.
pub const UFFD_HUGE: Side = Side { name: "uffd, huge pages", huge_pages: true, ..UFFD };
/// A child process reads the snapshot, at the same addresses.
pub const UFFD_CHILD: Side = Side { name: "uffd, child", in_child: true, ..UFFD };

/// The process manages its own page tables, so this side needs a process of its own. Its memory is an error on other
/// machines than x86-64.
pub const RING0: Side = Side { name: "ring0", kind: Kind::Ring0, huge_pages: false, in_child: false };

impl Side {
    /// A memory that has been touched, and that the other sides' children do not inherit.
    pub fn memory(self, bytes: usize) -> Result<Memory> {
        let builder = Memory::builder(bytes).engine(Choice::Only(self.kind));
        let memory = builder.huge_pages(self.huge_pages).in_child(self.in_child).build()?;
        memory.words().iter().step_by(WORDS_OF_A_PAGE).for_each(|word| word.store(1, Ordering::Relaxed));
        self.set_inherited(&memory, false)?;
        Ok(memory)
    }

    fn set_inherited(self, memory: &Memory, inherited: bool) -> Result<()> {
        if self.kind != Kind::Fork {
            return Ok(());
        }
        let advice = if inherited { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
        // SAFETY: the memory belongs to this process, and only its children see a difference.
        unsafe { madvise(memory.base().as_ptr().cast(), memory.len(), advice) }
            .map_err(Error::io("what children inherit"))
    }

    /// Restores the huge pages of a memory. A write beside a living child splits one, and the kernel restores it much later.
    /// Linux before 6.1 cannot restore it at once.
    pub fn restore_huge_pages(self, memory: &Memory) {
        if self.kind == Kind::Fork && self.huge_pages {
            // SAFETY: the memory belongs to this process, and its content stays.
            let _ =
                unsafe { libc::madvise(memory.base().as_ptr().cast(), memory.len(), libc::MADV_COLLAPSE) };
        }
    }

    /// The percentage of a memory that the process maps by huge pages; `None` for sides whose memory is a file.
    pub fn huge_pct(self, memory: &Memory) -> Option<f64> {
        if self.kind != Kind::Fork {
            return None;
        }
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let bytes = huge_bytes(
            &maps,
            memory.base().as_ptr() as usize..memory.base().as_ptr() as usize + memory.len(),
        );
        Some(bytes as f64 / memory.len() as f64 * 100.0)
    }

    /// Runs `f` with this side's memory as the only one that children inherit.
    pub fn alone<T>(self, memory: &Memory, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.set_inherited(memory, true)?;
        let result = f();
        self.set_inherited(memory, false)?;
        result
    }
}

/// The bytes that huge pages map, in the mappings of `smaps` that begin in a range of addresses.
fn huge_bytes(smaps: &str, addresses: Range<usize>) -> usize {
    let mut inside = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        let start = line.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
        if let Some(start) = start {
            inside = addresses.contains(&start);
        } else if inside && let Some(kib) = line.strip_prefix("AnonHugePages:") {
            bytes += kib.trim().trim_end_matches(" kB").parse::<usize>().map_or(0, |kib| kib << 10);
        }
    }
    bytes
}

/// Writes a word of a page.
pub fn write(memory: &Memory, page: usize, value: u64) {
    word(memory, page).store(value, Ordering::Relaxed);
}

/// The word that [`write()`] writes.
pub fn word_of(memory: &Memory, page: usize) -> u64 {
    word(memory, page).load(Ordering::Relaxed)
}

fn word(memory: &Memory, page: usize) -> &AtomicU64 {
    &memory.words()[page * WORDS_OF_A_PAGE + page % WORDS_OF_A_PAGE]
}

/// The positions of written pages in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// In ranges of 256 pages.
    Ranges,
    /// Anywhere.
    Scattered,
}

impl Pattern {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ranges => "ranges",
            Self::Scattered => "scattered",
        }
    }

    /// Chooses `count` of the pages, different ones for each seed.
    pub fn choose(self, pages: usize, count: usize, seed: u64) -> Vec<usize> {
        const RANGE: usize = 256;
        let mut random = SmallRng::seed_from_u64(seed);
        match self {
            Self::Scattered => (0..count).map(|_| random.random_range(0..pages)).collect(),
            Self::Ranges => {
                let range = RANGE.min(count.max(1));
                let starts = (0..count / range).map(|_| random.random_range(0..=pages - range));
                starts.collect::<Vec<_>>().into_iter().flat_map(|start| start..start + range).collect()
            }
        }
    }
}

/// Waits until the memory's snapshots have ended.
pub fn wait_for_end(memory: &Memory) {
    const LIMIT: Duration = Duration::from_secs(60);
    let begin = Instant::now();
    while memory.statistics().active > 0 && begin.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_of_a_range_are_counted() {
        let smaps = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \nRss: 4096 kB\nAnonHugePages:      2048 kB\n\
                     7f0000400000-7f0000800000 rw-p 00000000 00:00 0 \nAnonHugePages:      4096 kB\n";
        assert_eq!(huge_bytes(smaps, 0x7f00_0000_0000..0x7f00_0040_0000), 2 << 20);
        assert_eq!(huge_bytes(smaps, 0x7f00_0000_0000..0x7f00_0080_0000), 6 << 20);
        assert_eq!(huge_bytes(smaps, 0..4096), 0);
    }

    #[test]
    fn only_memory_with_huge_pages_has_some() {
        for side in [FORK, FORK_HUGE] {
            let memory = side.memory(8 << 20).unwrap();
            side.restore_huge_pages(&memory);
            let huge = side.huge_pct(&memory).unwrap();
            assert!(huge <= 100.0 && (side == FORK_HUGE || huge == 0.0), "{}: {huge}", side.name);
        }
    }
}
