//! Commands on the bits of a value. Bit 0 is the highest bit of the first byte. Bits behind the end of a value are 0.

use super::exec::{Ctx, Run, STRING_TOO_LONG, SYNTAX, integer, is, same_expiry};
use super::operators::Operators;
use super::services::Services;
use super::spec::Cmd;
use crate::resp::Args;
use bedplate_kerneldb::{SetOptions, VALUE_MAX};

const BAD_OFFSET: &str = "ERR bit offset is not an integer or out of range";
const BAD_BIT: &str = "ERR bit is not an integer or out of range";
const BAD_TYPE: &str =
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
/// Bits of the longest value in Redis, which is also the limit on offsets here.
const OFFSET_LIMIT_BITS: u64 = 8 * (512 << 20);

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
            let old = old.map(|v| v.data).unwrap_or_default();
            let mut value = old.clone();
            grow(&mut value, offset + 1)?;
            set_field(&mut value, offset, 1, bit as u64);
            if value != old {
                ctx.set(key, &value, options)?;
            }
            let old_bit = field(&old, offset, 1);
            ctx.out.integer(old_bit as i64);
            Ok(())
        }
        Cmd::Bitcount => count(ctx, args),
        Cmd::Bitpos => position(ctx, args),
        Cmd::Bitop => combine(ctx, args),
        _ => fields(ctx, args, cmd == Cmd::BitfieldRo),
    }
}

/// An offset in bits. For fields of a width, `#3` is the offset of the fourth field.
fn offset(text: &[u8], width: Option<u32>) -> Run<u64> {
    let offset = match (width, text.strip_prefix(b"#")) {
        (Some(width), Some(number)) => {
            integer(number).ok().and_then(|number| number.checked_mul(i64::from(width)))
        }
        _ => integer(text).ok(),
    };
    let offset =
        offset.and_then(|offset| u64::try_from(offset).ok()).filter(|offset| *offset < OFFSET_LIMIT_BITS);
    offset.ok_or_else(|| BAD_OFFSET.into())
}

/// Extends a value with zeros to at least `bits` bits.
fn grow(value: &mut Vec<u8>, bits: u64) -> Run {
    let bytes = bits.div_ceil(8) as usize;
    if bytes > VALUE_MAX {
        return Err(STRING_TOO_LONG.into());
    }
    value.resize(value.len().max(bytes), 0);
    Ok(())
}

/// The `width` bits at an offset, at most 64, as a number without a sign.
fn field(value: &[u8], offset: u64, width: u32) -> u64 {
    (offset..offset + u64::from(width)).fold(0, |bits, at| {
        let byte = value.get((at / 8) as usize).copied().unwrap_or(0);
        bits << 1 | u64::from(byte >> (7 - at % 8) & 1)
    })
}

