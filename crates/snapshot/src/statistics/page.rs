//! The statistics page: a page of shared memory on which a process keeps its statistics for others to read.
//!
//! The page is a file in memory without a name. Its descriptor stays open, so that `/proc/PID/fd` leads to it; a program
//! that the process executes does not inherit it, and a forked child does. The size of the file is sealed. Words of the
//! page are 64 bits long, in the byte order of the machine:
//!
//! | words | |
//! |---|---|
//! | 0 | [`MAGIC`], which is written last |
//! | 1 | [`VERSION`] |
//! | 2 | the owner's process ID, in its own PID namespace |
//! | 3 | the engine: 0 for none, 1 for `remap`, 2 for `uffd`, 3 for `ring0`, 4 for `fork` |
//! | 4 | how many bytes of text follow the numbers |
//! | 5 to 46 | the numbers, in the order of `Statistics::figures` |
//! | 47 to 511 | text in UTF-8: why the engine is this one |
//!
//! Only the owner writes to the page, one thread at a time. A number is one word, so a reader never sees a part of it. A
//! reader may see one number of before and another of after a change. A reader must not rely on anything that the page
//! says, because any process can make such a page.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getpid, getrlimit};

use super::{FIGURES, Statistics};
use crate::region::backing::memory_file;
use crate::region::exclude_from_dumps;
use crate::{Kind, PAGE};

/// The name of the file in memory.
pub const NAME: &std::ffi::CStr = c"bedplate-snapshot-statistics";
/// The page's first word: "BPSNSTAT".
pub const MAGIC: u64 = u64::from_be_bytes(*b"BPSNSTAT");
/// The version of the layout.
pub const VERSION: u64 = 2;
/// How many words a page has.
pub const WORDS: usize = PAGE / size_of::<u64>();

const VERSION_AT: usize = 1;
const PID_AT: usize = 2;
const ENGINE_AT: usize = 3;
const TEXT_LEN_AT: usize = 4;
const FIGURES_AT: usize = 5;
const TEXT_AT: usize = FIGURES_AT + FIGURES;

/// Most bytes of text that a page has. Longer text is cut off.
pub const LONGEST_TEXT: usize = (WORDS - TEXT_AT) * size_of::<u64>();

const ENGINES: [Option<Kind>; 5] =
    [None, Some(Kind::Remap), Some(Kind::Uffd), Some(Kind::Ring0), Some(Kind::Fork)];

/// The seals that a page has: its size never changes, so that reading it cannot fail half-way.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The page of this process.
pub struct Page {
    words: NonNull<[AtomicU64; WORDS]>,
    /// Open for other processes to find.
    _file: OwnedFd,
}

// SAFETY: owns its words like a box.
unsafe impl Send for Page {}
// SAFETY: the words are atomic.
unsafe impl Sync for Page {}

impl Page {
    /// A page that says which engine this process has, or that it has none, and why. All numbers are 0.
    ///
    /// # Errors
    /// There is no memory, or no descriptor; or no file may be as large (`ulimit -f`).
    pub fn new(engine: Option<Kind>, why: &str) -> Result<Self, Errno> {
        // A process that makes a larger file gets a signal that ends it.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < PAGE as u64) {
            return Err(Errno::FBIG);
        }
        let file = memory_file(NAME, MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE as u64)?;
        fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED, &file, 0) }?;
        exclude_from_dumps(at as usize, PAGE);
        let words = NonNull::new(at.cast()).expect("a mapping is not at address 0");
        let page = Self { words, _file: file };
        page.describe(engine, why);
        Ok(page)
    }

    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: mapped as long as this lives, and zeros are values of the words.
        unsafe { self.words.as_ref() }
    }

    fn describe(&self, engine: Option<Kind>, why: &str) {
        let words = self.words();
        let set = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        set(VERSION_AT, VERSION);
        set(PID_AT, getpid().as_raw_nonzero().get() as u64);
        set(ENGINE_AT, ENGINES.iter().position(|&other| other == engine).unwrap_or(0) as u64);
        let text = &why.as_bytes()[..why.floor_char_boundary(LONGEST_TEXT)];
        set(TEXT_LEN_AT, text.len() as u64);
        for (index, bytes) in text.chunks(size_of::<u64>()).enumerate() {
            let mut word = [0; size_of::<u64>()];
            word[..bytes.len()].copy_from_slice(bytes);
            set(TEXT_AT + index, u64::from_ne_bytes(word));
        }
        words[0].store(MAGIC, Ordering::Release);
    }

    /// Writes the numbers. Nothing here allocates or makes a system call. One thread at a time may call it.
    pub fn publish(&self, statistics: &Statistics) {
        let mut statistics = *statistics;
        for (word, figure) in self.words()[FIGURES_AT..].iter().zip(statistics.figures()) {
            word.store(*figure, Ordering::Relaxed);
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), PAGE) };
    }
}

/// The content of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The owner's process ID, in its own PID namespace.
    pub pid: u64,
    /// Its engine, if it has one.
    pub engine: Option<Kind>,
    /// Why it has this one, or none. It has no control characters.
    pub why: String,
    /// The numbers.
    pub statistics: Statistics,
}

/// Why a page cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file is not one page long, or its size may change.
    #[error("it is not one page of a fixed size")]
    Size,
    /// It does not begin as a page does.
    #[error("it does not begin with the page's mark")]
    Magic,
    /// It has another layout.
    #[error("its layout is version {found}, and this version of bedplate reads version {VERSION}")]
    Version {
        /// Which one.
        found: u64,
    },
    /// There is no such engine.
    #[error("it names engine number {found}, which does not exist")]
    Engine {
        /// The number that it has.
        found: u64,
    },
    /// The text is longer than the page has room for.
    #[error("it has {found} bytes of text, and there is room for {LONGEST_TEXT}")]
    Text {
        /// How long it says that the text is.
        found: u64,
    },
}

