//! Interactive transactions: BEGIN, COMMIT, ROLLBACK.
//!
//! Locks are held between requests. A conflict is the client's to handle: the transaction has failed, and
//! everything but COMMIT (which says so) and ROLLBACK is refused. A full log ring is not: the request is tried again
//! until the log writer has made room, or until the transaction exceeds its time limit.

use super::exec::{Ctx, Run, SYNTAX, is};
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::Services;
use super::spec::Cmd;
use crate::resp::Args;
use bedplate_kerneldb::Error;

pub(super) fn run<S: Operators, V: Services>(
    core: &Core,
    ctx: &mut Ctx<'_, S, V>,
    cmd: Cmd,
    args: Args<'_>,
) -> Run<Step> {
    if core.in_exec {
        return Err("ERR BEGIN, COMMIT and ROLLBACK are not allowed inside MULTI".into());
    }
    let open = ctx.store.in_transaction();
    match cmd {
        Cmd::Begin => {
            let read_only = match args.len() {
                1 => false,
                3 if is(args.get(1), "read") && is(args.get(2), "only") => true,
                2 if is(args.get(1), "readonly") => true,
                _ => return Err(SYNTAX.into()),
            };
            if open {
                return Err("ERR BEGIN inside a transaction".into());
            }
            if read_only {
                ctx.store.begin_read_only()?;
            } else {
                ctx.store.begin()?;
            }
        }
        Cmd::Commit if !open => return Err("ERR COMMIT without BEGIN".into()),
        Cmd::Commit => {
            if ctx.store.is_failed() {
                let failure = ctx.store.failure();
                ctx.store.rollback()?;
                if let Error::TimedOut = failure {
                    return Err(failure.into());
                }
                return Err("TXFAILED the transaction had failed and was rolled back".into());
            }
            let commit_ts = ctx.store.commit()?;
            ctx.commit_ts = ctx.commit_ts.max(commit_ts);
        }
        _ if !open => return Err("ERR ROLLBACK without BEGIN".into()),
        _ => {
            ctx.store.rollback()?;
        }
    }
    ctx.out.ok();
    Ok(Step::Done)
}
