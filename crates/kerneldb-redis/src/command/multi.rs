//! MULTI, EXEC, DISCARD, WATCH.
//!
//! EXEC runs the queue in one transaction: a read-write one, in which every read is locked, or a snapshot
//! if nothing is written. Either way the result is serializable. WATCH remembers the versions of keys;
//! EXEC compares them inside its transaction. After a transient error of the store, the whole EXEC starts
//! again. Any other error, or too many retries, aborts it with nothing written. A full log ring only pauses a long
//! EXEC, because its writes may be more than the ring holds.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::acl::{Account, Context};
use super::exec::{Ctx, Fail, Run, error_reply};
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::Services;
use super::spec::{Cmd, Resolved};
use crate::resp::{Args, OwnedArgs, Protocol};
use bedplate_kerneldb::TX_KEYS_MAX;

/// A queue between MULTI and EXEC.
#[derive(Debug, Default)]
pub(super) struct Multi {
    queue: Vec<(Resolved, OwnedArgs)>,
    memory: usize,
    /// A request could not be queued, so EXEC refuses.
    pub broken: bool,
    /// Progress of EXEC, if it waits for the log in the middle of its transaction.
    progress: Option<ExecProgress>,
}

/// The part of EXEC that is done in the open transaction.
#[derive(Debug)]
struct ExecProgress {
    /// Number of requests that are done, and their replies.
    requests: usize,
    replies: Vec<u8>,
    before: Before,
}

/// The state of the connection before EXEC, which its requests may change.
#[derive(Clone, Debug)]
struct Before {
    protocol: Protocol,
    user: Arc<Account>,
    authenticated: bool,
}

impl Before {
    fn of(core: &Core) -> Before {
        Before { protocol: core.protocol, user: Arc::clone(&core.user), authenticated: core.authenticated }
    }

    /// Restores it for another attempt.
    fn restore(self, core: &mut Core) {
        core.protocol = self.protocol;
        core.become_user(self.user, self.authenticated);
    }
}

/// A watched key and the commit timestamp of its version; `None` = it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    key: Vec<u8>,
    version: Option<u64>,
    /// It had not changed when a rebuild of the database began.
    unchanged: bool,
}

/// A watched key of a connection that another process continues.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CarriedWatch {
    key: ByteBuf,
    unchanged: bool,
}

impl CarriedWatch {
    /// The connection has left its database.
    pub fn of(watched: &Watched) -> CarriedWatch {
        CarriedWatch { key: watched.key.clone().into(), unchanged: watched.unchanged }
    }

    /// The connection has not entered its database yet.
    pub fn into_watched(self) -> Watched {
        Watched { key: self.key.into_vec(), version: None, unchanged: self.unchanged }
    }
}

/// A timestamp that no commit has.
const NO_VERSION: u64 = u64::MAX;

/// Before a rebuild of the database: notes which watched keys have not changed. The new database has them with other
/// timestamps.
pub(super) fn leave_database<S: Operators>(watched: &mut [Watched], store: &mut S) {
    for watched in watched {
        let version = store.get(&watched.key).map(|value| value.map(|value| value.commit_ts));
        watched.unchanged = version.is_ok_and(|version| version == watched.version);
    }
}

/// After the rebuild: watches the versions in the new database. A key that had changed already stays a changed one.
pub(super) fn enter_database<S: Operators>(watched: &mut [Watched], store: &mut S) {
    for watched in watched {
        watched.version = match store.get(&watched.key) {
            Ok(value) if watched.unchanged => value.map(|value| value.commit_ts),
            _ => Some(NO_VERSION),
        };
    }
}

impl Multi {
    /// An empty queue. If `broken`, a request could not be queued already.
    pub fn new(broken: bool) -> Self {
        Multi { broken, ..Default::default() }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The queued requests, in order.
    pub fn requests(&self) -> impl Iterator<Item = Args<'_>> {
        self.queue.iter().map(|(_, args)| args.args())
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
        self.queue.iter().all(|(resolved, _)| !resolved.spec.may_write())
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
        let version = ctx.peek(key)?.map(|value| value.commit_ts);
        watched.push(Watched { key: key.to_vec(), version, unchanged: false });
    }
    core.watched = watched;
    Ok(())
}

fn exec<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>) -> Run<Step> {
    let Some(mut multi) = core.multi.take() else { return Err("ERR EXEC without MULTI".into()) };
    if multi.broken {
        end(core);
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    let mark = ctx.out.len();
    let before = multi.progress.as_ref().map_or_else(|| Before::of(core), |progress| progress.before.clone());
    core.in_exec = true;
    let watched = std::mem::take(&mut core.watched);
    let read_only = multi.read_only();
    let done = ctx.transaction(read_only, |ctx| {
        if multi.progress.is_some() {
            return run_queue(core, ctx, &mut multi, &before);
        }
        for watched in &watched {
            if ctx.store.get(&watched.key)?.map(|value| value.commit_ts) != watched.version {
                ctx.out.null_array();
                return Ok(());
            }
        }
        run_queue(core, ctx, &mut multi, &before)
    });
    core.in_exec = false;
    match done {
        Err(Fail::Store(error)) if ctx.unfinished.owns_transaction() => {
            ctx.out.truncate(mark);
            core.multi = Some(multi);
            core.watched = watched;
            Err(Fail::Store(error))
        }
        Err(Fail::Store(error)) if error.is_transient() => {
            ctx.out.truncate(mark);
            ctx.out.set_protocol(before.protocol);
            before.restore(core);
            // Restores the state for the next attempt.
            multi.progress = None;
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

/// Runs the queue, or the rest of it.
fn run_queue<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    multi: &mut Multi,
    before: &Before,
) -> Run {
    let start = ctx.out.len();
    let first = match multi.progress.take() {
        Some(progress) => {
            ctx.out.replies(&progress.replies);
            progress.requests
        }
        None => {
            ctx.out.array(multi.queue.len());
            0
        }
    };
    for (number, (resolved, args)) in multi.queue.iter().enumerate().skip(first) {
        let mark = ctx.out.len();
        // An earlier attempt that has written a part was allowed to.
        if !ctx.unfinished.has_writes()
            && let Err(denied) = core.check_rights(ctx.now_ms, *resolved, args.args(), Context::Multi)
        {
            core.error(ctx, &denied.reply_in_exec());
            continue;
        }
        match core.run(ctx, *resolved, args.args()) {
            Ok(_) => {}
            Err(Fail::Reply(message)) => {
                ctx.out.truncate(mark);
                core.error(ctx, &message);
            }
            Err(Fail::Store(error)) => {
                ctx.out.truncate(mark);
                let replies = ctx.out.since(start).to_vec();
                multi.progress = Some(ExecProgress { requests: number, replies, before: before.clone() });
                return Err(Fail::Store(error));
            }
        }
    }
    let before = before.clone();
    multi.progress = Some(ExecProgress { requests: multi.queue.len(), replies: Vec::new(), before });
    Ok(())
}
