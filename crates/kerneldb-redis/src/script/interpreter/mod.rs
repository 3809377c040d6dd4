//! The interpreter: compiles scripts, loads libraries (`libraries`), and runs one script or function at a time with limits on its time and
//! memory.

mod libraries;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use mlua::{
    ChunkMode, Error, Function, HookTriggers, Lua, LuaOptions, MultiValue, Result, StdLib,
    String as LuaString, Table, Value, VmState,
};

use super::cache::Script;
use super::functions::catalog::Library;
use super::json::Settings;
use super::native::{self, NO_MEMORY, message};
use super::values;
use super::watchdog::Watchdog;
use crate::limits::{SCRIPT_MEMORY_BYTES_MAX, SCRIPTS_COMPILED_MAX};
use crate::resp::{OwnedArgs, Protocol, Writer};

/// Instructions of a script between two looks at the clock.
const INSTRUCTIONS: u32 = 10_000;

/// Memory of the interpreter after which its garbage is collected when a script has ended.
const GARBAGE_BYTES: usize = 24 << 20;

/// Memory of the interpreter after which it drops the compiled scripts, or all libraries.
const KEPT_BYTES: usize = 16 << 20;

/// Garbage is collected when memory has grown by half, twice as fast as memory is taken.
const GC_PAUSE: i32 = 150;
const GC_STEP_MULTIPLIER: i32 = 200;

/// Values of the interpreter that Rust can hold at a time, of the 8,000 that its stack can have.
const VALUES: usize = 7_900;

/// A command in a script.
#[derive(Clone, Copy)]
pub(crate) enum Call<'a> {
    /// The script calls it.
    Run(&'a OwnedArgs),
    /// The script asks whether the user may run it (`redis.acl_check_cmd`).
    Check(&'a OwnedArgs),
}

/// The result of a command that a script has called.
pub(crate) enum CallResult {
    /// A reply in RESP2.
    Reply(Vec<u8>),
    /// An error of the command, with its code.
    Error(Vec<u8>),
    /// Whether the user may run the command of [`Call::Check`].
    Allowed(bool),
    /// The script must end, and its effects are rolled back.
    Abort,
}

/// The outcome of a script.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The reply, in the client's protocol.
    Reply(Vec<u8>),
    /// The script has failed with this error. Its effects stay, as in Redis.
    Error(Vec<u8>),
    /// A command has aborted it.
    Aborted,
    /// It has exceeded a limit. This is the error, and its effects are rolled back.
    LimitExceeded(Vec<u8>),
}

/// KEYS and ARGV.
pub(crate) struct Inputs<'a> {
    pub keys: &'a [&'a [u8]],
    pub arguments: &'a [&'a [u8]],
}

/// A script or a function that is run.
#[derive(Clone, Copy)]
pub(crate) enum Program<'a> {
    Script(&'a Script),
    /// A function of a library by its name there.
    Function {
        library: &'a Library,
        name: &'a str,
    },
}

impl Program<'_> {
    /// Its name in errors.
    fn name(&self) -> &str {
        match self {
            Program::Script(script) => script.sha(),
            Program::Function { name, .. } => name,
        }
    }
}

pub(crate) struct Interpreter {
    lua: Lua,
    /// The function of the prelude that runs a script.
    run: Function,
    /// The function of the prelude that calls a function of a library.
    call: Function,
    /// The function of the prelude that loads a library.
    load: Function,
    /// The function of the prelude that drops the globals of a script that has ended.
    release: Function,
    compiled: HashMap<String, Function>,
    /// The callbacks of the libraries that are loaded: a table for each library's number, with their names.
    callbacks: Table,
    /// The numbers of these libraries.
    libraries: BTreeSet<u64>,
    /// The number of the catalog that it has followed.
    catalog_number: u64,
    /// The settings of `cjson`.
    json: Arc<Settings>,
    watchdog: Arc<Watchdog>,
    /// A script has brought it into a state in which it must not be used any more.
    is_poisoned: bool,
}

