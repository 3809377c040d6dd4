//! Commands on the whole key space: KEYS, SCAN, RANDOMKEY, DBSIZE, FLUSHALL.
//!
//! They read snapshots of the committed data. Inside a transaction they therefore do not see its own
//! writes and are not part of its serializability, except FLUSHALL's deletions.

use super::exec::{Ctx, Fail, Run, SYNTAX, integer, is};
use super::glob::glob_match;
use super::operators::Operators;
use super::services::Services;
use crate::resp::Args;
use bedplate_kerneldb::SnapshotItem;

fn visible(item: &SnapshotItem<'_>, now_ms: u64) -> bool {
    item.expire_at_ms.is_none_or(|at| at > now_ms)
}

pub(super) fn keys<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let pattern = args.get(1);
    let now_ms = ctx.now_ms;
    let mut found = Vec::new();
    ctx.services.scan(0, ctx.services.positions(), &mut |item| {
        if visible(&item, now_ms) && glob_match(pattern, item.key, false) {
            found.push(item.key.to_vec());
        }
    })?;
    ctx.out.array(found.len());
    found.iter().for_each(|key| ctx.out.bulk(key));
    Ok(())
}

/// Most positions scanned per snapshot.
const STEP: u64 = 4096;
/// Positions scanned by one SCAN at most, so that an empty table does not block others. A scan of hash maps may go on to later
/// positions, because the kernel passes over empty buckets by itself.
const SCAN_POSITIONS: u64 = 1 << 16;

/// Bits of a cursor that are a scan position. The bits above are the generation ([`Services::rebuilds`]).
const POSITION_BITS: u32 = 40;
/// Bits of the generation that a cursor has, so that cursors are positive for clients that take them for signed numbers.
const GENERATION_BITS: u32 = 22;

/// The cursor of a position.
fn cursor_at(position: u64, generation: u64) -> u64 {
    position | (generation & ((1 << GENERATION_BITS) - 1)) << POSITION_BITS
}

/// The position of a cursor. It is the first one if the cursor is of another generation.
fn position_of(cursor: u64, generation: u64) -> u64 {
    let position = cursor & ((1 << POSITION_BITS) - 1);
    if cursor_at(position, generation) == cursor { position } else { 0 }
}

/// SCAN, whose cursor has a scan position. A key's position does not change while the database stays, so a key that exists from the
/// first call to the last is returned. Every key is returned at most once per round, unless it is deleted and written again, or the
/// database is rebuilt.
pub(super) fn scan<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let cursor: u64 = std::str::from_utf8(args.get(1))
        .ok()
        .filter(|text| text.bytes().all(|c| c.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or("ERR invalid cursor")?;
    let (mut count, mut pattern, mut strings) = (10, None, true);
    let mut i = 2;
    while i < args.len() {
        let value = args.get(i + 1);
        if i + 1 == args.len() {
            return Err(SYNTAX.into());
        } else if is(args.get(i), "count") {
            count = integer(value)?;
            if count < 1 {
                return Err(SYNTAX.into());
            }
        } else if is(args.get(i), "match") {
            pattern = Some(value);
        } else if is(args.get(i), "type") {
            strings = is(value, "string");
        } else {
            return Err(SYNTAX.into());
        }
        i += 2;
    }
    let (positions, generation) = (ctx.services.positions(), ctx.services.rebuilds());
    let from = position_of(cursor, generation);
    let end = from.saturating_add(SCAN_POSITIONS).min(positions);
    let now_ms = ctx.now_ms;
    let (mut next, mut seen, mut found) = (from, 0, Vec::new());
    // The steps grow, so that an almost empty table takes few snapshots.
    let mut step = (count as u64).clamp(16, STEP);
    while next < end && seen < count {
        let to = (next + step).min(end);
        step = (step * 2).min(STEP);
        next = ctx.services.scan(next, to, &mut |item| {
            seen += 1;
            let matches = pattern.is_none_or(|p| glob_match(p, item.key, false));
            if strings && matches && visible(&item, now_ms) {
                found.push(item.key.to_vec());
            }
        })?;
    }
    ctx.out.array(2);
    let cursor = if next >= positions { 0 } else { cursor_at(next, generation) };
    ctx.out.bulk(cursor.to_string().as_bytes());
    ctx.out.array(found.len());
    found.iter().for_each(|key| ctx.out.bulk(key));
    Ok(())
}

/// RANDOMKEY: replies with a key from near a random position.
pub(super) fn random_key<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>) -> Run {
    let mut found = None;
    // An empty table is not searched.
    if !ctx.services.is_empty() {
        let positions = ctx.services.positions();
        for _ in 0..DRAWS {
            let is_last;
            (found, is_last) = draw_key(ctx, positions)?;
            if found.is_some() || is_last {
                break;
            }
        }
        // There are too few keys to meet one at a random position.
        let mut from = 0;
        while found.is_none() && from < positions {
            (found, from) = some_key(ctx, from, (from + STEP).min(positions))?;
        }
    }
    ctx.out.bulk_or_null(found.as_deref());
    Ok(())
}

