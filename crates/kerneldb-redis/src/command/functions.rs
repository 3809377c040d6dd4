//! FUNCTION: the libraries of functions.
//!
//! A change waits for the file of the libraries, which a thread for administrative tasks writes. It is no part of a transaction.

use std::sync::Arc;

use super::admin::prepared_admin_task;
use super::exec::{Ctx, Fail, Run, is};
use super::glob::glob_match;
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::{AdminTask, Services};
use super::spec::Spec;
use crate::resp::{Args, Writer};
use crate::script::{Flags, Library, RestorePolicy, Wanted};

/// The name of the only engine.
const ENGINE: &[u8] = b"LUA";

/// Runs FUNCTION.
pub(super) fn manage<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    spec: &Spec,
    args: Args<'_>,
) -> Run<Step> {
    match spec.name {
        "load" | "delete" | "flush" | "restore" => return change(core, ctx, spec, args),
        "list" => list(core, ctx, args)?,
        "dump" => ctx.out.bulk(&core.server.functions.payload()),
        "stats" => statistics(core, ctx),
        // Other clients are served when a function has ended.
        "kill" => return Err("NOTBUSY No scripts in execution right now.".into()),
        _ => help(&mut ctx.out),
    }
    Ok(Step::Done)
}

/// The change that a request wants.
fn wanted<'a>(spec: &Spec, args: Args<'a>) -> Run<Wanted<'a>> {
    let wrong_arguments = || {
        let name = String::from_utf8_lossy(args.get(1));
        let text =
            format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try FUNCTION HELP.");
        Fail::from(text)
    };
    match spec.name {
        "load" => {
            let options = args.len() - 3;
            if let Some(unknown) = args.from(2).take(options).find(|option| !is(option, "replace")) {
                return Err(Fail::Reply([b"ERR Unknown option given: ", unknown].concat()));
            }
            Ok(Wanted::Load { code: args.get(args.len() - 1), replace: options > 0 })
        }
        "delete" => Ok(Wanted::Delete(args.get(2))),
        "flush" if args.len() > 3 => Err(wrong_arguments()),
        "flush" if args.len() == 3 && !is(args.get(2), "sync") && !is(args.get(2), "async") => {
            Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into())
        }
        "flush" => Ok(Wanted::Flush),
        _ if args.len() > 4 => Err(wrong_arguments()),
        _ => {
            let policy = match args.get(3) {
                _ if args.len() == 3 => RestorePolicy::Append,
                policy if is(policy, "append") => RestorePolicy::Append,
                policy if is(policy, "replace") => RestorePolicy::Replace,
                policy if is(policy, "flush") => RestorePolicy::Flush,
                _ => {
                    return Err("ERR Wrong restore policy given, value should be either FLUSH, APPEND or \
                                REPLACE."
                        .into());
                }
            };
            Ok(Wanted::Restore { payload: args.get(2), policy })
        }
    }
}

fn change<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    spec: &Spec,
    args: Args<'_>,
) -> Run<Step> {
    let prepare = |core: &Core| match core.server.functions.change(&wanted(spec, args)?) {
        // Another client's change is under way.
        None => Ok(None),
        Some(change) => Ok(Some(AdminTask::ChangeFunctions(change?))),
    };
    prepared_admin_task(core, ctx, prepare, |ctx, library| match spec.name {
        "load" => ctx.out.bulk(library.as_bytes()),
        _ => ctx.out.ok(),
    })
}

fn list<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let (mut pattern, mut with_code) = (None, false);
    let mut i = 2;
    while i < args.len() {
        let arg = args.get(i);
        if !with_code && is(arg, "withcode") {
            with_code = true;
        } else if pattern.is_none() && is(arg, "libraryname") {
            if i + 1 == args.len() {
                return Err("ERR library name argument was not given".into());
            }
            i += 1;
            pattern = Some(args.get(i));
        } else {
            return Err(Fail::Reply([b"ERR Unknown argument ", arg].concat()));
        }
        i += 1;
    }
    let catalog = core.server.functions.catalog();
    let matches = |library: &&Arc<Library>| {
        pattern.is_none_or(|pattern| glob_match(pattern, library.name.as_bytes(), true))
    };
    let libraries: Vec<_> = catalog.libraries().filter(matches).collect();
    ctx.out.array(libraries.len());
    libraries.iter().for_each(|library| describe(&mut ctx.out, library, with_code));
    Ok(())
}

fn describe(out: &mut Writer<'_>, library: &Library, with_code: bool) {
    out.map(if with_code { 4 } else { 3 });
    out.bulk(b"library_name");
    out.bulk(library.name.as_bytes());
    out.bulk(b"engine");
    out.bulk(ENGINE);
    out.bulk(b"functions");
    out.array(library.functions.len());
    for function in library.functions.values() {
        out.map(3);
        out.bulk(b"name");
        out.bulk(function.name.as_bytes());
        out.bulk(b"description");
        out.bulk_or_null(function.description.as_deref());
        out.bulk(b"flags");
        let names = Flags::names(function.flags);
        out.set(names.clone().count());
        names.for_each(|name| out.simple(name));
    }
    if with_code {
        out.bulk(b"library_code");
        out.bulk(&library.code);
    }
}

fn statistics<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>) {
    let catalog = core.server.functions.catalog();
    let out = &mut ctx.out;
    out.map(2);
    out.bulk(b"running_script");
    out.null();
    out.bulk(b"engines");
    out.map(1);
    out.bulk(ENGINE);
    out.map(2);
    out.bulk(b"libraries_count");
    out.integer(catalog.libraries().len() as i64);
    out.bulk(b"functions_count");
    out.integer(catalog.functions() as i64);
}

fn help(out: &mut Writer<'_>) {
    super::introspect::help(
        out,
        "FUNCTION",
        &[
            ("DELETE <library>", "Delete a library."),
            ("DUMP", "Return all libraries as bytes for FUNCTION RESTORE."),
            ("FLUSH [ASYNC|SYNC]", "Delete all libraries."),
            ("KILL", "Without effect: a function ends after busy-reply-threshold milliseconds."),
            ("LIST [LIBRARYNAME <pattern>] [WITHCODE]", "Return libraries and their functions."),
            ("LOAD [REPLACE] <code>", "Load a library; return its name."),
            ("RESTORE <bytes> [FLUSH|APPEND|REPLACE]", "Load the libraries that FUNCTION DUMP has returned."),
            ("STATS", "Return the numbers of libraries and functions."),
        ],
    );
}
