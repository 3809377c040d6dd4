//! Compares words with bytes. These tests are not in [`words`](super::words), because the model compiles that file with
//! other atomics.

use std::mem::MaybeUninit;
use std::ops::Range;

use proptest::prelude::*;

use super::atomics::{AtomicU64, Ordering};
use super::words::*;

const WORDS: usize = 24;
const BYTES: usize = WORDS * WORD;

fn words(bytes: &[u8; BYTES]) -> [AtomicU64; WORDS] {
    std::array::from_fn(|index| {
        let word = bytes[index * WORD..].first_chunk().expect("inside the bytes");
        AtomicU64::new(u64::from_ne_bytes(*word))
    })
}

fn bytes(words: &[AtomicU64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(WORD).zip(words) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    bytes
}

fn range() -> impl Strategy<Value = Range<usize>> {
    (0..=BYTES, 0..=BYTES).prop_map(|(a, b)| a.min(b)..a.max(b))
}

proptest! {
    #[test]
    fn words_are_bytes(
        content: [[u8; WORD]; WORDS],
        other: [[u8; WORD]; WORDS],
        range in range(),
        to in 0..=BYTES,
        byte: u8,
    ) {
        let mut model: [u8; BYTES] = *content.as_flattened().first_chunk().expect("as many");
        let words = words(&model);
        let (start, len) = (range.start, range.len());

        let mut copy = vec![MaybeUninit::uninit(); len];
        load(&words, start, &mut copy);
        // SAFETY: `load` has initialised the whole slice.
        prop_assert_eq!(unsafe { copy.assume_init_ref() }, &model[range.clone()]);

        let short = &model[range.clone()][..len.min(WORD)];
        let mut expected = [0; WORD];
        expected[..short.len()].copy_from_slice(short);
        prop_assert_eq!(number(&words, start, short.len()), u64::from_le_bytes(expected));

        store(&words, start, &other.as_flattened()[..len]);
        model[range.clone()].copy_from_slice(&other.as_flattened()[..len]);
        prop_assert_eq!(bytes(&words), model);

        let to = to.min(BYTES - len);
        copy_within(&words, range.clone(), to);
        model.copy_within(range.clone(), to);
        prop_assert_eq!(bytes(&words), model);

        fill(&words, range.clone(), byte);
        model[range].fill(byte);
        prop_assert_eq!(bytes(&words), model);
    }

    #[test]
    fn words_move_as_bytes_do(
        content: [[u8; WORD]; WORDS],
        from in 0..WORDS,
        to in 0..WORDS,
        len in 0..WORDS,
    ) {
        let len = len.min(WORDS - from.max(to)) * WORD;
        let (from, to) = (from * WORD, to * WORD);
        let mut model: [u8; BYTES] = *content.as_flattened().first_chunk().expect("as many");
        let words = words(&model);
        copy_within(&words, from..from + len, to);
        model.copy_within(from..from + len, to);
        prop_assert_eq!(bytes(&words), model);
    }
}

#[test]
fn bytes_behind_the_end_are_refused() {
    let words = words(&[7; BYTES]);
    let refused = |access: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).is_err();
    for len in [1, 7, 8, 9, 20] {
        let at = BYTES - len + 1;
        assert!(refused(&|| load(&words, at, &mut vec![MaybeUninit::uninit(); len])), "load {len}");
        assert!(refused(&|| store(&words, at, &vec![1; len])), "store {len}");
        assert!(refused(&|| fill(&words, at..at + len, 1)), "fill {len}");
        assert!(refused(&|| copy_within(&words, at..at + len, 0)), "copy from {len}");
        assert!(refused(&|| copy_within(&words, 0..len, at)), "copy to {len}");
    }
}
