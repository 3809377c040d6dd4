//! Commands that read and write values.

use super::exec::{Ctx, Fail, Run, STRING_TOO_LONG, SYNTAX, VALUE_TOO_LONG, integer, is, same_expiry};
use super::expire::Expiry;
use super::operators::Operators;
use super::services::Services;
use super::spec::{Cmd, wrong_arity};
use crate::resp::Args;
use bedplate_kerneldb::{SetCondition, SetOptions, VALUE_MAX};

pub(super) fn run<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let key = args.get(1);
    match cmd {
        Cmd::Get => {
            let value = ctx.get(key)?;
            ctx.out.bulk_or_null(value.as_ref().map(|v| &v.data[..]));
        }
        Cmd::Set => return set(ctx, args),
        Cmd::Setnx => {
            let options = SetOptions { condition: SetCondition::IfAbsent, ..Default::default() };
            let done = ctx.set(key, args.get(2), options)?;
            ctx.out.integer(done.into());
        }
        Cmd::Setex | Cmd::Psetex => {
            let name = if cmd == Cmd::Setex { "setex" } else { "psetex" };
            let expiry = Expiry { text: args.get(2), seconds: cmd == Cmd::Setex, absolute: false };
            let expire_at_ms = Some(expiry.at_ms(ctx.now_ms, name)?);
            ctx.set(key, args.get(3), SetOptions { expire_at_ms, ..Default::default() })?;
            ctx.out.ok();
        }
        Cmd::Getset => {
            let old = ctx.get(key)?;
            ctx.set(key, args.get(2), SetOptions::default())?;
            ctx.out.bulk_or_null(old.as_ref().map(|v| &v.data[..]));
        }
        Cmd::Getdel => {
            let old = ctx.get(key)?;
            if old.is_some() {
                ctx.delete(key)?;
            }
            ctx.out.bulk_or_null(old.as_ref().map(|v| &v.data[..]));
        }
        Cmd::Getex => return getex(ctx, args),
        Cmd::Mget => {
            ctx.out.array(args.len() - 1);
            for key in args.from(1) {
                let value = ctx.get(key)?;
                ctx.out.bulk_or_null(value.as_ref().map(|v| &v.data[..]));
            }
        }
        Cmd::Mset | Cmd::Msetnx => return mset(ctx, args, cmd == Cmd::Msetnx),
        Cmd::Append => {
            let old = ctx.peek(key)?;
            let options = same_expiry(old.as_ref());
            let mut value = old.map(|v| v.data).unwrap_or_default();
            if value.len().saturating_add(args.get(2).len()) > VALUE_MAX {
                return Err(STRING_TOO_LONG.into());
            }
            value.extend_from_slice(args.get(2));
            ctx.set(key, &value, options)?;
            ctx.out.integer(value.len() as i64);
        }
        Cmd::Strlen => {
            let len = ctx.get(key)?.map_or(0, |v| v.data.len());
            ctx.out.integer(len as i64);
        }
        Cmd::Getrange | Cmd::Substr => {
            let (start, end) = (integer(args.get(2))?, integer(args.get(3))?);
            let value = ctx.get(key)?.map(|v| v.data).unwrap_or_default();
            ctx.out.bulk(range(&value, start, end));
        }
        Cmd::Setrange => return setrange(ctx, args),
        Cmd::Cas => {
            let done = ctx.compare_and_set(key, args.get(2), args.get(3))?;
            ctx.out.integer(done.into());
        }
        other => unreachable!("{other:?} is not a command on values"),
    }
    Ok(())
}

/// Options of SET and GETEX.
#[derive(Default)]
struct Options<'a> {
    expiry: Option<Expiry<'a>>,
    keep_ttl: bool,
    persist: bool,
    get: bool,
    condition: SetCondition,
}