/// Overwrites the `width` bits at an offset, at most 64, with the lowest bits of a number. The value is long enough.
fn set_field(value: &mut [u8], offset: u64, width: u32, bits: u64) {
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

/// The behaviour of a write of BITFIELD whose number does not fit into its field.
#[derive(Clone, Copy, PartialEq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy)]
enum Operation {
    Get,
    Set(i64),
    Add(i64),
}

/// A part of BITFIELD: an operation on a field of `width` bits.
#[derive(Clone, Copy)]
struct Part {
    operation: Operation,
    signed: bool,
    width: u32,
    offset: u64,
    overflow: Overflow,
}

impl Part {
    /// Parses all parts, which begin with argument 2.
    fn parse_all(args: Args<'_>) -> Run<Vec<Part>> {
        let (mut parts, mut overflow) = (Vec::new(), Overflow::Wrap);
        let mut i = 2;
        while i < args.len() {
            let (name, rest) = (args.get(i), args.len() - i - 1);
            if is(name, "overflow") && rest >= 1 {
                overflow = match args.get(i + 1) {
                    kind if is(kind, "wrap") => Overflow::Wrap,
                    kind if is(kind, "sat") => Overflow::Saturate,
                    kind if is(kind, "fail") => Overflow::Fail,
                    _ => return Err("ERR Invalid OVERFLOW type specified".into()),
                };
                i += 2;
                continue;
            }
            let writes = is(name, "set") || is(name, "incrby");
            if !(is(name, "get") && rest >= 2 || writes && rest >= 3) {
                return Err(SYNTAX.into());
            }
            let (signed, width) = field_type(args.get(i + 1))?;
            let offset = offset(args.get(i + 2), Some(width))?;
            let operation = match writes.then(|| integer(args.get(i + 3))).transpose()? {
                None => Operation::Get,
                Some(number) if is(name, "set") => Operation::Set(number),
                Some(number) => Operation::Add(number),
            };
            parts.push(Part { operation, signed, width, offset, overflow });
            i += if writes { 4 } else { 3 };
        }
        Ok(parts)
    }

    /// Executes it: the number that is the reply, or `None` if it has failed.
    fn execute(&self, value: &mut [u8]) -> Option<i64> {
        let old = self.number(field(value, self.offset, self.width));
        let wanted = match self.operation {
            Operation::Get => return Some(old as i64),
            // A field without a sign takes the number as one of 64 bits.
            Operation::Set(number) if !self.signed => i128::from(number as u64),
            Operation::Set(number) => i128::from(number),
            Operation::Add(number) => old + i128::from(number),
        };
        let new = self.fit(wanted)?;
        set_field(value, self.offset, self.width, new as u64);
        Some(if matches!(self.operation, Operation::Set(_)) { old } else { new } as i64)
    }

    /// The number whose lowest bits these are.
    fn number(&self, bits: u64) -> i128 {
        let spare = 64 - self.width;
        if self.signed {
            i128::from((bits << spare) as i64 >> spare)
        } else {
            i128::from(bits << spare >> spare)
        }
    }

    /// The number that is stored for a wanted one.
    fn fit(&self, wanted: i128) -> Option<i128> {
        let (least, most) = match self.signed {
            true => (-(1i128 << (self.width - 1)), (1i128 << (self.width - 1)) - 1),
            false => (0, (1i128 << self.width) - 1),
        };
        if (least..=most).contains(&wanted) {
            return Some(wanted);
        }
        match self.overflow {
            Overflow::Wrap => Some(self.number(wanted as u64)),
            Overflow::Saturate => Some(wanted.clamp(least, most)),
            Overflow::Fail => None,
        }
    }
}

/// Whether a type of fields has a sign, and its width in bits.
fn field_type(text: &[u8]) -> Run<(bool, u32)> {
    let (signed, widest) = match text.first() {
        Some(b'i') => (true, 64),
        Some(b'u') => (false, 63),
        _ => return Err(BAD_TYPE.into()),
    };
    let width = integer(&text[1..]).ok().filter(|width| (1..=widest).contains(width));
    width.map(|width| (signed, width as u32)).ok_or_else(|| BAD_TYPE.into())
}

fn fields<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>, read_only: bool) -> Run {
    let key = args.get(1);
    let parts = Part::parse_all(args)?;
    let ends = parts.iter().filter(|part| !matches!(part.operation, Operation::Get));
    let end = ends.map(|part| part.offset + u64::from(part.width)).max();
    let old = if end.is_some() { ctx.peek(key)? } else { ctx.get(key)? };
    let options = same_expiry(old.as_ref());
    let old = old.map(|v| v.data).unwrap_or_default();
    let mut value = old.clone();
    if let Some(end) = end {
        if read_only {
            return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
        }
        grow(&mut value, end)?;
    }
    let numbers: Vec<_> = parts.iter().map(|part| part.execute(&mut value)).collect();
    if value != old {
        ctx.set(key, &value, options)?;
    }
    ctx.out.array(numbers.len());
    for number in numbers {
        match number {
            Some(number) => ctx.out.integer(number),
            None => ctx.out.null(),
        }
    }
    Ok(())
}
