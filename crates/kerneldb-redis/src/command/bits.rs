//! Commands on single bits and on all bits of a value. Bit 0 is the highest bit of the first byte. Bits behind the end of a value are 0.

use super::exec::{Ctx, Run, STRING_TOO_LONG, SYNTAX, integer, is, same_expiry};
use super::operators::Operators;
use super::services::Services;
use super::spec::Cmd;
use crate::limits::BULK_BYTES_MAX;
use crate::resp::Args;
use bedplate_kerneldb::{SetOptions, VALUE_MAX};

const BAD_OFFSET: &str = "ERR bit offset is not an integer or out of range";
const BAD_BIT: &str = "ERR bit is not an integer or out of range";

pub(super) fn run<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let key = args.get(1);
    match cmd {
        Cmd::Getbit => {
            let offset = offset(args.get(2), None)?;
            let value = ctx.get(key)?.map(|v| v.data).unwrap_or_default();
            ctx.out.integer(field(&value, offset, 1) as i64);
            Ok(())
        }
        Cmd::Setbit => {
            let offset = offset(args.get(2), None)?;
            let bit = integer(args.get(3)).ok().filter(|bit| matches!(bit, 0 | 1)).ok_or(BAD_BIT)?;
            let old = ctx.peek(key)?;
            let options = same_expiry(old.as_ref());
            let mut value = old.map(|v| v.data).unwrap_or_default();
            let (old_bit, old_len) = (field(&value, offset, 1), value.len());
            grow(&mut value, offset + 1)?;
            if old_bit != bit as u64 || old_len != value.len() {
                set_field(&mut value, offset, 1, bit as u64);
                ctx.set(key, &value, options)?;
            }
            ctx.out.integer(old_bit as i64);
            Ok(())
        }
        Cmd::Bitcount => count(ctx, args),
        Cmd::Bitpos => position(ctx, args),
        _ => combine(ctx, args),
    }
}

/// An offset in bits, in a value of at most [`BULK_BYTES_MAX`] bytes as in Redis. For fields of a width, `#3` is the offset of the
/// fourth field.
pub(super) fn offset(text: &[u8], width: Option<u32>) -> Run<u64> {
    let offset = match (width, text.strip_prefix(b"#")) {
        (Some(width), Some(number)) => {
            integer(number).ok().and_then(|number| number.checked_mul(i64::from(width)))
        }
        _ => integer(text).ok(),
    };
    let offset = offset
        .and_then(|offset| u64::try_from(offset).ok())
        .filter(|offset| *offset < 8 * BULK_BYTES_MAX as u64);
    offset.ok_or_else(|| BAD_OFFSET.into())
}

/// Extends a value with zeros to at least `bits` bits.
pub(super) fn grow(value: &mut Vec<u8>, bits: u64) -> Run {
    let bytes = bits.div_ceil(8) as usize;
    if bytes > VALUE_MAX {
        return Err(STRING_TOO_LONG.into());
    }
    value.resize(value.len().max(bytes), 0);
    Ok(())
}

/// The `width` bits at an offset, at most 64, as a number without a sign.
pub(super) fn field(value: &[u8], offset: u64, width: u32) -> u64 {
    (offset..offset + u64::from(width)).fold(0, |bits, at| {
        let byte = value.get((at / 8) as usize).copied().unwrap_or(0);
        bits << 1 | u64::from(byte >> (7 - at % 8) & 1)
    })
}

/// Overwrites the `width` bits at an offset, at most 64, with the lowest bits of a number. The value is long enough.
pub(super) fn set_field(value: &mut [u8], offset: u64, width: u32, bits: u64) {
    for i in 0..u64::from(width) {
        let at = offset + i;
        let mask = 0x80 >> (at % 8);
        let byte = &mut value[(at / 8) as usize];
        if bits >> (u64::from(width) - 1 - i) & 1 == 1 {
            *byte |= mask;
        } else {
            *byte &= !mask;
        }
    }
}

/// A range of bits, as the arguments of BITCOUNT and BITPOS give it.
struct BitRange {
    first: i64,
    /// The last bit that is in the range.
    last: i64,
}

impl BitRange {
    /// `start` and `end` are both in the range. They count bits if `in_bits`, otherwise bytes. A negative one counts from the end of
    /// the value, which has `bytes` bytes.
    fn new(start: i64, end: i64, bytes: usize, in_bits: bool) -> BitRange {
        let total = bytes as i64 * if in_bits { 8 } else { 1 };
        let place = |at: i64| if at < 0 { at.saturating_add(total).max(0) } else { at };
        let (start, end) = (place(start), place(end).min(total - 1));
        let scale = if in_bits { 1 } else { 8 };
        BitRange { first: start.saturating_mul(scale), last: end * scale + scale - 1 }
    }

