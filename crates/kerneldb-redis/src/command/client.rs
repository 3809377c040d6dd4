//! CLIENT and its subcommands.

use std::sync::atomic::Ordering::Relaxed;

use super::clients::Client;
use super::exec::{Ctx, Fail, Run, SYNTAX, is};
use super::introspect::help;
use super::operators::Operators;
use super::request::{Core, ReplyMode};
use super::services::Services;
use super::spec::Spec;
use crate::resp::{Args, parse_i64};

pub(super) fn run<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    spec: &Spec,
    args: Args<'_>,
) -> Run {
    match spec.name {
        "id" => ctx.out.integer(core.client.id as i64),
        "getname" => {
            let name = core.client.text().name.clone();
            ctx.out.bulk_or_null((!name.is_empty()).then_some(name.as_bytes()));
        }
        "setname" => {
            set_name(core, args.get(2))?;
            ctx.out.ok();
        }
        "setinfo" => {
            set_info(core, args.get(2), args.get(3))?;
            ctx.out.ok();
        }
        "getredir" => ctx.out.integer(-1),
        "info" => ctx.out.verbatim((core.client.describe(ctx.now_ms) + "\n").as_bytes()),
        "list" => list(core, ctx, args)?,
        "kill" => kill(core, ctx, args)?,
        "no-evict" => {
            core.client.state.no_evict.store(on_off(args.get(2))?, Relaxed);
            ctx.out.ok();
        }
        "no-touch" => {
            core.client.state.no_touch.store(on_off(args.get(2))?, Relaxed);
            ctx.out.ok();
        }
        "reply" => reply(core, ctx, args.get(2))?,
        "pause" => pause(core, ctx, args)?,
        "unpause" => {
            core.server.clients.pause(0, false);
            ctx.services.pauses_changed();
            ctx.out.ok();
        }
        _ => help(&mut ctx.out, "CLIENT", HELP),
    }
    Ok(())
}

const HELP: &[(&str, &str)] = &[
    ("GETNAME", "Return the name of the current connection."),
    ("GETREDIR", "Return -1: there is no client tracking."),
    ("ID", "Return the ID of the current connection."),
    ("INFO", "Return information about the current client connection."),
    ("KILL <ip:port>", "Kill connection made from <ip:port>."),
    (
        "KILL <option> <value> [<option> <value> [...]]",
        "Kill connections that meet all of ADDR, LADDR, ID, TYPE, USER, SKIPME.",
    ),
    ("LIST [TYPE NORMAL | ID <id> [<id> ...]]", "Return information about client connections."),
    ("NO-EVICT (ON|OFF)", "Accepted for compatibility: clients are never evicted."),
    ("NO-TOUCH (ON|OFF)", "Accepted for compatibility: access times are not kept."),
    ("PAUSE <timeout> [WRITE|ALL]", "Suspend all, or just write, clients for <timeout> milliseconds."),
    ("REPLY (ON|OFF|SKIP)", "Control the replies sent to the current connection."),
    ("SETINFO (LIB-NAME|LIB-VER) <value>", "Say which library the client uses."),
    ("SETNAME <name>", "Assign the name <name> to the current connection."),
    ("UNPAUSE", "Stop the current client pause, resuming traffic."),
];

