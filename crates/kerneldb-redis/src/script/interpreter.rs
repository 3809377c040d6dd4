//! The interpreter: compiles scripts, and runs one at a time with limits on its time and memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mlua::{
    ChunkMode, Error, Function, HookTriggers, Lua, LuaOptions, MultiValue, Result, StdLib,
    String as LuaString, Table, Value, Variadic, VmState,
};

use super::cache::{Script, sha1_hex};
use super::random::Random;
use super::{bits, json, values};
use crate::command::REDIS_VERSION;
use crate::limits::{
    SCRIPT_MEMORY_BYTES_MAX, SCRIPT_PATTERN_BYTES_MAX, SCRIPT_REQUEST_BYTES_MAX, SCRIPTS_COMPILED_MAX,
};
use crate::resp::{OwnedArgs, Writer};

/// Instructions of a script between two looks at the clock.
const INSTRUCTIONS: u32 = 10_000;

/// Memory of the interpreter after which its garbage is collected when a script has ended.
const GARBAGE_BYTES: usize = 24 << 20;

/// Memory of the interpreter after which it forgets what it has compiled.
const KEPT_BYTES: usize = 16 << 20;

/// Bytes of each text that a script logs.
const LOG_BYTES: usize = 1000;

/// Garbage is collected when memory has grown by half, twice as fast as memory is taken.
const GC_PAUSE: i32 = 150;
const GC_STEP_MULTIPLIER: i32 = 200;

/// Values of the interpreter that Rust can hold at a time, of the 8,000 that its stack can have.
const VALUES: usize = 7_900;

/// The answer to a command that a script has called.
pub(crate) enum Called {
    /// A reply in RESP2. True: the command has failed.
    Reply(bool, Vec<u8>),
    /// The script must end, and its effects are undone.
    Stop,
}

/// The end of a script.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its value is the reply.
    Replied,
    /// The reply is this error. The script's effects stay, as in Redis.
    Failed(Vec<u8>),
    /// A command has stopped it.
    Stopped,
    /// It has exceeded a limit. This is the reply, and its effects are undone.
    Exceeded(Vec<u8>),
}

/// KEYS and ARGV.
pub(crate) struct Inputs<'a> {
    pub keys: &'a [&'a [u8]],
    pub arguments: &'a [&'a [u8]],
}

/// The reasons for which the script that runs has to end.
pub(super) struct Stop {
    created: Instant,
    /// Milliseconds from `created` until the end of its time.
    deadline_ms: AtomicU64,
    /// A command has stopped it.
    stopped: AtomicBool,
    /// Its time is over.
    late: AtomicBool,
}

impl Stop {
    fn is_set(&self) -> bool {
        self.stopped.load(Relaxed) || self.late.load(Relaxed)
    }

    /// Looks at the clock; the error ends the script.
    pub fn check(&self) -> Result<()> {
        if self.created.elapsed().as_millis() as u64 >= self.deadline_ms.load(Relaxed) {
            self.late.store(true, Relaxed);
        }
        match self.is_set() {
            true => Err(Error::runtime("the script has to end")),
            false => Ok(()),
        }
    }
}

pub(crate) struct Interpreter {
    lua: Lua,
    /// The function of the prelude that runs a script.
    run: Function,
    /// Lets go of the tables of a script that has ended.
    forget: Function,
    compiled: HashMap<String, Function>,
    stop: Arc<Stop>,
    /// A script has brought it into a state in which it cannot be used any more.
    is_broken: bool,
}

impl Interpreter {
    pub fn new() -> Result<Interpreter> {
        let libraries = StdLib::TABLE | StdLib::OS | StdLib::STRING | StdLib::MATH;
        // SAFETY: the library `debug` is for the prelude alone, which gives scripts none of its functions.
        let lua = unsafe { Lua::unsafe_new_with(libraries | StdLib::DEBUG, LuaOptions::default()) };
        let stop = Arc::new(Stop {
            created: Instant::now(),
            deadline_ms: AtomicU64::new(u64::MAX),
            stopped: AtomicBool::new(false),
            late: AtomicBool::new(false),
        });
        let native = natives(&lua, &stop)?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name("=prelude").set_mode(ChunkMode::Text);
        let (run, forget) = prelude.call::<(Function, Function)>(native)?;
        // The interpreter's stack for values that Rust holds grows by memory, and ends the process if there is none. So it grows now.
        drop((0..VALUES).map(|_| lua.create_table()).collect::<Result<Vec<_>>>()?);
        // Without an emergency collection, garbage must not reach the limit.
        lua.gc_inc(GC_PAUSE, GC_STEP_MULTIPLIER, 0);
        lua.set_memory_limit(SCRIPT_MEMORY_BYTES_MAX)?;
        let watched = stop.clone();
        let hook = move |_: &Lua, _: &mlua::Debug| watched.check().map(|()| VmState::Continue);
        lua.set_global_hook(HookTriggers::new().every_nth_instruction(INSTRUCTIONS), hook)?;
        Ok(Interpreter { lua, run, forget, compiled: HashMap::new(), stop, is_broken: false })
    }

