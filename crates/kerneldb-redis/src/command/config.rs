//! CONFIG and its subcommands.

use super::admin::admin_task;
use super::exec::{Ctx, Run, SYNTAX};
use super::glob::glob_match;
use super::introspect::help;
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::{AdminTask, Services};
use super::spec::Spec;
use crate::resp::Args;

pub(super) fn run<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    spec: &Spec,
    args: Args<'_>,
) -> Run<Step> {
    let server = &core.server;
    match spec.name {
        "get" => {
            let wanted = |name: &str| args.from(2).any(|p| glob_match(p, name.as_bytes(), true));
            let found: Vec<_> = server.settings.all().filter(|(name, _)| wanted(name)).collect();
            ctx.out.map(found.len());
            for (name, value) in found {
                ctx.out.bulk(name.as_bytes());
                ctx.out.bulk(value.as_bytes());
            }
        }
        "set" => {
            if !args.len().is_multiple_of(2) {
                return Err(SYNTAX.into());
            }
            let pairs: Vec<_> = args.from(2).step_by(2).zip(args.from(3).step_by(2)).collect();
            return set(core, ctx, &pairs);
        }
        "resetstat" => {
            server.counters.reset();
            ctx.services.reset_statistics();
            ctx.out.ok();
        }
        _ => help(
            &mut ctx.out,
            "CONFIG",
            &[
                ("GET <pattern>", "Return parameters matching the glob-like <pattern> and their values."),
                ("SET <directive> <value>", "Set the configuration <directive> to <value>."),
                ("RESETSTAT", "Reset statistics reported by the INFO command."),
            ],
        ),
    }
    Ok(Step::Done)
}

/// CONFIG SET. A parameter that is an option of the database takes a new database, for which the client waits.
fn set<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    pairs: &[(&[u8], &[u8])],
) -> Run<Step> {
    let options = match core.pending {
        // The task that this request has started knows them.
        Some(_) => core.server.settings.database_options(),
        None => match core
            .server
            .settings
            .change(pairs, |password| core.server.acl.set_default_password(password))?
        {
            Some(_) if ctx.store.in_transaction() => {
                return Err("ERR an option of the database cannot be set inside a transaction".into());
            }
            Some(options) => options,
            None => {
                ctx.services.settings_changed();
                ctx.out.ok();
                return Ok(Step::Done);
            }
        },
    };
    admin_task(core, ctx, AdminTask::Rebuild(options), |ctx, _| ctx.out.ok())
}
