//! The settings of `cjson`. Those of the global library last for one run of a script, because scripts share the interpreter.

use std::sync::{Arc, Mutex, PoisonError};

use mlua::{Either, Lua, Result, Table, Value};

use super::super::arguments::Arguments;
use super::super::native::function;

/// Numbers that JSON does not have, when a value is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InvalidNumbers {
    /// They are an error.
    #[default]
    Refuse,
    /// They are written as C does it.
    Write,
    /// They become null.
    Null,
}

/// The values of the settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    /// An array that is too sparse becomes an object, and is not an error.
    pub sparse_convert: bool,
    /// An array is too sparse if it has more than this many times as many places as elements; 0 = no array is.
    pub sparse_ratio: i32,
    /// Places of an array that may have any number of elements.
    pub sparse_safe: i32,
    pub encode_depth: i32,
    pub decode_depth: i32,
    pub precision: i32,
    /// Without effect.
    keep_buffer: bool,
    pub encode_invalid: InvalidNumbers,
    /// Numbers that JSON does not have are read.
    pub decode_invalid: bool,
}

impl Default for Values {
    fn default() -> Values {
        Values {
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth: 1000,
            decode_depth: 1000,
            precision: 14,
            keep_buffer: true,
            encode_invalid: InvalidNumbers::default(),
            decode_invalid: true,
        }
    }
}

/// The settings of one library.
#[derive(Debug, Default)]
pub(in crate::script) struct Settings(Mutex<Values>);

impl Settings {
    pub(super) fn get(&self) -> Values {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Values)) -> Values {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut values);
        *values
    }

    /// Sets the defaults again.
    pub(in crate::script) fn reset(&self) {
        self.change(|values| *values = Values::default());
    }
}

/// A number between these bounds; `None` if there is no argument.
fn number(arguments: &Arguments<'_>, position: usize, low: i32, high: i32) -> Result<Option<i32>> {
    let Some(value) = arguments.optional_integer(position)? else { return Ok(None) };
    // As in C, only the lowest 32 bits count.
    let value = value as i32;
    match (low..=high).contains(&value) {
        true => Ok(Some(value)),
        false => Err(arguments.error(1, &format!("expected integer between {low} and {high}"))),
    }
}

/// One of the options, or a truth value: false is the first option, and true the second one. `None` if there is no argument.
fn option(arguments: &Arguments<'_>, position: usize, options: &[&str]) -> Result<Option<usize>> {
    match arguments.get(position) {
        Value::Nil => return Ok(None),
        Value::Boolean(value) => return Ok(Some((*value).into())),
        _ => {}
    }
    let text = arguments.string(position)?;
    let text = text.to_string_lossy();
    let found = options.iter().position(|option| *option == text);
    found.map(Some).ok_or_else(|| arguments.error(position, &format!("invalid option '{text}'")))
}

/// Adds the functions that read and change the settings.
pub(super) fn add_functions(lua: &Lua, library: &Table, settings: &Arc<Settings>) -> Result<()> {
    /// The function that has at most `count` arguments. It returns the settings after the change.
    fn add<R: mlua::IntoLuaMulti + 'static>(
        lua: &Lua,
        library: &Table,
        settings: &Arc<Settings>,
        (name, count): (&'static str, usize),
        run: fn(&Arguments<'_>, &Settings) -> Result<R>,
    ) -> Result<()> {
        let settings = settings.clone();
        let setting = move |_: &Lua, arguments: &Arguments<'_>| match arguments.len() > count {
            true => Err(arguments.error(count + 1, "found too many arguments")),
            false => run(arguments, &settings),
        };
        library.set(name, function(lua, setting)?)
    }
    add(lua, library, settings, ("encode_sparse_array", 3), |arguments, settings| {
        let convert = option(arguments, 1, &[])?;
        let (ratio, safe) = (number(arguments, 2, 0, i32::MAX)?, number(arguments, 3, 0, i32::MAX)?);
        let values = settings.change(|values| {
            values.sparse_convert = convert.map_or(values.sparse_convert, |convert| convert == 1);
            values.sparse_ratio = ratio.unwrap_or(values.sparse_ratio);
            values.sparse_safe = safe.unwrap_or(values.sparse_safe);
        });
        Ok((values.sparse_convert, values.sparse_ratio, values.sparse_safe))
    })?;
    add(lua, library, settings, ("encode_max_depth", 1), |arguments, settings| {
        let depth = number(arguments, 1, 1, i32::MAX)?;
        Ok(settings.change(|values| values.encode_depth = depth.unwrap_or(values.encode_depth)).encode_depth)
    })?;
    add(lua, library, settings, ("decode_max_depth", 1), |arguments, settings| {
        let depth = number(arguments, 1, 1, i32::MAX)?;
        Ok(settings.change(|values| values.decode_depth = depth.unwrap_or(values.decode_depth)).decode_depth)
    })?;
    add(lua, library, settings, ("encode_number_precision", 1), |arguments, settings| {
        let precision = number(arguments, 1, 1, 14)?;
        Ok(settings.change(|values| values.precision = precision.unwrap_or(values.precision)).precision)
    })?;
    add(lua, library, settings, ("encode_keep_buffer", 1), |arguments, settings| {
        let keep = option(arguments, 1, &[])?.map(|keep| keep == 1);
        Ok(settings.change(|values| values.keep_buffer = keep.unwrap_or(values.keep_buffer)).keep_buffer)
    })?;
    add(lua, library, settings, ("encode_invalid_numbers", 1), |arguments, settings| {
        let invalid = option(arguments, 1, &["off", "on", "null"])?.map(|invalid| match invalid {
            0 => InvalidNumbers::Refuse,
            1 => InvalidNumbers::Write,
            _ => InvalidNumbers::Null,
        });
        let values =
            settings.change(|values| values.encode_invalid = invalid.unwrap_or(values.encode_invalid));
        Ok(match values.encode_invalid {
            InvalidNumbers::Refuse => Either::Left(false),
            InvalidNumbers::Write => Either::Left(true),
            InvalidNumbers::Null => Either::Right("null"),
        })
    })?;
    add(lua, library, settings, ("decode_invalid_numbers", 1), |arguments, settings| {
        let invalid = option(arguments, 1, &["off", "on"])?.map(|invalid| invalid == 1);
        Ok(settings
            .change(|values| values.decode_invalid = invalid.unwrap_or(values.decode_invalid))
            .decode_invalid)
    })
}
