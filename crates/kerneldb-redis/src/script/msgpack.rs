//! The library `cmsgpack`: MessagePack, with the choices of Redis's library. A table with the keys 1 to n is an array. Tables that are too
//! deep become nil.

use std::sync::Arc;

use mlua::{Error, Lua, MultiValue, Result, Table, Value};
use rmp::Marker;
use rmp::encode;

use super::arguments::Arguments;
use super::native::{function, plain_error};
use super::watchdog::{VALUES_PER_CHECK, Watchdog};
use crate::limits::{
    SCRIPT_DECODE_BYTES_MAX, SCRIPT_MSGPACK_DEPTH_MAX, SCRIPT_REQUEST_BYTES_MAX, SCRIPT_RESULTS_MAX,
};

/// Tables inside of one another that are packed.
const PACK_DEPTH: u32 = 16;

/// The library.
pub(super) fn library(lua: &Lua, watchdog: &Arc<Watchdog>) -> Result<Table> {
    let library = lua.create_table()?;
    for (name, value) in [
        ("_NAME", "cmsgpack"),
        ("_VERSION", "lua-cmsgpack 0.4.0"),
        ("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo"),
        ("_DESCRIPTION", "MessagePack C implementation for Lua"),
    ] {
        library.set(name, value)?;
    }
    let watched = watchdog.clone();
    let pack = move |lua: &Lua, arguments: &Arguments<'_>| {
        if arguments.len() == 0 {
            return Err(arguments.error(0, "MessagePack pack needs input."));
        }
        let mut packed = Vec::new();
        arguments.iter().try_for_each(|value| write(value, &mut packed, &watched, 0))?;
        lua.create_string(packed)
    };
    library.set("pack", function(lua, pack)?)?;
    let watched = watchdog.clone();
    let unpack_all = move |lua: &Lua, arguments: &Arguments<'_>| unpack(lua, &watched, arguments, 0, 0);
    library.set("unpack", function(lua, unpack_all)?)?;
    let watched = watchdog.clone();
    let unpack_one = move |lua: &Lua, arguments: &Arguments<'_>| {
        let offset = arguments.optional_integer(2)?.unwrap_or(0);
        unpack(lua, &watched, arguments, 1, offset)
    };
    library.set("unpack_one", function(lua, unpack_one)?)?;
    let watched = watchdog.clone();
    let unpack_limit = move |lua: &Lua, arguments: &Arguments<'_>| {
        let (limit, offset) = (arguments.integer(2)?, arguments.optional_integer(3)?.unwrap_or(0));
        unpack(lua, &watched, arguments, limit, offset)
    };
    library.set("unpack_limit", function(lua, unpack_limit)?)?;
    Ok(library)
}

fn failed<E: std::fmt::Display>(error: E) -> Error {
    Error::runtime(format!("the value cannot be packed: {error}"))
}

fn write(value: &Value, packed: &mut Vec<u8>, watchdog: &Watchdog, depth: u32) -> Result<()> {
    if packed.len() > SCRIPT_REQUEST_BYTES_MAX {
        return Err(Error::runtime("the packed text is too long"));
    }
    match value {
        Value::Boolean(value) => encode::write_bool(packed, *value).map_err(failed),
        Value::Integer(number) => encode::write_sint(packed, *number).map(drop).map_err(failed),
        Value::Number(number) => write_number(*number, packed),
        Value::String(text) => {
            let text = text.as_bytes();
            if text.len() > SCRIPT_REQUEST_BYTES_MAX {
                return Err(Error::runtime("the packed text is too long"));
            }
            encode::write_str_len(packed, text.len() as u32).map_err(failed)?;
            packed.extend_from_slice(&text);
            Ok(())
        }
        Value::Table(table) if depth < PACK_DEPTH => write_table(table, packed, watchdog, depth),
        _ => encode::write_nil(packed).map_err(failed),
    }
}

fn write_number(number: f64, packed: &mut Vec<u8>) -> Result<()> {
    // 2^63 is the first number that is no integer of 64 bits.
    const END: f64 = 9_223_372_036_854_775_808.0;
    if number.fract() == 0.0 && (-END..END).contains(&number) {
        return encode::write_sint(packed, number as i64).map(drop).map_err(failed);
    }
    let short = number as f32;
    match f64::from(short) == number {
        true => encode::write_f32(packed, short).map_err(failed),
        false => encode::write_f64(packed, number).map_err(failed),
    }
}

fn write_table(table: &Table, packed: &mut Vec<u8>, watchdog: &Watchdog, depth: u32) -> Result<()> {
    watchdog.check()?;
    let (mut is_array, mut largest, mut count) = (true, 0.0, 0u32);
    for pair in table.pairs::<Value, Value>() {
        let key = match pair?.0 {
            Value::Integer(key) => key as f64,
            Value::Number(key) => key,
            _ => f64::NAN,
        };
        is_array &= key > 0.0 && key.fract() == 0.0 && key <= f64::from(i32::MAX);
        largest = key.max(largest);
        count += 1;
    }
    if is_array && largest == f64::from(count) {
        encode::write_array_len(packed, count).map_err(failed)?;
        return (1..=count).try_for_each(|i| write(&table.raw_get::<Value>(i)?, packed, watchdog, depth + 1));
    }
    encode::write_map_len(packed, count).map_err(failed)?;
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        write(&key, packed, watchdog, depth + 1)?;
        write(&value, packed, watchdog, depth + 1)?;
    }
    Ok(())
}

