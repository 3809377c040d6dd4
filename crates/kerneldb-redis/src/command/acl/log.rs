//! The log of refused requests (ACL LOG).

use std::collections::VecDeque;

use crate::limits::ACL_LOG_NAME_BYTES_MAX;

/// The time in milliseconds within which equal refusals share an entry.
const GROUP_MS: u64 = 60_000;

/// The way on which a request came that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) enum Context {
    TopLevel,
    Multi,
    Script,
}

impl Context {
    /// Its name in ACL LOG.
    pub(in crate::command) fn name(self) -> &'static str {
        match self {
            Context::TopLevel => "toplevel",
            Context::Multi => "multi",
            Context::Script => "lua",
        }
    }
}

/// Refused requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::command) struct LogEntry {
    pub(in crate::command) count: u64,
    /// `command`, `key` or `auth`.
    pub(in crate::command) reason: &'static str,
    pub(in crate::command) context: Context,
    /// The command or the key that was refused.
    pub(in crate::command) object: Vec<u8>,
    pub(in crate::command) user: Vec<u8>,
    /// The newest refusal, in milliseconds since the Unix epoch.
    pub(in crate::command) at_ms: u64,
    /// The client of the newest refusal, as in CLIENT LIST.
    pub(in crate::command) client: String,
}

fn cut(text: &[u8]) -> &[u8] {
    &text[..text.len().min(ACL_LOG_NAME_BYTES_MAX)]
}

/// The entries, the newest first.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: VecDeque<LogEntry>,
}

impl Log {
    /// Adds an entry, or counts it in one of the same kind. At most `limit` entries stay: the newest.
    pub(super) fn add(&mut self, mut entry: LogEntry, limit: usize) {
        // A copy has no room for the rest, which `truncate` would keep.
        entry.object = cut(&entry.object).to_vec();
        entry.user = cut(&entry.user).to_vec();
        // It has names that the client has chosen.
        entry.client = String::from_utf8_lossy(cut(entry.client.as_bytes())).as_ref().into();
        let is_same = |other: &LogEntry| {
            other.reason == entry.reason
                && other.context == entry.context
                && other.object == entry.object
                && other.user == entry.user
                && entry.at_ms.saturating_sub(other.at_ms) <= GROUP_MS
        };
        let same = self.entries.iter().position(is_same).and_then(|at| self.entries.remove(at));
        let count = same.map_or(0, |same| same.count) + entry.count;
        self.entries.push_front(LogEntry { count, ..entry });
        self.entries.truncate(limit);
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(super) fn newest(&self, count: usize) -> Vec<LogEntry> {
        self.entries.iter().take(count).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(object: &str, at_ms: u64) -> LogEntry {
        LogEntry {
            count: 1,
            reason: "key",
            context: Context::TopLevel,
            object: object.into(),
            user: b"u".to_vec(),
            at_ms,
            client: String::new(),
        }
    }

    #[test]
    fn equal_refusals_are_counted_for_a_minute() {
        let mut log = Log::default();
        for (object, at_ms) in [("a", 0), ("b", 1), ("a", 60_000), ("a", 120_001)] {
            log.add(entry(object, at_ms), 10);
        }
        let seen: Vec<_> = log.newest(9).into_iter().map(|e| (e.object, e.count, e.at_ms)).collect();
        let expected = [(b"a".to_vec(), 1, 120_001), (b"a".to_vec(), 2, 60_000), (b"b".to_vec(), 1, 1)];
        assert_eq!(seen, expected);
        assert_eq!(log.newest(1).len(), 1);
    }

    #[test]
    fn a_long_name_is_cut() {
        let mut log = Log::default();
        for length in [ACL_LOG_NAME_BYTES_MAX, ACL_LOG_NAME_BYTES_MAX + 1] {
            log.add(entry(&"x".repeat(length), 0), 9);
            assert_eq!(log.newest(1)[0].object.len(), ACL_LOG_NAME_BYTES_MAX);
        }
        // The cut names are equal.
        assert_eq!(log.newest(9).len(), 1);
        let long = "x".repeat(100 * ACL_LOG_NAME_BYTES_MAX);
        let user = long.clone().into_bytes();
        log.add(LogEntry { user, client: long.clone(), ..entry(&long, 0) }, 9);
        let kept = &log.entries[0];
        let capacities = [kept.object.capacity(), kept.user.capacity(), kept.client.capacity()];
        assert_eq!(capacities, [ACL_LOG_NAME_BYTES_MAX; 3]);
    }

    #[test]
    fn one_entry_past_the_limit_removes_the_oldest() {
        let mut log = Log::default();
        (0..4).for_each(|i| log.add(entry(&i.to_string(), i), 3));
        let objects: Vec<_> = log.newest(9).into_iter().map(|e| e.object).collect();
        assert_eq!(objects, [b"3", b"2", b"1"]);
        log.add(entry("x", 9), 0);
        assert!(log.newest(9).is_empty());
    }
}
