//! Procedures: CALL, and PROC for the libraries that have them.

use bedplate_kerneldb::{FoundProcedure, HandlerInfo, HandlerTarget, Reply};

use super::admin::admin_task;
use super::exec::{Ctx, Fail, Run, error_reply};
use super::introspect::help;
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::{AdminTask, Services};
use super::spec::Spec;
use crate::resp::Args;

/// Runs CALL: in the open transaction, or in one of its own, which is tried again as those of other commands are.
pub(super) fn call<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let name = std::str::from_utf8(args.get(1)).map_err(|_| "ERR a procedure's name is text")?;
    let arguments: Vec<&[u8]> = args.from(2).collect();
    let is_own = core.is_own_transaction(ctx);
    if !is_own && ctx.store.is_failed() {
        return Err(Fail::Store(ctx.store.failure()));
    }
    let done = ctx.store.find_procedure(name).map_err(Fail::from).and_then(|procedure| match is_own {
        true => ctx.transaction(procedure.is_read_only(), |ctx| run(ctx, &procedure, &arguments)),
        false => run(ctx, &procedure, &arguments),
    });
    done.map_err(|fail| match fail {
        // A transient error is tried again. A queue is rolled back after an error with effects, and goes on after others.
        Fail::Store(error) if error.is_transient() || core.in_exec && ctx.store.is_failed() => {
            Fail::Store(error)
        }
        Fail::Store(error) => Fail::Reply(error_reply(&error)),
        reply => reply,
    })
}

fn run<S: Operators, V: Services>(
    ctx: &mut Ctx<'_, S, V>,
    procedure: &FoundProcedure,
    arguments: &[&[u8]],
) -> Run {
    match ctx.store.call_found(procedure, arguments)? {
        Reply::Ok => ctx.out.ok(),
        Reply::Nil => ctx.out.null(),
        Reply::Integer(number) => ctx.out.integer(number),
        Reply::Value(value) => ctx.out.bulk(&value),
    }
    Ok(())
}

/// Runs PROC.
pub(super) fn manage<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    spec: &Spec,
    args: Args<'_>,
) -> Run<Step> {
    let text = || String::from_utf8_lossy(args.get(2)).into_owned();
    let target = || -> Run<HandlerTarget> {
        let text = String::from_utf8_lossy(args.get(3)).into_owned();
        text.parse().map_err(|error: String| Fail::Reply(format!("ERR {error}").into()))
    };
    let task = match spec.name {
        "attach" => AdminTask::AttachHandler { name: text(), target: target()? },
        "detach" => AdminTask::DetachHandler { name: text(), target: target()? },
        "load" => AdminTask::LoadLibrary { file: text(), replace: false },
        "replace" => AdminTask::LoadLibrary { file: text(), replace: true },
        "unload" => AdminTask::UnloadLibrary(text()),
        "list" => {
            list(ctx);
            return Ok(Step::Done);
        }
        _ => {
            help(
                &mut ctx.out,
                "PROC",
                &[
                    (
                        "ATTACH <handler> <event>",
                        "Run a handler at each event: tc:eth0/ingress, timer:100ms.",
                    ),
                    ("DETACH <handler> <event>", "Stop running a handler at the event."),
                    (
                        "LIST",
                        "Return procedures and handlers, each with its library, and the counts of handlers.",
                    ),
                    ("LOAD <file>", "Load a library from a file on the server's machine."),
                    ("REPLACE <file>", "The same, in the place of the library of that name if there is one."),
                    ("UNLOAD <library>", "Remove a library with all of its procedures and handlers."),
                ],
            );
            return Ok(Step::Done);
        }
    };
    let has_names = !matches!(task, AdminTask::AttachHandler { .. } | AdminTask::DetachHandler { .. });
    admin_task(core, ctx, task, move |ctx, text| {
        if !has_names {
            return ctx.out.ok();
        }
        let names: Vec<&str> = text.split_whitespace().collect();
        ctx.out.array(names.len());
        names.iter().for_each(|name| ctx.out.bulk(name.as_bytes()));
    })
}

fn list<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>) {
    let procedures = ctx.services.procedures();
    let handlers = ctx.services.handlers();
    ctx.out.array(procedures.len() + handlers.len());
    for procedure in procedures {
        ctx.out.map(3);
        for (field, value) in [
            ("name", procedure.name.as_str()),
            ("library", &procedure.library),
            ("access", if procedure.read_only { "read-only" } else { "read-write" }),
        ] {
            ctx.out.bulk(field.as_bytes());
            ctx.out.bulk(value.as_bytes());
        }
    }
    for handler in handlers {
        list_handler(ctx, &handler);
    }
}

fn list_handler<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, handler: &HandlerInfo) {
    let counts = &handler.counts;
    ctx.out.map(11);
    for (field, value) in [
        ("name", handler.name.as_str()),
        ("library", &handler.library),
        ("event", &handler.kind.to_string()),
        ("last_error", counts.last_error.as_deref().unwrap_or_default()),
    ] {
        ctx.out.bulk(field.as_bytes());
        ctx.out.bulk(value.as_bytes());
    }
    ctx.out.bulk(b"attached");
    ctx.out.array(handler.targets.len());
    handler.targets.iter().for_each(|target| ctx.out.bulk(target.to_string().as_bytes()));
    for (field, count) in [
        ("runs", counts.runs),
        ("committed", counts.committed),
        ("refused", counts.refused),
        ("failed", counts.failed),
        ("nested", counts.nested),
        ("retries", counts.retries),
    ] {
        ctx.out.bulk(field.as_bytes());
        ctx.out.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
