//! Runs a script or function in a transaction: its own, or the open one.
//!
//! If it meets a lock, it is rolled back and runs again from its beginning, as other commands do. Writes before an error of the script itself
//! stay, as in Redis.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use super::acl::Context;
use super::exec::{Ctx, Fail, Run, error_reply};
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::Services;
use super::spec::{self, flags};
use crate::limits::SCRIPT_LOG_WAIT;
use crate::resp::{Args, Protocol};
use crate::script::{Call, CallResult, Inputs, Interpreter, Outcome, Program};
use bedplate_kerneldb::{Error, Result};

/// Interval at which a script looks whether the log has room.
const LOOK: Duration = Duration::from_millis(1);

/// Whether a script that has run in a transaction of its own is complete, and only the commit is missing.
pub(super) fn waits_for_commit<S: Operators, V: Services>(core: &Core, ctx: &Ctx<'_, S, V>) -> bool {
    ctx.unfinished.owns_transaction() && !core.in_exec
}

/// Commits the transaction of a script that is complete.
pub(super) fn commit<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>) -> Run {
    ctx.transaction(false, |_| Err(Fail::Store(Error::State))).map_err(reported)
}

/// Splits the arguments of a request, from the number of keys on, into keys and others.
pub(super) fn inputs<'a>(keys: i64, rest: &'a [&'a [u8]]) -> Run<Inputs<'a>> {
    if keys > rest.len() as i64 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let keys = usize::try_from(keys).map_err(|_| Fail::from("ERR Number of keys can't be negative"))?;
    let (keys, arguments) = rest.split_at(keys);
    Ok(Inputs { keys, arguments })
}

/// Runs a program. `with` calls its argument with the interpreter.
pub(super) fn run<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    program: Program<'_>,
    inputs: &Inputs<'_>,
    read_only: bool,
    with: impl FnOnce(&mut dyn FnMut(&mut Interpreter) -> Run) -> std::result::Result<Run, String>,
) -> Run {
    let is_own = core.is_own_transaction(ctx);
    if !is_own && ctx.store.is_failed() {
        return Err(Fail::Store(ctx.store.failure()));
    }
    let ran = with(&mut |interpreter| {
        let waited = Cell::new(Duration::ZERO);
        let run = Execution { program, inputs, read_only, is_own, waited };
        match is_own {
            true => ctx.transaction(read_only, |ctx| run.execute(core, ctx, interpreter)),
            false => run.execute(core, ctx, interpreter),
        }
    });
    ran.map_err(Fail::from)?.map_err(|fail| match fail {
        // A queue is rolled back after an error with effects, and goes on after others.
        Fail::Store(error)
            if core.in_exec && (ctx.store.is_failed() || matches!(error, Error::Refused(_))) =>
        {
            Fail::Store(error)
        }
        fail => reported(fail),
    })
}

/// A transient error is tried again; others are the client's.
fn reported(fail: Fail) -> Fail {
    match fail {
        Fail::Store(error) if !error.is_transient() => Fail::Reply(error_reply(&error)),
        fail => fail,
    }
}

/// Whether the user of a script may run a command, whose number of arguments may be wrong.
fn check(core: &Core, args: Args<'_>) -> CallResult {
    match spec::resolve_name(args) {
        Some(resolved) => CallResult::Allowed(core.user.check(resolved, args).is_ok()),
        None => CallResult::Error(b"ERR Invalid command passed to redis.acl_check_cmd()".to_vec()),
    }
}

/// A script that is to run in the open transaction.
struct Execution<'a> {
    program: Program<'a>,
    inputs: &'a Inputs<'a>,
    read_only: bool,
    /// The transaction is the script's own.
    is_own: bool,
    /// The time for which it has waited in the middle of the transaction.
    waited: Cell<Duration>,
}

