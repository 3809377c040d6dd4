//! Commands about durability, checkpoints and the server's life: SAVE, WAITAOF, SHUTDOWN, BEDPLATE.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::exec::{Ctx, Fail, NOT_INTEGER, Run, SYNTAX, integer, is};
use super::introspect::help;
use super::operators::Operators;
use super::request::{Core, PendingCommand, Step};
use super::services::{AdminTask, Services};
use super::spec::{Cmd, Resolved};
use crate::resp::{Args, parse_i64};
use bedplate_kerneldb::Durability;

/// Interval at which a waiting request is tried again.
const POLL: Duration = Duration::from_millis(2);

pub(super) fn run<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    resolved: Resolved,
    args: Args<'_>,
) -> Run<Step> {
    match resolved.cmd {
        Cmd::Save => return admin_task(core, ctx, AdminTask::Checkpoint, |ctx, _| ctx.out.ok()),
        Cmd::Bgsave => {
            if args.len() > 2 || args.len() == 2 && !is(args.get(1), "schedule") {
                return Err(SYNTAX.into());
            }
            if !ctx.services.save_in_background()? {
                return Err("ERR Background save already in progress".into());
            }
            ctx.out.simple("Background saving started");
        }
        Cmd::Lastsave => ctx.out.integer(ctx.services.last_save().0 as i64),
        Cmd::Shutdown => return shutdown(core, ctx, args),
        Cmd::Wait => {
            // There are no replicas, so there is nothing to wait for.
            integer(args.get(1))?;
            timeout(args.get(2))?;
            ctx.out.integer(0);
        }
        Cmd::Waitaof => return wait_durable(core, ctx, args),
        _ => return bedplate(core, ctx, resolved, args),
    }
    Ok(Step::Done)
}

/// Starts an administrative task, or checks whether it has ended.
pub(super) fn admin_task<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    task: AdminTask,
    reply: impl FnOnce(&mut Ctx<'_, S, V>, String),
) -> Run<Step> {
    prepared_admin_task(core, ctx, |_| Ok(Some(task)), reply)
}

/// The same with a task that `prepare` makes when it is started. If that returns `None`, the request is tried again.
pub(super) fn prepared_admin_task<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    prepare: impl FnOnce(&Core) -> Run<Option<AdminTask>>,
    reply: impl FnOnce(&mut Ctx<'_, S, V>, String),
) -> Run<Step> {
    if core.in_exec {
        return Err("ERR Command not allowed inside a transaction".into());
    }
    let ticket = match &core.pending {
        Some(PendingCommand::AdminTask(ticket)) => Arc::clone(ticket),
        _ => match prepare(core)? {
            Some(task) => ctx.services.start_admin_task(task)?,
            None => return Ok(Step::Again(POLL)),
        },
    };
    match ticket.result() {
        None => {
            core.pending = Some(PendingCommand::AdminTask(ticket));
            Ok(Step::Again(POLL))
        }
        Some(result) => {
            reply(ctx, result.clone()?);
            Ok(Step::Done)
        }
    }
}

/// SHUTDOWN stops the server at once, or when a checkpoint is written. Until then the server serves, and writes wait.
fn shutdown<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    args: Args<'_>,
) -> Run<Step> {
    let shutdown = &core.server.shutdown;
    if args.len() == 2 && is(args.get(1), "abort") {
        if !shutdown.abort() {
            return Err("ERR No shutdown in progress.".into());
        }
        pause_for_shutdown(core, ctx, false);
        ctx.out.ok();
        return Ok(Step::Done);
    }
    let mut save = None;
    for arg in args.from(1) {
        match () {
            () if is(arg, "save") && save != Some(false) => save = Some(true),
            () if is(arg, "nosave") && save != Some(true) => save = Some(false),
            () if is(arg, "now") || is(arg, "force") => {}
            () => return Err(SYNTAX.into()),
        }
    }
    if !save.unwrap_or(ctx.services.can_save()) {
        return Ok(Step::Shutdown);
    }
    let number = match core.pending {
        Some(PendingCommand::Shutdown(number)) => number,
        _ => match shutdown.join() {
            Some(number) => number,
            None => {
                // Writes wait from before the checkpoint, so no commit is missing in it.
                pause_for_shutdown(core, ctx, true);
                match ctx.services.start_admin_task(AdminTask::Checkpoint) {
                    Ok(ticket) => shutdown.begin(ticket),
                    Err(message) => {
                        tracing::error!(error = message, "no shutdown: there is no checkpoint");
                        pause_for_shutdown(core, ctx, false);
                        return Err(SHUTDOWN_FAILED.into());
                    }
                }
            }
        },
    };
    if shutdown.has_ended(number) {
        return Err(SHUTDOWN_FAILED.into());
    }
    core.pending = Some(PendingCommand::Shutdown(number));
    Ok(Step::Again(POLL))
}

const SHUTDOWN_FAILED: &str = "ERR Errors trying to SHUTDOWN. Check logs.";

