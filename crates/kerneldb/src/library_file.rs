//! The file of a library: ELF objects of the same source, one for each kind of database. The first one is for the arena engine with one
//! partition, the second one for the arena engine with several partitions, and the third one for the hash-map engine.
//!
//! The last 24 bytes are the lengths of the second and of the third object, little-endian numbers of 8 bytes, and [`MAGIC`]. Tools that
//! read ELF objects see the first one. The build script compiles this file as well, so the file uses nothing of this crate.

/// The end of a file with three objects.
const MAGIC: [u8; 8] = *b"KDB-OBJS";

/// The objects of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objects<'a> {
    /// For the arena engine with one partition.
    pub arena: &'a [u8],
    /// For the arena engine with several partitions.
    pub partitions: &'a [u8],
    /// For the hash-map engine.
    pub hash_maps: &'a [u8],
}

impl Objects<'_> {
    /// Makes a file of the objects.
    pub fn join(&self) -> Vec<u8> {
        let Objects { arena, partitions, hash_maps } = self;
        let length = |object: &[u8]| (object.len() as u64).to_le_bytes();
        [arena, partitions, hash_maps, &length(partitions)[..], &length(hash_maps)[..], &MAGIC].concat()
    }
}

/// The objects of a file; none if it is not a library's, but for instance one object as a compiler writes it.
pub fn split(file: &[u8]) -> Option<Objects<'_>> {
    let (rest, hash_maps) = file.strip_suffix(&MAGIC)?.split_last_chunk()?;
    let (rest, partitions) = rest.split_last_chunk()?;
    let before = |rest: &[u8], length: &[u8; 8]| {
        rest.len().checked_sub(usize::try_from(u64::from_le_bytes(*length)).ok()?)
    };
    let (rest, hash_maps) = rest.split_at(before(rest, hash_maps)?);
    let (arena, partitions) = rest.split_at(before(rest, partitions)?);
    Some(Objects { arena, partitions, hash_maps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_objects_that_were_joined() {
        for [arena, partitions, hash_maps] in
            [[&b"arena"[..], b"several", b"maps"], [b"", b"", b""], [b"a", b"", b""], [b"", b"b", &MAGIC]]
        {
            let objects = Objects { arena, partitions, hash_maps };
            assert_eq!(split(&objects.join()), Some(objects));
        }
    }

    #[test]
    fn other_files_have_no_objects() {
        let lengths = |first: u64, second: u64| {
            [&b"objects"[..], &first.to_le_bytes(), &second.to_le_bytes(), &MAGIC].concat()
        };
        assert!(split(&lengths(3, 4)).is_some());
        let too_long =
            [lengths(4, 4), lengths(8, 0), lengths(0, 8), lengths(u64::MAX, 1), lengths(1, u64::MAX)];
        for file in too_long.iter().map(Vec::as_slice).chain([&b""[..], b"object", &MAGIC]) {
            assert_eq!(split(file), None);
        }
    }
}
