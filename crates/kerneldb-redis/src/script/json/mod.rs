//! The library `cjson`: JSON, with the choices of Redis's library. An empty table is an object, a table with the keys 1 to n is an array,
//! and `cjson.null` is a value of its own. Bytes of texts are not checked.

mod decode;
mod encode;
mod settings;

use std::sync::Arc;

use mlua::{Error, Lua, Result, Table, Value};

use super::arguments::Arguments;
use super::native::function;
use super::watchdog::Watchdog;
use crate::limits::SCRIPT_DECODE_BYTES_MAX;
pub(super) use settings::Settings;

/// The library with these settings.
pub(super) fn library(lua: &Lua, watchdog: &Arc<Watchdog>, settings: &Arc<Settings>) -> Result<Table> {
    let library = lua.create_table()?;
    library.set("_NAME", "cjson")?;
    library.set("_VERSION", "2.1.0")?;
    library.set("null", Value::NULL)?;
    settings::add_functions(lua, &library, settings)?;
    let (watched, used) = (watchdog.clone(), settings.clone());
    let encode = move |lua: &Lua, arguments: &Arguments<'_>| {
        if arguments.len() != 1 {
            return Err(arguments.error(1, "expected 1 argument"));
        }
        lua.create_string(encode::encode(arguments.get(1), &used.get(), &watched)?)
    };
    library.set("encode", function(lua, encode)?)?;
    let (watched, used) = (watchdog.clone(), settings.clone());
    let decode = move |lua: &Lua, arguments: &Arguments<'_>| {
        if arguments.len() != 1 {
            return Err(arguments.error(1, "expected 1 argument"));
        }
        let text = arguments.string(1)?;
        let text = text.as_bytes_with_nul();
        if text.len() > SCRIPT_DECODE_BYTES_MAX + 1 {
            return Err(Error::runtime("the text is too long"));
        }
        decode::decode(lua, &text, &used.get(), &watched)
    };
    library.set("decode", function(lua, decode)?)?;
    let watchdog = watchdog.clone();
    let new = move |lua: &Lua, ()| self::library(lua, &watchdog, &Arc::default());
    library.set("new", lua.create_function(new)?)?;
    Ok(library)
}
