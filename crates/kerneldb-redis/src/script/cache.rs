//! Scripts by the SHA-1 of their texts. At a limit ([`crate::limits::SCRIPTS_MAX`], [`crate::limits::SCRIPT_CACHE_BYTES_MAX`]), the oldest
//! script is forgotten. Its clients get `NOSCRIPT` and send it again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sha1::{Digest, Sha1};

use crate::limits::{SCRIPT_CACHE_BYTES_MAX, SCRIPTS_MAX};

/// A script that a client has sent.
#[derive(Debug)]
pub(crate) struct Script {
    sha: String,
    text: Arc<[u8]>,
    /// It has the flag `no-writes`.
    read_only: bool,
}

/// The SHA-1 of a text, in 40 hexadecimal digits.
pub(super) fn sha1_hex(text: &[u8]) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The flags that scripts of Redis can have. Only the first one means something here.
const FLAGS: [&str; 5] = ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

impl Script {
    /// The error is the client's reply.
    pub fn new(text: &[u8]) -> Result<Script, String> {
        Ok(Script { sha: sha1_hex(text), text: text.into(), read_only: read_only(text)? })
    }

    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// The text for the compiler: a first line with flags becomes a comment.
    pub fn code(&self) -> Vec<u8> {
        match self.text.starts_with(b"#!") {
            true => [b"--", &self.text[..]].concat(),
            false => self.text.to_vec(),
        }
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }
}

/// Parses the flags of a first line `#!lua flags=no-writes`; whether the script only reads.
fn read_only(text: &[u8]) -> Result<bool, String> {
    let Some(line) = text.strip_prefix(b"#!") else { return Ok(false) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    match words.next() {
        Some("lua") => {}
        engine => {
            return Err(format!("ERR Unexpected engine in script shebang: #!{}", engine.unwrap_or_default()));
        }
    }
    let mut read_only = false;
    for word in words {
        let flags =
            word.strip_prefix("flags=").ok_or_else(|| format!("ERR Unknown lua shebang option: {word}"))?;
        for flag in flags.split(',') {
            if !FLAGS.contains(&flag) {
                return Err(format!("ERR Unexpected flag in script shebang: {flag}"));
            }
            read_only |= flag == "no-writes";
        }
    }
    Ok(read_only)
}

#[derive(Default)]
pub(super) struct Cache {
    by_sha: HashMap<String, Arc<Script>>,
    /// EVAL comes with the text, whose SHA-1 would take longer than a lookup.
    by_text: HashMap<Arc<[u8]>, Arc<Script>>,
    /// The oldest first.
    order: VecDeque<Arc<Script>>,
    bytes: usize,
}

impl Cache {
    pub fn get(&self, sha: &str) -> Option<Arc<Script>> {
        self.by_sha.get(sha).cloned()
    }

    pub fn with_text(&self, text: &[u8]) -> Option<Arc<Script>> {
        self.by_text.get(text).cloned()
    }

    pub fn put(&mut self, script: &Arc<Script>) {
        if self.by_sha.insert(script.sha.clone(), script.clone()).is_some() {
            return;
        }
        self.by_text.insert(script.text.clone(), script.clone());
        self.bytes += script.text.len();
        self.order.push_back(script.clone());
        while self.order.len() > SCRIPTS_MAX || self.bytes > SCRIPT_CACHE_BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= oldest.text.len();
            self.by_sha.remove(&oldest.sha);
            self.by_text.remove(&oldest.text);
        }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn texts(&self) -> Vec<Vec<u8>> {
        self.order.iter().map(|script| script.text.to_vec()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_script_is_forgotten_at_each_limit() {
        let script = |text: &str| Arc::new(Script::new(text.as_bytes()).unwrap());
        let mut cache = Cache::default();
        let first = script("return 0");
        cache.put(&first);
        cache.put(&first);
        assert_eq!((cache.len(), cache.bytes()), (1, 8));
        (1..SCRIPTS_MAX).for_each(|i| cache.put(&script(&format!("return {i}"))));
        assert!(cache.get(first.sha()).is_some());
        cache.put(&script("return 'one more'"));
        assert!(cache.get(first.sha()).is_none() && cache.len() == SCRIPTS_MAX);
        let mut cache = Cache::default();
        cache.put(&first);
        let half = " ".repeat(SCRIPT_CACHE_BYTES_MAX / 2);
        cache.put(&script(&half[8..]));
        assert!(cache.get(first.sha()).is_some());
        cache.put(&script(&(half + " ")));
        assert_eq!(cache.bytes(), SCRIPT_CACHE_BYTES_MAX + 1 - 8);
        assert!(cache.get(first.sha()).is_none());
    }

    #[test]
    fn a_first_line_has_flags() {
        let flags = |text: &str| Script::new(text.as_bytes()).map(|script| script.read_only);
        assert_eq!(flags("return 1"), Ok(false));
        assert_eq!(flags("#!lua\nreturn 1"), Ok(false));
        assert_eq!(flags("#!lua flags=allow-oom,no-writes\nreturn 1"), Ok(true));
        assert!(flags("#!python\n").unwrap_err().contains("Unexpected engine in script shebang: #!python"));
        assert!(flags("#!lua flags=bad\n").unwrap_err().contains("Unexpected flag in script shebang: bad"));
        assert!(flags("#!lua name=x\n").unwrap_err().contains("Unknown lua shebang option: name=x"));
        assert_eq!(Script::new(b"#!lua\nreturn 1").unwrap().code(), b"--#!lua\nreturn 1");
        assert_eq!(sha1_hex(b"return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
