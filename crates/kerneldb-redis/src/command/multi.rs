//! MULTI, EXEC, DISCARD, WATCH.
//!
//! EXEC runs the queue in one transaction: a read-write one, in which every read is locked, or a snapshot
//! if nothing is written. Either way the result is serializable. WATCH remembers the versions of keys;
//! EXEC compares them inside of its transaction. A transient error of the store starts the whole EXEC
//! again; any other one, or too many of them, aborts it with nothing written.

use super::exec::{Ctx, Fail, Run, error_reply};
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::Services;
use super::spec::{Cmd, Resolved, flags};
use crate::resp::{Args, OwnedArgs};
use bedplate_kerneldb::TX_KEYS_MAX;

/// A queue between MULTI and EXEC.
#[derive(Debug, Default)]
pub(super) struct Multi {
    queue: Vec<(Resolved, OwnedArgs)>,
    memory: usize,
    /// A request could not be queued: EXEC refuses.
    pub broken: bool,
}

/// A watched key and the commit timestamp of its version; `None` = it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    key: Vec<u8>,
    version: Option<u64>,
}

impl Multi {
    /// An empty queue; `broken`: something could not be queued already.
    pub fn new(broken: bool) -> Self {
        Multi { broken, ..Default::default() }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Appends a request; the error is the reply.
    pub fn queue(&mut self, resolved: Resolved, args: Args<'_>, limit: usize) -> Result<(), &'static str> {
        if self.memory + args.bytes() > limit {
            self.broken = true;
            return Err("ERR the queued commands exceed the limit 'client-query-buffer-limit'");
        }
        let args = args.to_owned();
        self.memory += args.memory();
        self.queue.push((resolved, args));
        Ok(())
    }

    /// Whether nothing in the queue writes.
    fn read_only(&self) -> bool {
        self.queue.iter().all(|(resolved, _)| !resolved.spec.has(flags::W))
    }
}

/// Ends MULTI and WATCH.
pub(super) fn end(core: &mut Core) {
    core.multi = None;
    core.watched.clear();
}

pub(super) fn run<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    cmd: Cmd,
    args: Args<'_>,
) -> Run<Step> {
    let open = ctx.store.in_transaction();
    match cmd {
        Cmd::Multi if core.multi.is_some() => return Err("ERR MULTI calls can not be nested".into()),
        Cmd::Multi if open => return Err("ERR MULTI inside BEGIN is not allowed".into()),
        Cmd::Multi => {
            core.multi = Some(Multi::default());
            ctx.out.ok();
        }
        Cmd::Discard if core.multi.is_none() => return Err("ERR DISCARD without MULTI".into()),
        Cmd::Discard => {
            end(core);
            ctx.out.ok();
        }
        Cmd::Watch if core.multi.is_some() => return Err("ERR WATCH inside MULTI is not allowed".into()),
        Cmd::Watch if open => return Err("ERR WATCH inside BEGIN is not allowed".into()),
        Cmd::Watch => {
            watch(core, ctx, args)?;
            ctx.out.ok();
        }
        Cmd::Unwatch => {
            core.watched.clear();
            ctx.out.ok();
        }
        _ => return exec(core, ctx),
    }
    Ok(Step::Done)
}

fn watch<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let mut watched = core.watched.clone();
    for key in args.from(1) {
        if watched.iter().any(|w| w.key == key) {
            continue;
        }
        if watched.len() == TX_KEYS_MAX {
            return Err(format!("ERR at most {TX_KEYS_MAX} keys can be watched").into());
        }
        let version = ctx.get(key)?.map(|value| value.commit_ts);
        watched.push(Watched { key: key.to_vec(), version });
    }
    core.watched = watched;
    Ok(())
}

fn exec<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>) -> Run<Step> {
    let Some(multi) = core.multi.take() else { return Err("ERR EXEC without MULTI".into()) };
    if multi.broken {
        end(core);
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    let mark = ctx.out.len();
    let protocol = core.protocol;
    core.in_exec = true;
    let watched = std::mem::take(&mut core.watched);
    let done = ctx.transaction(multi.read_only(), |ctx| {
        for watched in &watched {
            if ctx.store.get(&watched.key)?.map(|value| value.commit_ts) != watched.version {
                ctx.out.null_array();
                return Ok(());
            }
        }
        run_queue(core, ctx, &multi)
    });
    core.in_exec = false;
    match done {
        Err(Fail::Store(error)) if error.is_transient() => {
            ctx.out.truncate(mark);
            core.protocol = protocol;
            ctx.out.set_protocol(protocol);
            // Everything as before, for the next attempt.
            core.multi = Some(multi);
            core.watched = watched;
            Err(Fail::Store(error))
        }
        Err(Fail::Store(error)) => {
            let reason = error_reply(&error);
            Err(Fail::Reply([b"EXECABORT Transaction rolled back: ", &reason[..]].concat()))
        }
        Err(reply) => Err(reply),
        Ok(()) => Ok(Step::Done),
    }
}

fn run_queue<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>, multi: &Multi) -> Run {
    ctx.out.array(multi.queue.len());
    for (resolved, args) in &multi.queue {
        let mark = ctx.out.len();
        match core.run(ctx, *resolved, args.args()) {
            Ok(_) => {}
            Err(Fail::Reply(message)) => {
                ctx.out.truncate(mark);
                core.error(ctx, &message);
            }
            Err(Fail::Store(error)) => return Err(Fail::Store(error)),
        }
    }
    Ok(())
}
