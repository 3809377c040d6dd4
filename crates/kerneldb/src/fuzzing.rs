//! Every parser of bytes from outside, fed with arbitrary bytes. The targets in `fuzz/` and the tests
//! below call these functions. Each function panics if a promise is broken.

/// Files of checkpoints and their blocks.
pub fn checkpoint(input: &[u8]) {
    crate::durability::checkpoint::format::arbitrary_bytes(input);
}

/// Segments of the log and their frames.
pub fn log(input: &[u8]) {
    crate::durability::wal::fuzzing::arbitrary_bytes(input);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        // Lengths and kinds are mostly small numbers.
        let byte = prop_oneof![3 => 0..4u8, 2 => any::<u8>(), 1 => Just(b'\n')];
        proptest::collection::vec(byte, 0..300)
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_break_nothing(input in bytes()) {
            checkpoint(&input);
            log(&input);
        }
    }
}
