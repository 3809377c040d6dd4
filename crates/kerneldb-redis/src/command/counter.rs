//! INCR and its relatives.

use super::exec::{Ctx, Fail, NOT_INTEGER, Run, integer, same_expiry};
use super::operators::Operators;
use super::services::Services;
use super::spec::Cmd;
use crate::resp::{Args, LongDouble, parse_i64};

pub(super) fn run<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let key = args.get(1);
    let by = match cmd {
        Cmd::Incrbyfloat => return by_float(ctx, key, args.get(2)),
        Cmd::Incr => 1,
        Cmd::Decr => -1,
        Cmd::Incrby => integer(args.get(2))?,
        _ => {
            let by = integer(args.get(2))?;
            by.checked_neg().ok_or_else(|| Fail::from("ERR decrement would overflow"))?
        }
    };
    let value = ctx.peek(key)?;
    let old = match &value {
        Some(value) => parse_i64(&value.data).ok_or_else(|| Fail::from(NOT_INTEGER))?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or_else(|| Fail::from("ERR increment or decrement would overflow"))?;
    ctx.set(key, itoa::Buffer::new().format(new).as_bytes(), same_expiry(value.as_ref()))?;
    ctx.out.integer(new);
    Ok(())
}

fn by_float<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, key: &[u8], by: &[u8]) -> Run {
    let number = |text| match LongDouble::parse(text) {
        Some(number) => Ok(number),
        None if is_infinity(text) => Err(Fail::from("ERR increment would produce NaN or Infinity")),
        None => Err(Fail::from("ERR value is not a valid float")),
    };
    let value = ctx.peek(key)?;
    let old = number(value.as_ref().map_or(b"0", |v| &v.data[..]))?;
    let sum = old.add(&number(by)?);
    let sum = sum.ok_or_else(|| Fail::from("ERR increment would produce NaN or Infinity"))?.format();
    ctx.set(key, sum.as_bytes(), same_expiry(value.as_ref()))?;
    ctx.out.bulk(sum.as_bytes());
    Ok(())
}

fn is_infinity(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity")
}
