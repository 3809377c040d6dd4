//! DUMP and RESTORE: a value as bytes that another server restores, also redis-server.

use super::exec::{Ctx, Run, SYNTAX, VALUE_TOO_LONG, integer, is};
use super::operators::Operators;
use super::services::Services;
use super::spec::Cmd;
use crate::rdb::{self, StringError};
use crate::resp::Args;
use bedplate_kerneldb::{SetOptions, VALUE_MAX};

/// The byte before a value that is a string.
const STRING: u8 = 0;
const BAD_FORMAT: &str = "ERR Bad data format";
const NOT_A_STRING: &str = "ERR Bad data format: the value is not a string";

/// The payload of DUMP.
pub(crate) fn payload(value: &[u8]) -> Vec<u8> {
    let mut contents = vec![STRING];
    rdb::write_value(value, &mut contents);
    rdb::seal(contents)
}

/// The value of a payload. The error is the client's reply.
pub(crate) fn value(payload: &[u8]) -> Result<Vec<u8>, &'static str> {
    match rdb::open(payload)?.split_first() {
        None => Err(BAD_FORMAT),
        Some((&STRING, mut rest)) => match rdb::read_string(&mut rest, VALUE_MAX) {
            Ok(value) if rest.is_empty() => Ok(value),
            Err(StringError::TooLong) => Err(VALUE_TOO_LONG),
            _ => Err(BAD_FORMAT),
        },
        Some(_) => Err(NOT_A_STRING),
    }
}

/// The options of RESTORE.
#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
}

impl Options {
    /// Idle times and frequencies are checked as in Redis, and have no effect: the key counts as a new one.
    fn parse(args: Args<'_>) -> Run<Options> {
        let mut options = Options::default();
        let (mut idle, mut frequency) = (false, false);
        let mut i = 4;
        while i < args.len() {
            let arg = args.get(i);
            let has_value = i + 1 < args.len();
            if is(arg, "replace") {
                options.replace = true;
            } else if is(arg, "absttl") {
                options.absolute = true;
            } else if is(arg, "idletime") && has_value && !frequency {
                i += 1;
                idle = true;
                if integer(args.get(i))? < 0 {
                    return Err("ERR Invalid IDLETIME value, must be >= 0".into());
                }
            } else if is(arg, "freq") && has_value && !idle {
                i += 1;
                frequency = true;
                if !(0..=255).contains(&integer(args.get(i))?) {
                    return Err("ERR Invalid FREQ value, must be >= 0 and <= 255".into());
                }
            } else {
                return Err(SYNTAX.into());
            }
            i += 1;
        }
        Ok(options)
    }
}

pub(super) fn run<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    if cmd == Cmd::Restore {
        return restore(ctx, args);
    }
    let found = ctx.get(args.get(1))?;
    ctx.out.bulk_or_null(found.map(|value| payload(&value.data)).as_deref());
    Ok(())
}

fn restore<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let key = args.get(1);
    let options = Options::parse(args)?;
    // A key that an earlier attempt has written is not an obstacle.
    if !options.replace && !ctx.unfinished.has_writes() && ctx.peek(key)?.is_some() {
        return Err("BUSYKEY Target key name already exists.".into());
    }
    let time = integer(args.get(2))?;
    let time = u64::try_from(time).map_err(|_| "ERR Invalid TTL value, must be >= 0")?;
    let value = value(args.get(3))?;
    let expire_at_ms = match (time, options.absolute) {
        (0, _) => None,
        (time, true) => Some(time),
        (time, false) => {
            let at = ctx.now_ms.checked_add(time).filter(|at| *at <= i64::MAX as u64);
            Some(at.ok_or("ERR invalid expire time in 'restore' command")?)
        }
    };
    if expire_at_ms.is_some_and(|at| at <= ctx.now_ms) {
        ctx.delete(key)?;
    } else {
        ctx.set(key, &value, SetOptions { expire_at_ms, ..Default::default() })?;
    }
    ctx.out.ok();
    Ok(())
}
