//! A minimal write-ahead log: each record is a change of its own, and is committed when it is durable.
//!
//! A record sets a word of a page, has the whole payload, or frees the page. Redo pins the page that a record names, compares the
//! numbers, and applies the record if the page does not have it.
#![allow(dead_code, reason = "every test uses some of it")]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use bedplate_bufpool::{Exclusive, Log, PAYLOAD, PageId, Pool, Redo};

/// Words of a payload of a page of 4 KiB.
pub const WORDS: usize = PAYLOAD / 8;

pub type Content = BTreeMap<PageId, Box<[u64]>>;

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Word(usize, u64),
    Whole(Box<[u64]>),
    /// The page is no longer in use.
    Free,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub lsn: u64,
    pub page: PageId,
    pub change: Change,
}

impl Record {
    fn apply(&self, content: &mut Content) {
        match &self.change {
            Change::Word(word, value) => {
                let words = content.entry(self.page).or_insert_with(|| vec![0; WORDS].into_boxed_slice());
                // Repeated records may change a page that a later record frees. Its length does not matter.
                if *word >= words.len() {
                    let mut longer = words.to_vec();
                    longer.resize(word + 1, 0);
                    *words = longer.into_boxed_slice();
                }
                words[*word] = *value;
            }
            Change::Whole(whole) => drop(content.insert(self.page, whole.clone())),
            Change::Free => drop(content.remove(&self.page)),
        }
    }
}

#[derive(Default)]
pub struct Wal {
    state: Mutex<State>,
    path: Option<PathBuf>,
}

#[derive(Default)]
struct State {
    /// Records since the last checkpoint.
    records: Vec<Record>,
    last: u64,
    durable: u64,
    /// The number up to which records are no longer needed.
    checkpoint: u64,
    dead: bool,
    file: Option<File>,
    /// Whether checkpoints drop no records.
    keeps_all: bool,
}

impl State {
    fn add(&mut self, page: &mut Exclusive<'_>, change: Change) {
        self.last += 1;
        page.set_lsn(self.last);
        self.records.push(Record { lsn: self.last, page: page.page(), change });
    }

    /// Drops the records from before a checkpoint. If the log is in a file, they move to another file, from which a test can
    /// compute the content of pages.
    fn truncate(&mut self, path: Option<&Path>) {
        let checkpoint = self.checkpoint;
        if self.keeps_all {
            return;
        }
        let old = self.records.partition_point(|record| record.lsn <= checkpoint);
        if let Some(path) = path {
            assert!(self.durable >= checkpoint, "no page is in storage before its log");
            let (mut archive, _) = whole_lines(&path.with_extension("archive"));
            let lines: Vec<u8> = self.records[..old].iter().flat_map(encode).collect();
            archive.write_all(&lines).expect("write the archive");
            let durable = self.records.partition_point(|record| record.lsn <= self.durable);
            let mut lines = format!("{checkpoint}\n").into_bytes();
            lines.extend(self.records[old..durable].iter().flat_map(encode));
            let new = path.with_extension("new");
            std::fs::write(&new, lines).expect("write the new log");
            std::fs::rename(&new, path).expect("replace the log");
            self.file = Some(whole_lines(path).0);
        }
        self.records.drain(..old);
    }
}

/// Opens a file of lines, and returns its content. An incomplete last line is cut off.
fn whole_lines(path: &Path) -> (File, String) {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).expect("open the log");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read the log");
    text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
    file.set_len(text.len() as u64).expect("cut the log");
    (file, text)
}

impl Wal {
    /// A log in a file, with the records that the file already has.
    pub fn open(path: &Path) -> Self {
        let (file, text) = whole_lines(path);
        let wal = Self { state: Mutex::default(), path: Some(path.to_owned()) };
        let mut state = wal.state();
        for line in text.lines() {
            state.last = match decode(line) {
                Line::Checkpoint(lsn) => lsn,
                Line::Record(record) => {
                    let lsn = record.lsn;
                    state.records.push(record);
                    lsn
                }
            };
        }
        state.durable = state.last;
        state.file = Some(file);
        drop(state);
        wal
    }

    /// A log in memory that keeps the records from before checkpoints.
    pub fn keeping_all() -> Self {
        let wal = Self::default();
        wal.state().keeps_all = true;
        wal
    }

    /// The number of the last record that the last checkpoint made obsolete.
    pub fn last_checkpoint(&self) -> u64 {
        self.state().checkpoint
    }

