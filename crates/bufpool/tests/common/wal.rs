//! A write-ahead log as small as one can be: each record is a change of its own, committed when it is durable.
//!
//! A record sets a word of a page, or has the whole payload. Redo pins the page that a record names, compares the numbers,
//! and does what the page has not seen.
#![allow(dead_code, reason = "every test uses some of it")]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use bedplate_bufpool::{Exclusive, Log, PAYLOAD, PageId, Pool, Redo};

/// Words of a payload.
pub const WORDS: usize = PAYLOAD / 8;

pub type Content = BTreeMap<PageId, Box<[u64; WORDS]>>;

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Word(usize, u64),
    Whole(Box<[u64; WORDS]>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub lsn: u64,
    pub page: PageId,
    pub change: Change,
}

#[derive(Default)]
pub struct Wal(Mutex<State>);

#[derive(Default)]
struct State {
    /// Behind the last checkpoint.
    records: Vec<Record>,
    last: u64,
    durable: u64,
    /// Up to where records are not needed any more.
    checkpoint: u64,
    dead: bool,
    file: Option<File>,
}

impl Wal {
    /// One in a file; what is in it already is read.
    pub fn open(path: &Path) -> Self {
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).expect("open the log");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("read the log");
        let wal = Self::default();
        let mut state = wal.state();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            // The last line may not be whole.
            let Some(record) = decode(line) else { break };
            state.last = record.lsn;
            state.durable = record.lsn;
            state.records.push(record);
        }
        state.file = Some(file);
        drop(state);
        wal
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Changes a word of a page and logs it. With `images`, the first change since a checkpoint logs the whole page.
    pub fn set(&self, page: &mut Exclusive<'_>, word: usize, value: u64, images: bool) {
        let mut state = self.state();
        page[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        let change = if images && page.lsn() <= state.checkpoint {
            Change::Whole(words(page))
        } else {
            Change::Word(word, value)
        };
        state.last += 1;
        let record = Record { lsn: state.last, page: page.page(), change };
        page.set_lsn(record.lsn);
        state.records.push(record);
    }

    /// Makes everything durable.
    pub fn commit(&self) -> io::Result<u64> {
        let last = self.state().last;
        self.make_durable(last)?;
        Ok(last)
    }

    /// A checkpoint of the pool, after which older records are not needed.
    pub fn checkpoint(&self, pool: &Pool) -> Result<(), bedplate_bufpool::Error> {
        let before = self.state().last;
        pool.sync()?;
        let mut state = self.state();
        state.checkpoint = before;
        if state.file.is_none() {
            state.records.retain(|record| record.lsn > before);
        }
        Ok(())
    }

    /// No record becomes durable from now on.
    pub fn die(&self) {
        self.state().dead = true;
    }

    /// Records that are not durable are lost.
    pub fn crash(&self) {
        let mut state = self.state();
        let durable = state.durable;
        state.dead = false;
        state.last = durable;
        state.records.retain(|record| record.lsn <= durable);
    }

    /// What durable records make of a content.
    pub fn apply(&self, content: &mut Content) {
        for record in &self.state().records {
            let words = content.entry(record.page).or_insert_with(|| Box::new([0; WORDS]));
            match &record.change {
                Change::Word(word, value) => words[*word] = *value,
                Change::Whole(whole) => *words = whole.clone(),
            }
        }
    }

    /// Has a pool's pages see what they have not. Returns how many were torn.
    pub fn redo(&self, pool: &Pool) -> usize {
        let records = self.state().records.clone();
        let mut torn = 0;
        for record in records {
            let (mut page, found) = pool.pin_for_redo(record.page).expect("redo");
            torn += usize::from(found == Redo::Torn);
            if found == Redo::Torn {
                assert!(matches!(record.change, Change::Whole(_)), "no whole page of {}", record.page);
            }
            if page.lsn() >= record.lsn {
                continue;
            }
            match &record.change {
                Change::Word(word, value) => page[word * 8..][..8].copy_from_slice(&value.to_le_bytes()),
                Change::Whole(whole) => {
                    for (to, word) in page.chunks_exact_mut(8).zip(whole.iter()) {
                        to.copy_from_slice(&word.to_le_bytes());
                    }
                }
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
        let from = state.records.partition_point(|record| record.lsn <= state.durable);
        let to = state.records.partition_point(|record| record.lsn <= up_to);
        let State { file, records, .. } = &mut *state;
        if let Some(file) = file {
            let bytes: Vec<u8> = records[from..to].iter().flat_map(encode).collect();
            file.write_all(&bytes)?;
            file.sync_data()?;
        }
        state.durable = state.durable.max(up_to);
        Ok(())
    }
}

/// The words of a payload.
pub fn words(payload: &[u8; PAYLOAD]) -> Box<[u64; WORDS]> {
    let mut words = Box::new([0; WORDS]);
    for (word, bytes) in words.iter_mut().zip(payload.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

fn encode(record: &Record) -> Vec<u8> {
    let Change::Word(word, value) = record.change else { unreachable!("not in files") };
    format!("{} {} {word} {value}\n", record.lsn, record.page).into_bytes()
}

fn decode(line: &[u8]) -> Option<Record> {
    let line = str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
    let [lsn, page, word, value] = numbers[..] else { panic!("{line}") };
    Some(Record { lsn, page: PageId(page), change: Change::Word(word as usize, value) })
}
