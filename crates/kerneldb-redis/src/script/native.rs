//! The functions of the server that the prelude gives to scripts, and the errors that they raise.

use std::sync::Arc;

use mlua::{Error, Function, IntoLuaMulti, Lua, MultiValue, Result, Table, Value, Variadic};

use super::arguments::Arguments;
use super::cache::sha1_hex;
use super::json::Settings;
use super::random::Random;
use super::watchdog::Watchdog;
use super::{Call, CallResult, bits, json, msgpack, structs, values};
use crate::REDIS_VERSION;
use crate::limits::{SCRIPT_PATTERN_BYTES_MAX, SCRIPT_REQUEST_BYTES_MAX};
use crate::resp::OwnedArgs;

/// Bytes of each text that a script logs.
const LOG_BYTES: usize = 1000;

/// Lua's own text for a lack of memory.
pub(super) const NO_MEMORY: &str = "not enough memory";

/// An error with a code, which a script sees as a table.
#[derive(Debug, thiserror::Error)]
#[error("{}", String::from_utf8_lossy(.0))]
struct ErrorReply(Vec<u8>);

/// An error that a script sees as this text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PlainError(String);

/// The error that a script sees as this text, without its place.
pub(super) fn plain_error(text: impl Into<String>) -> Error {
    Error::external(PlainError(text.into()))
}

