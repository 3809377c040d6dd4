//! The file of a library: an ELF object for the arena engine, and behind it one of the same source for the hash-map engine.
//!
//! The last 16 bytes are the length of the second object, a little-endian number of 8 bytes, and [`MAGIC`]. Tools that read ELF
//! objects see the first one. The build script compiles this file as well, so the file uses nothing of this crate.

/// The end of a file with two objects.
const MAGIC: [u8; 8] = *b"KDB-HASH";

/// Makes a file of the objects for both engines.
pub fn join(arena: &[u8], hash_maps: &[u8]) -> Vec<u8> {
    let length = (hash_maps.len() as u64).to_le_bytes();
    [arena, hash_maps, &length, &MAGIC].concat()
}

/// The objects of a file, that for the arena engine first. A file that a compiler has written has no other one.
pub fn split(file: &[u8]) -> (&[u8], Option<&[u8]>) {
    let objects = || {
        let rest = file.strip_suffix(&MAGIC)?;
        let (rest, length) = rest.split_last_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        rest.split_at_checked(rest.len().checked_sub(length)?)
    };
    match objects() {
        Some((arena, hash_maps)) => (arena, Some(hash_maps)),
        None => (file, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_objects_that_were_joined() {
        for (arena, hash_maps) in [(&b"arena"[..], &b"maps"[..]), (b"", b""), (b"a", b""), (b"", &MAGIC)] {
            assert_eq!(split(&join(arena, hash_maps)), (arena, Some(hash_maps)));
        }
    }

    #[test]
    fn a_file_without_a_second_object_is_the_first() {
        let too_long = [&9u64.to_le_bytes()[..], &MAGIC].concat();
        let huge = [&u64::MAX.to_le_bytes()[..], &MAGIC].concat();
        for file in [&b""[..], b"object", &MAGIC, &too_long, &huge] {
            assert_eq!(split(file), (file, None));
        }
    }
}