    /// Compiles a script, unless it is compiled. The error is the client's reply.
    pub fn compile(&mut self, script: &Script) -> std::result::Result<Function, String> {
        if let Some(function) = self.compiled.get(script.sha()) {
            return Ok(function.clone());
        }
        let mut compiled = self.load(script);
        if matches!(compiled, Err(Error::MemoryError(_))) {
            self.make_room();
            compiled = self.load(script);
        }
        let function = compiled.map_err(|error| {
            let text = message(&error);
            format!("ERR Error compiling script (new function): {text}")
        })?;
        if self.compiled.len() >= SCRIPTS_COMPILED_MAX {
            self.compiled.clear();
        }
        self.compiled.insert(script.sha().to_owned(), function.clone());
        Ok(function)
    }

    fn load(&self, script: &Script) -> Result<Function> {
        let chunk = self.lua.load(script.code()).set_name("@user_script").set_mode(ChunkMode::Text);
        chunk.into_function()
    }

    /// Collects garbage, and the compiled scripts if they take much.
    fn make_room(&mut self) {
        // The call of the collector takes some memory itself. Scripts have no finalizers, which could fail.
        let mut collected = self.lua.set_memory_limit(0).and_then(|_| self.lua.gc_collect());
        if self.lua.used_memory() > KEPT_BYTES {
            self.compiled.clear();
            collected = collected.and_then(|()| self.lua.gc_collect());
        }
        let limited = self.lua.set_memory_limit(SCRIPT_MEMORY_BYTES_MAX);
        self.is_broken |= collected.is_err() || limited.is_err();
    }

    /// Whether it must not be used any more.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Runs a script for at most this time, and writes its reply. `call` runs the commands that it calls.
    pub fn run(
        &mut self,
        script: &Script,
        inputs: &Inputs<'_>,
        time: Duration,
        call: &mut dyn FnMut(&OwnedArgs) -> Called,
        mut out: Writer<'_>,
    ) -> Ended {
        let function = match self.compile(script) {
            Ok(function) => function,
            Err(error) => return Ended::Failed(error.into_bytes()),
        };
        let deadline = self.stop.created.elapsed().saturating_add(time);
        self.stop.deadline_ms.store(deadline.as_millis() as u64, Relaxed);
        self.stop.stopped.store(false, Relaxed);
        self.stop.late.store(false, Relaxed);
        let (mark, sha, stop) = (out.len(), script.sha(), self.stop.clone());
        let call = RefCell::new(call);
        let run = |lua: &Lua, arguments: MultiValue| {
            // A command calls no script, so nobody else has it.
            let mut call = call.try_borrow_mut().map_err(Error::external)?;
            invoke(lua, &stop, arguments, &mut **call)
        };
        // The interpreter gives up if Rust holds too many values at a time, as for a command with thousands of arguments.
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.lua.scope(|scope| {
                let protected = scope.create_function(|lua: &Lua, arguments: MultiValue| {
                    run(lua, arguments).map(|(_, value)| value)
                })?;
                let plain =
                    scope.create_function(|lua: &Lua, arguments: MultiValue| match run(lua, arguments)? {
                        (false, value) => Ok(value),
                        (true, Value::Table(error)) => {
                            let text: LuaString = error.raw_get("err")?;
                            Err(Error::external(ErrorReply(text.as_bytes().to_vec())))
                        }
                        (true, _) => Err(Error::runtime("a command has failed")),
                    })?;
                let keys = texts(&self.lua, inputs.keys)?;
                let arguments = texts(&self.lua, inputs.arguments)?;
                let (succeeded, value): (bool, Value) =
                    self.run.call((function, keys, arguments, plain, protected))?;
                if self.stop.is_set() {
                    return Ok(None);
                }
                if succeeded {
                    return values::write(&value, &mut out, &self.stop).map(|()| None);
                }
                failure(&value, sha).map(Some)
            })
        }));
        let Ok(done) = done else {
            self.is_broken = true;
            out.truncate(mark);
            return Ended::Exceeded(
                b"ERR the script uses too many values at a time, and was rolled back".to_vec(),
            );
        };
        let _ = self.forget.call::<()>(());
        if self.lua.used_memory() > GARBAGE_BYTES {
            self.make_room();
        }
        if self.stop.stopped.load(Relaxed) {
            out.truncate(mark);
            return Ended::Stopped;
        }
        if self.stop.late.load(Relaxed) {
            out.truncate(mark);
            let text = format!("ERR the script has run for {} ms, and was rolled back", time.as_millis());
            return Ended::Exceeded(text.into_bytes());
        }
        match done {
            Ok(None) => Ended::Replied,
            Ok(Some(error)) => {
                out.truncate(mark);
                match error == b"not enough memory" {
                    true => out_of_memory(),
                    false => Ended::Failed(error),
                }
            }
            Err(error) => {
                out.truncate(mark);
                match error {
                    Error::MemoryError(_) => out_of_memory(),
                    error => Ended::Failed(message(&error).into_bytes()),
                }
            }
        }
    }
}

