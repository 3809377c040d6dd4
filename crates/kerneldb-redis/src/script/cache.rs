//! Scripts by the SHA-1 of their texts. At a limit ([`crate::limits::SCRIPTS_MAX`], [`crate::limits::SCRIPT_CACHE_BYTES_MAX`]), the oldest
//! script is forgotten. Its clients get `NOSCRIPT` and send it again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sha1::{Digest, Sha1};

use super::flags::Flags;
use super::shebang::{self, NoShebang};
use crate::limits::{SCRIPT_CACHE_BYTES_MAX, SCRIPTS_MAX};

/// A script that a client has sent.
#[derive(Debug)]
pub(crate) struct Script {
    sha: String,
    text: Arc<[u8]>,
    flags: Option<Flags>,
}

/// The SHA-1 of a text, in 40 hexadecimal digits.
pub(super) fn sha1_hex(text: &[u8]) -> String {
    hex::encode(Sha1::digest(text))
}

impl Script {
    /// The error is the client's reply.
    pub fn new(text: &[u8]) -> Result<Script, String> {
        Ok(Script { sha: sha1_hex(text), text: text.into(), flags: flags(text)? })
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

    /// The flags, if it has a line for them.
    pub fn flags(&self) -> Option<Flags> {
        self.flags
    }
}

/// Parses the flags of a first line `#!lua flags=no-writes`, if there is one.
fn flags(text: &[u8]) -> Result<Option<Flags>, String> {
    let (words, _) = match shebang::split(text) {
        Ok(split) => split,
        Err(NoShebang::Missing) => return Ok(None),
        Err(NoShebang::Endless) => return Err("ERR Invalid script shebang".into()),
        Err(NoShebang::Unbalanced) => return Err("ERR Invalid engine in script shebang".into()),
    };
    let mut words = words.iter().map(|word| String::from_utf8_lossy(word));
    let engine = words.next().unwrap_or_default();
    if engine != "#!lua" {
        return Err(format!("ERR Unexpected engine in script shebang: {engine}"));
    }
    let mut flags = Flags::default();
    for word in words {
        let names =
            word.strip_prefix("flags=").ok_or_else(|| format!("ERR Unknown lua shebang option: {word}"))?;
        let names = if names.is_empty() { None } else { Some(names.split(',')) };
        for name in names.into_iter().flatten() {
            if !flags.add(name.as_bytes()) {
                return Err(format!("ERR Unexpected flag in script shebang: {name}"));
            }
        }
    }
    Ok(Some(flags))
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
        let flags =
            |text: &str| Script::new(text.as_bytes()).map(|script| script.flags().map(Flags::is_read_only));
        assert_eq!(flags("return 1"), Ok(None));
        assert_eq!(flags("#!lua\nreturn 1"), Ok(Some(false)));
        assert_eq!(flags("#!lua flags=\nreturn 1"), Ok(Some(false)));
        assert_eq!(flags("#!lua flags=allow-oom,no-writes\nreturn 1"), Ok(Some(true)));
        assert!(flags("#!python\n").unwrap_err().contains("Unexpected engine in script shebang: #!python"));
        assert!(flags("#!lua flags=bad\n").unwrap_err().contains("Unexpected flag in script shebang: bad"));
        assert!(flags("#!lua name=x\n").unwrap_err().contains("Unknown lua shebang option: name=x"));
        assert_eq!(Script::new(b"#!lua\nreturn 1").unwrap().code(), b"--#!lua\nreturn 1");
        assert_eq!(sha1_hex(b"return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
