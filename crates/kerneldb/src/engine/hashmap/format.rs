//! Layout and memory cost of index entries and values; the same as in `bpf/engine/hashmap/`.

use crate::layout::{KDB_KEY_BUF, kdb_config};

/// Sizes of the values in the value maps; `HM_CLASSES` in `maps.h`.
pub(crate) const CLASSES: [u32; 8] = [32, 192, 448, 1024, 4032, 16_320, 65_472, 65_536];
/// Bytes of an entry before its timestamps: lock, changes, id, key length, queue flag.
const HEAD: usize = 32;
/// Bytes of a version besides its timestamp: id, expiry, length, padding.
const META: usize = 24;
/// Memory of an element besides its key (a multiple of 8) and value.
const ELEMENT: u32 = 56;

/// Layout of the entries of one database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub slots: usize,
    pub key_bytes: usize,
}

/// A version of an entry, as read from the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Commit timestamp, or a marker.
    pub ts: u64,
    /// Key in the value map; 0 = tombstone.
    pub vid: u64,
    pub expire_ms: u64,
    pub len: u32,
}

impl Format {
    pub(crate) fn of(config: &kdb_config) -> Self {
        assert!(config.key_bytes <= KDB_KEY_BUF);
        Format { slots: config.slots as usize, key_bytes: config.key_bytes as usize }
    }

    /// Bytes of a key as maps see it: its length, then the key.
    pub(crate) fn map_key(&self) -> u32 {
        4 + self.key_bytes as u32
    }

    /// Bytes of an entry.
    pub(crate) fn entry(&self) -> u32 {
        (HEAD + self.slots * (8 + META) + self.key_bytes) as u32
    }

    /// Memory that an entry takes.
    pub(crate) fn entry_cost(&self) -> u64 {
        allocation(ELEMENT + self.map_key().next_multiple_of(8) + self.entry())
    }

    /// The lock word of an entry.
    pub(crate) fn lock(&self, entry: &[u8]) -> u64 {
        word(entry, 0)
    }

    /// The versions of an entry; free slots have timestamp 0.
    pub(crate) fn versions<'a>(&self, entry: &'a [u8]) -> impl Iterator<Item = Version> + 'a {
        let slots = self.slots;
        (0..slots).map(move |i| {
            let meta = HEAD + slots * 8 + i * META;
            Version {
                ts: word(entry, HEAD + i * 8),
                vid: word(entry, meta),
                expire_ms: word(entry, meta + 8),
                len: word(entry, meta + 16) as u32,
            }
        })
    }

    /// The key copied into an entry.
    pub(crate) fn key_of<'a>(&self, entry: &'a [u8]) -> &'a [u8] {
        let at = HEAD + self.slots * (8 + META);
        &entry[at..at + (word(entry, 24) as u32 as usize).min(self.key_bytes)]
    }
}

/// The key in a map key.
pub(crate) fn key_in(map_key: &[u8]) -> &[u8] {
    let len = u32::from_ne_bytes(map_key[..4].try_into().expect("four bytes")) as usize;
    &map_key[4..4 + len.min(map_key.len() - 4)]
}

/// Index of the value map for a length.
pub(crate) fn class_of(len: u32) -> usize {
    CLASSES.iter().position(|c| len <= *c).unwrap_or(CLASSES.len() - 1)
}

/// Memory that a value of a class takes.
pub(crate) fn value_cost(class: usize) -> u64 {
    allocation(CLASSES[class] + 8 + ELEMENT)
}

/// Bytes that the kernel's allocator takes for a size; `hm_alloc_bytes()` in `values.h`.
fn allocation(bytes: u32) -> u64 {
    match bytes {
        0..=96 => 96,
        97..=128 => 128,
        129..=192 => 192,
        _ => u64::from(bytes.next_power_of_two().clamp(256, 131_072)),
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_values() {
        for len in 0..=65_536u32 {
            let class = class_of(len);
            assert!(CLASSES[class] >= len && (class == 0 || CLASSES[class - 1] < len));
        }
        let costs: Vec<u64> = (0..CLASSES.len()).map(value_cost).collect();
        assert_eq!(costs, [96, 256, 512, 2048, 4096, 16_384, 65_536, 131_072]);
    }

    #[test]
    fn parts_of_an_entry() {
        let format = Format { slots: 2, key_bytes: 16 };
        let mut entry = vec![0; format.entry() as usize];
        entry[0] = 9;
        entry[24] = 3;
        entry[32..40].copy_from_slice(&7u64.to_ne_bytes());
        entry[48..56].copy_from_slice(&5u64.to_ne_bytes());
        entry[64] = 11;
        entry[96..99].copy_from_slice(b"key");
        assert_eq!((format.lock(&entry), format.key_of(&entry)), (9, &b"key"[..]));
        let versions: Vec<_> = format.versions(&entry).collect();
        assert_eq!(versions[0], Version { ts: 7, vid: 5, expire_ms: 0, len: 11 });
        assert_eq!(versions[1].ts, 0);
        assert_eq!(format.entry_cost(), 192);
        assert_eq!(Format { slots: 4, key_bytes: 16 }.entry_cost(), 256);
    }
}