fn out_of_memory() -> Ended {
    let megabytes = SCRIPT_MEMORY_BYTES_MAX >> 20;
    let text = format!("ERR the script needs more than {megabytes} MiB of memory, and was rolled back");
    Ended::Exceeded(text.into_bytes())
}

/// An error with a code, which a script sees as a table.
#[derive(Debug, thiserror::Error)]
#[error("{}", String::from_utf8_lossy(.0))]
struct ErrorReply(Vec<u8>);

/// The error that a native function of the server has raised, as a script sees it: a table for an error with a code, otherwise a text after
/// the place. Other values stay as they are.
fn describe(lua: &Lua, (value, place): (Value, Option<String>)) -> Result<Value> {
    let Value::Error(error) = &value else { return Ok(value) };
    let mut error = &**error;
    while let Error::CallbackError { cause, .. } = error {
        error = cause;
    }
    if let Error::MemoryError(_) = error {
        return Ok(Value::String(lua.create_string("not enough memory")?));
    }
    if let Error::ExternalError(external) = error
        && let Some(ErrorReply(text)) = external.downcast_ref()
    {
        let table = lua.create_table()?;
        table.raw_set("err", lua.create_string(text)?)?;
        return Ok(Value::Table(table));
    }
    let text = place.unwrap_or_default() + &message(error);
    Ok(Value::String(lua.create_string(text)?))
}