impl Interpreter {
    pub fn new() -> Result<Interpreter> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        // SAFETY: the library `debug` is for the prelude alone, which gives scripts none of its functions.
        let lua = unsafe { Lua::unsafe_new_with(libraries | StdLib::DEBUG, LuaOptions::default()) };
        let watchdog = Arc::new(Watchdog::new());
        let json = Arc::new(Settings::default());
        let functions = native::functions(&lua, &watchdog, &json)?;
        let prelude = lua.load(include_str!("../prelude.lua")).set_name("=prelude").set_mode(ChunkMode::Text);
        let prelude: Table = prelude.call(functions)?;
        let callbacks = lua.create_table()?;
        // The interpreter's stack for values that Rust holds grows by memory, and ends the process if there is none. So it grows now.
        drop((0..VALUES).map(|_| lua.create_table()).collect::<Result<Vec<_>>>()?);
        // Without an emergency collection, garbage must not reach the limit.
        lua.gc_inc(GC_PAUSE, GC_STEP_MULTIPLIER, 0);
        lua.set_memory_limit(SCRIPT_MEMORY_BYTES_MAX)?;
        let watched = watchdog.clone();
        let hook = move |_: &Lua, _: &mlua::Debug| watched.check().map(|()| VmState::Continue);
        lua.set_global_hook(HookTriggers::new().every_nth_instruction(INSTRUCTIONS), hook)?;
        Ok(Interpreter {
            run: prelude.get("run")?,
            call: prelude.get("call")?,
            load: prelude.get("load")?,
            release: prelude.get("release")?,
            compiled: HashMap::new(),
            callbacks,
            libraries: BTreeSet::new(),
            catalog_number: 0,
            json,
            watchdog,
            is_poisoned: false,
            lua,
        })
    }

    /// Compiles a script, unless it is compiled. The error is the client's reply.
    pub fn compile(&mut self, script: &Script) -> std::result::Result<Function, String> {
        if let Some(function) = self.compiled.get(script.sha()) {
            return Ok(function.clone());
        }
        let mut compiled = self.compile_text(script);
        if matches!(compiled, Err(Error::MemoryError(_))) {
            self.make_room();
            compiled = self.compile_text(script);
        }
        let function = compiled
            .map_err(|error| format!("ERR Error compiling script (new function): {}", message(&error)))?;
        if self.compiled.len() >= SCRIPTS_COMPILED_MAX {
            self.compiled.clear();
        }
        self.compiled.insert(script.sha().to_owned(), function.clone());
        Ok(function)
    }

    fn compile_text(&self, script: &Script) -> Result<Function> {
        let chunk = self.lua.load(script.code()).set_name("@user_script").set_mode(ChunkMode::Text);
        chunk.into_function()
    }

    /// Collects garbage after a failure, if there is much.
    fn collect(&mut self) {
        if self.lua.used_memory() > GARBAGE_BYTES {
            self.make_room();
        }
    }

    /// Collects garbage, and the compiled scripts if they take much. Libraries that keep much are dropped with the interpreter.
    fn make_room(&mut self) {
        // The call of the collector takes some memory itself. Scripts have no finalizers, which could fail.
        let mut collected = self.lua.set_memory_limit(0).and_then(|_| self.lua.gc_collect());
        if self.lua.used_memory() > KEPT_BYTES {
            self.is_poisoned |= !self.libraries.is_empty();
            self.compiled.clear();
            collected = collected.and_then(|()| self.lua.gc_collect());
        }
        let limited = self.lua.set_memory_limit(SCRIPT_MEMORY_BYTES_MAX);
        self.is_poisoned |= collected.is_err() || limited.is_err();
    }

    /// Whether it must not be used any more.
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }

    /// Runs a script or function for at most this time. `run` runs the commands that it calls. `protocol` is that of the reply.
    pub fn run(
        &mut self,
        program: Program<'_>,
        inputs: &Inputs<'_>,
        time: Duration,
        protocol: Protocol,
        run: &mut dyn FnMut(Call<'_>) -> CallResult,
    ) -> Outcome {
        let found = match program {
            Program::Script(script) => self.compile(script).map(|script| (script, &self.run)),
            Program::Function { library, name } => {
                self.callback(library, name).map(|callback| (callback, &self.call))
            }
        };
        let (function, starter) = match found {
            Ok(found) => found,
            Err(error) => return Outcome::Error(error.into_bytes()),
        };
        self.json.reset();
        self.watchdog.start(time);
        // The interpreter panics if Rust holds too many values at a time, as for a command with thousands of arguments.
        let ended =
            catch_unwind(AssertUnwindSafe(|| self.evaluate(starter, function, inputs, protocol, run)));
        self.watchdog.rest();
        let Ok(ended) = ended else {
            self.is_poisoned = true;
            return Outcome::LimitExceeded(
                b"ERR the script uses too many values at a time, and was rolled back".to_vec(),
            );
        };
        let released = self.release.call::<()>(());
        self.is_poisoned |= released.is_err();
        self.collect();
        if self.watchdog.is_aborted() {
            return Outcome::Aborted;
        }
        if self.watchdog.has_timed_out() {
            let text = format!("ERR the script has run for {} ms, and was rolled back", time.as_millis());
            return Outcome::LimitExceeded(text.into_bytes());
        }
        match ended {
            Ok(Ok(reply)) => Outcome::Reply(reply),
            Ok(Err(failure)) => failed(&failure, program.name()),
            Err(Error::MemoryError(_)) => out_of_memory(),
            Err(error) => Outcome::Error(message(&error).into_bytes()),
        }
    }

    /// Runs a function by one of the prelude. The inner result is the reply, or the error value that the prelude has located.
    fn evaluate(
        &self,
        starter: &Function,
        function: Function,
        inputs: &Inputs<'_>,
        protocol: Protocol,
        run: &mut dyn FnMut(Call<'_>) -> CallResult,
    ) -> Result<std::result::Result<Vec<u8>, Value>> {
        // A command calls no script, so nobody else has it.
        let run = RefCell::new(run);
        self.lua.scope(|scope| {
            let call = scope.create_function(|lua: &Lua, arguments: MultiValue| {
                let mut run = run.try_borrow_mut().map_err(Error::external)?;
                native::call(lua, &self.watchdog, arguments, &mut **run)
            })?;
            let protected_call = scope.create_function(|lua: &Lua, arguments: MultiValue| {
                let mut run = run.try_borrow_mut().map_err(Error::external)?;
                native::protected_call(lua, &self.watchdog, arguments, &mut **run)
            })?;
            let check = scope.create_function(|lua: &Lua, arguments: MultiValue| {
                let mut run = run.try_borrow_mut().map_err(Error::external)?;
                native::check(lua, &self.watchdog, arguments, &mut **run)
            })?;
            let keys = texts(&self.lua, inputs.keys)?;
            let arguments = texts(&self.lua, inputs.arguments)?;
            let (succeeded, value): (bool, Value) =
                starter.call((function, keys, arguments, call, protected_call, check))?;
            if !succeeded {
                return Ok(Err(value));
            }
            let mut reply = Vec::new();
            values::write(&value, &mut Writer::new(&mut reply, protocol), &self.watchdog)?;
            Ok(Ok(reply))
        })
    }
}

fn out_of_memory() -> Outcome {
    Outcome::LimitExceeded(format!("{}, and was rolled back", no_memory_for("script")).into_bytes())
}

fn no_memory_for(what: &str) -> String {
    format!("ERR the {what} needs more than {} MiB of memory", SCRIPT_MEMORY_BYTES_MAX >> 20)
}

fn texts(lua: &Lua, texts: &[&[u8]]) -> Result<Table> {
    let table = lua.create_table_with_capacity(texts.len(), 0)?;
    for (i, text) in texts.iter().enumerate() {
        table.raw_set(i + 1, lua.create_string(text)?)?;
    }
    Ok(table)
}

/// The outcome of a script of this name that has ended with this error value.
fn failed(failure: &Value, name: &str) -> Outcome {
    let table = match failure {
        Value::Table(table) => table,
        // There was no memory, or no stack, for the function that locates errors.
        Value::String(text) if text.as_bytes() == NO_MEMORY.as_bytes() => return out_of_memory(),
        other => {
            let text = other.to_string().unwrap_or_else(|error| message(&error));
            return Outcome::Error(format!("ERR {text}").into_bytes());
        }
    };
    let text: Option<LuaString> = table.raw_get("err").ok();
    let mut reply = text.map_or_else(|| b"ERR unknown error".to_vec(), |text| text.as_bytes().to_vec());
    let source: Option<String> = table.raw_get("source").ok();
    let line: Option<i64> = table.raw_get("line").ok();
    if let (Some(source), Some(line)) = (source, line) {
        reply.extend_from_slice(format!(" script: {name}, on {source}:{line}.").as_bytes());
    }
    Outcome::Error(reply)
}
