//! The bytes of a page while several threads use them.
//!
//! The thread that holds a page exclusively changes bytes that optimistic readers read at the same time. A race is
//! undefined behaviour if one of the accesses is not atomic. A race between atomic accesses of different sizes is
//! undefined too. So both sides access only aligned words of 8 bytes, with relaxed atomic loads and stores. A store to
//! part of a word loads the rest of the word first. This loses no change, because a page has only one writer at a time.
//!
//! These accesses impose no order. The page's state ([`page_state`](super::page_state)) tells a reader whether its
//! bytes are consistent. The writer takes the lock, then executes a release fence, then stores. The reader loads, then
//! executes an acquire fence, then loads the state again. So a reader that has loaded a byte of a writer sees the
//! writer's lock, or a later word, in the state.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::atomics::{AtomicU64, Ordering};

/// Bytes of a word.
pub const WORD: usize = 8;
/// Bytes that [`copy_within`] moves at once when source and destination have different offsets in their words.
const CHUNK: usize = 64;

/// Loads word `index` as a little-endian number.
#[inline(always)]
pub fn word(words: &[AtomicU64], index: usize) -> u64 {
    u64::from_le(words[index].load(Ordering::Relaxed))
}

/// Loads word `index` as a little-endian number; 0 if there is no such word.
#[inline(always)]
pub fn word_or_zero(words: &[AtomicU64], index: usize) -> u64 {
    words.get(index).map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
}

/// Stores `number` little-endian in word `index`.
#[inline(always)]
pub fn set_word(words: &[AtomicU64], index: usize, number: u64) {
    words[index].store(number.to_le(), Ordering::Relaxed);
}

/// Loads `len` bytes, at most 8, from `at` on as a little-endian number. Each byte is loaded once.
///
/// # Panics
/// If the range is outside the words.
#[inline(always)]
pub fn number(words: &[AtomicU64], at: usize, len: usize) -> u64 {
    debug_assert!(len <= WORD);
    if len == 0 {
        return 0;
    }
    // If one word has all bytes, both loads read it, and the result has nothing of the second load.
    let (low, high) = (word(words, at / WORD), word(words, (at + len - 1) / WORD));
    let both = u128::from(high) << 64 | u128::from(low);
    (both >> (at % WORD * 8)) as u64 & mask(len)
}

/// A mask of the lowest `len` bytes, 1 to 8.
#[inline(always)]
fn mask(len: usize) -> u64 {
    u64::MAX >> ((WORD - len) * 8)
}

