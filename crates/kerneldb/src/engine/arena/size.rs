//! Sizes of the heap's blocks; the same as in `bpf/engine/arena/slab.h`.

use crate::layout::{KDB_CLASSES, KDB_GRAIN, KDB_KINDS, KDB_SLAB_BYTES};

use super::format::entry_bytes;

/// Sizes and offsets of blocks and entries are multiples of this.
pub(crate) const GRAIN: u64 = KDB_GRAIN as u64;
/// Blocks of up to this many bytes have sizes in steps of a grain.
const FINE_MAX: u64 = 1024;
/// Blocks of up to this many bytes have eight sizes a doubling; larger ones are a fraction of a
/// slab.
const STEPPED_MAX: u64 = 4096;
const FINE_CLASSES: u32 = (FINE_MAX / GRAIN) as u32;

/// Class of the blocks for `bytes` bytes, at least 1.
pub(crate) fn size_class(bytes: u64) -> u32 {
    let class = match bytes {
        0..=FINE_MAX => bytes.div_ceil(GRAIN) - 1,
        _ if bytes <= 2 * FINE_MAX => u64::from(FINE_CLASSES) + (bytes - 1 - FINE_MAX) / 128,
        _ if bytes <= STEPPED_MAX => u64::from(FINE_CLASSES) + 8 + (bytes - 1 - 2 * FINE_MAX) / 256,
        _ => u64::from(KDB_CLASSES) - u64::from(KDB_SLAB_BYTES) / bytes.next_multiple_of(GRAIN),
    };
    class as u32
}

/// Bytes of a block of a class.
pub(crate) fn class_bytes(class: u32) -> u64 {
    let steps = u64::from(class.saturating_sub(FINE_CLASSES));
    match class {
        _ if class < FINE_CLASSES => u64::from(class + 1) * GRAIN,
        _ if steps < 8 => FINE_MAX + (steps + 1) * 128,
        _ if steps < 16 => 2 * FINE_MAX + (steps - 7) * 256,
        _ => u64::from(KDB_SLAB_BYTES / (KDB_CLASSES - class)) / GRAIN * GRAIN,
    }
}

/// Bytes of a block, or of an entry, of a kind.
pub(crate) fn kind_bytes(kind: u32) -> u64 {
    debug_assert!(kind < KDB_KINDS);
    if kind < KDB_CLASSES { class_bytes(kind) } else { entry_bytes(kind - KDB_CLASSES) }
}

/// Blocks in a slab of a kind.
pub(crate) fn kind_capacity(kind: u32) -> u64 {
    u64::from(KDB_SLAB_BYTES) / kind_bytes(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_sizes_tightly() {
        for bytes in 1..=u64::from(KDB_SLAB_BYTES) {
            let class = size_class(bytes);
            assert!(class < KDB_CLASSES && class_bytes(class) >= bytes, "{bytes}");
            assert!(class == 0 || class_bytes(class - 1) < bytes, "{bytes}");
            if bytes <= STEPPED_MAX {
                assert!(class_bytes(class) <= bytes * 9 / 8 + GRAIN, "{bytes}");
            }
        }
        assert_eq!(class_bytes(size_class(1000)), 1008);
        assert_eq!(class_bytes(size_class(4096)), 4096);
        assert_eq!(class_bytes(KDB_CLASSES - 1), u64::from(KDB_SLAB_BYTES));
    }

    #[test]
    fn slabs_are_filled() {
        for class in 0..KDB_CLASSES {
            let filled = kind_capacity(class) * class_bytes(class);
            assert!(filled * 25 >= u64::from(KDB_SLAB_BYTES) * 24, "{class}: {filled}");
        }
    }
}