/// The text of an error, on one line.
fn message(error: &Error) -> String {
    let text = match error {
        Error::RuntimeError(text) | Error::SyntaxError { message: text, .. } => text.clone(),
        Error::CallbackError { cause, .. } => message(cause),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

fn texts(lua: &Lua, texts: &[&[u8]]) -> Result<Table> {
    let table = lua.create_table_with_capacity(texts.len(), 0)?;
    for (i, text) in texts.iter().enumerate() {
        table.raw_set(i + 1, lua.create_string(text)?)?;
    }
    Ok(table)
}

/// The reply for an error that the prelude has located.
fn failure(value: &Value, sha: &str) -> Result<Vec<u8>> {
    let table = match value {
        Value::Table(table) => table,
        // No handler of errors runs without memory.
        Value::String(text) => return Ok(text.as_bytes().to_vec()),
        _ => return Ok(b"ERR the script has failed".to_vec()),
    };
    let text: Option<LuaString> = table.raw_get("err").ok();
    let mut reply = text.map_or_else(|| b"ERR unknown error".to_vec(), |text| text.as_bytes().to_vec());
    // Errors of native functions have a traceback.
    if let Some(end) = reply.iter().position(|byte| *byte == b'\n') {
        reply.truncate(end);
    }
    let source: Option<String> = table.raw_get("source").ok();
    let line: Option<i64> = table.raw_get("line").ok();
    if let (Some(source), Some(line)) = (source, line) {
        reply.extend_from_slice(format!(" script: {sha}, on {source}:{line}.").as_bytes());
    }
    Ok(reply)
}

/// `redis.call` and `redis.pcall`: runs a command; returns whether it failed, and its value.
fn invoke(
    lua: &Lua,
    stop: &Stop,
    arguments: MultiValue,
    call: &mut dyn FnMut(&OwnedArgs) -> Called,
) -> Result<(bool, Value)> {
    let refuse = |text: &str| -> Result<(bool, Value)> {
        let table = lua.create_table()?;
        table.raw_set("err", text)?;
        Ok((true, Value::Table(table)))
    };
    stop.check()?;
    if arguments.is_empty() {
        return refuse("ERR Please specify at least one argument for this redis lib call");
    }
    let bytes = arguments.iter().map(|argument| argument.as_string().map_or(0, |text| text.as_bytes().len()));
    if bytes.sum::<usize>() > SCRIPT_REQUEST_BYTES_MAX {
        return refuse("ERR the arguments of the command are too long");
    }
    let mut request = OwnedArgs::default();
    for argument in &arguments {
        match argument {
            Value::String(text) => request.push(&text.as_bytes()),
            Value::Integer(number) => request.push(number.to_string().as_bytes()),
            Value::Number(number) => request.push(values::number_text(*number, 17).as_bytes()),
            _ => return refuse("ERR Lua redis lib command arguments must be strings or integers"),
        }
    }
    match call(&request) {
        Called::Reply(failed, reply) => Ok((failed, values::read(lua, &reply)?.0)),
        Called::Stop => {
            stop.stopped.store(true, Relaxed);
            Err(Error::runtime("the script has to end"))
        }
    }
}

/// The functions that the prelude needs.
fn natives(lua: &Lua, stop: &Arc<Stop>) -> Result<Table> {
    let native = lua.create_table()?;
    native.set("describe", lua.create_function(describe)?)?;
    native.set("bit", bits::library(lua)?)?;
    native.set("cjson", json::library(lua, stop)?)?;
    native.set("pattern_bytes", SCRIPT_PATTERN_BYTES_MAX)?;
    native.set("version", REDIS_VERSION)?;
    let number =
        REDIS_VERSION.split('.').fold(0, |number, part| number << 8 | part.parse::<u32>().unwrap_or(0));
    native.set("version_number", number)?;
    let watched = stop.clone();
    let check = move |_: &Lua, ()| watched.check();
    native.set("check", lua.create_function(check)?)?;
    let refuse = |text: &str| Error::external(ErrorReply(text.as_bytes().to_vec()));
    let sha1hex = move |_: &Lua, texts: Variadic<Value>| match &texts[..] {
        [text] => Ok(sha1_hex(text.to_string()?.as_bytes())),
        _ => Err(refuse("ERR wrong number of arguments")),
    };
    native.set("sha1hex", lua.create_function(sha1hex)?)?;
    let log = move |_: &Lua, arguments: Variadic<Value>| {
        let [level, texts @ ..] = &arguments[..] else {
            return Err(refuse("ERR redis.log() requires two arguments or more."));
        };
        if texts.is_empty() {
            return Err(refuse("ERR redis.log() requires two arguments or more."));
        }
        let level = match level {
            Value::Integer(level) => *level,
            Value::Number(level) => *level as i64,
            _ => return Err(refuse("ERR First argument must be a number (log level).")),
        };
        let texts = texts.iter().map(|text| match text {
            Value::String(text) => {
                let bytes = text.as_bytes();
                Ok(String::from_utf8_lossy(&bytes[..bytes.len().min(LOG_BYTES)]).into_owned())
            }
            other => other.to_string(),
        });
        let text = texts.collect::<Result<Vec<String>>>()?.join(" ");
        match level {
            0 | 1 => tracing::debug!("script: {text}"),
            2 => tracing::info!("script: {text}"),
            3 => tracing::warn!("script: {text}"),
            _ => return Err(refuse("ERR Invalid debug level.")),
        }
        Ok(())
    };
    native.set("log", lua.create_function(log)?)?;
    let random = Arc::new(std::sync::Mutex::new(Random::default()));
    let seeded = random.clone();
    let lock = |random: &std::sync::Mutex<Random>, f: &dyn Fn(&mut Random) -> u32| {
        f(&mut random.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    };
    native.set("random", lua.create_function(move |_, ()| Ok(lock(&random, &Random::next)))?)?;
    let seed = move |_: &Lua, seed: f64| {
        lock(&seeded, &|random| {
            *random = Random::new(seed as i64 as u32);
            0
        });
        Ok(())
    };
    native.set("seed", lua.create_function(seed)?)?;
    Ok(native)
}
