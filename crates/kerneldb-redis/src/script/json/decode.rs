//! Reads JSON. The tokens, and the texts of errors, are those of `cjson` 2.1.

use mlua::{Error, Lua, Result, String as LuaString, Table, Value};

use super::super::watchdog::{VALUES_PER_CHECK, Watchdog};
use super::settings::Values;
use crate::limits::SCRIPT_JSON_DECODE_DEPTH_MAX;

/// The value of a JSON text, which ends with a zero byte.
pub(super) fn decode(lua: &Lua, text: &[u8], settings: &Values, watchdog: &Watchdog) -> Result<Value> {
    if text.len() > 2 && (text[0] == 0 || text[1] == 0) {
        return Err(Error::runtime("JSON parser does not support UTF-16 or UTF-32"));
    }
    Decoder { lua, text, at: 0, settings, watchdog, values: 0 }.document()
}

/// A token.
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String(LuaString),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Invalid(&'static str),
}

impl Token {
    /// Its name in errors.
    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::String(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Invalid(reason) => reason,
        }
    }
}

/// An array or object whose end has not been read.
enum Open {
    Array { table: Table, length: usize },
    Object { table: Table, key: LuaString },
}

struct Decoder<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    settings: &'a Values,
    watchdog: &'a Watchdog,
    /// Values that were read.
    values: u32,
}

/// A token and its place.
type Placed = (Token, usize);

fn unexpected(expected: &str, (token, at): &Placed) -> Error {
    Error::runtime(format!("Expected {expected} but found {} at character {}", token.name(), at + 1))
}