    fn bits(&self) -> std::ops::Range<u64> {
        self.first as u64..(self.last + 1).max(self.first) as u64
    }
}

/// Whether the unit of a range is bits.
fn unit(arg: &[u8]) -> Run<bool> {
    if is(arg, "bit") {
        Ok(true)
    } else if is(arg, "byte") {
        Ok(false)
    } else {
        Err(SYNTAX.into())
    }
}

fn count<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let Some(value) = ctx.get(args.get(1))? else {
        ctx.out.integer(0);
        return Ok(());
    };
    let bytes = value.data.len();
    let range = match args.len() {
        2 => BitRange::new(0, -1, bytes, false),
        4 | 5 => {
            let (start, end) = (integer(args.get(2))?, integer(args.get(3))?);
            if start < 0 && end < 0 && start > end {
                ctx.out.integer(0);
                return Ok(());
            }
            BitRange::new(start, end, bytes, args.len() == 5 && unit(args.get(4))?)
        }
        _ => return Err(SYNTAX.into()),
    };
    let bits = range.bits();
    if bits.is_empty() {
        ctx.out.integer(0);
        return Ok(());
    }
    // Whole bytes are counted as bytes.
    let (first, end) = (bits.start.next_multiple_of(8).min(bits.end), bits.end / 8 * 8);
    let whole = if first < end { first..end } else { bits.end..bits.end };
    let ones: u32 = value.data[(whole.start / 8) as usize..(whole.end / 8) as usize]
        .iter()
        .map(|byte| byte.count_ones())
        .sum();
    let edges = (bits.start..whole.start).chain(whole.end..bits.end);
    let edges: u64 = edges.map(|at| field(&value.data, at, 1)).sum();
    ctx.out.integer(i64::from(ones) + edges as i64);
    Ok(())
}

fn position<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let bit = integer(args.get(2))?;
    if !matches!(bit, 0 | 1) {
        return Err("ERR The bit argument must be 1 or 0.".into());
    }
    let Some(value) = ctx.get(args.get(1))? else {
        ctx.out.integer(-bit);
        return Ok(());
    };
    if args.len() > 6 {
        return Err(SYNTAX.into());
    }
    let bytes = value.data.len();
    let start = if args.len() > 3 { integer(args.get(3))? } else { 0 };
    let in_bits = args.len() == 6 && unit(args.get(5))?;
    let end = if args.len() > 4 { integer(args.get(4))? } else { -1 };
    let bits = BitRange::new(start, end, bytes, in_bits).bits();
    // Bytes without such a bit are passed over as bytes.
    let without = if bit == 1 { 0 } else { 0xff };
    let mut at = bits.start;
    while at < bits.end {
        if at.is_multiple_of(8) && at + 8 <= bits.end && value.data[(at / 8) as usize] == without {
            at += 8;
        } else if field(&value.data, at, 1) == bit as u64 {
            break;
        } else {
            at += 1;
        }
    }
    let found = at < bits.end;
    // Without an end, the zeros behind the value count.
    let behind = bit == 0 && args.len() <= 4 && !bits.is_empty();
    ctx.out.integer(if found || behind { at as i64 } else { -1 });
    Ok(())
}

fn combine<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let operator = args.get(1);
    let apply: Option<fn(u8, u8) -> u8> = match operator {
        _ if is(operator, "and") => Some(|a, b| a & b),
        _ if is(operator, "or") => Some(|a, b| a | b),
        _ if is(operator, "xor") => Some(|a, b| a ^ b),
        _ if is(operator, "not") => None,
        _ => return Err(SYNTAX.into()),
    };
    if apply.is_none() && args.len() != 4 {
        return Err("ERR BITOP NOT must be called with a single source key.".into());
    }
    let mut values = Vec::new();
    for key in args.from(3) {
        values.push(ctx.get(key)?.map(|v| v.data).unwrap_or_default());
    }
    let bytes = values.iter().map(Vec::len).max().unwrap_or(0);
    let mut values = values.into_iter();
    let mut result = values.next().unwrap_or_default();
    result.resize(bytes, 0);
    match apply {
        None => result.iter_mut().for_each(|byte| *byte = !*byte),
        Some(apply) => {
            for value in values {
                let padded = value.iter().chain(std::iter::repeat(&0));
                result.iter_mut().zip(padded).for_each(|(byte, other)| *byte = apply(*byte, *other));
            }
        }
    }
    let target = args.get(2);
    if result.is_empty() {
        ctx.delete(target)?;
    } else {
        ctx.set(target, &result, SetOptions::default())?;
    }
    ctx.out.integer(bytes as i64);
    Ok(())
}
