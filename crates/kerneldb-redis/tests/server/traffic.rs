//! Traffic that every way of answering has to handle.

use std::time::Duration;

use super::{Random, Running, bulk, request, words};

/// Null in a version of the protocol.
fn null(version: u32) -> Vec<u8> {
    if version == 3 { b"_\r\n".to_vec() } else { b"$-1\r\n".to_vec() }
}

/// Commands of every kind with their replies; the last value is long enough to be split anywhere.
fn conversation(version: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
    let value: Vec<u8> = (0..60u8).map(|i| i.wrapping_mul(37)).collect();
    vec![
        (request(&[b"SET", b"k", &value]), b"+OK\r\n".to_vec()),
        (words("GET k"), bulk(&value)),
        (words("ECHO xyz"), bulk(b"xyz")),
        (words("PING"), b"+PONG\r\n".to_vec()),
        (words("STRLEN k"), b":60\r\n".to_vec()),
        (words("GET none"), null(version)),
        (b"PING\r\n".to_vec(), b"+PONG\r\n".to_vec()),
        (words("BEGIN"), b"+OK\r\n".to_vec()),
        (words("APPEND k !"), b":61\r\n".to_vec()),
        (words("ROLLBACK"), b"+OK\r\n".to_vec()),
        (words("NOSUCH a"), b"-ERR unknown command 'NOSUCH', with args beginning with: 'a' \r\n".to_vec()),
        (words("DEL k"), b":1\r\n".to_vec()),
    ]
}

/// Sends a conversation in two packets, split at every byte, and then one byte at a time, in a version of the protocol.
pub fn split_everywhere(running: &Running, version: u32) {
    let (input, output): (Vec<_>, Vec<_>) = conversation(version).into_iter().unzip();
    let (input, output) = (input.concat(), output.concat());
    let mut c = running.client();
    c.hello(version);
    for at in 1..input.len() {
        c.send(&input[..at]);
        if at % 3 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
        c.send(&input[at..]);
        c.expect(&output);
    }
    for byte in &input {
        c.send(&[*byte]);
    }
    c.expect(&output);
    drop(c);
}

/// Sends thousands of commands of both kinds from four clients, in chunks that end anywhere. The clients sometimes
/// wait for the replies. Every reply must be in its place. Two of the clients speak RESP3.
pub fn mixed_pipelines(running: &Running) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let mut c = running.client();
            let version = 2 + thread as u32 % 2;
            c.hello(version);
            scope.spawn(move || {
                let mut random = Random(thread * 77 + 1);
                let mut values: Vec<Option<Vec<u8>>> = vec![None; 40];
                for _ in 0..400 {
                    let (mut input, mut output) = (Vec::new(), Vec::new());
                    // The kernel answers short batches alone, so the turn goes back and forth.
                    let kernel_only = random.below(3) == 0;
                    for _ in 0..1 + random.below(30) {
                        let slot = random.below(values.len());
                        let key = format!("{thread}:{slot}");
                        match random.below(if kernel_only { 7 } else { 10 }) {
                            0..=2 => {
                                let length = [0, 1, 16, 200, 1000, 5000][random.below(6)];
                                let value = vec![b'a' + random.below(26) as u8; length];
                                input.extend(request(&[b"SET", key.as_bytes(), &value]));
                                output.extend(b"+OK\r\n");
                                values[slot] = Some(value);
                            }
                            3..=5 => {
                                input.extend(words(&format!("GET {key}")));
                                output
                                    .extend(values[slot].as_ref().map_or_else(|| null(version), |v| bulk(v)));
                            }
                            6 => {
                                input.extend(words(&format!("DEL {key}")));
                                output.extend(
                                    format!(":{}\r\n", u8::from(values[slot].take().is_some())).bytes(),
                                );
                            }
                            7 => {
                                let text = random.next().to_string();
                                input.extend(words(&format!("ECHO {text}")));
                                output.extend(bulk(text.as_bytes()));
                            }
                            8 => {
                                input.extend(words(&format!("STRLEN {key}")));
                                let length = values[slot].as_ref().map_or(0, Vec::len);
                                output.extend(format!(":{length}\r\n").bytes());
                            }
                            _ => {
                                input.extend(b"PING\r\n");
                                output.extend(b"+PONG\r\n");
                            }
                        }
                    }
                    let mut rest = &input[..];
                    while !rest.is_empty() {
                        let n = if kernel_only { rest.len() } else { 1 + random.below(rest.len()) };
                        c.send(&rest[..n]);
                        rest = &rest[n..];
                    }
                    c.expect(&output);
                }
            });
        }
    });
}
