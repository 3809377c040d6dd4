//! The payload of a page, for its readers and its writer.
//!
//! A writer and optimistic readers share a [`Payload`]. Slices of bytes would be a data race (`protocol::words`), so
//! neither side has one. A [`PayloadMut`] is the only way to change a payload. The thread that holds the page
//! exclusively has it. A thread that owns a payload outside the pool has it as `&mut Payload`. Such a payload has no
//! other readers, so the thread may use it as bytes.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::page::HEADER;
use crate::page_size::PageSize;
use crate::protocol::words::{self, WORD};

/// The payload of a page: all of it after the header. Another thread may change it while it is read.
///
/// A read of a page that is not held may mix the content of several moments.
/// [`Optimistic::validate`](crate::Optimistic::validate) tells whether it did. A payload outside the pool
/// ([`Payload::boxed`]) belongs to its owner alone.
#[repr(transparent)]
pub struct Payload([AtomicU64]);

const _: () = assert!(PageSize::MIN.payload().is_multiple_of(WORD) && HEADER.is_multiple_of(WORD));

impl Payload {
    /// A payload of zeros, outside the pool. It has the length of a payload in pages of this size.
    pub fn boxed(size: PageSize) -> Box<Self> {
        Self::zeros(Self::words_of(size))
    }

    fn zeros(words: usize) -> Box<Self> {
        // SAFETY: zeros are a valid value of every word.
        let words: Box<[AtomicU64]> = unsafe { Box::new_zeroed_slice(words).assume_init() };
        // SAFETY: a payload is nothing but its words, so the layout is the same.
        unsafe { Box::from_raw(Box::into_raw(words) as *mut Self) }
    }

    /// A copy of this payload, outside the pool.
    pub fn to_boxed(&self) -> Box<Self> {
        let mut copy = Self::zeros(self.words());
        self.copy_to(&mut copy);
        copy
    }

    /// Number of words in the smallest payload.
    const LEADING: usize = Self::words_of(PageSize::MIN);

    /// Number of words in a payload.
    pub(crate) const fn words_of(size: PageSize) -> usize {
        size.payload() / WORD
    }

    /// The payload of a page in a pool, which has this number of words.
    ///
    /// # Safety
    /// `memory` is an aligned page that stays mapped during `'a`, and `words` is [`Payload::words_of`] its size. Every
    /// access that races with this one is an atomic access to its words, or an access by the kernel.
    #[inline(always)]
    pub(crate) unsafe fn at<'a>(memory: *mut u8, words: usize) -> &'a Self {
        // SAFETY: inside the page and aligned, because the page is. Words may be shared.
        let words = unsafe { slice::from_raw_parts(memory.add(HEADER).cast::<AtomicU64>(), words) };
        // SAFETY: a payload is nothing but its words.
        unsafe { &*(std::ptr::from_ref(words) as *const Self) }
    }

    /// The size of its page.
    #[inline]
    pub fn page_size(&self) -> PageSize {
        PageSize::of(self.len() + HEADER).expect("a payload is that of a page")
    }

    /// Number of words of 8 bytes.
    #[inline(always)]
    pub fn words(&self) -> usize {
        self.0.len()
    }

    /// Number of bytes.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "no payload is empty")]
    pub fn len(&self) -> usize {
        self.0.len() * WORD
    }

