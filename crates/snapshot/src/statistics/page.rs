//! The statistics page: a page of shared memory on which a process keeps its statistics for others to read.
//!
//! The page is a memory file without a name. Its descriptor stays open, so that `/proc/PID/fd` leads to it.
//! Programs that the process executes do not inherit it; forked children do. The size of the file is sealed. Words
//! of the page have 64 bits, in the byte order of the machine:
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
//! Only the owner writes to the page, one thread at a time. A number is one word, so a reader never sees a part of
//! it. A reader may see one number from before a change and another from after it. A reader must not rely on the
//! contents of the page, because any process can create such a page.

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

/// The name of the memory file.
pub const NAME: &std::ffi::CStr = c"bedplate-snapshot-statistics";
/// The page's first word: "BPSNSTAT".
pub const MAGIC: u64 = u64::from_be_bytes(*b"BPSNSTAT");
/// The version of the layout.
pub const VERSION: u64 = 2;
/// Number of words of a page.
pub const WORDS: usize = PAGE / size_of::<u64>();

const VERSION_AT: usize = 1;
const PID_AT: usize = 2;
const ENGINE_AT: usize = 3;
const TEXT_LEN_AT: usize = 4;
const FIGURES_AT: usize = 5;
const TEXT_AT: usize = FIGURES_AT + FIGURES;

/// Limit of the text in bytes. Longer text is truncated.
pub const LONGEST_TEXT: usize = (WORDS - TEXT_AT) * size_of::<u64>();

const ENGINES: [Option<Kind>; 5] =
    [None, Some(Kind::Remap), Some(Kind::Uffd), Some(Kind::Ring0), Some(Kind::Fork)];

/// The seals of a page. Its size never changes, so reading it cannot fail halfway.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The statistics page of this process.
pub struct Page {
    words: NonNull<[AtomicU64; WORDS]>,
    /// Kept open, so that other processes can find it.
    _file: OwnedFd,
}

// SAFETY: it owns its words like a box.
unsafe impl Send for Page {}
// SAFETY: the words are atomic.
unsafe impl Sync for Page {}

impl Page {
    /// Creates a page with the engine of this process, or `None`, and the reason for it. All numbers are 0.
    ///
    /// # Errors
    /// There is no memory or no descriptor, or the limit on the size of files (`ulimit -f`) is too low.
    pub fn new(engine: Option<Kind>, why: &str) -> Result<Self, Errno> {
        // Exceeding the limit would cause a signal that ends the process.
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
        // SAFETY: mapped as long as this value exists; zeros are valid words.
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

    /// Writes the numbers. It neither allocates nor makes a system call. Only one thread may call it at a time.
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
    /// The engine of the process, or `None`.
    pub engine: Option<Kind>,
    /// The reason for the engine, or for having none. It contains no control characters.
    pub why: String,
    /// The numbers.
    pub statistics: Statistics,
}

/// The reason why a page cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file is not one page long, or its size may change.
    #[error("it is not one page of a fixed size")]
    Size,
    /// The first word is not the page's mark.
    #[error("it does not begin with the page's mark")]
    Magic,
    /// The layout has another version.
    #[error("its layout is version {found}, and this version of bedplate reads version {VERSION}")]
    Version {
        /// The version found.
        found: u64,
    },
    /// The engine number is invalid.
    #[error("it names engine number {found}, which does not exist")]
    Engine {
        /// The number found.
        found: u64,
    },
    /// The text is longer than the room for it.
    #[error("it has {found} bytes of text, and there is room for {LONGEST_TEXT}")]
    Text {
        /// The length of the text in bytes, according to the page.
        found: u64,
    },
}

impl Reading {
    /// Decodes the words of a page. Any words are accepted as input.
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

/// Makes another process's text safe for a terminal: every control character becomes a question mark.
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

    /// Statistics whose numbers are all different.
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
        // The text must not be cut within a character.
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
            // Number of first words that are those of a valid page.
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
