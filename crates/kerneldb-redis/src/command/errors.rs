//! Counts the error replies by their codes, for INFO errorstats.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::limits::ERROR_CODES_MAX;

/// Bytes of a code, as in Redis. An error without a code of this length counts as `ERR`.
const CODE_BYTES_MAX: usize = 32;

/// Error replies of every code in user space. The lock is held for a look-up.
#[derive(Debug, Default)]
pub struct Errors(Mutex<BTreeMap<String, u64>>);

impl Errors {
    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<String, u64>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a reply, whose text begins with its code.
    pub(super) fn note(&self, message: &[u8]) {
        let code = message.split(|byte| *byte == b' ').next().filter(|code| code.len() < message.len());
        let is_plain = |code: &&[u8]| {
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            (1..=CODE_BYTES_MAX).contains(&code.len()) && code.iter().all(plain)
        };
        let code = code.filter(is_plain).and_then(|code| std::str::from_utf8(code).ok()).unwrap_or("ERR");
        self.with(|counts| {
            if let Some(count) = counts.get_mut(code) {
                *count += 1;
            } else if counts.len() < ERROR_CODES_MAX {
                counts.insert(code.to_owned(), 1);
            }
        });
    }

    pub(super) fn reset(&self) {
        self.with(BTreeMap::clear);
    }

    /// The line of each code.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let line = |(code, count): (&String, &u64)| (format!("errorstat_{code}"), format!("count={count}"));
        self.with(|counts| counts.iter().map(line).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_by_code() {
        let errors = Errors::default();
        for message in
            ["ERR a", "ERR b", "NOSCRIPT x", "ONE", "", " x", "A:B x", &format!("{} x", "C".repeat(33))]
        {
            errors.note(message.as_bytes());
        }
        let lines: Vec<String> =
            errors.lines().into_iter().map(|(code, count)| format!("{code}:{count}")).collect();
        assert_eq!(lines, ["errorstat_ERR:count=7", "errorstat_NOSCRIPT:count=1"]);
        errors.reset();
        assert!(errors.lines().is_empty());
    }

    #[test]
    fn one_code_past_the_limit_is_not_counted() {
        let errors = Errors::default();
        for i in 0..=ERROR_CODES_MAX {
            errors.note(format!("CODE{i} x").as_bytes());
        }
        errors.note(b"CODE0 x");
        let lines = errors.lines();
        assert_eq!(lines.len(), ERROR_CODES_MAX);
        assert_eq!(lines[0], ("errorstat_CODE0".into(), "count=2".into()));
        assert!(!lines.iter().any(|(name, _)| *name == format!("errorstat_CODE{ERROR_CODES_MAX}")));
    }
}