impl Reading {
    /// Reads the words of a page, whatever they are.
    ///
    /// # Errors
    /// The words are not those of a page.
    pub fn of(words: &[u64; WORDS]) -> Result<Self, Damage> {
        if words[0] != MAGIC {
            return Err(Damage::Magic);
        }
        if words[VERSION_AT] != VERSION {
            return Err(Damage::Version { found: words[VERSION_AT] });
        }
        let found = words[ENGINE_AT];
        let engine = usize::try_from(found).ok().and_then(|index| ENGINES.get(index));
        let engine = *engine.ok_or(Damage::Engine { found })?;
        let found = words[TEXT_LEN_AT];
        let len = usize::try_from(found).ok().filter(|&len| len <= LONGEST_TEXT);
        let len = len.ok_or(Damage::Text { found })?;
        let bytes: Vec<u8> = words[TEXT_AT..].iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
        let mut statistics = Statistics::default();
        for (figure, word) in statistics.figures().zip(&words[FIGURES_AT..]) {
            *figure = *word;
        }
        Ok(Self { pid: words[PID_AT], engine, why: printable(&bytes), statistics })
    }
}

/// Text of another process's for a terminal: what would control it becomes a question mark.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::one_test_at_a_time;
    use super::*;

    fn words_of(page: &Page) -> [u64; WORDS] {
        std::array::from_fn(|index| page.words()[index].load(Ordering::Relaxed))
    }

    /// Statistics in which every number is another one.
    fn distinct() -> Statistics {
        let mut statistics = Statistics::default();
        (1..).zip(statistics.figures()).for_each(|(number, figure)| *figure = number * number);
        statistics
    }

    #[test]
    fn a_reader_finds_what_was_published() {
        let _alone = one_test_at_a_time();
        let page = Page::new(Some(Kind::Remap), "it works").unwrap();
        page.publish(&distinct());
        let reading = Reading::of(&words_of(&page)).unwrap();
        assert_eq!(reading.pid, u64::from(std::process::id()));
        assert_eq!((reading.engine, reading.why.as_str()), (Some(Kind::Remap), "it works"));
        assert_eq!(reading.statistics, distinct());
    }

    #[test]
    fn figures_are_all_numbers_of_the_statistics() {
        let mut statistics = Statistics::default();
        assert_eq!(statistics.figures().count(), FIGURES);
        assert_eq!(FIGURES * size_of::<u64>(), size_of::<Statistics>());
    }

    #[test]
    fn every_engine_has_a_number() {
        let _alone = one_test_at_a_time();
        for engine in ENGINES {
            let page = Page::new(engine, "").unwrap();
            assert_eq!(Reading::of(&words_of(&page)).unwrap().engine, engine);
        }
    }

    #[test]
    fn text_that_is_too_long_is_cut_off() {
        let _alone = one_test_at_a_time();
        for len in [LONGEST_TEXT, LONGEST_TEXT + 1] {
            let page = Page::new(None, &"x".repeat(len)).unwrap();
            assert_eq!(Reading::of(&words_of(&page)).unwrap().why.len(), LONGEST_TEXT);
        }
        // Not within a character.
        let page = Page::new(None, &"é".repeat(LONGEST_TEXT)).unwrap();
        assert_eq!(Reading::of(&words_of(&page)).unwrap().why, "é".repeat(LONGEST_TEXT / 2));
    }

    #[test]
    fn each_damage_has_its_error() {
        let _alone = one_test_at_a_time();
        let good = words_of(&Page::new(Some(Kind::Uffd), "\x1b[2J").unwrap());
        assert_eq!(Reading::of(&good).unwrap().why, "?[2J");
        let damaged = |at: usize, value: u64| {
            let mut words = good;
            words[at] = value;
            Reading::of(&words).unwrap_err()
        };
        assert_eq!(damaged(0, 0), Damage::Magic);
        assert_eq!(damaged(VERSION_AT, VERSION + 1), Damage::Version { found: VERSION + 1 });
        let engines = ENGINES.len() as u64;
        assert_eq!(damaged(ENGINE_AT, engines), Damage::Engine { found: engines });
        assert_eq!(damaged(ENGINE_AT, u64::MAX), Damage::Engine { found: u64::MAX });
        let longer = LONGEST_TEXT as u64 + 1;
        assert_eq!(damaged(TEXT_LEN_AT, longer), Damage::Text { found: longer });
        assert_eq!(damaged(TEXT_LEN_AT, u64::MAX), Damage::Text { found: u64::MAX });
    }

    #[test]
    fn the_size_of_the_file_is_sealed() {
        let _alone = one_test_at_a_time();
        let page = Page::new(None, "").unwrap();
        for bytes in [0, PAGE as u64 - 1, PAGE as u64 + 1] {
            assert_eq!(ftruncate(&page._file, bytes), Err(Errno::PERM));
        }
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(
            mut words in prop::collection::vec(any::<u64>(), WORDS..=WORDS),
            // How many of the first words are those of a page.
            good in 0..=TEXT_LEN_AT + 1,
        ) {
            let header = [MAGIC, VERSION, 1, words[ENGINE_AT] % 5, words[TEXT_LEN_AT] % (LONGEST_TEXT as u64 + 1)];
            words[..good].copy_from_slice(&header[..good]);
            let words: [u64; WORDS] = words.try_into().unwrap();
            let read = Reading::of(&words);
            prop_assert!(read.is_ok() || good <= TEXT_LEN_AT);
            if let Ok(reading) = read {
                prop_assert!(!reading.why.contains(char::is_control));
                let _ = reading.statistics.pauses.count();
            }
        }
    }
}
