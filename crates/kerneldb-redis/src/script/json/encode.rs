//! Writes values as JSON.

use mlua::{Error, Result, Table, Value};

use super::super::arguments::type_name;
use super::super::values::printed;
use super::super::watchdog::Watchdog;
use super::settings::{InvalidNumbers, Values};
use crate::limits::{SCRIPT_JSON_ENCODE_DEPTH_MAX, SCRIPT_REQUEST_BYTES_MAX};

/// The JSON of a value.
pub(super) fn encode(value: &Value, settings: &Values, watchdog: &Watchdog) -> Result<Vec<u8>> {
    let mut encoder = Encoder { text: Vec::new(), settings, watchdog };
    encoder.write(value, 0)?;
    Ok(encoder.text)
}

struct Encoder<'a> {
    text: Vec<u8>,
    settings: &'a Values,
    watchdog: &'a Watchdog,
}

fn refused(value: &Value, reason: &str) -> Error {
    Error::runtime(format!("Cannot serialise {}: {reason}", type_name(value)))
}

impl Encoder<'_> {
    fn write(&mut self, value: &Value, depth: i32) -> Result<()> {
        if self.text.len() > SCRIPT_REQUEST_BYTES_MAX {
            return Err(Error::runtime("Cannot serialise, the text is too long"));
        }
        match value {
            Value::Nil => self.text.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => self.text.extend_from_slice(b"null"),
            Value::Boolean(value) => self.text.extend_from_slice(if *value { b"true" } else { b"false" }),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(string) => self.string(&string.as_bytes()),
            Value::Table(table) => self.table(table, depth + 1)?,
            other => return Err(refused(other, "type not supported")),
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<()> {
        if !number.is_finite() {
            match self.settings.encode_invalid {
                InvalidNumbers::Refuse => {
                    return Err(refused(&Value::Number(number), "must not be NaN or Inf"));
                }
                InvalidNumbers::Write if number.is_nan() => self.text.extend_from_slice(b"nan"),
                InvalidNumbers::Write => self.finite(number),
                InvalidNumbers::Null => self.text.extend_from_slice(b"null"),
            }
            return Ok(());
        }
        self.finite(number);
        Ok(())
    }

    fn finite(&mut self, number: f64) {
        self.text.extend_from_slice(printed(number, self.settings.precision).as_bytes());
    }

    fn table(&mut self, table: &Table, depth: i32) -> Result<()> {
        self.watchdog.check()?;
        if depth > self.settings.encode_depth.min(SCRIPT_JSON_ENCODE_DEPTH_MAX) {
            return Err(Error::runtime(format!("Cannot serialise, excessive nesting ({depth})")));
        }
        let length = self.array_length(table)?;
        if length == 0 {
            return self.object(table, depth);
        }
        self.text.push(b'[');
        for i in 1..=length {
            if i > 1 {
                self.text.push(b',');
            }
            self.write(&table.raw_get(i)?, depth)?;
        }
        self.text.push(b']');
        Ok(())
    }

    /// The number of places if the table is an array, otherwise 0.
    fn array_length(&self, table: &Table) -> Result<u64> {
        let (mut largest, mut elements) = (0.0, 0u32);
        for pair in table.pairs::<Value, Value>() {
            let key = match pair?.0 {
                Value::Integer(key) => key as f64,
                Value::Number(key) => key,
                _ => return Ok(0),
            };
            if key < 1.0 || key.fract() != 0.0 {
                return Ok(0);
            }
            largest = key.max(largest);
            elements += 1;
        }
        let Values { sparse_convert, sparse_ratio, sparse_safe, .. } = *self.settings;
        let is_sparse = sparse_ratio > 0
            && largest > f64::from(elements) * f64::from(sparse_ratio)
            && largest > sparse_safe.into();
        match (is_sparse, sparse_convert) {
            (false, _) => Ok(largest as u64),
            (true, true) => Ok(0),
            (true, false) => Err(refused(&Value::Table(table.clone()), "excessively sparse array")),
        }
    }

    fn object(&mut self, table: &Table, depth: i32) -> Result<()> {
        self.text.push(b'{');
        let mut first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if !std::mem::take(&mut first) {
                self.text.push(b',');
            }
            match &key {
                Value::String(key) => self.string(&key.as_bytes()),
                Value::Integer(_) | Value::Number(_) => {
                    self.text.push(b'"');
                    self.write(&key, depth)?;
                    self.text.push(b'"');
                }
                key => return Err(refused(key, "table key must be a number or string")),
            }
            self.text.push(b':');
            self.write(&value, depth)?;
        }
        self.text.push(b'}');
        Ok(())
    }

    /// Bytes above 127 stay as they are.
    fn string(&mut self, string: &[u8]) {
        let text = &mut self.text;
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
}