/// Unpacks values. The arguments begin with the text. With a limit or an offset, the first result is the offset of the rest.
fn unpack(
    lua: &Lua,
    watchdog: &Watchdog,
    arguments: &Arguments<'_>,
    limit: i64,
    offset: i64,
) -> Result<MultiValue> {
    let text = arguments.string(1)?;
    let text = text.as_bytes();
    if text.len() > SCRIPT_DECODE_BYTES_MAX {
        return Err(Error::runtime("the text is too long"));
    }
    let length = text.len();
    if offset < 0 || limit < 0 {
        // The words are those of Redis, which takes the length for the limit.
        let error = format!("Invalid request to unpack with offset of {offset} and limit of {length}.");
        return Err(Error::runtime(error));
    }
    let start = usize::try_from(offset).ok().filter(|start| *start <= length).ok_or_else(|| {
        Error::runtime(format!("Start offset {} greater than input length {length}.", offset as i32))
    })?;
    let is_whole = limit == 0 && offset == 0;
    let mut reader = Reader { lua, watchdog, rest: &text[start..], values: 0 };
    let mut values = Vec::new();
    while !reader.rest.is_empty() && (is_whole || (values.len() as i64) < limit) {
        if values.len() >= SCRIPT_RESULTS_MAX {
            let error = "too many return values at once; use unpack_one or unpack_limit instead.";
            return Err(Error::runtime(format!("stack overflow ({error})")));
        }
        values.push(reader.value(0)?);
    }
    if !is_whole {
        let next = if reader.rest.is_empty() { -1 } else { (length - reader.rest.len()) as i64 };
        values.insert(0, Value::Integer(next));
    }
    Ok(MultiValue::from_vec(values))
}

/// The bytes that are not unpacked.
struct Reader<'a> {
    lua: &'a Lua,
    watchdog: &'a Watchdog,
    rest: &'a [u8],
    /// Number of values that were unpacked.
    values: u32,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) =
            self.rest.split_first_chunk().ok_or_else(|| Error::runtime("Missing bytes in input."))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u16(&mut self) -> Result<usize> {
        Ok(u16::from_be_bytes(self.take()?).into())
    }

    fn u32(&mut self) -> Result<usize> {
        Ok(u32::from_be_bytes(self.take()?) as usize)
    }

    fn value(&mut self, depth: u32) -> Result<Value> {
        self.values += 1;
        if self.values.is_multiple_of(VALUES_PER_CHECK) {
            self.watchdog.check()?;
        }
        let [marker] = self.take()?;
        let number = |number: i64| Ok(Value::Number(number as f64));
        match Marker::from_u8(marker) {
            Marker::FixPos(value) => number(value.into()),
            Marker::FixNeg(value) => number(value.into()),
            Marker::U8 => number(u8::from_be_bytes(self.take()?).into()),
            Marker::U16 => number(u16::from_be_bytes(self.take()?).into()),
            Marker::U32 => number(u32::from_be_bytes(self.take()?).into()),
            // Redis takes a number above those of 63 bits for a negative one.
            Marker::U64 | Marker::I64 => number(i64::from_be_bytes(self.take()?)),
            Marker::I8 => number(i8::from_be_bytes(self.take()?).into()),
            Marker::I16 => number(i16::from_be_bytes(self.take()?).into()),
            Marker::I32 => number(i32::from_be_bytes(self.take()?).into()),
            Marker::F32 => Ok(Value::Number(f32::from_be_bytes(self.take()?).into())),
            Marker::F64 => Ok(Value::Number(f64::from_be_bytes(self.take()?))),
            Marker::Null => Ok(Value::Nil),
            Marker::True => Ok(Value::Boolean(true)),
            Marker::False => Ok(Value::Boolean(false)),
            Marker::FixStr(length) => self.text(length.into()),
            Marker::Str8 => {
                let [length] = self.take()?;
                self.text(length.into())
            }
            Marker::Str16 => self.u16().and_then(|length| self.text(length)),
            Marker::Str32 => self.u32().and_then(|length| self.text(length)),
            Marker::FixArray(length) => self.array(length.into(), depth),
            Marker::Array16 => self.u16().and_then(|length| self.array(length, depth)),
            Marker::Array32 => self.u32().and_then(|length| self.array(length, depth)),
            Marker::FixMap(length) => self.map(length.into(), depth),
            Marker::Map16 => self.u16().and_then(|length| self.map(length, depth)),
            Marker::Map32 => self.u32().and_then(|length| self.map(length, depth)),
            _ => Err(Error::runtime("Bad data format in input.")),
        }
    }

    fn text(&mut self, length: usize) -> Result<Value> {
        let (text, rest) =
            self.rest.split_at_checked(length).ok_or_else(|| Error::runtime("Missing bytes in input."))?;
        self.rest = rest;
        Ok(Value::String(self.lua.create_string(text)?))
    }

    fn table(&self, depth: u32) -> Result<Table> {
        if depth >= SCRIPT_MSGPACK_DEPTH_MAX {
            return Err(Error::runtime("the packed tables are too deep"));
        }
        self.lua.create_table()
    }

    fn array(&mut self, length: usize, depth: u32) -> Result<Value> {
        let table = self.table(depth)?;
        for i in 1..=length {
            table.raw_set(i, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, length: usize, depth: u32) -> Result<Value> {
        let table = self.table(depth)?;
        for _ in 0..length {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            match key {
                Value::Nil => return Err(plain_error("table index is nil")),
                Value::Number(key) if key.is_nan() => return Err(plain_error("table index is NaN")),
                key => table.raw_set(key, value)?,
            }
        }
        Ok(Value::Table(table))
    }
}
