//! Patterns of KEYS, SCAN MATCH and CONFIG GET.

/// Whether `text` matches `pattern`, as in Redis: `*`, `?`, `[a-z]`, `[^a]`, unfinished classes, and `\` before a
/// literal character. Takes at most `pattern.len() * text.len()` steps.
pub fn glob_match(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // A failed match continues behind the last star, one byte further in the text. Earlier stars never have to match
    // more, so there is no recursion.
    let mut star = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        let step = match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(_), Some(&c)) => one(pattern, p, c, ignore_case),
            _ => None,
        };
        match (step, &mut star) {
            (Some(next), _) => {
                p = next;
                t += 1;
            }
            (None, Some((after, from))) if *from < text.len() => {
                *from += 1;
                (p, t) = (*after, *from);
            }
            _ => return false,
        }
    }
}

/// Matches one byte against the pattern's element at `p`; returns the position of the next element.
fn one(pattern: &[u8], p: usize, c: u8, ignore_case: bool) -> Option<usize> {
    let fold = |b: u8| if ignore_case { b.to_ascii_lowercase() } else { b };
    match pattern[p] {
        b'?' => Some(p + 1),
        b'[' => class(pattern, p + 1, fold(c), fold),
        b'\\' if p + 1 < pattern.len() => (fold(pattern[p + 1]) == fold(c)).then_some(p + 2),
        other => (fold(other) == fold(c)).then_some(p + 1),
    }
}

/// Matches one byte against the class whose `[` is before `p`. A class that is not closed ends with the pattern.
fn class(pattern: &[u8], mut p: usize, c: u8, fold: impl Fn(u8) -> u8) -> Option<usize> {
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut matched = false;
    loop {
        match pattern.get(p..).unwrap_or_default() {
            [b'\\', escaped, ..] => {
                matched |= fold(*escaped) == c;
                p += 2;
            }
            [b']', ..] => {
                p += 1;
                break;
            }
            [] => break,
            [from, b'-', to, ..] => {
                let (from, to) = (fold(*from.min(to)), fold(*to.max(from)));
                matched |= (from.min(to)..=to.max(from)).contains(&c);
                p += 3;
            }
            [single, ..] => {
                matched |= fold(*single) == c;
                p += 1;
            }
        }
    }
    (matched != negated).then_some(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "abc", true),
            ("", "a", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            (r"h\*llo", "h*llo", true),
            (r"h\*llo", "hello", false),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxcxxb", false),
            ("[abc", "a", true),
            (r"[\]]", "]", true),
            (r"a\", r"a\", true),
            ("a**b", "ab", true),
            ("[^]x", "ax", true),
        ] {
            assert_eq!(glob_match(pattern.as_bytes(), text.as_bytes(), false), expected, "{pattern} {text}");
        }
        assert!(glob_match(b"MAX*", b"maxclients", true));
        assert!(!glob_match(b"MAX*", b"maxclients", false));
    }

    #[test]
    fn many_stars_do_not_explode() {
        let pattern = b"*a".repeat(50);
        assert!(!glob_match(&pattern, &[b'a'; 49], false));
        assert!(glob_match(&pattern, &[b'a'; 4000], false));
    }
}
