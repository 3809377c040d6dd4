//! The library `struct`: values as the bytes of a C structure, with the formats of Redis's library.

use mlua::{Error, Lua, MultiValue, Result, Table, Value};

use super::arguments::Arguments;
use super::native::function;
use crate::limits::{SCRIPT_REQUEST_BYTES_MAX, SCRIPT_RESULTS_MAX};

/// Largest integer in bytes.
const INTEGER_BYTES_MAX: usize = 32;
/// The alignment of `!` without a number.
const ALIGNMENT_MAX: usize = 8;
/// Bytes of `size_t`, and of C's `int`, `short` and `long`.
const SIZE_BYTES: usize = 8;
const INT_BYTES: usize = 4;
const SHORT_BYTES: usize = 2;
const LONG_BYTES: usize = 8;

/// The library.
pub(super) fn library(lua: &Lua) -> Result<Table> {
    let library = lua.create_table()?;
    library.set("pack", function(lua, pack)?)?;
    library.set("unpack", function(lua, unpack)?)?;
    library.set("size", function(lua, |_, arguments| size(arguments))?)?;
    Ok(library)
}

/// A format that is being read.
struct Format<'a> {
    arguments: &'a Arguments<'a>,
    rest: &'a [u8],
    big_endian: bool,
    alignment: usize,
}

/// An item of a format: its letter, and its size in bytes.
struct Item {
    letter: u8,
    size: usize,
}

impl<'a> Format<'a> {
    fn new(arguments: &'a Arguments<'a>, text: &'a [u8]) -> Format<'a> {
        // As in C, a zero byte ends the format.
        let rest = text.split(|byte| *byte == 0).next().unwrap_or_default();
        Format { arguments, rest, big_endian: false, alignment: 1 }
    }

    /// The next item; options take effect.
    fn next(&mut self) -> Result<Option<Item>> {
        let Some((&letter, rest)) = self.rest.split_first() else { return Ok(None) };
        self.rest = rest;
        let size = match letter {
            b'B' | b'b' | b'x' => 1,
            b'H' | b'h' => SHORT_BYTES,
            b'L' | b'l' => LONG_BYTES,
            b'T' => SIZE_BYTES,
            b'f' => 4,
            b'd' => 8,
            b'c' => self.number(1)?,
            b'i' | b'I' => {
                let size = self.number(INT_BYTES)?;
                if size > INTEGER_BYTES_MAX {
                    let limit = format!("is larger than limit of {INTEGER_BYTES_MAX}");
                    return Err(Error::runtime(format!("integral size {size} {limit}")));
                }
                size
            }
            _ => 0,
        };
        Ok(Some(Item { letter, size }))
    }

    /// Applies an item that has no value.
    fn control(&mut self, item: &Item) -> Result<()> {
        match item.letter {
            b' ' => {}
            b'>' => self.big_endian = true,
            b'<' => self.big_endian = false,
            b'!' => {
                let alignment = self.number(ALIGNMENT_MAX)?;
                if !alignment.is_power_of_two() {
                    return Err(Error::runtime(format!("alignment {alignment} is not a power of 2")));
                }
                self.alignment = alignment;
            }
            letter => {
                let error = format!("invalid format option '{}'", char::from(letter));
                return Err(self.arguments.error(1, &error));
            }
        }
        Ok(())
    }

    /// The number at this place; `default` if there is none.
    fn number(&mut self, default: usize) -> Result<usize> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (digits, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<i32>().ok());
        number.map(|number| number as usize).ok_or_else(|| Error::runtime("integral size overflow"))
    }

    /// Bytes between a position and an item that begins behind it.
    fn padding(&self, position: usize, item: &Item) -> usize {
        if item.size == 0 || item.letter == b'c' {
            return 0;
        }
        let mask = item.size.min(self.alignment) - 1;
        (mask + 1).wrapping_sub(position & mask) & mask
    }
}