/// Copies the bytes from `at` on. Initialises all of `to`.
///
/// # Panics
/// If the range is outside the words.
#[inline]
pub fn load(words: &[AtomicU64], at: usize, to: &mut [MaybeUninit<u8>]) {
    let len = to.len();
    if len < WORD {
        return put_short(to, number(words, at, len));
    }
    // The first 8 bytes and the last 8 bytes overlap the words in between. So the copy of those needs no shifts.
    put(to, 0, number(words, at, WORD).to_le_bytes());
    let (first, head) = (at / WORD + 1, WORD - at % WORD);
    let (chunks, _) = to[head..].as_chunks_mut::<WORD>();
    let whole = &words[first..first + chunks.len()];
    for (chunk, word) in chunks.iter_mut().zip(whole) {
        chunk.write_copy_of_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    put(to, len - WORD, number(words, at + len - WORD, WORD).to_le_bytes());
}

#[inline(always)]
fn put<const N: usize>(to: &mut [MaybeUninit<u8>], at: usize, bytes: [u8; N]) {
    to[at..at + N].write_copy_of_slice(&bytes);
}

/// Stores the lowest bytes of a number, fewer than 8, without a loop.
#[inline(always)]
fn put_short(to: &mut [MaybeUninit<u8>], number: u64) {
    let len = to.len();
    match len {
        0 => {}
        1 => put(to, 0, (number as u8).to_le_bytes()),
        2 | 3 => {
            put(to, 0, (number as u16).to_le_bytes());
            put(to, len - 2, ((number >> ((len - 2) * 8)) as u16).to_le_bytes());
        }
        _ => {
            put(to, 0, (number as u32).to_le_bytes());
            put(to, len - 4, ((number >> ((len - 4) * 8)) as u32).to_le_bytes());
        }
    }
}

/// Stores bytes from `at` on. The caller must be the only writer.
///
/// # Panics
/// If the range is outside the words.
#[inline]
pub fn store(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    let head = (at.wrapping_neg() % WORD).min(bytes.len());
    let (edge, rest) = bytes.split_at(head);
    splice(words, at, edge);
    let (chunks, tail) = rest.as_chunks::<WORD>();
    let first = (at + head) / WORD;
    let end = first + chunks.len();
    for (word, chunk) in words[first..end].iter().zip(chunks) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    splice(words, end * WORD, tail);
}

/// Stores part of one word.
#[inline(always)]
fn splice(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let (index, shift) = (at / WORD, at % WORD * 8);
    let replaced = mask(bytes.len()) << shift;
    set_word(words, index, word(words, index) & !replaced | get_short(bytes) << shift);
}

/// Returns up to 7 bytes as a little-endian number, without a loop.
#[inline(always)]
fn get_short(bytes: &[u8]) -> u64 {
    #[inline(always)]
    fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
        *bytes[at..].first_chunk().expect("inside the bytes")
    }
    let len = bytes.len();
    match len {
        0 => 0,
        1 => u64::from(bytes[0]),
        2 | 3 => {
            u64::from(u16::from_le_bytes(get(bytes, 0)))
                | u64::from(u16::from_le_bytes(get(bytes, len - 2))) << ((len - 2) * 8)
        }
        _ => {
            u64::from(u32::from_le_bytes(get(bytes, 0)))
                | u64::from(u32::from_le_bytes(get(bytes, len - 4))) << ((len - 4) * 8)
        }
    }
}

/// Stores the same byte in a range. The caller must be the only writer.
///
/// # Panics
/// If the range is outside the words.
pub fn fill(words: &[AtomicU64], range: Range<usize>, byte: u8) {
    let pattern = [byte; WORD];
    let Range { start, end } = range;
    let head = (start.wrapping_neg() % WORD).min(end.saturating_sub(start));
    splice(words, start, &pattern[..head]);
    let (first, last) = ((start + head) / WORD, end / WORD);
    if start + head < end {
        words[first..last].iter().for_each(|word| word.store(u64::from_ne_bytes(pattern), Ordering::Relaxed));
        splice(words, last * WORD, &pattern[..end % WORD]);
    }
}

/// Copies bytes to another position. The ranges may overlap. The caller must be the only writer.
///
/// # Panics
/// If one of the ranges is outside the words.
pub fn copy_within(words: &[AtomicU64], from: Range<usize>, to: usize) {
    let len = from.len();
    let (source, forwards) = (from.start, to <= from.start);
    if [source, to, len].iter().all(|number| number.is_multiple_of(WORD)) {
        let (source, to, len) = (source / WORD, to / WORD, len / WORD);
        let (source, to) = (&words[source..source + len], &words[to..to + len]);
        let copy = |(to, from): (&AtomicU64, &AtomicU64)| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        let pairs = to.iter().zip(source);
        return if forwards { pairs.for_each(copy) } else { pairs.rev().for_each(copy) };
    }
    let mut chunk = [MaybeUninit::uninit(); CHUNK];
    let mut copy = |start: usize| {
        let chunk = &mut chunk[..CHUNK.min(len - start)];
        load(words, source + start, chunk);
        // SAFETY: `load` has initialised the whole chunk.
        store(words, to + start, unsafe { chunk.assume_init_ref() });
    };
    let starts = (0..len).step_by(CHUNK);
    if forwards { starts.for_each(&mut copy) } else { starts.rev().for_each(&mut copy) }
}
