//! EVAL and its relatives, FCALL, and SCRIPT.

use super::exec::{Ctx, Fail, Run, integer, is};
use super::introspect::help;
use super::operators::Operators;
use super::request::Core;
use super::script_run::{self, inputs};
use super::services::Services;
use super::spec::{Cmd, Spec};
use crate::resp::{Args, parse_i64};
use crate::script::{Flags, Program};

/// The error of a read-only command whose script or function may write.
const MAY_WRITE: &str = "ERR Can not execute a script with write flag using *_ro command.";

/// Runs EVAL, EVAL_RO, EVALSHA or EVALSHA_RO.
pub(super) fn evaluate<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    cmd: Cmd,
    args: Args<'_>,
) -> Run {
    if script_run::waits_for_commit(core, ctx) {
        return script_run::commit(ctx);
    }
    core.observed.add_script(&core.server, &core.client, args);
    let rest: Vec<&[u8]> = args.from(3).collect();
    let inputs = inputs(integer(args.get(2))?, &rest)?;
    let server = core.server.clone();
    let script = match cmd {
        Cmd::Eval | Cmd::EvalRo => server.scripts.put(args.get(1)).map_err(Fail::from)?,
        _ => {
            let found = server.scripts.get(args.get(1));
            found.ok_or_else(|| Fail::from("NOSCRIPT No matching script. Please use EVAL."))?
        }
    };
    let only_reads = script.flags().is_some_and(Flags::is_read_only);
    let is_read_only = matches!(cmd, Cmd::EvalRo | Cmd::EvalshaRo);
    // A script without flags may use a read-only command, and its writes are errors.
    if is_read_only && script.flags().is_some() && !only_reads {
        return Err(MAY_WRITE.into());
    }
    let program = Program::Script(&script);
    script_run::run(core, ctx, program, &inputs, is_read_only || only_reads, |run| {
        server.scripts.with_interpreter(run)
    })
}

/// Runs FCALL or FCALL_RO.
pub(super) fn call_function<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    cmd: Cmd,
    args: Args<'_>,
) -> Run {
    if script_run::waits_for_commit(core, ctx) {
        return script_run::commit(ctx);
    }
    core.observed.add_script(&core.server, &core.client, args);
    let server = core.server.clone();
    let catalog = server.functions.catalog();
    let (library, function) = catalog.function(args.get(1)).ok_or("ERR Function not found")?;
    let rest: Vec<&[u8]> = args.from(3).collect();
    let keys = parse_i64(args.get(2)).ok_or("ERR Bad number of keys provided")?;
    let inputs = inputs(keys, &rest)?;
    let only_reads = function.flags.is_read_only();
    if cmd == Cmd::FcallRo && !only_reads {
        return Err(MAY_WRITE.into());
    }
    let program = Program::Function { library, name: &function.name };
    script_run::run(core, ctx, program, &inputs, only_reads, |run| server.functions.with_interpreter(run))
}

/// Runs SCRIPT.
pub(super) fn manage<S: Operators, V: Services>(
    core: &Core,
    ctx: &mut Ctx<'_, S, V>,
    spec: &Spec,
    args: Args<'_>,
) -> Run {
    let scripts = &core.server.scripts;
    match spec.name {
        "load" => {
            let script = scripts.put(args.get(2)).map_err(Fail::from)?;
            ctx.out.bulk(script.sha().as_bytes());
        }
        "exists" => {
            ctx.out.array(args.len() - 2);
            args.from(2).for_each(|sha| ctx.out.integer(scripts.get(sha).is_some().into()));
        }
        "flush" => {
            if args.len() > 3 || args.len() == 3 && !is(args.get(2), "sync") && !is(args.get(2), "async") {
                return Err("ERR SCRIPT FLUSH only support SYNC|ASYNC option".into());
            }
            scripts.flush();
            ctx.out.ok();
        }
        // Other clients are served when a script has ended.
        "kill" => return Err("NOTBUSY No scripts in execution right now.".into()),
        "debug" => return Err("ERR there is no debugger of scripts".into()),
        _ => help(
            &mut ctx.out,
            "SCRIPT",
            &[
                ("EXISTS <sha1> [<sha1> ...]", "Return whether scripts of these SHA-1 are kept."),
                ("FLUSH [ASYNC|SYNC]", "Forget all scripts."),
                ("KILL", "Without effect: a script ends after busy-reply-threshold milliseconds."),
                ("LOAD <script>", "Keep a script without running it; return its SHA-1."),
            ],
        ),
    }
    Ok(())
}
