//! The first line of a script or library: `#!lua` and options.

use crate::resp::split_args;

/// The reason why there is no first line with options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoShebang {
    /// The text does not begin with `#!`.
    Missing,
    /// The line has no end.
    Endless,
    /// Its quotes are not balanced.
    Unbalanced,
}

/// Splits a text into the words of its first line, the first of which begins with `#!`, and the rest, which begins with the line's end.
pub(super) fn split(text: &[u8]) -> Result<(Vec<Vec<u8>>, &[u8]), NoShebang> {
    if !text.starts_with(b"#!") {
        return Err(NoShebang::Missing);
    }
    let end = text.iter().position(|byte| *byte == b'\n').ok_or(NoShebang::Endless)?;
    let words = split_args(&text[..end]).ok_or(NoShebang::Unbalanced)?;
    Ok((words, &text[end..]))
}

#[test]
fn the_first_line_has_words() {
    let (words, rest) = split(b"#!lua name='a b'\nreturn").unwrap();
    assert_eq!((words, rest), (vec![b"#!lua".to_vec(), b"name=a b".to_vec()], &b"\nreturn"[..]));
    assert_eq!(split(b"return 1\n"), Err(NoShebang::Missing));
    assert_eq!(split(b"#!lua"), Err(NoShebang::Endless));
    assert_eq!(split(b"#!lua 'x\n"), Err(NoShebang::Unbalanced));
}