/// Characters that would break the lines of CLIENT LIST are refused.
fn check_text(text: &[u8], message: &str) -> Run<String> {
    if !text.iter().all(|c| (b'!'..=b'~').contains(c)) {
        return Err(message.into());
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

pub(super) fn set_name(core: &Core, name: &[u8]) -> Run {
    let message = "ERR Client names cannot contain spaces, newlines or special characters.";
    core.client.text().name = check_text(name, message)?;
    Ok(())
}

fn set_info(core: &Core, attribute: &[u8], value: &[u8]) -> Run {
    let name = String::from_utf8_lossy(attribute).to_ascii_lowercase();
    let message = format!("ERR {name} cannot contain spaces, newlines or special characters.");
    let mut text = core.client.text();
    let field = match &name[..] {
        "lib-name" => &mut text.lib_name,
        "lib-ver" => &mut text.lib_ver,
        _ => {
            let shown = String::from_utf8_lossy(attribute);
            return Err(format!("ERR Unrecognized option '{shown}'").into());
        }
    };
    *field = check_text(value, &message)?;
    Ok(())
}

fn on_off(arg: &[u8]) -> Run<bool> {
    match () {
        () if is(arg, "on") => Ok(true),
        () if is(arg, "off") => Ok(false),
        () => Err(SYNTAX.into()),
    }
}

/// The types of Redis; every connection here is a normal one.
fn is_normal_type(name: &[u8]) -> Run<bool> {
    if is(name, "normal") {
        return Ok(true);
    }
    if ["master", "slave", "replica", "pubsub"].iter().any(|t| is(name, t)) {
        return Ok(false);
    }
    Err(Fail::Reply([b"ERR Unknown client type '", name, b"'"].concat()))
}

fn list<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let mut clients = core.server.clients.list();
    if args.len() == 4 && is(args.get(2), "type") {
        if !is_normal_type(args.get(3))? {
            clients.clear();
        }
    } else if args.len() > 3 && is(args.get(2), "id") {
        let mut ids = Vec::new();
        for arg in args.from(3) {
            ids.push(parse_i64(arg).ok_or("ERR Invalid client ID")?);
        }
        clients.retain(|client| ids.contains(&(client.id as i64)));
    } else if args.len() != 2 {
        return Err(SYNTAX.into());
    }
    let mut text = String::new();
    for client in clients {
        text.push_str(&client.describe(ctx.now_ms));
        text.push('\n');
    }
    ctx.out.verbatim(text.as_bytes());
    Ok(())
}

/// A condition of CLIENT KILL.
type Filter<'a> = Box<dyn Fn(&Client) -> bool + 'a>;

fn kill<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let me = core.client.id;
    let clients = &core.server.clients;
    if args.len() == 3 {
        let found = clients.list().into_iter().find(|c| c.peer.addr.as_bytes() == args.get(2));
        let killed = found.is_some_and(|c| clients.kill(c.id));
        if !killed {
            return Err("ERR No such client".into());
        }
        ctx.out.ok();
        return Ok(());
    }
    if !args.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    let mut skip_me = true;
    let mut filters: Vec<Filter<'_>> = Vec::new();
    for i in (2..args.len()).step_by(2) {
        let (option, value) = (args.get(i), args.get(i + 1));
        if is(option, "id") {
            let id = parse_i64(value).filter(|id| *id > 0);
            let id = id.ok_or("ERR client-id should be greater than 0")? as u64;
            filters.push(Box::new(move |c| c.id == id));
        } else if is(option, "type") {
            let normal = is_normal_type(value)?;
            filters.push(Box::new(move |_| normal));
        } else if is(option, "addr") {
            filters.push(Box::new(move |c| c.peer.addr.as_bytes() == value));
        } else if is(option, "laddr") {
            filters.push(Box::new(move |c| c.peer.local_addr.as_bytes() == value));
        } else if is(option, "user") {
            let Some(account) = core.server.acl.get(value) else {
                return Err(Fail::Reply([b"ERR No such user '", value, b"'"].concat()));
            };
            filters.push(Box::new(move |c| c.has_user(&account)));
        } else if is(option, "skipme") {
            skip_me = match () {
                () if is(value, "yes") => true,
                () if is(value, "no") => false,
                () => return Err(SYNTAX.into()),
            };
        } else {
            return Err(SYNTAX.into());
        }
    }
    let chosen = clients.list().into_iter().filter(|c| !(skip_me && c.id == me));
    let killed = chosen.filter(|c| filters.iter().all(|f| f(c))).filter(|c| clients.kill(c.id)).count();
    ctx.out.integer(killed as i64);
    Ok(())
}

fn reply<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>, mode: &[u8]) -> Run {
    if core.in_exec {
        // EXEC's array would lack an element.
        return Err("ERR CLIENT REPLY is not allowed inside MULTI".into());
    }
    if is(mode, "on") {
        core.reply_mode = ReplyMode::On;
        ctx.out.ok();
    } else if is(mode, "off") {
        core.reply_mode = ReplyMode::Off;
    } else if is(mode, "skip") {
        if core.reply_mode != ReplyMode::Off {
            core.reply_mode = ReplyMode::SkipNext;
        }
    } else {
        return Err(SYNTAX.into());
    }
    Ok(())
}

fn pause<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let reads_too = match args.len() {
        3 => true,
        4 if is(args.get(3), "all") => true,
        4 if is(args.get(3), "write") => false,
        _ => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
    };
    let ms = parse_i64(args.get(2)).ok_or("ERR timeout is not an integer or out of range")?;
    let ms = u64::try_from(ms).map_err(|_| Fail::from("ERR timeout is negative"))?;
    core.server.clients.pause(ctx.now_ms.saturating_add(ms), reads_too);
    ctx.services.pauses_changed();
    ctx.out.ok();
    Ok(())
}
