//! EVAL and its relatives, and SCRIPT.
//!
//! A script is one serializable transaction, or a part of the open one. If it meets a lock, it is rolled back and runs again from its
//! beginning, as other commands do. Writes before an error of the script itself stay, as in Redis.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use super::exec::{Ctx, Fail, Run, error_reply, integer, is};
use super::introspect::help;
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::Services;
use super::spec::{self, Cmd, Spec, flags};
use crate::limits::SCRIPT_LOG_WAIT;
use crate::resp::{Args, OwnedArgs, Protocol};
use crate::script::{CallResult, Inputs, Interpreter, Outcome, Script};
use bedplate_kerneldb::{Error, Result};

/// Interval at which a script looks whether the log has room.
const LOOK: Duration = Duration::from_millis(1);

/// Runs EVAL, EVAL_RO, EVALSHA or EVALSHA_RO.
pub(super) fn evaluate<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    cmd: Cmd,
    args: Args<'_>,
) -> Run {
    if ctx.unfinished.owns_transaction() && !core.in_exec {
        // The script has ended, and only the commit is missing.
        return ctx.transaction(false, |_| Err(Fail::Store(Error::State))).map_err(reported);
    }
    let keys = integer(args.get(2))?;
    if keys > (args.len() - 3) as i64 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let keys = usize::try_from(keys).map_err(|_| Fail::from("ERR Number of keys can't be negative"))?;
    let server = core.server.clone();
    let script = match cmd {
        Cmd::Eval | Cmd::EvalRo => server.scripts.put(args.get(1)).map_err(Fail::from)?,
        _ => {
            let found = server.scripts.get(args.get(1));
            found.ok_or_else(|| Fail::from("NOSCRIPT No matching script. Please use EVAL."))?
        }
    };
    let (all, from) = (args.from(3).collect::<Vec<_>>(), keys);
    let inputs = Inputs { keys: &all[..from], arguments: &all[from..] };
    let read_only = matches!(cmd, Cmd::EvalRo | Cmd::EvalshaRo) || script.is_read_only();
    let is_own = core.is_own_transaction(ctx);
    if !is_own && ctx.store.is_failed() {
        return Err(Fail::Store(ctx.store.failure()));
    }
    let ran = server.scripts.with_interpreter(|interpreter| {
        let waited = Cell::new(Duration::ZERO);
        let run = Execution { script: &script, inputs: &inputs, read_only, is_own, waited };
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

/// A script that is to run in the open transaction.
struct Execution<'a> {
    script: &'a Script,
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
        let protocol = ctx.out.protocol();
        let time = Duration::from_millis(core.server.settings.script_time_ms());
        let mut failure = None;
        let mut run = |request: &OwnedArgs| {
            self.call(core, ctx, request.args()).unwrap_or_else(|error| {
                failure = Some(error);
                CallResult::Abort
            })
        };
        let outcome = interpreter.run(self.script, self.inputs, time, protocol, &mut run);
        core.in_exec = was_in_exec;
        match outcome {
            Outcome::Reply(reply) => {
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
        if self.read_only && resolved.spec.has(flags::W) {
            return failed(b"ERR Write commands are not allowed from read-only scripts.");
        }
        if let Err(message) = core.admit(args) {
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
