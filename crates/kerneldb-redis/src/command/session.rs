//! Commands about the connection itself: HELLO, AUTH, PING and the like.

use super::acl::DEFAULT_USER;
use super::exec::{Ctx, NOT_INTEGER, Run, is};
use super::operators::Operators;
use super::request::{Core, ReplyMode, Step};
use super::services::Services;
use super::spec::{Cmd, wrong_arity};
use super::{Fail, monitor, multi};
use crate::REDIS_VERSION;
use crate::resp::{Args, Protocol, parse_i64};

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub(super) fn run<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    cmd: Cmd,
    args: Args<'_>,
) -> Run<Step> {
    match cmd {
        Cmd::Ping if args.len() > 2 => return Err(Fail::Reply(wrong_arity("ping"))),
        Cmd::Ping if args.len() == 2 => ctx.out.bulk(args.get(1)),
        Cmd::Ping => ctx.out.simple("PONG"),
        Cmd::Echo => ctx.out.bulk(args.get(1)),
        Cmd::Time => {
            let now = ctx.services.now();
            ctx.out.array(2);
            ctx.out.bulk(now.as_secs().to_string().as_bytes());
            ctx.out.bulk(now.subsec_micros().to_string().as_bytes());
        }
        Cmd::Select => match parse_i64(args.get(1)) {
            None => return Err(NOT_INTEGER.into()),
            Some(0) => ctx.out.ok(),
            Some(_) => return Err("ERR DB index is out of range".into()),
        },
        Cmd::Auth => {
            auth(core, ctx.now_ms, args)?;
            ctx.out.ok();
        }
        Cmd::Hello => hello(core, ctx, args)?,
        Cmd::Reset => {
            reset(core, ctx)?;
            ctx.out.simple("RESET");
        }
        _ => {
            ctx.out.ok();
            return Ok(Step::Close);
        }
    }
    Ok(Step::Done)
}

fn auth(core: &mut Core, now_ms: u64, args: Args<'_>) -> Run {
    match args.len() {
        2 if core.server.acl.default_user().user().has_no_password() => {
            Err("ERR AUTH <password> called without any password \
             configured for the default user. Are you sure your configuration is correct?"
                .into())
        }
        2 => login(core, now_ms, args, DEFAULT_USER, args.get(1)),
        3 => login(core, now_ms, args, args.get(1), args.get(2)),
        _ => Err(super::exec::SYNTAX.into()),
    }
}

fn login(core: &mut Core, now_ms: u64, args: Args<'_>, user: &[u8], password: &[u8]) -> Run {
    match core.server.acl.authenticate(user, password) {
        Some(account) => {
            core.become_user(account, true);
            Ok(())
        }
        None => {
            core.note_refusal(now_ms, "auth", core.context(), args.get(0).to_vec(), user.to_vec());
            Err(WRONG_PASSWORD.into())
        }
    }
}

fn hello<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let protocol = if args.len() == 1 {
        core.protocol
    } else {
        match parse_i64(args.get(1)) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
            None => return Err("ERR Protocol version is not an integer or out of range".into()),
        }
    };
    let (mut credentials, mut name) = (None, None);
    let mut i = 2;
    while i < args.len() {
        let arg = args.get(i);
        if is(arg, "auth") && i + 2 < args.len() {
            credentials = Some((args.get(i + 1), args.get(i + 2)));
            i += 3;
        } else if is(arg, "setname") && i + 1 < args.len() {
            name = Some(args.get(i + 1));
            i += 2;
        } else {
            return Err(Fail::Reply([b"ERR Syntax error in HELLO option '", arg, b"'"].concat()));
        }
    }
    if let Some((user, password)) = credentials {
        login(core, ctx.now_ms, args, user, password)?;
    }
    if !core.authenticated {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                    <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
                    RESP protocol version at the same time"
                .into(),
        );
    }
    if let Some(name) = name {
        super::client::set_name(core, name)?;
    }
    core.protocol = protocol;
    let out = &mut ctx.out;
    out.set_protocol(protocol);
    out.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(protocol.version());
    out.bulk(b"id");
    out.integer(core.client.id as i64);
    for (field, value) in [("mode", "standalone"), ("role", "master")] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
    Ok(())
}

/// Resets the connection to the state of one that was just accepted.
fn reset<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>) -> Run {
    if ctx.store.in_transaction() {
        ctx.store.rollback()?;
    }
    multi::end(core);
    if monitor::end(core) {
        ctx.services.pauses_changed();
    }
    core.protocol = Protocol::Resp2;
    ctx.out.set_protocol(Protocol::Resp2);
    let default = core.server.acl.default_user().clone();
    let authenticated = default.is_open();
    core.become_user(default, authenticated);
    // A RESET behind CLIENT REPLY SKIP is not answered, as in Redis.
    if core.reply_mode != ReplyMode::SkipCurrent {
        core.reply_mode = ReplyMode::On;
    }
    core.durability = core.server.settings.database_options().durability;
    core.has_chosen_durability = false;
    // It takes effect at once, because the kernel may answer the next request.
    ctx.store.set_durability(core.durability);
    core.durability_applied = true;
    core.client.text().name.clear();
    core.client.state.no_evict.store(false, std::sync::atomic::Ordering::Relaxed);
    core.client.state.no_touch.store(false, std::sync::atomic::Ordering::Relaxed);
    Ok(())
}