fn pause_for_shutdown<S: Operators, V: Services>(core: &Core, ctx: &Ctx<'_, S, V>, on: bool) {
    core.server.clients.pause_for_shutdown(on);
    ctx.services.pauses_changed();
}

/// A timeout in milliseconds; `None` = for ever.
fn timeout(arg: &[u8]) -> Run<Option<Duration>> {
    let ms = parse_i64(arg).ok_or("ERR timeout is not an integer or out of range")?;
    let ms = u64::try_from(ms).map_err(|_| Fail::from("ERR timeout is negative"))?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

/// WAITAOF: waits until everything committed up to now, and so everything that this connection wrote, is
/// on disk; replies whether it is, and the number of replicas.
fn wait_durable<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    args: Args<'_>,
) -> Run<Step> {
    let local = parse_i64(args.get(1)).filter(|n| (0..=1).contains(n));
    let local = local.ok_or("ERR value is out of range, must be between 0 and 1")?;
    let replicas = parse_i64(args.get(2)).ok_or(NOT_INTEGER)?;
    if replicas < 0 {
        return Err("ERR value is out of range, must be positive".into());
    }
    let timeout = timeout(args.get(3))?;
    // A rebuild that has switched the log off has made everything durable before.
    let is_pending = matches!(core.pending, Some(PendingCommand::Durable { .. }));
    if local > 0 && !ctx.services.logged() && !is_pending {
        return Err("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.".into());
    }
    let (ts, since) = match core.pending {
        Some(PendingCommand::Durable { ts, since }) => (ts, since),
        _ => (ctx.services.clock(), Instant::now()),
    };
    let durable = (ctx.services.logged() || is_pending) && ctx.services.durable_ts() >= ts;
    let met = i64::from(durable) >= local && replicas == 0;
    let expired = timeout.is_some_and(|t| since.elapsed() >= t);
    if met || expired || core.in_exec {
        ctx.out.array(2);
        ctx.out.integer(durable.into());
        ctx.out.integer(0);
        return Ok(Step::Done);
    }
    if core.pending.is_none() {
        ctx.services.request_durable(ts);
    }
    core.pending = Some(PendingCommand::Durable { ts, since });
    Ok(Step::Again(POLL))
}

fn bedplate<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    resolved: Resolved,
    args: Args<'_>,
) -> Run<Step> {
    match resolved.spec.name {
        "durability" => durability(core, ctx, args)?,
        "checkpoint" => {
            return admin_task(core, ctx, AdminTask::Checkpoint, |ctx, text| ctx.out.bulk(text.as_bytes()));
        }
        "upgrade" if ctx.store.in_transaction() => {
            return Err("ERR the server cannot be upgraded inside a transaction".into());
        }
        "upgrade" => return admin_task(core, ctx, AdminTask::Upgrade, |ctx, _| ctx.out.ok()),
        "verify" => {
            return admin_task(core, ctx, AdminTask::Verify, |ctx, text| ctx.out.bulk(text.as_bytes()));
        }
        "stats" => {
            let statistics = ctx.services.statistics();
            ctx.out.map(statistics.len());
            for (name, value) in statistics {
                ctx.out.bulk(name.as_bytes());
                ctx.out.integer(i64::try_from(value).unwrap_or(i64::MAX));
            }
        }
        _ => help(
            &mut ctx.out,
            "BEDPLATE",
            &[
                ("CHECKPOINT", "Take a checkpoint and wait for it."),
                ("DURABILITY [OFF|ASYNC|SYNC]", "Return or set what this connection's commits wait for."),
                ("STATS", "Return the engine's statistics."),
                ("UPGRADE", "Go on with the program file that is there now, with all connections and data."),
                ("VERIFY", "Check every invariant of the database."),
            ],
        ),
    }
    Ok(Step::Done)
}

fn durability<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    const MODES: [(&str, Durability); 3] =
        [("off", Durability::Off), ("async", Durability::Async), ("sync", Durability::Sync)];
    if args.len() == 2 {
        // Without a log, a choice counts when there is one again.
        let durability = if ctx.services.logged() { core.durability } else { Durability::Off };
        let mode = MODES.iter().find(|(_, mode)| *mode == durability);
        ctx.out.bulk(mode.map_or("", |(name, _)| name).as_bytes());
        return Ok(());
    }
    let mode = MODES.iter().find(|(name, _)| args.len() == 3 && is(args.get(2), name));
    let (_, durability) = *mode.ok_or(SYNTAX)?;
    if durability != Durability::Off && !ctx.services.logged() {
        return Err("ERR the server runs without a log".into());
    }
    if ctx.store.in_transaction() {
        return Err("ERR the durability cannot be changed inside a transaction".into());
    }
    ctx.store.set_durability(durability);
    core.durability = durability;
    core.durability_applied = true;
    core.has_chosen_durability = true;
    ctx.out.ok();
    Ok(())
}