impl<'a> Options<'a> {
    /// Parses the arguments from index `from` on. As in Redis, repeating an option is not an error.
    fn parse(args: Args<'a>, from: usize, set: bool) -> Run<Options<'a>> {
        let mut options = Options::default();
        let mut i = from;
        while i < args.len() {
            let arg = args.get(i);
            let unit = EXPIRY_OPTIONS.iter().find(|(name, ..)| is(arg, name));
            if set && is(arg, "nx") && options.condition != SetCondition::IfPresent {
                options.condition = SetCondition::IfAbsent;
            } else if set && is(arg, "xx") && options.condition != SetCondition::IfAbsent {
                options.condition = SetCondition::IfPresent;
            } else if set && is(arg, "get") {
                options.get = true;
            } else if set && is(arg, "keepttl") && options.expiry.is_none() {
                options.keep_ttl = true;
            } else if !set && is(arg, "persist") && options.expiry.is_none() {
                options.persist = true;
            } else if let Some(&(_, seconds, absolute)) = unit
                && i + 1 < args.len()
                && !options.keep_ttl
                && !options.persist
                && options.expiry.is_none_or(|e| (e.seconds, e.absolute) == (seconds, absolute))
            {
                i += 1;
                options.expiry = Some(Expiry { text: args.get(i), seconds, absolute });
            } else {
                return Err(SYNTAX.into());
            }
            i += 1;
        }
        Ok(options)
    }
}

/// Each option, whether its unit is seconds, and whether it is a point in time.
const EXPIRY_OPTIONS: [(&str, bool, bool); 4] =
    [("ex", true, false), ("px", false, false), ("exat", true, true), ("pxat", false, true)];

fn set<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let options = Options::parse(args, 3, true)?;
    let expire_at_ms = options.expiry.map(|e| e.at_ms(ctx.now_ms, "set")).transpose()?;
    let key = args.get(1);
    let old = if options.get { Some(ctx.get(key)?) } else { None };
    let new = match &old {
        Some(old) if options.keep_ttl => same_expiry(old.as_ref()),
        _ => SetOptions { expire_at_ms, keep_ttl: options.keep_ttl, ..Default::default() },
    };
    let done = ctx.set(key, args.get(2), SetOptions { condition: options.condition, ..new })?;
    match old {
        Some(old) => ctx.out.bulk_or_null(old.as_ref().map(|v| &v.data[..])),
        None if done => ctx.out.ok(),
        None => ctx.out.null(),
    }
    Ok(())
}

fn getex<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let options = Options::parse(args, 2, false)?;
    let key = args.get(1);
    let Some(value) = ctx.get(key)? else {
        ctx.out.null();
        return Ok(());
    };
    let expire_at_ms = options.expiry.map(|e| e.at_ms(ctx.now_ms, "getex")).transpose()?;
    if expire_at_ms.is_some_and(|at| at <= ctx.now_ms) {
        ctx.delete(key)?;
    } else if expire_at_ms.is_some() || (options.persist && value.expire_at_ms.is_some()) {
        ctx.set(key, &value.data, SetOptions { expire_at_ms, ..Default::default() })?;
    }
    ctx.out.bulk(&value.data);
    Ok(())
}

fn mset<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>, if_absent: bool) -> Run {
    if args.len().is_multiple_of(2) {
        return Err(Fail::Reply(wrong_arity(if if_absent { "msetnx" } else { "mset" })));
    }
    // Checked before the first write, so that a mistake inside a transaction changes nothing.
    if args.from(1).skip(1).step_by(2).any(|value| value.len() > VALUE_MAX) {
        return Err(VALUE_TOO_LONG.into());
    }
    let pairs = || args.from(1).step_by(2).zip(args.from(2).step_by(2));
    if if_absent && !ctx.unfinished.has_writes() {
        for (key, _) in pairs() {
            if ctx.peek(key)?.is_some() {
                ctx.out.integer(0);
                return Ok(());
            }
        }
    }
    for (key, value) in pairs() {
        ctx.set(key, value, SetOptions::default())?;
    }
    if if_absent {
        ctx.out.integer(1)
    } else {
        ctx.out.ok()
    }
    Ok(())
}

fn setrange<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let (key, patch) = (args.get(1), args.get(3));
    let offset = integer(args.get(2))?;
    let offset = usize::try_from(offset).map_err(|_| Fail::from("ERR offset is out of range"))?;
    let old = ctx.peek(key)?;
    let options = same_expiry(old.as_ref());
    let mut value = old.map(|v| v.data).unwrap_or_default();
    if !patch.is_empty() {
        let end = offset.saturating_add(patch.len());
        if end > VALUE_MAX {
            return Err(STRING_TOO_LONG.into());
        }
        value.resize(value.len().max(end), 0);
        value[offset..end].copy_from_slice(patch);
        ctx.set(key, &value, options)?;
    }
    ctx.out.integer(value.len() as i64);
    Ok(())
}

/// The bytes from `start` to `end`, both included, both counted from the end if negative.
fn range(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let place = |i: i64| if i < 0 { i.saturating_add(len).max(0) } else { i };
    let (start, end) = (place(start), place(end).min(len - 1));
    if start > end { &[] } else { &value[start as usize..=end as usize] }
}
