//! State of one connection behind the parser. It decides whether a request is known, allowed or queued, in which
//! transaction the request runs, and whether a failed request is retried.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::acl::Account;
use super::clients::Client;
use super::exec::{self, Ctx, Fail, Run, check_key, error_reply};
use super::multi::{self, Multi, Watched};
use super::observed::Observed;
use super::operators::Operators;
use super::services::{AdminTaskTicket, Counters, ServerState, Services};
use super::shutdown::ShutdownNumber;
use super::spec::{self, Cmd, Resolved, flags};
use super::{
    admin, client, config, functions, info, introspect, keyspace, latency, monitor, procedure, scripting,
    session, slowlog, transaction, users,
};
use crate::resp::{Args, Protocol};
use bedplate_kerneldb::Durability;

/// The step that follows a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is answered.
    Done,
    /// It could not be answered yet: it is run again after this time.
    Again(Duration),
    /// It is answered, and was the last one.
    Close,
    /// The server is to stop.
    Shutdown,
}

/// The mode that CLIENT REPLY sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ReplyMode {
    #[default]
    On,
    Off,
    /// The next request is not answered.
    SkipNext,
    /// The request that is being run is not answered, unless it sets another mode.
    SkipCurrent,
}

/// The state that a command keeps between its start and its answer, until its request runs again after
/// [`Step::Again`]. The caller of the connection does not see it; the caller learns only when to call again (`Next`).
#[derive(Clone, Debug)]
pub(super) enum PendingCommand {
    /// It waits for an administrative task of the server.
    AdminTask(Arc<AdminTaskTicket>),
    /// It waits for the checkpoint of a shutdown.
    Shutdown(ShutdownNumber),
    /// FLUSHALL continues at this position.
    Flush(u64),
    /// It waits until the commits up to a timestamp are durable.
    Durable { ts: u64, since: Instant },
}

/// The retries of a request that met locks.
#[derive(Clone, Copy, Debug)]
struct Retry {
    since: Instant,
    attempts: u32,
}

pub(super) struct Core {
    pub server: Arc<ServerState>,
    pub client: Arc<Client>,
    pub protocol: Protocol,
    pub authenticated: bool,
    /// The user for whom the connection acts: `default` until it names another one.
    pub user: Arc<Account>,
    pub multi: Option<Multi>,
    pub watched: Vec<Watched>,
    /// EXEC is running: requests must not wait and not retry on their own.
    pub in_exec: bool,
    /// The commands that are executed are those of a script.
    pub in_script: bool,
    pub durability: Durability,
    pub durability_applied: bool,
    /// The client has chosen it, so that it stays when the default changes.
    pub has_chosen_durability: bool,
    pub reply_mode: ReplyMode,
    pub pending: Option<PendingCommand>,
    /// The commands that the request has executed.
    pub observed: Observed,
    retry: Option<Retry>,
}

impl Drop for Core {
    fn drop(&mut self) {
        monitor::end(self);
        self.server.clients.unregister(self.client.id);
    }
}

/// Attempts before other connections get their turn.
const INLINE_ATTEMPTS: u32 = 4;
const FIRST_BACKOFF: Duration = Duration::from_micros(200);
const LAST_BACKOFF: Duration = Duration::from_millis(10);
/// Longest sleep of a request that CLIENT PAUSE holds, in milliseconds, because UNPAUSE may come at any time.
const PAUSE_STEP_MS: u64 = 10;

/// Whether the write can continue once the log's writer does. A disk may stall for longer than any lock is held,
/// and then the client has to wait. A log that cannot be written is another error.
fn waits_for_log(error: &bedplate_kerneldb::Error) -> bool {
    matches!(error, bedplate_kerneldb::Error::WalFull | bedplate_kerneldb::Error::MemoryInLog)
}

impl Core {
    pub fn new(server: Arc<ServerState>, client: Arc<Client>) -> Core {
        let user = server.acl.default_user().clone();
        client.text().user = Some(user.clone());
        Core {
            protocol: Protocol::Resp2,
            authenticated: user.is_open(),
            user,
            multi: None,
            watched: Vec::new(),
            in_exec: false,
            in_script: false,
            durability: server.settings.database_options().durability,
            has_chosen_durability: false,
            durability_applied: false,
            reply_mode: ReplyMode::On,
            pending: None,
            observed: Observed::default(),
            retry: None,
            client,
            server,
        }
    }

