//! The longest common subsequence of two byte strings, with the choices that Redis makes between equally long ones.
//!
//! `L(i, j)` is the length for the first `i` bytes of `a` and the first `j` bytes of `b`. A row `i` is a bit vector: bit `j - 1` is 0 if
//! `L(i, j)` is `L(i, j - 1) + 1`, and 1 if both are equal. A row follows from the one before with a few operations on each word
//! (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004). So a step takes 64 cells of the table at a time.
//!
//! The way back through the table needs every row. Only each [`BLOCK_ROWS`]-th one is kept; the rows between are computed again when the
//! way comes to them. The memory is that of the kept rows and of one block: some MiB for values of 64 KiB.

/// Rows between those that are kept.
const BLOCK_ROWS: usize = 256;

/// A part that both strings have: bytes `a..a + len` of the first one are bytes `b..b + len` of the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub a: usize,
    pub b: usize,
    pub len: usize,
}

/// The positions of each byte in `b`, as bit vectors.
struct Positions {
    /// For each byte, the number of its bit vector plus 1; 0 if `b` does not have the byte.
    vectors: [u16; 256],
    bits: Vec<u64>,
    /// Words of a bit vector.
    words: usize,
}

impl Positions {
    fn new(b: &[u8]) -> Positions {
        let words = b.len().div_ceil(64);
        let (mut vectors, mut bits, mut count) = ([0; 256], Vec::new(), 0);
        for (at, byte) in b.iter().enumerate() {
            let vector = &mut vectors[usize::from(*byte)];
            if *vector == 0 {
                count += 1;
                *vector = count;
                bits.resize(bits.len() + words, 0u64);
            }
            bits[usize::from(*vector - 1) * words + at / 64] |= 1 << (at % 64);
        }
        Positions { vectors, bits, words }
    }

    /// The row before the first byte of `a`: the lengths are all 0.
    fn first_row(&self) -> Vec<u64> {
        vec![u64::MAX; self.words]
    }

    /// Turns a row into the next one, for this byte of `a`.
    fn advance(&self, byte: u8, row: &mut [u64]) {
        let Some(vector) = self.vectors[usize::from(byte)].checked_sub(1) else { return };
        let from = usize::from(vector) * self.words;
        let mut carry = false;
        for (word, positions) in row.iter_mut().zip(&self.bits[from..from + self.words]) {
            let matching = *word & positions;
            let (sum, over) = word.overflowing_add(matching);
            let (sum, over_again) = sum.overflowing_add(carry.into());
            carry = over | over_again;
            *word = sum | (*word & !positions);
        }
    }
}

/// The length of the longest common subsequence.
pub(crate) fn length(a: &[u8], b: &[u8]) -> usize {
    let positions = Positions::new(b);
    let mut row = positions.first_row();
    a.iter().for_each(|byte| positions.advance(*byte, &mut row));
    row.iter().map(|word| word.count_zeros() as usize).sum()
}

/// The longest common subsequence as runs, the last one first. Where there are several, it is the one of Redis: the way back from the ends
/// of both strings takes every pair of equal bytes. Otherwise it drops a byte of `b` if that loses nothing, and a byte of `a` if it does.
pub(crate) fn runs(a: &[u8], b: &[u8]) -> Vec<Run> {
    let positions = Positions::new(b);
    let words = positions.words;
    let mut kept = Vec::with_capacity(a.len().div_ceil(BLOCK_ROWS) * words);
    let mut row = positions.first_row();
    for block in a.chunks(BLOCK_ROWS) {
        kept.extend_from_slice(&row);
        block.iter().for_each(|byte| positions.advance(*byte, &mut row));
    }
    let mut runs: Vec<Run> = Vec::new();
    let (mut i, mut j) = (a.len(), b.len());
    let mut rows = vec![0u64; BLOCK_ROWS.min(a.len()) * words];
    let mut adjacent = false;
    while i > 0 && j > 0 {
        // Rows `from + 1` to `i`.
        let from = (i - 1) / BLOCK_ROWS * BLOCK_ROWS;
        let at = from / BLOCK_ROWS * words;
        row.copy_from_slice(&kept[at..at + words]);
        for (byte, computed) in a[from..i].iter().zip(rows.chunks_exact_mut(words)) {
            positions.advance(*byte, &mut row);
            computed.copy_from_slice(&row);
        }
        while i > from && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                match runs.last_mut() {
                    Some(run) if adjacent => *run = Run { a: i, b: j, len: run.len + 1 },
                    _ => runs.push(Run { a: i, b: j, len: 1 }),
                }
                adjacent = true;
                continue;
            }
            adjacent = false;
            let word = rows[(i - 1 - from) * words + (j - 1) / 64];
            if word >> ((j - 1) % 64) & 1 == 0 {
                i -= 1;
            } else {
                j -= 1;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by the table of all lengths.
    fn by_table(a: &[u8], b: &[u8]) -> (usize, Vec<Run>) {
        let mut table = vec![vec![0usize; b.len() + 1]; a.len() + 1];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                table[i][j] = if a[i - 1] == b[j - 1] {
                    table[i - 1][j - 1] + 1
                } else {
                    table[i - 1][j].max(table[i][j - 1])
                };
            }
        }
        let (mut i, mut j) = (a.len(), b.len());
        let mut pairs = Vec::new();
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                pairs.push((i, j));
            } else if table[i - 1][j] > table[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        let mut runs: Vec<Run> = Vec::new();
        for (a, b) in pairs {
            match runs.last_mut() {
                Some(run) if (run.a, run.b) == (a + 1, b + 1) => *run = Run { a, b, len: run.len + 1 },
                _ => runs.push(Run { a, b, len: 1 }),
            }
        }
        (table[a.len()][b.len()], runs)
    }

    fn agrees(a: &[u8], b: &[u8]) {
        assert_eq!((length(a, b), runs(a, b)), by_table(a, b));
    }

    #[test]
    fn strings_around_the_size_of_a_word_and_of_a_block() {
        let text = |len: usize, step: usize| (0..len).map(|i| (i * step % 7) as u8).collect::<Vec<_>>();
        for len in [0, 1, 63, 64, 65, 128, 129] {
            for rows in [0, 1, 255, 256, 257, 513] {
                agrees(&text(rows, 3), &text(len, 5));
                agrees(&vec![b'x'; rows], &vec![b'x'; len]);
                agrees(&vec![b'x'; rows], &vec![b'y'; len]);
            }
        }
    }

    proptest! {
        #[test]
        fn random_strings(a in "[a-c]{0,300}", b in "[a-d]{0,200}") {
            agrees(a.as_bytes(), b.as_bytes());
        }
    }
}