fn pack(lua: &Lua, arguments: &Arguments<'_>) -> Result<mlua::String> {
    let text = arguments.string(1)?;
    arguments.set_absent("nil");
    let text = text.as_bytes();
    let mut format = Format::new(arguments, &text);
    let mut packed = Vec::new();
    let mut argument = 1;
    while let Some(item) = format.next()? {
        packed.resize(packed.len() + format.padding(packed.len(), &item), 0);
        let big_endian = format.big_endian;
        let mut bytes = |mut bytes: Vec<u8>| {
            if big_endian {
                bytes.reverse();
            }
            packed.append(&mut bytes);
        };
        match item.letter {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                argument += 1;
                let number = arguments.number(argument)?;
                let value = if number < 0.0 { number as i64 as u64 } else { number as u64 };
                let mut little = value.to_le_bytes().to_vec();
                little.resize(item.size, 0);
                bytes(little);
            }
            b'x' => packed.push(0),
            b'f' => {
                argument += 1;
                bytes((arguments.number(argument)? as f32).to_le_bytes().to_vec());
            }
            b'd' => {
                argument += 1;
                bytes(arguments.number(argument)?.to_le_bytes().to_vec());
            }
            b'c' | b's' => {
                argument += 1;
                let text = arguments.string(argument)?;
                let text = text.as_bytes();
                let size = if item.size == 0 { text.len() } else { item.size };
                // Redis names the next argument.
                let text =
                    text.get(..size).ok_or_else(|| arguments.error(argument + 1, "string too short"))?;
                packed.extend_from_slice(text);
                if item.letter == b's' {
                    packed.push(0);
                }
            }
            _ => format.control(&item)?,
        }
        if packed.len() > SCRIPT_REQUEST_BYTES_MAX {
            return Err(Error::runtime("the packed text is too long"));
        }
    }
    lua.create_string(packed)
}

fn unpack(lua: &Lua, arguments: &Arguments<'_>) -> Result<MultiValue> {
    let (text, data) = (arguments.string(1)?, arguments.string(2)?);
    let (text, data) = (text.as_bytes(), data.as_bytes());
    let short = || arguments.error(2, "data string too short");
    // A negative position is one behind the end, as in C.
    let position = arguments.optional_integer(3)?.unwrap_or(1) as usize;
    if position == 0 {
        return Err(arguments.error(3, "offset must be 1 or greater"));
    }
    let mut position = position - 1;
    let mut format = Format::new(arguments, &text);
    let mut values: Vec<Value> = Vec::new();
    while let Some(mut item) = format.next()? {
        position = position.wrapping_add(format.padding(position, &item));
        let rest = data.get(position..).filter(|rest| item.size <= rest.len()).ok_or_else(short)?;
        if values.len() >= SCRIPT_RESULTS_MAX {
            return Err(Error::runtime("stack overflow (too many results)"));
        }
        let little = || {
            let mut bytes = rest[..item.size].to_vec();
            if format.big_endian {
                bytes.reverse();
            }
            bytes
        };
        match item.letter {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                values.push(Value::Number(integer(&little(), item.letter.is_ascii_lowercase())));
            }
            b'x' => {}
            b'f' => {
                let bytes = little().try_into().unwrap_or_default();
                values.push(Value::Number(f32::from_le_bytes(bytes).into()));
            }
            b'd' => {
                let bytes = little().try_into().unwrap_or_default();
                values.push(Value::Number(f64::from_le_bytes(bytes)));
            }
            b'c' => {
                if item.size == 0 {
                    let previous = values.pop().and_then(|value| match value {
                        Value::Number(size) => Some(size),
                        Value::String(text) => lua.coerce_number(Value::String(text)).ok().flatten(),
                        _ => None,
                    });
                    let size = previous.ok_or_else(|| Error::runtime("format 'c0' needs a previous size"))?;
                    item.size = if size < 0.0 { size as i64 as usize } else { size as usize };
                }
                let text = rest.get(..item.size).ok_or_else(short)?;
                values.push(Value::String(lua.create_string(text)?));
            }
            b's' => {
                let length = rest.iter().position(|byte| *byte == 0);
                let length = length.ok_or_else(|| Error::runtime("unfinished string in data"))?;
                values.push(Value::String(lua.create_string(&rest[..length])?));
                item.size = length + 1;
            }
            _ => format.control(&item)?,
        }
        position += item.size;
    }
    values.push(Value::Number((position + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

/// The integer of these bytes, of which the lowest 64 bits count.
fn integer(little: &[u8], is_signed: bool) -> f64 {
    let value = little.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    if !is_signed {
        return value as f64;
    }
    // As in C, the place of the sign is a number of 6 bits.
    let mask = u64::MAX.wrapping_shl((little.len() as u32 * 8).wrapping_sub(1));
    let value = if value & mask != 0 { value | mask } else { value };
    value as i64 as f64
}

fn size(arguments: &Arguments<'_>) -> Result<f64> {
    let text = arguments.string(1)?;
    let text = text.as_bytes();
    let mut format = Format::new(arguments, &text);
    let mut position = 0usize;
    while let Some(item) = format.next()? {
        position = position.wrapping_add(format.padding(position, &item));
        match item.letter {
            b's' => return Err(arguments.error(1, "option 's' has no fixed size")),
            b'c' if item.size == 0 => return Err(arguments.error(1, "option 'c0' has no fixed size")),
            letter if !letter.is_ascii_alphanumeric() => format.control(&item)?,
            _ => {}
        }
        position = position.wrapping_add(item.size);
    }
    Ok(position as f64)
}
