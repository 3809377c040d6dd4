//! Values of Lua as replies, and replies as values of Lua, with the rules of Redis.

use mlua::{Error, Lua, Result, Table, Value};

use super::watchdog::Watchdog;
use crate::limits::{SCRIPT_REPLY_BYTES_MAX, SCRIPT_REPLY_DEPTH_MAX};
use crate::resp::Writer;

/// A number in a text: a whole number, or one with 17 digits.
pub(super) fn number_text(number: f64) -> String {
    match number.fract() == 0.0 && number.abs() < 1e14 {
        true => format!("{}", number as i64),
        false => printed(number, 17),
    }
}

/// A number as C's `%.*g` prints it with at most 17 digits.
pub(super) fn printed(number: f64, digits: i32) -> String {
    let mut text = [0u8; 64];
    // SAFETY: the buffer has the size that is given, and the arguments are those of the format. The text is shorter: at most 17 digits, a
    // sign, a point, and an exponent.
    let length =
        unsafe { libc::snprintf(text.as_mut_ptr().cast(), text.len(), c"%.*g".as_ptr(), digits, number) };
    String::from_utf8_lossy(&text[..usize::try_from(length).unwrap_or(0).min(text.len() - 1)]).into_owned()
}

/// Reads a reply in RESP2 as a value. The rest of the bytes follows it.
pub(super) fn read<'a>(lua: &Lua, reply: &'a [u8]) -> Result<(Value, &'a [u8])> {
    let malformed = || Error::runtime("a reply of the server is malformed");
    let end = reply.windows(2).position(|end| end == b"\r\n").ok_or_else(malformed)?;
    let (kind, line) = reply[..end].split_first().ok_or_else(malformed)?;
    let mut rest = &reply[end + 2..];
    let number =
        || std::str::from_utf8(line).ok().and_then(|line| line.parse::<i64>().ok()).ok_or_else(malformed);
    let field = |name: &str, text: &[u8]| -> Result<Value> {
        let table = lua.create_table()?;
        table.raw_set(name, lua.create_string(text)?)?;
        Ok(Value::Table(table))
    };
    let value = match kind {
        b'+' => field("ok", line)?,
        b'-' => field("err", line)?,
        b':' => Value::Number(number()? as f64),
        b'$' => match usize::try_from(number()?) {
            Err(_) => Value::Boolean(false),
            Ok(length) => {
                let text = rest.get(..length).ok_or_else(malformed)?;
                rest = rest.get(length + 2..).ok_or_else(malformed)?;
                Value::String(lua.create_string(text)?)
            }
        },
        b'*' => match usize::try_from(number()?) {
            Err(_) => Value::Boolean(false),
            Ok(length) => {
                let table = lua.create_table()?;
                for i in 1..=length {
                    let (element, after) = read(lua, rest)?;
                    table.raw_set(i, element)?;
                    rest = after;
                }
                Value::Table(table)
            }
        },
        _ => return Err(malformed()),
    };
    Ok((value, rest))
}

/// Writes a value as a reply. The error is for the client: the value is too deep or too large.
pub(super) fn write(value: &Value, out: &mut Writer<'_>, watchdog: &Watchdog) -> Result<()> {
    let limits = ReplyLimits { end: out.len() + SCRIPT_REPLY_BYTES_MAX, watchdog };
    write_value(value, out, &limits, 0)
}

/// The limits of a reply.
struct ReplyLimits<'a> {
    /// The end of the longest reply in the buffer.
    end: usize,
    watchdog: &'a Watchdog,
}

fn write_value(value: &Value, out: &mut Writer<'_>, limits: &ReplyLimits<'_>, depth: u32) -> Result<()> {
    if depth > SCRIPT_REPLY_DEPTH_MAX {
        return Err(Error::runtime("ERR reached lua stack limit"));
    }
    if out.len() > limits.end {
        let text = format!("ERR a script's reply has at most {SCRIPT_REPLY_BYTES_MAX} bytes");
        return Err(Error::runtime(text));
    }
    match value {
        Value::Boolean(true) => out.integer(1),
        Value::Integer(number) => out.integer(*number),
        Value::Number(number) => out.integer(*number as i64),
        Value::String(text) => out.bulk(&text.as_bytes()),
        Value::Table(table) => return write_table(table, out, limits, depth),
        _ => out.null(),
    }
    Ok(())
}

fn write_table(table: &Table, out: &mut Writer<'_>, limits: &ReplyLimits<'_>, depth: u32) -> Result<()> {
    limits.watchdog.check()?;
    if let Value::String(error) = table.raw_get("err")? {
        out.error(&error.as_bytes());
        return Ok(());
    }
    if let Value::String(status) = table.raw_get("ok")? {
        let status = String::from_utf8_lossy(&status.as_bytes()).replace(['\r', '\n'], " ");
        out.simple(&status);
        return Ok(());
    }
    match table.raw_get("double")? {
        Value::Number(number) => {
            out.double(number);
            return Ok(());
        }
        Value::Integer(number) => {
            out.double(number as f64);
            return Ok(());
        }
        _ => {}
    }
    if let Value::Table(pairs) = table.raw_get("map")? {
        // Twice, because the interpreter has room for some thousand values at a time outside of its tables.
        out.map(pairs.pairs::<Value, Value>().count());
        for pair in pairs.pairs::<Value, Value>() {
            let (key, value) = pair?;
            write_value(&key, out, limits, depth + 1)?;
            write_value(&value, out, limits, depth + 1)?;
        }
        return Ok(());
    }
    if let Value::Table(elements) = table.raw_get("set")? {
        out.set(elements.pairs::<Value, Value>().count());
        for element in elements.pairs::<Value, Value>() {
            write_value(&element?.0, out, limits, depth + 1)?;
        }
        return Ok(());
    }
    let mut length = 0;
    while !matches!(table.raw_get::<Value>(length + 1)?, Value::Nil) {
        length += 1;
    }
    out.array(length);
    for i in 1..=length {
        write_value(&table.raw_get(i)?, out, limits, depth + 1)?;
    }
    Ok(())
}