impl Decoder<'_> {
    /// Reads the whole text. It does not recurse, because texts may be deep.
    fn document(&mut self) -> Result<Value> {
        let mut open: Vec<Open> = Vec::new();
        let mut placed = self.next()?;
        loop {
            self.values += 1;
            if self.values.is_multiple_of(VALUES_PER_CHECK) {
                self.watchdog.check()?;
            }
            let mut value = match placed.0 {
                Token::String(text) => Value::String(text),
                Token::Number(number) => Value::Number(number),
                Token::Boolean(value) => Value::Boolean(value),
                Token::Null => Value::NULL,
                Token::ArrayBegin => {
                    let table = self.table(open.len() + 1)?;
                    placed = self.next()?;
                    if !matches!(placed.0, Token::ArrayEnd) {
                        open.push(Open::Array { table, length: 0 });
                        continue;
                    }
                    Value::Table(table)
                }
                Token::ObjectBegin => {
                    let table = self.table(open.len() + 1)?;
                    placed = self.next()?;
                    if !matches!(placed.0, Token::ObjectEnd) {
                        let key = self.key(placed)?;
                        open.push(Open::Object { table, key });
                        placed = self.next()?;
                        continue;
                    }
                    Value::Table(table)
                }
                _ => return Err(unexpected("value", &placed)),
            };
            // The value may be the last one of arrays and objects.
            loop {
                let Some(innermost) = open.pop() else {
                    let end = self.next()?;
                    return match end.0 {
                        Token::End => Ok(value),
                        _ => Err(unexpected("the end", &end)),
                    };
                };
                match innermost {
                    Open::Array { table, length } => {
                        let length = length + 1;
                        table.raw_set(length, value)?;
                        placed = self.next()?;
                        match placed.0 {
                            Token::ArrayEnd => value = Value::Table(table),
                            Token::Comma => {
                                open.push(Open::Array { table, length });
                                break;
                            }
                            _ => return Err(unexpected("comma or array end", &placed)),
                        }
                    }
                    Open::Object { table, key } => {
                        table.raw_set(key, value)?;
                        placed = self.next()?;
                        match placed.0 {
                            Token::ObjectEnd => value = Value::Table(table),
                            Token::Comma => {
                                let next = self.next()?;
                                let key = self.key(next)?;
                                open.push(Open::Object { table, key });
                                break;
                            }
                            _ => return Err(unexpected("comma or object end", &placed)),
                        }
                    }
                }
            }
            placed = self.next()?;
        }
    }

    fn table(&self, depth: usize) -> Result<Table> {
        let depth_max = SCRIPT_JSON_DECODE_DEPTH_MAX.min(self.settings.decode_depth as usize);
        if depth > depth_max {
            let at = self.at;
            let error = format!("Found too many nested data structures ({depth}) at character {at}");
            return Err(Error::runtime(error));
        }
        self.lua.create_table()
    }

    /// The key that this token is, if a colon follows.
    fn key(&mut self, placed: Placed) -> Result<LuaString> {
        let Token::String(key) = placed.0 else { return Err(unexpected("object key string", &placed)) };
        let colon = self.next()?;
        match colon.0 {
            Token::Colon => Ok(key),
            _ => Err(unexpected("colon", &colon)),
        }
    }

    /// The byte at an offset from the present one; zero at the end of the text.
    fn byte(&self, offset: usize) -> u8 {
        self.text.get(self.at + offset).copied().unwrap_or(0)
    }

    fn next(&mut self) -> Result<Placed> {
        while matches!(self.byte(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let start = self.at;
        let single = match self.byte(0) {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b',' => Token::Comma,
            b':' => Token::Colon,
            // The place stays, so that the end is found again.
            0 => return Ok((Token::End, start)),
            b'"' => return self.string(),
            _ => {
                let token = self.word();
                return Ok((token, start));
            }
        };
        self.at += 1;
        Ok((single, start))
    }

    /// A number, or one of the words `true`, `false` and `null`.
    fn word(&mut self) -> Token {
        let rest = &self.text[self.at..];
        if matches!(rest[0], b'-' | b'0'..=b'9') {
            return match !self.settings.decode_invalid && is_invalid_number(rest) {
                true => Token::Invalid("invalid number"),
                false => self.number(),
            };
        }
        for (word, token) in
            [("true", Token::Boolean(true)), ("false", Token::Boolean(false)), ("null", Token::Null)]
        {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return token;
            }
        }
        match matches!(rest[0], b'i' | b'I' | b'n' | b'N' | b'+')
            && self.settings.decode_invalid
            && is_invalid_number(rest)
        {
            true => self.number(),
            false => Token::Invalid("invalid token"),
        }
    }

    /// A number as C reads it, because `cjson` does so.
    fn number(&mut self) -> Token {
        let rest = &self.text[self.at..];
        let mut end = std::ptr::null_mut();
        // SAFETY: the text ends with a zero byte, where the function ends at the latest.
        let number = unsafe { libc::strtod(rest.as_ptr().cast(), &raw mut end) };
        let length = (end as usize).saturating_sub(rest.as_ptr() as usize);
        if length == 0 {
            return Token::Invalid("invalid number");
        }
        self.at += length;
        Token::Number(number)
    }

    fn string(&mut self) -> Result<Placed> {
        let start = self.at;
        let mut string = Vec::new();
        self.at += 1;
        loop {
            match self.byte(0) {
                b'"' => break,
                0 => return Ok((Token::Invalid("unexpected end of string"), self.at)),
                b'\\' => match self.byte(1) {
                    b'u' => {
                        let Some(length) = self.unicode(&mut string) else {
                            return Ok((Token::Invalid("invalid unicode escape code"), self.at));
                        };
                        self.at += length;
                    }
                    escaped => {
                        string.push(match escaped {
                            b'"' | b'\\' | b'/' => escaped,
                            b'b' => 8,
                            b't' => b'\t',
                            b'n' => b'\n',
                            b'f' => 12,
                            b'r' => b'\r',
                            _ => return Ok((Token::Invalid("invalid escape code"), self.at)),
                        });
                        self.at += 2;
                    }
                },
                byte => {
                    string.push(byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Ok((Token::String(self.lua.create_string(string)?), start))
    }

    /// Reads `\u` and its four digits, or two of these that are a pair; returns their length.
    fn unicode(&self, string: &mut Vec<u8>) -> Option<usize> {
        let unit = |offset: usize| {
            let digits = self.text.get(self.at + offset..self.at + offset + 4)?;
            let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        };
        let first = unit(2)?;
        let (code, length) = match first & 0xF800 == 0xD800 {
            false => (first, 6),
            true if first & 0x400 != 0 || self.byte(6) != b'\\' || self.byte(7) != b'u' => return None,
            true => {
                let second = unit(8).filter(|second| second & 0xFC00 == 0xDC00)?;
                (((first & 0x3FF) << 10 | second & 0x3FF) + 0x1_0000, 12)
            }
        };
        let mut utf8 = [0; 4];
        string.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut utf8).as_bytes());
        Some(length)
    }
}

/// Whether JSON does not have a number that begins so, but C does.
fn is_invalid_number(text: &[u8]) -> bool {
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    match unsigned {
        [b'+', ..] => unsigned.len() == text.len(),
        [b'0', b'x' | b'X' | b'0'..=b'9', ..] => true,
        [first, ..] if *first <= b'9' => false,
        _ => {
            let word = unsigned.get(..3).unwrap_or_default();
            word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan")
        }
    }
}