impl Execution<'_> {
    fn execute<S: Operators, V: Services>(
        &self,
        core: &mut Core,
        ctx: &mut Ctx<'_, S, V>,
        interpreter: &mut Interpreter,
    ) -> Run {
        let was_in_exec = std::mem::replace(&mut core.in_exec, true);
        let was_in_script = std::mem::replace(&mut core.in_script, true);
        let protocol = ctx.out.protocol();
        let time = Duration::from_millis(core.server.settings.script_time_ms());
        let mut failure = None;
        let mut run = |call: Call<'_>| match call {
            Call::Run(request) => self.call(core, ctx, request.args()).unwrap_or_else(|error| {
                failure = Some(error);
                CallResult::Abort
            }),
            Call::Check(request) => check(core, request.args()),
        };
        let outcome = interpreter.run(self.program, self.inputs, time, protocol, &mut run);
        core.in_exec = was_in_exec;
        core.in_script = was_in_script;
        match outcome {
            Outcome::Reply(reply) => {
                // The script has returned an error.
                if let Some(message) = reply.strip_prefix(b"-") {
                    core.count_error(message);
                }
                ctx.out.replies(&reply);
                Ok(())
            }
            Outcome::Error(message) => {
                core.error(ctx, &message);
                Ok(())
            }
            Outcome::LimitExceeded(message) if self.is_own => Err(Fail::Reply(message)),
            Outcome::LimitExceeded(message) => {
                self.roll_back(core, ctx, Error::Refused(String::from_utf8_lossy(&message).into()))
            }
            Outcome::Aborted => {
                let error = failure.unwrap_or(Error::State);
                match ctx.stays_open(&error) {
                    // The next attempt runs the script from its beginning, so the transaction must not stay open.
                    true => self.roll_back(core, ctx, error),
                    false => Err(Fail::Store(error)),
                }
            }
        }
    }

    /// Rolls back what the script has done, with everything else in its transaction. A queue of EXEC starts again after a transient error.
    fn roll_back<S: Operators, V: Services>(
        &self,
        core: &Core,
        ctx: &mut Ctx<'_, S, V>,
        error: Error,
    ) -> Run {
        ctx.unfinished.finish_command();
        match (self.is_own, core.in_exec) {
            (true, _) => {
                ctx.store.rollback()?;
                Err(Fail::Store(error))
            }
            (false, true) if error.is_transient() => Err(Fail::Store(Error::Conflict)),
            (false, true) => Err(Fail::Store(error)),
            (false, false) => {
                ctx.store.rollback()?;
                let reason = String::from_utf8_lossy(&error_reply(&error)).into_owned();
                Err(format!("TXFAILED the transaction was rolled back: {reason}").into())
            }
        }
    }

    /// Runs a command that the script has called. After an error of the store, the script cannot go on.
    fn call<S: Operators, V: Services>(
        &self,
        core: &mut Core,
        ctx: &mut Ctx<'_, S, V>,
        args: Args<'_>,
    ) -> Result<CallResult> {
        let failed = |message: &[u8]| Ok(CallResult::Error(message.to_vec()));
        let Ok(resolved) = spec::resolve(args) else {
            return match spec::find(args.get(0)) {
                None => failed(b"ERR Unknown Redis command called from script"),
                Some(_) => failed(b"ERR Wrong number of args calling Redis command from script"),
            };
        };
        if resolved.spec.has(flags::NOSCRIPT) {
            return failed(b"ERR This Redis command is not allowed from script");
        }
        if let Err(denied) = core.check_rights(ctx.now_ms, resolved, args, Context::Script) {
            return failed(denied.error_in_script());
        }
        if self.read_only && resolved.spec.has(flags::W) {
            return failed(b"ERR Write commands are not allowed from read-only scripts.");
        }
        if let Err(message) = Core::check_arguments(resolved, args) {
            return failed(&message);
        }
        let (mark, protocol, mut since) = (ctx.out.len(), ctx.out.protocol(), Instant::now());
        let done = loop {
            ctx.out.set_protocol(Protocol::Resp2);
            let done = core.run(ctx, resolved, args);
            let reply = ctx.out.since(mark).to_vec();
            ctx.out.truncate(mark);
            match done {
                Ok(Step::Done) => break Ok(CallResult::Reply(reply)),
                Ok(_) => break failed(b"ERR This Redis command is not allowed from script"),
                Err(Fail::Reply(message)) => break failed(&message),
                // For instance, the records of all that the script has written may never fit into the ring. They do once the log's writer
                // has taken a part.
                Err(Fail::Store(error)) if ctx.stays_open(&error) && self.waited.get() < SCRIPT_LOG_WAIT => {
                    thread::sleep(LOOK);
                    self.waited.set(self.waited.get() + since.elapsed());
                    since = Instant::now();
                }
                Err(Fail::Store(error)) => break Err(error),
            }
        };
        ctx.out.set_protocol(protocol);
        done
    }
}
