//! Checks of the invariants of a node.

use super::edit::record_len;
use super::search::biased;
use super::view::{Page, Slots};
use super::{HINT_COUNT, INNER_SLOT, Key, LEAF_SLOT, SLOTS, common_prefix, hint_position};

/// Checks a node and describes the first violation. `page` must not change meanwhile. `level` is the level that the
/// parent implies.
pub fn check(page: Page<'_>, level: u8) -> Result<(), String> {
    if page.level() != level || !(if level == 0 { page.is_leaf() } else { page.is_inner() }) {
        return Err(format!("is no node of level {level}"));
    }
    if level == 0 { check_slots::<LEAF_SLOT>(page) } else { check_slots::<INNER_SLOT>(page) }
}

fn check_slots<const SLOT: usize>(page: Page<'_>) -> Result<(), String> {
    let slots = page.slots::<SLOT>();
    let end = SLOTS + slots.count() * SLOT;
    if page.used() != page.live() + slots.count() * SLOT || page.used() > page.capacity() {
        return Err(format!("uses {} bytes of {}", page.used(), page.capacity()));
    }
    let heap = page.heap();
    if heap < end || heap > page.end() {
        return Err(format!("its heap begins at {heap}, its slots end at {end}"));
    }
    let mut pieces = Vec::with_capacity(slots.count() + 2);
    let (low, high) = (page.low(), page.high());
    for fence in [low, high].into_iter().flatten() {
        pieces.push((fence.offset(), fence.len()));
    }
    let (low, high) = (low.map(owned), high.map(owned));
    let common = match (&low, &high) {
        (Some(low), Some(high)) if low >= high => return Err("its fences are not in order".into()),
        (Some(low), Some(high)) => common_prefix(low, high),
        _ => 0,
    };
    if slots.prefix_len() != common {
        return Err(format!("its prefix has {} bytes instead of {common}", slots.prefix_len()));
    }
    let mut last: Option<Vec<u8>> = None;
    let mut key = Key::new();
    for i in 0..slots.count() {
        let slot = slots.slot(i);
        if common + slot.suffix_len() > page.max_key() {
            return Err(format!("key {i} is too long"));
        }
        pieces.push((slot.record(), record_len(slots, slot)));
        slots.key(i, &mut key);
        if last.as_deref().is_some_and(|last| last >= &key[..]) {
            return Err(format!("key {i} is not above the one before it"));
        }
        if low.as_deref().is_some_and(|low| &key[..] < low)
            || high.as_deref().is_some_and(|high| &key[..] >= high)
        {
            return Err(format!("key {i} is outside of the fences"));
        }
        if slot.suffix_len() < 4 && slot.head() << (8 * slot.suffix_len()) != 0 {
            return Err(format!("head {i} is not padded"));
        }
        last = Some(key.to_vec());
    }
    check_hints(slots)?;
    check_pieces(page, pieces)
}

/// Checks that each hint is the head of its slot.
fn check_hints<const SLOT: usize>(slots: Slots<'_, SLOT>) -> Result<(), String> {
    if slots.count() == 0 {
        return Ok(());
    }
    let hints = slots.page.hints();
    let wrong =
        (0..HINT_COUNT).find(|&j| hints[j] != biased(slots.slot(hint_position(j, slots.count())).head()));
    wrong.map_or(Ok(()), |j| Err(format!("hint {j} is not its slot's")))
}

/// Checks that the used pieces of the heap do not overlap, and that their total size is the one in the header.
fn check_pieces(page: Page<'_>, mut pieces: Vec<(usize, usize)>) -> Result<(), String> {
    pieces.retain(|&(_, len)| len > 0);
    pieces.sort_unstable();
    let mut end = page.heap();
    for &(at, len) in &pieces {
        if at < end || at + len > page.end() {
            return Err(format!("{len} bytes at {at} overlap what is before them or leave the page"));
        }
        end = at + len;
    }
    let live = pieces.iter().map(|&(_, len)| len).sum::<usize>();
    if live != page.live() {
        return Err(format!("{live} bytes of its heap are used, its header says {}", page.live()));
    }
    Ok(())
}

fn owned(bytes: super::view::Bytes<'_>) -> Vec<u8> {
    let mut copy = Vec::new();
    bytes.append_to(&mut copy);
    copy
}
