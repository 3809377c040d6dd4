//! Commands on keys that do not care about values.

use super::exec::{Ctx, Fail, Run, SYNTAX, integer, is, same_expiry};
use super::operators::Operators;
use super::services::Services;
use super::spec::Cmd;
use crate::resp::{Args, parse_i64};
use bedplate_kerneldb::{EvictionPolicy, SetOptions};

pub(super) fn run<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let key = args.get(1);
    match cmd {
        Cmd::Del | Cmd::Unlink => {
            let mut count = 0;
            for key in args.from(1) {
                count += i64::from(ctx.delete(key)?);
            }
            ctx.out.integer(count);
        }
        Cmd::Exists | Cmd::Touch => {
            let mut count = 0;
            for key in args.from(1) {
                let value = if cmd == Cmd::Touch { ctx.get(key)? } else { ctx.inspect(key)? };
                count += i64::from(value.is_some());
            }
            ctx.out.integer(count);
        }
        Cmd::Type => {
            let exists = ctx.inspect(key)?.is_some();
            ctx.out.simple(if exists { "string" } else { "none" });
        }
        Cmd::Rename | Cmd::Renamenx => return rename(ctx, args, cmd == Cmd::Renamenx),
        Cmd::Copy => return copy(ctx, args),
        Cmd::Object => return object(ctx, args),
        Cmd::Memory => return memory(ctx, args),
        other => unreachable!("{other:?} is not a command on keys"),
    }
    Ok(())
}

fn rename<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>, if_absent: bool) -> Run {
    let (from, to) = (args.get(1), args.get(2));
    let done = if ctx.unfinished.has_writes() {
        // An earlier attempt has written the new key. The old key is not read again, because it may have expired since.
        ctx.set(to, &[], SetOptions::default())?;
        ctx.delete(from)?;
        true
    } else {
        let value = ctx.peek(from)?.ok_or_else(|| Fail::from("ERR no such key"))?;
        if from == to {
            !if_absent
        } else if if_absent && ctx.peek(to)?.is_some() {
            false
        } else {
            ctx.set(to, &value.data, same_expiry(Some(&value)))?;
            ctx.delete(from)?;
            true
        }
    };
    if if_absent {
        ctx.out.integer(done.into())
    } else {
        ctx.out.ok()
    }
    Ok(())
}

fn copy<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let (from, to) = (args.get(1), args.get(2));
    let mut replace = false;
    let mut i = 3;
    while i < args.len() {
        if is(args.get(i), "replace") {
            replace = true;
        } else if is(args.get(i), "db") && i + 1 < args.len() {
            i += 1;
            if integer(args.get(i))? != 0 {
                return Err("ERR DB index is out of range".into());
            }
        } else {
            return Err(SYNTAX.into());
        }
        i += 1;
    }
    if from == to {
        return Err("ERR source and destination objects are the same".into());
    }
    let value = match ctx.get(from)? {
        Some(value) if replace || ctx.peek(to)?.is_none() => value,
        _ => {
            ctx.out.integer(0);
            return Ok(());
        }
    };
    ctx.set(to, &value.data, same_expiry(Some(&value)))?;
    ctx.out.integer(1);
    Ok(())
}

fn object<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    if is(args.get(1), "help") {
        super::introspect::help(
            &mut ctx.out,
            "OBJECT",
            &[
                ("ENCODING <key>", "Return how Redis would store the value of <key>."),
                (
                    "FREQ <key>",
                    "Return the logarithmic count of accesses, if a policy of eviction is by frequency.",
                ),
                (
                    "IDLETIME <key>",
                    "Return the seconds since the last access; 0 unless a policy of eviction is by recency.",
                ),
                ("REFCOUNT <key>", "Always 1."),
            ],
        );
        return Ok(());
    }
    if is(args.get(1), "idletime") || is(args.get(1), "freq") {
        return usage(ctx, args.get(2), is(args.get(1), "freq"));
    }
    let Some(value) = ctx.inspect(args.get(2))? else {
        ctx.out.null();
        return Ok(());
    };
    if is(args.get(1), "encoding") {
        ctx.out.bulk(match value.data.len() {
            len if len <= 20 && parse_i64(&value.data).is_some() => b"int",
            len if len <= 44 => b"embstr",
            _ => b"raw",
        });
    } else {
        ctx.out.integer(1);
    }
    Ok(())
}

/// OBJECT FREQ and OBJECT IDLETIME.
fn usage<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, key: &[u8], frequency: bool) -> Run {
    let usage = ctx.store.key_usage(key)?;
    ctx.count_lookup(usage.is_some());
    let policy = ctx.services.server().settings.eviction();
    let by_frequency = matches!(policy, EvictionPolicy::AllkeysLfu | EvictionPolicy::VolatileLfu);
    match usage {
        None => ctx.out.null(),
        Some(_) if frequency && !by_frequency => {
            return Err("ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
                        that when switching between policies at runtime LRU and LFU data will take some time to \
                        adjust."
                .into());
        }
        Some(_) if !frequency && by_frequency => {
            return Err(
                "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when \
                        switching between policies at runtime LRU and LFU data will take some time to adjust."
                    .into(),
            );
        }
        Some(usage) if frequency => ctx.out.integer(usage.frequency.unwrap_or_default().into()),
        Some(usage) => ctx.out.integer(usage.idle.unwrap_or_default().as_secs() as i64),
    }
    Ok(())
}

/// Bytes of an index entry with its inline versions, without its key.
const ENTRY: usize = 64;
/// Sizes of entries and values are multiples of it.
const GRAIN: usize = 16;

fn memory<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    if is(args.get(1), "help") {
        let usage = "Return the bytes that <key> and its newest value take.";
        super::introspect::help(&mut ctx.out, "MEMORY", &[("USAGE <key> [SAMPLES <count>]", usage)]);
        return Ok(());
    }
    match args.len() {
        3 => {}
        5 if is(args.get(3), "samples") => {
            if integer(args.get(4))? < 0 {
                return Err(SYNTAX.into());
            }
        }
        _ => return Err(SYNTAX.into()),
    }
    let key = args.get(2);
    match ctx.peek(key)? {
        Some(value) => {
            let entry = (ENTRY + key.len()).next_multiple_of(GRAIN);
            ctx.out.integer((entry + value.data.len().next_multiple_of(GRAIN)) as i64);
        }
        None => ctx.out.null(),
    }
    Ok(())
}
