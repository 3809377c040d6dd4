//! The library `cjson`: JSON, with the choices of Redis's library. An empty table is an object, a table with the keys 1 to n is an array,
//! and `cjson.null` is a value of its own.

use std::sync::Arc;

use mlua::{Error, LightUserData, Lua, Number, Result, String as LuaString, Table, Value};
use serde_json::Value as Json;

use super::values::number_text;
use super::watchdog::Watchdog;
use crate::limits::{SCRIPT_JSON_BYTES_MAX, SCRIPT_REQUEST_BYTES_MAX};

/// Arrays and objects inside of one another.
const DEPTH_MAX: u32 = 127;
/// A table with a number as a key that is larger than this, and than this many times its elements, is too sparse for an array.
const SPARSE_FACTOR: usize = 2;
const SPARSE_SAFE: usize = 10;

fn null() -> Value {
    Value::LightUserData(LightUserData(std::ptr::null_mut()))
}

/// The library.
pub(super) fn library(lua: &Lua, watchdog: &Arc<Watchdog>) -> Result<Table> {
    let library = lua.create_table()?;
    library.set("null", null())?;
    let watchdog = watchdog.clone();
    let encode = move |lua: &Lua, value: Value| {
        let mut text = Vec::new();
        write(&value, &mut text, &watchdog, 0)?;
        lua.create_string(text)
    };
    library.set("encode", lua.create_function(encode)?)?;
    let decode = |lua: &Lua, text: LuaString| {
        if text.as_bytes().len() > SCRIPT_JSON_BYTES_MAX {
            return Err(Error::runtime("the text is too long"));
        }
        let json: Json = serde_json::from_slice(&text.as_bytes())
            .map_err(|error| Error::runtime(format!("Expected value but found invalid token: {error}")))?;
        read(lua, &json)
    };
    library.set("decode", lua.create_function(decode)?)?;
    Ok(library)
}

fn read(lua: &Lua, json: &Json) -> Result<Value> {
    Ok(match json {
        Json::Null => null(),
        Json::Bool(value) => Value::Boolean(*value),
        Json::Number(number) => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Value::String(lua.create_string(text)?),
        Json::Array(elements) => {
            let table = lua.create_table_with_capacity(elements.len(), 0)?;
            for (i, element) in elements.iter().enumerate() {
                table.raw_set(i + 1, read(lua, element)?)?;
            }
            Value::Table(table)
        }
        Json::Object(fields) => {
            let table = lua.create_table_with_capacity(0, fields.len())?;
            for (key, value) in fields {
                table.raw_set(lua.create_string(key)?, read(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}

fn write(value: &Value, text: &mut Vec<u8>, watchdog: &Watchdog, depth: u32) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::runtime("Cannot serialise, excessive depth"));
    }
    if text.len() > SCRIPT_REQUEST_BYTES_MAX {
        return Err(Error::runtime("Cannot serialise, the text is too long"));
    }
    match value {
        Value::Nil => text.extend_from_slice(b"null"),
        Value::LightUserData(pointer) if pointer.0.is_null() => text.extend_from_slice(b"null"),
        Value::Boolean(value) => text.extend_from_slice(if *value { b"true" } else { b"false" }),
        Value::Integer(number) => write_number(*number as f64, text)?,
        Value::Number(number) => write_number(*number, text)?,
        Value::String(string) => write_string(&string.as_bytes(), text),
        Value::Table(table) => match watchdog.check().and_then(|()| array_length(table))? {
            Some(length) => {
                text.push(b'[');
                for i in 1..=length {
                    if i > 1 {
                        text.push(b',');
                    }
                    write(&table.raw_get(i)?, text, watchdog, depth + 1)?;
                }
                text.push(b']');
            }
            None => write_object(table, text, watchdog, depth)?,
        },
        other => {
            return Err(Error::runtime(format!(
                "Cannot serialise {}: type not supported",
                other.type_name()
            )));
        }
    }
    Ok(())
}

fn write_number(number: f64, text: &mut Vec<u8>) -> Result<()> {
    if !number.is_finite() {
        return Err(Error::runtime("Cannot serialise number: must not be NaN or Inf"));
    }
    text.extend_from_slice(number_text(number, 14).as_bytes());
    Ok(())
}

/// The number of elements if the table is an array.
fn array_length(table: &Table) -> Result<Option<usize>> {
    let (mut largest, mut elements) = (0usize, 0usize);
    for pair in table.pairs::<Value, Value>() {
        let key = match pair?.0 {
            Value::Integer(key) => key as f64,
            Value::Number(key) => key,
            _ => return Ok(None),
        };
        if key < 1.0 || key.fract() != 0.0 {
            return Ok(None);
        }
        largest = largest.max(key as usize);
        elements += 1;
    }
    if elements == 0 {
        return Ok(None);
    }
    if largest > SPARSE_SAFE && largest > elements.saturating_mul(SPARSE_FACTOR) {
        return Err(Error::runtime("Cannot serialise table: excessively sparse array"));
    }
    Ok(Some(largest))
}

fn write_object(table: &Table, text: &mut Vec<u8>, watchdog: &Watchdog, depth: u32) -> Result<()> {
    text.push(b'{');
    let mut first = true;
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        if !std::mem::take(&mut first) {
            text.push(b',');
        }
        match key {
            Value::String(key) => write_string(&key.as_bytes(), text),
            Value::Integer(key) => write_key(key as Number, text),
            Value::Number(key) => write_key(key, text),
            _ => return Err(Error::runtime("Cannot serialise table: table key must be a number or string")),
        }
        text.push(b':');
        write(&value, text, watchdog, depth + 1)?;
    }
    text.push(b'}');
    Ok(())
}

fn write_key(key: Number, text: &mut Vec<u8>) {
    text.push(b'"');
    text.extend_from_slice(number_text(key, 14).as_bytes());
    text.push(b'"');
}

/// Bytes above 127 stay as they are.
fn write_string(string: &[u8], text: &mut Vec<u8>) {
    text.push(b'"');
    for &byte in string {
        match byte {
            b'"' | b'\\' | b'/' => text.extend_from_slice(&[b'\\', byte]),
            8 => text.extend_from_slice(b"\\b"),
            b'\t' => text.extend_from_slice(b"\\t"),
            b'\n' => text.extend_from_slice(b"\\n"),
            12 => text.extend_from_slice(b"\\f"),
            b'\r' => text.extend_from_slice(b"\\r"),
            0..=31 | 127 => text.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => text.push(byte),
        }
    }
    text.push(b'"');
}