    /// Loads word `index` as a little-endian number.
    ///
    /// # Panics
    /// If `index` is not below [`Payload::words`].
    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        words::word(&self.0, index)
    }

    /// Loads word `index`, one of those that the smallest payload has too, as a little-endian number. If `index` is a
    /// constant, this needs no check of the length.
    ///
    /// # Panics
    /// If a page of 4 KiB has no such word.
    #[inline(always)]
    pub fn leading_word(&self, index: usize) -> u64 {
        debug_assert!(self.0.len() >= Self::LEADING);
        // SAFETY: every payload is that of a `PageSize`, and so at least as long as that of the smallest one.
        words::word(unsafe { &*self.0.as_ptr().cast::<[AtomicU64; Self::LEADING]>() }, index)
    }

    /// Loads word `index` as a little-endian number. Returns 0 if there is no such word.
    #[inline(always)]
    pub fn word_or_zero(&self, index: usize) -> u64 {
        words::word_or_zero(&self.0, index)
    }

    /// Loads `len` bytes, at most 8, from offset `at` on as a little-endian number.
    ///
    /// # Panics
    /// If the range is outside the payload.
    #[inline(always)]
    pub fn number(&self, at: usize, len: usize) -> u64 {
        words::number(&self.0, at, len)
    }

    /// Copies the bytes from offset `at` on.
    ///
    /// # Panics
    /// If the range is outside the payload.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) {
        // SAFETY: the memory belongs to the slice, and only initialised bytes are written to it.
        let to = unsafe { slice::from_raw_parts_mut(to.as_mut_ptr().cast::<MaybeUninit<u8>>(), to.len()) };
        self.read_uninit(at, to);
    }

    /// Copies the bytes from offset `at` on into memory that may be uninitialised. Initialises all of `to`.
    ///
    /// # Panics
    /// If the range is outside the payload.
    #[inline]
    pub fn read_uninit(&self, at: usize, to: &mut [MaybeUninit<u8>]) {
        words::load(&self.0, at, to);
    }

    /// Makes a write access to the first word that does not change it.
    #[cfg(feature = "bench")]
    pub(crate) fn touch(&self) {
        // To the processor, a failed exchange is a write access too. A separate load would make the kernel map the
        // memory twice.
        let _ = self.0[0].compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Copies the whole payload to one outside the pool.
    ///
    /// # Panics
    /// If the other one has another length.
    pub fn copy_to(&self, to: &mut Payload) {
        assert_eq!(self.words(), to.words(), "payloads of pages of one size");
        copy_words(&self.0, &mut to.0);
    }

    /// Copies words to a payload outside the pool: those before word `first`, and those from word `second` on. The words
    /// between them keep their values there. Numbers beyond the end of the payload count as its end.
    ///
    /// # Panics
    /// If the other one has another length.
    pub fn copy_ends_to(&self, first: usize, second: usize, to: &mut Payload) {
        assert_eq!(self.words(), to.words(), "payloads of pages of one size");
        let first = first.min(self.words());
        let second = second.clamp(first, self.words());
        copy_words(&self.0[..first], &mut to.0[..first]);
        copy_words(&self.0[second..], &mut to.0[second..]);
    }

    /// The bytes of a payload that the caller owns.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        let len = self.len();
        // SAFETY: words have no padding, any bytes are valid words, and there is no other reference to them.
        unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// Copies words, which other threads may change meanwhile, to words that the caller owns.
///
/// # Panics
/// If the lengths differ.
fn copy_words(from: &[AtomicU64], to: &mut [AtomicU64]) {
    assert_eq!(from.len(), to.len(), "one length");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: both ranges are valid for this number of words, and `to` belongs to the caller. The processor loads aligned
    // words, as the loop below does, and does not move these loads behind later ones. The loop is slower by half, because its
    // loads and stores leave less room for cache misses in flight.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") from.len() => _,
            inout("rsi") from.as_ptr() => _,
            inout("rdi") to.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (to, from) in to.iter_mut().zip(from) {
        *to.get_mut() = from.load(Ordering::Relaxed);
    }
}

/// Write access to the payload of a page. Other threads may read it optimistically at the same time.
pub struct PayloadMut<'a>(&'a Payload);

impl<'a> PayloadMut<'a> {
    /// The payload of a page that the caller has locked.
    #[inline(always)]
    pub(crate) fn new(payload: &'a Payload) -> Self {
        Self(payload)
    }

    /// The payload, for reads.
    #[inline(always)]
    pub fn payload(&self) -> &Payload {
        self.0
    }

    /// Writes bytes from offset `at` on.
    ///
    /// # Panics
    /// If they do not fit into the payload.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        words::store(&self.0.0, at, bytes);
    }

    /// Stores `number` little-endian in word `index`.
    ///
    /// # Panics
    /// If `index` is not below [`Payload::words`].
    #[inline(always)]
    pub fn set_word(&mut self, index: usize, number: u64) {
        words::set_word(&self.0.0, index, number);
    }

    /// Writes the same byte everywhere in a range.
    ///
    /// # Panics
    /// If the range is outside the payload.
    pub fn fill(&mut self, range: Range<usize>, byte: u8) {
        words::fill(&self.0.0, range, byte);
    }

    /// Copies bytes to another offset in the payload. The ranges may overlap.
    ///
    /// # Panics
    /// If one of the ranges is outside the payload.
    pub fn copy_within(&mut self, from: Range<usize>, to: usize) {
        words::copy_within(&self.0.0, from, to);
    }

    /// Replaces the whole payload.
    ///
    /// # Panics
    /// If the other one has another length.
    pub fn copy_from(&mut self, other: &Payload) {
        assert_eq!(self.0.words(), other.words(), "payloads of pages of one size");
        for (to, from) in self.0.0.iter().zip(&other.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Write access to a payload outside the pool, which the caller owns.
impl<'a> From<&'a mut Payload> for PayloadMut<'a> {
    fn from(payload: &'a mut Payload) -> Self {
        Self(payload)
    }
}

/// All words of a page in the pool.
///
/// # Safety
/// `memory` is an aligned page of this size that stays mapped during `'a`. Every access that races with the caller's is
/// an atomic access to its words, or an access by the kernel.
pub(crate) unsafe fn page_words<'a>(memory: *mut u8, size: PageSize) -> &'a [AtomicU64] {
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(memory.cast(), size.bytes() / WORD) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_both_ends_leave_the_middle_as_it_is() {
        let mut page = Payload::boxed(PageSize::MIN);
        page.as_mut_bytes().fill(1);
        let end = page.words();
        for (first, second) in
            [(0, 0), (0, end), (3, 10), (10, 3), (end, end), (end + 1, usize::MAX), (1, end - 1)]
        {
            let mut copy = Payload::boxed(PageSize::MIN);
            page.copy_ends_to(first, second, &mut copy);
            for word in 0..end {
                let is_copied = word < first || word >= second;
                assert_eq!(copy.word(word) != 0, is_copied, "word {word} of {first} and {second}");
            }
        }
        assert!(page.to_boxed().as_mut_bytes() == page.as_mut_bytes());
    }

    #[test]
    #[should_panic(expected = "payloads of pages of one size")]
    fn payloads_of_other_sizes_are_not_copied() {
        Payload::boxed(PageSize::MIN).copy_to(&mut Payload::boxed(PageSize::MAX));
    }
}
