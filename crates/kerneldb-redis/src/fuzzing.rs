//! Feeds arbitrary bytes to every parser of bytes from outside. The targets in `fuzz/` and the tests below call
//! these functions. Each function panics if a guarantee is broken.

use crate::command::dump;
use crate::rdb;
use crate::resp::{Limits, ProtocolError, RequestParser};

/// Requests of clients: the parser finds the same requests for all portions of the bytes.
pub fn requests(input: &[u8]) {
    let Some((&portion, input)) = input.split_first() else { return };
    let whole = parse(input, input.len().max(1));
    assert_eq!(whole, parse(input, usize::from(portion) % 32 + 1));
    assert_eq!(whole, parse(input, 1));
}

fn parse(input: &[u8], portion: usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut parser = RequestParser::new(Limits { keep_bytes: 16, ..Limits::default() });
    let mut requests = Vec::new();
    for portion in input.chunks(portion) {
        parser.feed(portion);
        loop {
            match parser.poll() {
                Ok(true) => {
                    requests.push(parser.args().from(0).map(<[u8]>::to_vec).collect());
                    parser.consume();
                }
                Ok(false) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

/// Payloads of RESTORE, with a right checksum and without: a value that is read is the same after another DUMP.
pub fn dumped_values(input: &[u8]) {
    let _ = dump::value(input);
    if let Ok(value) = dump::value(&rdb::seal(input.to_vec())) {
        assert!(value.len() <= bedplate_kerneldb::VALUE_MAX);
        assert_eq!(dump::value(&dump::payload(&value)), Ok(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        // Small numbers are frequent, because lengths and kinds are small.
        let byte =
            prop_oneof![3 => 0..4u8, 2 => any::<u8>(), 1 => Just(b'\n'), 1 => Just(b'*'), 1 => Just(b'$')];
        proptest::collection::vec(byte, 0..300)
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_break_nothing(input in bytes()) {
            requests(&input);
        }

        #[test]
        fn arbitrary_payloads_break_nothing(mut input in bytes(), encoding in 0xc0..0xc5u8) {
            dumped_values(&input);
            input.splice(0..0, [0, encoding]);
            dumped_values(&input);
        }
    }
}
