//! The arguments of native functions, with the conversions and errors of Lua's own libraries.

use std::borrow::Cow;
use std::cell::Cell;

use mlua::{Error, Lua, MultiValue, Result, String as LuaString, Value};

/// The arguments of a call.
pub(super) struct Arguments<'a> {
    lua: &'a Lua,
    values: MultiValue,
    /// The type of an argument that is not there, in errors.
    absent: Cell<&'static str>,
}

impl<'a> Arguments<'a> {
    pub fn new(lua: &'a Lua, values: MultiValue) -> Arguments<'a> {
        Arguments { lua, values, absent: Cell::new("no value") }
    }

    /// Calls arguments that are not there by this type in errors from now on.
    pub fn set_absent(&self, absent: &'static str) {
        self.absent.set(absent);
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.values.iter()
    }

    /// An argument; the first one has the number 1. It is nil if it is not there.
    pub fn get(&self, number: usize) -> &Value {
        number.checked_sub(1).and_then(|index| self.values.get(index)).unwrap_or(&Value::Nil)
    }

    /// The error about an argument. It has the name by which the script has called the function.
    pub fn error(&self, number: usize, text: &str) -> Error {
        let name = self.lua.inspect_stack(0, |function| function.names().name.map(Cow::into_owned));
        let name = name.flatten().unwrap_or_else(|| "?".into());
        Error::runtime(format!("bad argument #{number} to '{name}' ({text})"))
    }

    fn type_error(&self, number: usize, expected: &str) -> Error {
        let got = if number > self.len() { self.absent.get() } else { type_name(self.get(number)) };
        self.error(number, &format!("{expected} expected, got {got}"))
    }

    /// A text, or a number as a text.
    pub fn string(&self, number: usize) -> Result<LuaString> {
        match self.get(number) {
            Value::String(text) => Ok(text.clone()),
            value @ (Value::Integer(_) | Value::Number(_)) => {
                let text = self.lua.coerce_string(value.clone())?;
                text.ok_or_else(|| self.type_error(number, "string"))
            }
            _ => Err(self.type_error(number, "string")),
        }
    }

    /// A number, or a text that is one.
    pub fn number(&self, number: usize) -> Result<f64> {
        match self.get(number) {
            Value::Integer(value) => Ok(*value as f64),
            Value::Number(value) => Ok(*value),
            value @ Value::String(_) => {
                let value = self.lua.coerce_number(value.clone())?;
                value.ok_or_else(|| self.type_error(number, "number"))
            }
            _ => Err(self.type_error(number, "number")),
        }
    }

    /// The whole part of a number.
    pub fn integer(&self, number: usize) -> Result<i64> {
        Ok(self.number(number)? as i64)
    }

    /// The whole part of a number; `None` for nil, or if it is not there.
    pub fn optional_integer(&self, number: usize) -> Result<Option<i64>> {
        match self.get(number) {
            Value::Nil => Ok(None),
            _ => self.integer(number).map(Some),
        }
    }
}

/// Lua's name of a value's type.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "number",
        Value::LightUserData(_) | Value::Error(_) | Value::Other(_) => "userdata",
        value => value.type_name(),
    }
}
