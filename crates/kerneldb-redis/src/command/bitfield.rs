//! BITFIELD and BITFIELD_RO: integers of any width in a value.

use super::bits::{field, grow, offset, set_field};
use super::exec::{Ctx, Run, SYNTAX, integer, is, same_expiry};
use super::operators::Operators;
use super::services::Services;
use super::spec::Cmd;
use crate::resp::Args;

const BAD_TYPE: &str =
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";

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

pub(super) fn run<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let key = args.get(1);
    let parts = Part::parse_all(args)?;
    let ends = parts.iter().filter(|part| !matches!(part.operation, Operation::Get));
    let end = ends.map(|part| part.offset + u64::from(part.width)).max();
    let old = if end.is_some() { ctx.peek(key)? } else { ctx.get(key)? };
    let options = same_expiry(old.as_ref());
    let old = old.map(|v| v.data).unwrap_or_default();
    let mut value = old.clone();
    if let Some(end) = end {
        if cmd == Cmd::BitfieldRo {
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
