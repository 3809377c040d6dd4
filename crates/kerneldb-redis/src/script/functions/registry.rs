//! `redis.register_function`: the functions of a library that is being loaded.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use mlua::{Error, Lua, MultiValue, Result, Table, Value};

use super::super::arguments::Arguments;
use super::super::flags::Flags;
use super::super::native::error_reply;
use super::catalog::FunctionInfo;
use super::header::{BAD_NAME, is_name};
use crate::limits::{FUNCTION_BYTES_MAX, FUNCTIONS_MAX};

/// The functions that a library has registered.
#[derive(Default)]
pub(in crate::script) struct Registry {
    functions: RefCell<BTreeMap<String, FunctionInfo>>,
    /// Bytes of names and descriptions.
    bytes: Cell<usize>,
}

/// The arguments of a registration.
#[derive(Default)]
struct Registration {
    name: Option<Vec<u8>>,
    description: Option<Vec<u8>>,
    callback: Option<Value>,
    flags: Flags,
}

fn refused(text: &str) -> Error {
    error_reply(format!("ERR {text}").as_bytes())
}

/// A text, or a number as a text.
fn text(lua: &Lua, value: &Value) -> Result<Option<Vec<u8>>> {
    match value {
        Value::String(_) | Value::Integer(_) | Value::Number(_) => {
            let text = lua.coerce_string(value.clone())?;
            Ok(text.map(|text| text.as_bytes().to_vec()))
        }
        _ => Ok(None),
    }
}

impl Registry {
    /// Registers a function. Its callback becomes a field of `callbacks`.
    pub fn register(&self, lua: &Lua, callbacks: &Table, values: MultiValue) -> Result<()> {
        let arguments = Arguments::new(lua, values);
        let Registration { name, description, callback, flags } = match arguments.len() {
            1 => named(lua, arguments.get(1))?,
            2 => positional(lua, &arguments)?,
            _ => return Err(refused("wrong number of arguments to redis.register_function")),
        };
        let name =
            name.ok_or_else(|| refused("redis.register_function must get a function name argument"))?;
        let callback =
            callback.ok_or_else(|| refused("redis.register_function must get a callback argument"))?;
        let name = is_name(&name).ok_or_else(|| refused(BAD_NAME))?.to_owned();
        let mut functions = self.functions.borrow_mut();
        if functions.contains_key(&name) {
            return Err(refused("Function already exists in the library"));
        }
        let bytes = self.bytes.get() + name.len() + description.as_ref().map_or(0, Vec::len);
        if functions.len() >= FUNCTIONS_MAX || bytes > FUNCTION_BYTES_MAX {
            return Err(refused("the library has too many functions"));
        }
        self.bytes.set(bytes);
        callbacks.raw_set(name.as_str(), callback)?;
        functions.insert(name.clone(), FunctionInfo { name, description, flags });
        Ok(())
    }

    /// The functions.
    pub fn into_functions(self) -> BTreeMap<String, FunctionInfo> {
        self.functions.into_inner()
    }
}

/// `redis.register_function(name, callback)`
fn positional(lua: &Lua, arguments: &Arguments<'_>) -> Result<Registration> {
    let name = text(lua, arguments.get(1))?;
    if name.is_none() {
        return Err(refused("first argument to redis.register_function must be a string"));
    }
    match arguments.get(2) {
        callback @ Value::Function(_) => {
            Ok(Registration { name, callback: Some(callback.clone()), ..Registration::default() })
        }
        _ => Err(refused("second argument to redis.register_function must be a function")),
    }
}

/// `redis.register_function{function_name=name, callback=callback, description=text, flags={...}}`
fn named(lua: &Lua, argument: &Value) -> Result<Registration> {
    let Value::Table(fields) = argument else {
        return Err(refused(
            "calling redis.register_function with a single argument is only applicable to Lua table \
             (representing named arguments).",
        ));
    };
    let mut registration = Registration::default();
    for pair in fields.pairs::<Value, Value>() {
        let (key, value) = pair?;
        let key = text(lua, &key)?;
        let key = key
            .ok_or_else(|| refused("named argument key given to redis.register_function is not a string"))?;
        let string = |field: &str| -> Result<Option<Vec<u8>>> {
            let error =
                || refused(&format!("{field} argument given to redis.register_function must be a string"));
            text(lua, &value)?.map(Some).ok_or_else(error)
        };
        match &key.to_ascii_lowercase()[..] {
            b"function_name" => registration.name = string("function_name")?,
            b"description" => registration.description = string("description")?,
            b"callback" => match value {
                Value::Function(_) => registration.callback = Some(value),
                _ => {
                    return Err(refused(
                        "callback argument given to redis.register_function must be a function",
                    ));
                }
            },
            b"flags" => match value {
                Value::Table(names) => registration.flags = flags(lua, &names)?,
                _ => {
                    return Err(refused(
                        "flags argument to redis.register_function must be a table representing function flags",
                    ));
                }
            },
            _ => return Err(refused("unknown argument given to redis.register_function")),
        }
    }
    Ok(registration)
}

fn flags(lua: &Lua, names: &Table) -> Result<Flags> {
    let mut flags = Flags::default();
    for i in 1.. {
        let name = names.raw_get::<Value>(i)?;
        if name.is_nil() {
            break;
        }
        let name = text(lua, &name)?;
        if !name.is_some_and(|name| flags.add(&name.to_ascii_lowercase())) {
            return Err(refused("unknown flag given"));
        }
    }
    Ok(flags)
}