    /// Answers a request; with [`Step::Again`] there is no answer yet.
    pub fn request<S: Operators, V: Services>(&mut self, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Step {
        let resolved = match self.admit(args) {
            Ok(resolved) => resolved,
            Err(message) => {
                if let Some(multi) = &mut self.multi {
                    multi.broken = true;
                }
                if let Some(resolved) = spec::resolve_name(args) {
                    self.server.counters.calls.reject(resolved);
                }
                self.error(ctx, &message);
                return Step::Done;
            }
        };
        self.note_command(resolved);
        if let Err(message) = self.check(ctx, resolved, args) {
            if let Some(multi) = &mut self.multi {
                multi.broken = true;
            }
            self.retry = None;
            self.error(ctx, &message);
            return Step::Done;
        }
        let at_once = matches!(
            resolved.cmd,
            Cmd::Exec | Cmd::Discard | Cmd::Multi | Cmd::Watch | Cmd::Quit | Cmd::Reset
        );
        if !at_once && let Some(multi) = &mut self.multi {
            let queued = multi.queue(resolved, args, self.server.settings.input_limit());
            match queued {
                Ok(()) => ctx.out.simple("QUEUED"),
                Err(message) => self.error(ctx, message.as_bytes()),
            }
            return Step::Done;
        }
        if self.waits_for_rebuild(ctx) {
            // The time of the pause does not count as time of attempts.
            self.retry = None;
            return Step::Again(Duration::from_millis(PAUSE_STEP_MS));
        }
        if let Some(pause) = self.paused(resolved, ctx.now_ms) {
            return Step::Again(pause);
        }
        let step = self.run_with_retry(ctx, resolved, args);
        if !matches!(step, Step::Again(_)) {
            self.pending = None;
            self.retry = None;
            self.observed.tell(&self.server);
        }
        // The reply about the own deletion is the last one.
        if step == Step::Done && self.user.is_removed() { Step::Close } else { step }
    }

    /// Checks the rights of the user, and then the arguments. The error is the reply.
    fn check<S: Operators, V: Services>(
        &self,
        ctx: &Ctx<'_, S, V>,
        resolved: Resolved,
        args: Args<'_>,
    ) -> Result<(), Vec<u8>> {
        // A command that has effects already goes on to its end.
        let has_begun =
            self.pending.is_some() || ctx.unfinished.owns_transaction() || ctx.unfinished.has_writes();
        if !has_begun {
            let checked = self.check_rights(ctx.now_ms, resolved, args, self.context());
            checked.map_err(|denied| denied.reply(resolved))?;
        }
        Self::check_arguments(resolved, args)
    }

    /// Whether the request may be run or queued by a user with all rights.
    pub fn admit(&self, args: Args<'_>) -> Result<Resolved, Vec<u8>> {
        let resolved = spec::resolve(args)?;
        if self.needs_authentication() && !resolved.spec.has(flags::NO_AUTH) {
            return Err(b"NOAUTH Authentication required.".to_vec());
        }
        if self.multi.is_some() && resolved.spec.has(flags::NO_MULTI | flags::NOT_QUEUED) {
            return Err(b"ERR Command not allowed inside a transaction".to_vec());
        }
        if self.is_monitor() && (resolved.spec.has(flags::RO) || resolved.spec.may_write()) {
            return Err(b"ERR Replica can't interact with the keyspace".to_vec());
        }
        Ok(resolved)
    }

    /// Checks the lengths of keys and of other arguments.
    pub fn check_arguments(resolved: Resolved, args: Args<'_>) -> Result<(), Vec<u8>> {
        let dropped = args.dropped();
        for i in resolved.spec.key_indexes(args.len()) {
            let checked = if dropped == Some(i) { Err(exec::KEY_TOO_LONG) } else { check_key(args.get(i)) };
            checked.map_err(|message| message.as_bytes().to_vec())?;
        }
        match dropped {
            None => Ok(()),
            Some(_) if resolved.spec.has(flags::W) => Err(exec::VALUE_TOO_LONG.into()),
            Some(_) => Err(b"ERR argument exceeds the limit of 131072 bytes".to_vec()),
        }
    }

    /// Whether the connection sees every command of all clients.
    pub fn is_monitor(&self) -> bool {
        self.client.state.monitor.load(Relaxed)
    }

    fn note_command(&self, resolved: Resolved) {
        let mut text = self.client.text();
        text.command = resolved.parent.name;
        let is_sub = !std::ptr::eq(resolved.parent, resolved.spec);
        text.subcommand = if is_sub { resolved.spec.name } else { "" };
    }

    /// Whether the request waits for a rebuild of the database. An open transaction and a command of several steps go on.
    fn waits_for_rebuild<S: Operators, V: Services>(&self, ctx: &Ctx<'_, S, V>) -> bool {
        self.server.clients.is_paused_for_rebuild() && !ctx.store.in_transaction() && self.pending.is_none()
    }

    /// Whether a command of this connection is in the middle of its work on the database.
    pub fn is_at_work(&self) -> bool {
        matches!(self.pending, Some(PendingCommand::Flush(_)))
    }

    fn paused(&self, resolved: Resolved, now_ms: u64) -> Option<Duration> {
        if matches!(resolved.cmd, Cmd::Client) {
            return None;
        }
        let writes = resolved.spec.may_write() || matches!(resolved.cmd, Cmd::Exec | Cmd::Commit);
        let ms = self.server.clients.paused_ms(now_ms, writes);
        (ms > 0).then(|| Duration::from_millis(ms.min(PAUSE_STEP_MS)))
    }

    fn run_with_retry<S: Operators, V: Services>(
        &mut self,
        ctx: &mut Ctx<'_, S, V>,
        resolved: Resolved,
        args: Args<'_>,
    ) -> Step {
        let mark = ctx.out.len();
        let clients_transaction = ctx.store.in_transaction() && !ctx.unfinished.owns_transaction();
        let started = Instant::now();
        let mut error = None;
        for attempt in 0..INLINE_ATTEMPTS {
            for _ in 0..attempt * 100 {
                std::hint::spin_loop();
            }
            // Another attempt begins anew, unless it continues in the transaction of the one before.
            if !ctx.unfinished.owns_transaction() {
                self.observed.clear();
            }
            match self.run(ctx, resolved, args) {
                Ok(step) => return step,
                Err(fail) => {
                    ctx.out.truncate(mark);
                    match fail {
                        Fail::Reply(message) => {
                            self.error(ctx, &message);
                            return Step::Done;
                        }
                        // Only the client may start its transaction again.
                        Fail::Store(e) if !e.is_transient() || clients_transaction && !ctx.stays_open(&e) => {
                            error = Some(e);
                            break;
                        }
                        // The log's writer needs longer than these attempts.
                        Fail::Store(e) if waits_for_log(&e) => {
                            error = Some(e);
                            break;
                        }
                        Fail::Store(e) => error = Some(e),
                    }
                }
            }
            Counters::add(&self.server.counters.retries);
        }
        let Some(error) = error else { return Step::Done };
        if error.is_transient()
            && (!clients_transaction || ctx.stays_open(&error))
            && let Some(pause) = self.backoff(waits_for_log(&error) || ctx.stays_open(&error))
        {
            return Step::Again(pause);
        }
        if matches!(error, bedplate_kerneldb::Error::Conflict) {
            Counters::add(&self.server.counters.conflicts);
        }
        self.observed.clear();
        self.observe(resolved, args, started);
        let mut message = error_reply(&error);
        if resolved.cmd == Cmd::Exec {
            multi::end(self);
            message = format!("EXECABORT Transaction rolled back: {error}").into_bytes();
        }
        self.error(ctx, &message);
        Step::Done
    }

    /// The pause before the next attempt; `None` when the time for attempts is over. Without a time limit
    /// there is always a next attempt.
    fn backoff(&mut self, no_time_limit: bool) -> Option<Duration> {
        let retry = self.retry.get_or_insert_with(|| Retry { since: Instant::now(), attempts: 0 });
        let left = if no_time_limit {
            LAST_BACKOFF
        } else {
            Duration::from_millis(self.server.settings.lock_timeout_ms())
                .checked_sub(retry.since.elapsed())?
        };
        let pause = (FIRST_BACKOFF * (1 << retry.attempts.min(10))).min(LAST_BACKOFF);
        retry.attempts += 1;
        // A random factor keeps connections that met on a lock from meeting again.
        let factor = rand::random_range(0.75..1.25);
        Some((pause.mul_f64(factor)).min(left.max(FIRST_BACKOFF)))
    }

    pub fn error<S: Operators, V: Services>(&self, ctx: &mut Ctx<'_, S, V>, message: &[u8]) {
        self.count_error(message);
        ctx.out.error(message);
    }

    /// Counts an error reply.
    pub fn count_error(&self, message: &[u8]) {
        Counters::add(&self.server.counters.errors);
        self.server.counters.errors_by_code.note(message);
    }

    /// Runs a command of any kind once, in the open transaction if there is one, and counts it if it is answered.
    pub fn run<S: Operators, V: Services>(
        &mut self,
        ctx: &mut Ctx<'_, S, V>,
        resolved: Resolved,
        args: Args<'_>,
    ) -> Run<Step> {
        let started = Instant::now();
        ctx.unfinished.start();
        let result = self.execute(ctx, resolved, args);
        if !matches!(&result, Err(Fail::Store(error)) if ctx.stays_open(error)) {
            ctx.unfinished.finish_command();
        }
        let failed = match &result {
            Ok(Step::Again(_)) | Err(Fail::Store(_)) => return result,
            Ok(_) => false,
            Err(Fail::Reply(_)) => true,
        };
        let took = started.elapsed();
        self.server.counters.calls.note(resolved, took, failed);
        if self.server.settings.latency_threshold().is_some_and(|threshold| took >= threshold) {
            self.server.latency.add(resolved, ctx.services.now().as_secs(), took);
        }
        self.observe(resolved, args, started);
        result
    }

    /// Notes a command that was executed, for others to see. The time of a request begins with its first attempt.
    fn observe(&mut self, resolved: Resolved, args: Args<'_>, started: Instant) {
        let started = self.retry.filter(|_| !self.in_exec).map_or(started, |retry| retry.since.min(started));
        let took = started.elapsed();
        self.observed.add(&self.server, &self.client, resolved, args, took, self.in_script);
    }

    fn execute<S: Operators, V: Services>(
        &mut self,
        ctx: &mut Ctx<'_, S, V>,
        resolved: Resolved,
        args: Args<'_>,
    ) -> Run<Step> {
        use Cmd::*;
        let Resolved { cmd, spec, .. } = resolved;
        match cmd {
            Multi | Exec | Discard | Watch | Unwatch => return multi::run(self, ctx, cmd, args),
            Begin | Commit | Rollback => return transaction::run(self, ctx, cmd, args),
            Hello | Auth | Select | Ping | Echo | Quit | Reset | Time => {
                return session::run(self, ctx, cmd, args);
            }
            Save | Bgsave | Lastsave | Shutdown | Wait | Waitaof | Bedplate => {
                return admin::run(self, ctx, resolved, args);
            }
            Proc => return procedure::manage(self, ctx, spec, args),
            Call => procedure::call(self, ctx, args)?,
            Eval | EvalRo | Evalsha | EvalshaRo => scripting::evaluate(self, ctx, cmd, args)?,
            Script => scripting::manage(self, ctx, spec, args)?,
            Fcall | FcallRo => scripting::call_function(self, ctx, cmd, args)?,
            Function => return functions::manage(self, ctx, spec, args),
            Dbsize | Keys | Scan | Randomkey | Flushall | Flushdb => return self.keyspace(ctx, cmd, args),
            Acl => return users::run(self, ctx, resolved, args),
            Client => client::run(self, ctx, spec, args)?,
            Config => return config::run(self, ctx, spec, args),
            Command => introspect::run(ctx, spec, args)?,
            Info => info::run(self, ctx, args)?,
            Latency => latency::run(self, ctx, spec, args)?,
            Monitor => monitor::run(self, ctx)?,
            Slowlog => slowlog::run(self, ctx, spec, args)?,
            _ => self.data(ctx, resolved, args)?,
        }
        Ok(Step::Done)
    }

    /// Runs a command on the whole key space, which may reveal every commit up to its end.
    fn keyspace<S: Operators, V: Services>(
        &mut self,
        ctx: &mut Ctx<'_, S, V>,
        cmd: Cmd,
        args: Args<'_>,
    ) -> Run<Step> {
        let mut step = Ok(Step::Done);
        match cmd {
            Cmd::Dbsize => ctx.out.integer(ctx.services.len() as i64),
            Cmd::Keys => keyspace::keys(ctx, args)?,
            Cmd::Scan => keyspace::scan(ctx, args)?,
            Cmd::Randomkey => keyspace::random_key(ctx)?,
            _ => step = self.flush(ctx, args),
        }
        ctx.commit_ts = ctx.commit_ts.max(ctx.services.clock());
        step
    }

    /// Whether a command begins a transaction of its own, or goes on in one.
    pub fn is_own_transaction<S: Operators, V: Services>(&self, ctx: &Ctx<'_, S, V>) -> bool {
        !ctx.store.in_transaction() || ctx.unfinished.owns_transaction() && !self.in_exec
    }

    fn data<S: Operators, V: Services>(
        &self,
        ctx: &mut Ctx<'_, S, V>,
        resolved: Resolved,
        args: Args<'_>,
    ) -> Run {
        if self.is_own_transaction(ctx) {
            return exec::auto_commit(resolved.cmd, ctx, args);
        }
        if ctx.store.is_failed() {
            return Err(Fail::Store(ctx.store.failure()));
        }
        exec::data(resolved.cmd, ctx, args)
    }

    fn flush<S: Operators, V: Services>(&mut self, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run<Step> {
        keyspace::check_flush(args)?;
        if ctx.store.in_transaction() {
            keyspace::flush_in_transaction(ctx)?;
        } else {
            let from = if let Some(PendingCommand::Flush(from)) = self.pending { from } else { 0 };
            if let Some(next) = keyspace::flush_step(ctx, from)? {
                self.pending = Some(PendingCommand::Flush(next));
                return Ok(Step::Again(Duration::ZERO));
            }
        }
        ctx.out.ok();
        Ok(Step::Done)
    }
}
