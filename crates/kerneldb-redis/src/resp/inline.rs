//! Inline commands: a line of words with the quoting that redis-cli and `telnet` users know.

/// Splits a line into words. Words may be quoted: in double quotes `\n`, `\r`, `\t`, `\b`, `\a`, `\xHH`
/// and `\` before any other character are escapes; in single quotes only `\'` is. A closing quote must be
/// followed by a space or the end. `None` if quotes are not balanced.
pub fn split_args(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|c| is_space(*c)) {
            at += 1;
        }
        if at == line.len() {
            return Some(words);
        }
        let (word, next) = word(line, at)?;
        words.push(word);
        at = next;
    }
}

/// Reads the word that starts at `at`; returns it and its end.
fn word(line: &[u8], mut at: usize) -> Option<(Vec<u8>, usize)> {
    let mut word = Vec::new();
    while let Some(&c) = line.get(at) {
        match c {
            c if is_space(c) => break,
            b'"' => {
                at = double_quoted(line, at + 1, &mut word)?;
                return ends_word(line, at).then_some((word, at));
            }
            b'\'' => {
                at = single_quoted(line, at + 1, &mut word)?;
                return ends_word(line, at).then_some((word, at));
            }
            c => {
                word.push(c);
                at += 1;
            }
        }
    }
    Some((word, at))
}

fn double_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match (*line.get(at)?, line.get(at + 1)) {
            (b'"', _) => return Some(at + 1),
            (b'\\', Some(b'x')) if hex(line, at + 2).is_some() => {
                word.push(hex(line, at + 2)?);
                at += 4;
            }
            (b'\\', Some(&escaped)) => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
                at += 2;
            }
            (c, _) => {
                word.push(c);
                at += 1;
            }
        }
    }
}

fn single_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match (*line.get(at)?, line.get(at + 1)) {
            (b'\\', Some(b'\'')) => {
                word.push(b'\'');
                at += 2;
            }
            (b'\'', _) => return Some(at + 1),
            (c, _) => {
                word.push(c);
                at += 1;
            }
        }
    }
}

fn hex(line: &[u8], at: usize) -> Option<u8> {
    let digit = |c: u8| (c as char).to_digit(16);
    let (high, low) = (digit(*line.get(at)?)?, digit(*line.get(at + 1)?)?);
    Some((high * 16 + low) as u8)
}

fn ends_word(line: &[u8], at: usize) -> bool {
    line.get(at).is_none_or(|c| is_space(*c))
}

/// C's `isspace`, which includes the vertical tab.
fn is_space(c: u8) -> bool {
    c.is_ascii_whitespace() || c == 0x0b
}
