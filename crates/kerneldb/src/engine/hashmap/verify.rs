//! Checks every invariant of the maps of a quiet database. Each value belongs to exactly one version, each
//! version has its value, nothing is locked, and the memory accounting is exact.

use std::{collections::HashSet, os::fd::AsFd};

use super::{
    HashStore,
    dump::dump,
    format::{CLASSES, class_of, key_in, value_cost},
};
use crate::{
    Error, Result,
    engine::{
        control::Control,
        storage::{DumpMethod, Verified},
    },
    layout::MARKER,
};

impl HashStore {
    /// No operator runs and no transaction is open during the verification.
    pub(super) fn verify_maps(&self, control: &Control) -> Result<Verified> {
        let mut found = Verified::default();
        let mut wrong = None;
        let mut fail = |text: String| {
            wrong.get_or_insert(text);
        };
        let mut versions: Vec<HashSet<u64>> = vec![HashSet::new(); CLASSES.len()];
        let clock = control.state().clock.load(std::sync::atomic::Ordering::SeqCst);
        let unordered = control.config.versions == 1 && control.config.wal_ring_bytes == 0;
        let (key_bytes, entry_bytes) = (self.format.map_key() as usize, self.format.entry() as usize);
        dump(self.index.as_fd(), key_bytes, entry_bytes, DumpMethod::Batched, &mut |key, entry| {
            let key = key_in(key);
            found.entries += 1;
            found.used_bytes += self.format.entry_cost();
            if self.format.lock(entry) != 0 {
                fail(format!("the entry of {key:?} is locked ({:#x})", self.format.lock(entry)));
            }
            if self.format.key_of(entry) != key {
                fail(format!("the entry of {key:?} has another key"));
            }
            let (mut newest, mut live) = (0, false);
            let mut seen = HashSet::new();
            for version in self.format.versions(entry).filter(|v| v.ts != 0) {
                found.versions += 1;
                if version.ts & MARKER != 0 {
                    fail(format!("the entry of {key:?} has an uncommitted version"));
                } else if version.ts > clock && !unordered || !seen.insert(version.ts) {
                    fail(format!("the entry of {key:?} has an impossible timestamp {}", version.ts));
                }
                if version.vid != 0 && !versions[class_of(version.len)].insert(version.vid) {
                    fail(format!("two versions have the id {:#x}", version.vid));
                }
                if version.ts > newest {
                    (newest, live) = (version.ts, version.vid != 0);
                }
            }
            found.keys += u64::from(live);
        })?;
        for (class, expected) in versions.iter_mut().enumerate() {
            dump(
                self.values[class].as_fd(),
                8,
                CLASSES[class] as usize,
                DumpMethod::Batched,
                &mut |vid, _| {
                    found.used_bytes += value_cost(class);
                    let vid = u64::from_ne_bytes(vid.try_into().expect("eight bytes"));
                    if !expected.remove(&vid) {
                        fail(format!("value {vid:#x} belongs to no version"));
                    }
                },
            )?;
            if let Some(vid) = expected.iter().next() {
                fail(format!("version {vid:#x} has no value"));
            }
        }
        if found.entries != self.entries() {
            fail(format!("{} entries are there, {} counted", found.entries, self.entries()));
        }
        if found.used_bytes != self.used() {
            fail(format!("{} bytes are in use, {} counted", found.used_bytes, self.used()));
        }
        wrong.map_or(Ok(found), |text| Err(Error::Corrupt(text)))
    }
}
