//! Commands about the expiry of keys.
//!
//! An expired key does not exist for any reader from that millisecond on: the engine hides it, and its
//! active expiry deletes it.

use super::exec::{Ctx, Fail, Run, integer, is};
use super::operators::Operators;
use super::services::Services;
use super::spec::Cmd;
use crate::resp::{Args, parse_i64};
use bedplate_kerneldb::SetOptions;

/// An expiry as given in a command.
#[derive(Clone, Copy)]
pub(super) struct Expiry<'a> {
    pub text: &'a [u8],
    pub seconds: bool,
    pub absolute: bool,
}

impl Expiry<'_> {
    /// Milliseconds since the Unix epoch; must lie in the future as far as one can tell from its sign.
    pub fn at_ms(&self, now_ms: u64, command: &str) -> Run<u64> {
        let value = integer(self.text)?;
        let at = if value > 0 { self.resolve(value, now_ms) } else { None };
        at.map(|at| at as u64).ok_or_else(|| invalid(command))
    }

    fn resolve(&self, value: i64, now_ms: u64) -> Option<i64> {
        let ms = if self.seconds { value.checked_mul(1000)? } else { value };
        if self.absolute { Some(ms) } else { ms.checked_add(now_ms as i64) }
    }
}

fn invalid(command: &str) -> Fail {
    format!("ERR invalid expire time in '{command}' command").into()
}

pub(super) fn run<S: Operators, V: Services>(cmd: Cmd, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let key = args.get(1);
    let expiry = |seconds, absolute| Expiry { text: args.get(2), seconds, absolute };
    match cmd {
        Cmd::Expire => expire(ctx, args, expiry(true, false), "expire"),
        Cmd::Pexpire => expire(ctx, args, expiry(false, false), "pexpire"),
        Cmd::Expireat => expire(ctx, args, expiry(true, true), "expireat"),
        Cmd::Pexpireat => expire(ctx, args, expiry(false, true), "pexpireat"),
        Cmd::Persist => {
            let value = ctx.peek(key)?.filter(|v| v.expire_at_ms.is_some());
            if let Some(value) = &value {
                ctx.set(key, &value.data, SetOptions::default())?;
            }
            ctx.out.integer(value.is_some().into());
            Ok(())
        }
        _ => {
            let reply = match ctx.inspect(key)?.map(|v| v.expire_at_ms) {
                None => -2,
                Some(None) => -1,
                Some(Some(at)) => {
                    let left = at.saturating_sub(ctx.now_ms);
                    (match cmd {
                        Cmd::Ttl => (left + 500) / 1000,
                        Cmd::Pttl => left,
                        Cmd::Expiretime => at.saturating_add(500) / 1000,
                        _ => at,
                    }) as i64
                }
            };
            ctx.out.integer(reply);
            Ok(())
        }
    }
}

/// The conditions under which EXPIRE and its variants apply.
#[derive(Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(args: Args<'_>) -> Run<Conditions> {
        let mut c = Conditions::default();
        for arg in args.from(3) {
            let names = [("nx", &mut c.nx), ("xx", &mut c.xx), ("gt", &mut c.gt), ("lt", &mut c.lt)];
            match names.into_iter().find(|(name, _)| is(arg, name)) {
                Some((_, flag)) => *flag = true,
                None => return Err(Fail::Reply([b"ERR Unsupported option ", arg].concat())),
            }
        }
        if c.nx && (c.xx || c.gt || c.lt) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if c.gt && c.lt {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(c)
    }

    /// Whether the expiry changes from `old` to `new`; a key that never expires counts as later than any.
    fn hold(&self, old: Option<u64>, new: i64) -> bool {
        let old = old.map(|at| at as i64);
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old.is_none_or(|old| new <= old)
            || self.lt && old.is_some_and(|old| new >= old))
    }
}

fn expire<S: Operators, V: Services>(
    ctx: &mut Ctx<'_, S, V>,
    args: Args<'_>,
    expiry: Expiry<'_>,
    name: &str,
) -> Run {
    let conditions = Conditions::parse(args)?;
    let value = parse_i64(expiry.text).ok_or_else(|| Fail::from(super::exec::NOT_INTEGER))?;
    let at = expiry.resolve(value, ctx.now_ms).ok_or_else(|| invalid(name))?;
    let key = args.get(1);
    let value = ctx.peek(key)?.filter(|v| conditions.hold(v.expire_at_ms, at));
    if let Some(value) = &value {
        if at <= ctx.now_ms as i64 {
            ctx.delete(key)?;
        } else {
            let options = SetOptions { expire_at_ms: Some(at as u64), ..Default::default() };
            ctx.set(key, &value.data, options)?;
        }
    }
    ctx.out.integer(value.is_some().into());
    Ok(())
}