/// Number of random positions that RANDOMKEY tries before it searches all, and least number of positions it reads for each.
const DRAWS: u32 = 128;
const DRAWN_POSITIONS: u64 = 16;

/// A key behind a random position, if there is one near it, and whether another draw is useless because all keys were seen.
fn draw_key<S: Operators, V: Services>(
    ctx: &mut Ctx<'_, S, V>,
    positions: u64,
) -> Result<(Option<Vec<u8>>, bool), Fail> {
    let from = ctx.services.draw_position(rand::random())?;
    let (found, next) = some_key(ctx, from, from + DRAWN_POSITIONS)?;
    if next < positions {
        return Ok((found, false));
    }
    // Behind the last keys come the first ones. If those are all keys, each of them has the same probability.
    let (first, end) = some_key(ctx, 0, DRAWN_POSITIONS)?;
    let has_seen_all = end >= positions;
    Ok((if has_seen_all { first } else { found.or(first) }, has_seen_all))
}

/// One of the keys at some positions, each with the same probability, and the position at which to continue.
fn some_key<S: Operators, V: Services>(
    ctx: &mut Ctx<'_, S, V>,
    from: u64,
    to: u64,
) -> Result<(Option<Vec<u8>>, u64), Fail> {
    let now_ms = ctx.now_ms;
    let (mut seen, mut found) = (0, None);
    let next = ctx.services.scan(from, to, &mut |item| {
        if visible(&item, now_ms) {
            seen += 1;
            if rand::random_range(0..seen) == 0 {
                found = Some(item.key.to_vec());
            }
        }
    })?;
    Ok((found, next))
}

/// Checks the arguments of FLUSHALL and FLUSHDB. SYNC and ASYNC are the same here.
pub(super) fn check_flush(args: Args<'_>) -> Run {
    match args.len() {
        1 => Ok(()),
        2 if is(args.get(1), "sync") || is(args.get(1), "async") => Ok(()),
        _ => Err(SYNTAX.into()),
    }
}

/// Keys deleted, and positions looked at, before other connections are served.
const FLUSH_KEYS: usize = 1024;
const FLUSH_POSITIONS: u64 = 1 << 18;

/// Deletes the keys at some positions from `from` on. Returns the position at which to continue, `None` at the end.
/// Every key that existed when FLUSHALL began is deleted, but not in one transaction.
pub(super) fn flush_step<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, from: u64) -> Run<Option<u64>> {
    let positions = ctx.services.positions();
    let end = from.saturating_add(FLUSH_POSITIONS).min(positions);
    let (mut next, mut deleted) = (from, 0);
    while next < end && deleted < FLUSH_KEYS && !ctx.services.is_empty() {
        let (keys, after) = keys_at(ctx, next, (next + STEP).min(end))?;
        for key in keys {
            deleted += 1;
            // The key had expired, or does so now. DBSIZE counts it until the expired version is deleted.
            if !ctx.delete(&key)? {
                ctx.store.delete_expired(&key)?;
            }
        }
        next = after;
    }
    Ok((next < positions && !ctx.services.is_empty()).then_some(next))
}

/// Deletes all keys in the open transaction. Each attempt begins at the first key, because the keys may have changed.
/// It also finds keys that an earlier attempt has deleted.
pub(super) fn flush_in_transaction<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>) -> Run {
    let positions = ctx.services.positions();
    for key in keys_at(ctx, 0, positions)?.0 {
        ctx.store.delete(&key)?;
    }
    Ok(())
}

/// The keys at some positions, of which some may have expired, and the position at which to continue.
fn keys_at<S: Operators, V: Services>(ctx: &Ctx<'_, S, V>, from: u64, to: u64) -> Run<(Vec<Vec<u8>>, u64)> {
    let mut keys = Vec::new();
    let next = ctx.services.scan(from, to, &mut |item| keys.push(item.key.to_vec()))?;
    Ok((keys, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_another_generation_starts_over() {
        assert_eq!(cursor_at(77, 0), 77);
        for generation in [0, 1, 5, (1 << GENERATION_BITS) - 1] {
            let cursor = cursor_at(77, generation);
            assert!(i64::try_from(cursor).is_ok());
            assert_eq!(position_of(cursor, generation), 77);
            assert_eq!(position_of(cursor, generation + 1), 0);
        }
        // A position of the first database would be behind the end, or that of other keys.
        assert_eq!(position_of(77, 1), 0);
    }
}