/// A native function of a library. As in Lua's own libraries, a text that it raises begins with the place of the call, if a script has
/// made it.
pub(super) fn function<R: IntoLuaMulti>(
    lua: &Lua,
    run: impl Fn(&Lua, &Arguments<'_>) -> Result<R> + Send + 'static,
) -> Result<Function> {
    let run = move |lua: &Lua, values: MultiValue| {
        run(lua, &Arguments::new(lua, values)).map_err(|error| match error {
            Error::RuntimeError(text) => plain_error(caller(lua) + &text),
            error => error,
        })
    };
    lua.create_function(run)
}

/// The place of the call of the native function that runs.
fn caller(lua: &Lua) -> String {
    let place = lua.inspect_stack(1, |caller| {
        let line = caller.current_line()?;
        Some(format!("{}:{line}: ", caller.source().short_src?))
    });
    place.flatten().unwrap_or_default()
}

/// The error with this text, which begins with its code.
pub(super) fn error_reply(text: &[u8]) -> Error {
    Error::external(ErrorReply(text.to_vec()))
}

/// The text of an error, on one line.
pub(super) fn message(error: &Error) -> String {
    let text = match error {
        Error::RuntimeError(text) | Error::SyntaxError { message: text, .. } => text.clone(),
        Error::CallbackError { cause, .. } => message(cause),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

/// The functions and values for the prelude.
pub(super) fn functions(lua: &Lua, watchdog: &Arc<Watchdog>, json: &Arc<Settings>) -> Result<Table> {
    let native = lua.create_table()?;
    native.set("bit", bits::library(lua)?)?;
    native.set("cjson", json::library(lua, watchdog, json)?)?;
    native.set("cmsgpack", msgpack::library(lua, watchdog)?)?;
    native.set("struct", structs::library(lua)?)?;
    native.set("pattern_bytes", SCRIPT_PATTERN_BYTES_MAX)?;
    native.set("version", REDIS_VERSION)?;
    let number =
        REDIS_VERSION.split('.').fold(0, |number, part| number << 8 | part.parse::<u32>().unwrap_or(0));
    native.set("version_number", number)?;
    let watchdog = watchdog.clone();
    native.set("check", lua.create_function(move |_, ()| watchdog.check())?)?;
    native.set("describe", lua.create_function(describe)?)?;
    native.set("sha1hex", lua.create_function(sha1hex)?)?;
    native.set("log", lua.create_function(log)?)?;
    let random = Arc::new(Random::default());
    let seeds = random.clone();
    native.set("random", lua.create_function(move |_, ()| Ok(random.next()))?)?;
    let seed = move |_: &Lua, seed: f64| {
        seeds.seed(seed as i64 as u32);
        Ok(())
    };
    native.set("seed", lua.create_function(seed)?)?;
    Ok(native)
}

/// The error that a native function has raised, as a script sees it: a table for an error with a code, otherwise a text after the place.
/// Other values stay as they are.
fn describe(lua: &Lua, (value, place): (Value, Option<String>)) -> Result<Value> {
    let Value::Error(error) = &value else { return Ok(value) };
    let mut error = &**error;
    while let Error::CallbackError { cause, .. } = error {
        error = cause;
    }
    if let Error::MemoryError(_) = error {
        return Ok(Value::String(lua.create_string(NO_MEMORY)?));
    }
    if let Error::ExternalError(external) = error
        && let Some(ErrorReply(text)) = external.downcast_ref()
    {
        return error_table(lua, text);
    }
    if let Error::ExternalError(external) = error
        && let Some(PlainError(text)) = external.downcast_ref()
    {
        return Ok(Value::String(lua.create_string(text)?));
    }
    let text = place.unwrap_or_default() + &message(error);
    Ok(Value::String(lua.create_string(text)?))
}

fn error_table(lua: &Lua, text: &[u8]) -> Result<Value> {
    let table = lua.create_table()?;
    table.raw_set("err", lua.create_string(text)?)?;
    Ok(Value::Table(table))
}

fn sha1hex(lua: &Lua, texts: Variadic<Value>) -> Result<String> {
    match &texts[..] {
        [text] => {
            let text = lua.coerce_string(text.clone())?;
            Ok(sha1_hex(&text.as_ref().map_or_else(|| [][..].into(), |text| text.as_bytes().to_vec())))
        }
        _ => Err(error_reply(b"ERR wrong number of arguments")),
    }
}

fn log(_: &Lua, arguments: Variadic<Value>) -> Result<()> {
    let [level, first, rest @ ..] = &arguments[..] else {
        return Err(error_reply(b"ERR redis.log() requires two arguments or more."));
    };
    let level = match level {
        Value::Integer(level) => *level,
        Value::Number(level) => *level as i64,
        _ => return Err(error_reply(b"ERR First argument must be a number (log level).")),
    };
    let texts = [first].into_iter().chain(rest).map(|text| match text {
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
        _ => return Err(error_reply(b"ERR Invalid debug level.")),
    }
    Ok(())
}

/// `redis.call`: a command's error is raised.
pub(super) fn call(
    lua: &Lua,
    watchdog: &Watchdog,
    arguments: MultiValue,
    run: &mut dyn FnMut(Call<'_>) -> CallResult,
) -> Result<Value> {
    match run_command(watchdog, arguments, &mut |request| run(Call::Run(request)))? {
        CallResult::Error(text) => Err(error_reply(&text)),
        result => value(lua, watchdog, result),
    }
}

/// `redis.pcall`: a command's error is the value.
pub(super) fn protected_call(
    lua: &Lua,
    watchdog: &Watchdog,
    arguments: MultiValue,
    run: &mut dyn FnMut(Call<'_>) -> CallResult,
) -> Result<Value> {
    let result = run_command(watchdog, arguments, &mut |request| run(Call::Run(request)))?;
    value(lua, watchdog, result)
}

/// `redis.acl_check_cmd`: whether the user may run a command.
pub(super) fn check(
    lua: &Lua,
    watchdog: &Watchdog,
    arguments: MultiValue,
    run: &mut dyn FnMut(Call<'_>) -> CallResult,
) -> Result<Value> {
    match run_command(watchdog, arguments, &mut |request| run(Call::Check(request)))? {
        CallResult::Error(text) => Err(error_reply(&text)),
        result => value(lua, watchdog, result),
    }
}

/// The value of a result for the script.
fn value(lua: &Lua, watchdog: &Watchdog, result: CallResult) -> Result<Value> {
    match result {
        CallResult::Error(text) => error_table(lua, &text),
        CallResult::Reply(reply) => Ok(values::read(lua, &reply)?.0),
        CallResult::Allowed(allowed) => Ok(Value::Boolean(allowed)),
        CallResult::Abort => aborted(watchdog),
    }
}

fn aborted(watchdog: &Watchdog) -> Result<Value> {
    watchdog.abort();
    watchdog.check().map(|()| Value::Nil)
}

fn run_command(
    watchdog: &Watchdog,
    arguments: MultiValue,
    run: &mut dyn FnMut(&OwnedArgs) -> CallResult,
) -> Result<CallResult> {
    watchdog.check()?;
    let refuse = |text: &str| Ok(CallResult::Error(text.into()));
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
            Value::Number(number) => request.push(values::number_text(*number).as_bytes()),
            _ => return refuse("ERR Lua redis lib command arguments must be strings or integers"),
        }
    }
    Ok(run(&request))
}