    /// Applies the records from before the last checkpoint to a content.
    pub fn apply_archive(&self, content: &mut Content) {
        let path = self.path.as_ref().expect("it is in a file").with_extension("archive");
        for line in whole_lines(&path).1.lines() {
            let Line::Record(record) = decode(line) else { panic!("{line}") };
            record.apply(content);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes a word of a page and logs it. With `images`, the first change since a checkpoint logs the whole page.
    pub fn set(&self, page: &mut Exclusive<'_>, word: usize, value: u64, images: bool) {
        let mut state = self.state();
        page.write(word * 8, &value.to_le_bytes());
        let change = if images && page.lsn() <= state.checkpoint {
            Change::Whole(words(page))
        } else {
            Change::Word(word, value)
        };
        state.add(page, change);
    }

    /// Changes a word of a page that was just allocated. Its earlier content does not count.
    pub fn begin(&self, page: &mut Exclusive<'_>, word: usize, value: u64) {
        page.write(word * 8, &value.to_le_bytes());
        let whole = Change::Whole(words(page));
        self.state().add(page, whole);
    }

    /// Logs that a page is about to be freed.
    pub fn free(&self, page: &mut Exclusive<'_>) {
        self.state().add(page, Change::Free);
    }

    /// Makes everything durable.
    pub fn commit(&self) -> io::Result<u64> {
        let last = self.state().last;
        self.make_durable(last)?;
        Ok(last)
    }

    /// Makes a checkpoint of the pool. Afterwards, older records are not needed.
    pub fn checkpoint(&self, pool: &Pool) -> Result<(), bedplate_bufpool::Error> {
        let before = self.state().last;
        pool.sync()?;
        let mut state = self.state();
        state.checkpoint = before;
        state.truncate(self.path.as_deref());
        Ok(())
    }

    /// From now on, no record becomes durable.
    pub fn die(&self) {
        self.state().dead = true;
    }

    /// Loses the records that are not durable.
    pub fn crash(&self) {
        let mut state = self.state();
        let durable = state.durable;
        state.dead = false;
        state.last = durable;
        state.records.retain(|record| record.lsn <= durable);
    }

    /// Applies the durable records to a content.
    pub fn apply(&self, content: &mut Content) {
        self.state().records.iter().for_each(|record| record.apply(content));
    }

    /// Applies all records to a pool's pages that do not have them. Returns the number of torn pages.
    pub fn redo(&self, pool: &Pool) -> usize {
        self.redo_after(pool, 0)
    }

    /// Applies the records after a number to the pages that do not have them. Returns the number of torn pages.
    pub fn redo_after(&self, pool: &Pool, lsn: u64) -> usize {
        let (records, keeps_all) = {
            let state = self.state();
            (state.records.clone(), state.keeps_all)
        };
        // The content of pages before each record, as the log has it.
        let mut before = Content::new();
        let mut torn = 0;
        for record in records {
            let known = before.get(&record.page).cloned();
            if keeps_all {
                record.apply(&mut before);
            }
            if record.lsn <= lsn {
                continue;
            }
            let (mut page, found) = pool.pin_for_redo(record.page).expect("redo");
            torn += usize::from(found == Redo::Torn);
            if found == Redo::Torn {
                assert!(!matches!(record.change, Change::Word(..)), "no whole page of {}", record.page);
            }
            if page.lsn() >= record.lsn {
                continue;
            }
            if keeps_all && matches!(record.change, Change::Word(..)) {
                // Redo of a change of part of a page needs the page's previous content.
                assert!(
                    known == Some(words(&page)),
                    "record {} of page {} finds other content",
                    record.lsn,
                    record.page
                );
            }
            match &record.change {
                Change::Word(word, value) => page.write(word * 8, &value.to_le_bytes()),
                Change::Whole(whole) => {
                    for (index, word) in whole.iter().enumerate() {
                        page.write(index * 8, &word.to_le_bytes());
                    }
                }
                Change::Free => {}
            }
            page.set_lsn(record.lsn);
        }
        torn
    }
}

impl Log for Wal {
    fn durable_lsn(&self) -> u64 {
        self.state().durable
    }

    fn make_durable(&self, up_to: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.dead {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        // Another thread's commit may have been faster, and may have covered more.
        if up_to <= state.durable {
            return Ok(());
        }
        let from = state.records.partition_point(|record| record.lsn <= state.durable);
        let to = state.records.partition_point(|record| record.lsn <= up_to);
        let State { file, records, .. } = &mut *state;
        if let Some(file) = file {
            let bytes: Vec<u8> = records[from..to].iter().flat_map(encode).collect();
            file.write_all(&bytes)?;
            file.sync_data()?;
        }
        state.durable = up_to;
        Ok(())
    }
}

/// The words of a payload.
pub fn words(payload: &[u8]) -> Box<[u64]> {
    payload.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

fn encode(record: &Record) -> Vec<u8> {
    let Change::Word(word, value) = record.change else { unreachable!("not in files") };
    format!("{} {} {word} {value}\n", record.lsn, record.page).into_bytes()
}

enum Line {
    Record(Record),
    Checkpoint(u64),
}

fn decode(line: &str) -> Line {
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
    match numbers[..] {
        [lsn] => Line::Checkpoint(lsn),
        [lsn, page, word, value] => {
            Line::Record(Record { lsn, page: PageId(page), change: Change::Word(word as usize, value) })
        }
        _ => panic!("{line}"),
    }
}
