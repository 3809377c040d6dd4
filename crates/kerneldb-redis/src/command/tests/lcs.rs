//! The limit of LCS on the lengths of values.

use super::{encode, one};
use crate::limits::LCS_CELLS_MAX;

#[test]
fn lcs_refuses_values_that_are_too_long_together() {
    let mut client = one();
    let lengths = [65_536, (LCS_CELLS_MAX / 65_536) as usize];
    for (key, length) in ["a", "b"].iter().zip(lengths) {
        client.feed(&encode(&[b"SET", key.as_bytes(), &vec![b'x'; length]]));
        assert_eq!(client.take(), "+OK\r\n");
    }
    assert_eq!(client.send("LCS a b LEN"), format!(":{}\r\n", lengths[1]));
    assert_eq!(
        client.send("LCS b a IDX MINMATCHLEN 100000"),
        format!("*4\r\n$7\r\nmatches\r\n*0\r\n$3\r\nlen\r\n:{}\r\n", lengths[1])
    );
    let too_long = "-ERR String too long for LCS: the product of both lengths exceeds 134217728\r\n";
    client.send("SET one x");
    for line in ["MULTI", "LCS a b LEN", "LCS one one LEN", "GET one"] {
        client.send(line);
    }
    assert_eq!(client.send("EXEC"), format!("*3\r\n:{}\r\n{too_long}$1\r\nx\r\n", lengths[1]));
    client.send("APPEND b x");
    assert_eq!(client.send("LCS a b LEN"), too_long);
    assert_eq!(client.send("LCS b nope LEN"), ":0\r\n");
}
