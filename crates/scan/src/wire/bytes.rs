//! Numbers and byte strings in messages: little-endian, with lengths in front.

use crate::{Error, Result};

/// Builds a message.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Appends a byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    /// Appends a number.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends bytes of a length that both sides know.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    /// Appends the number of bytes, and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32).raw(bytes)
    }

    /// Appends the number of items, and each item.
    pub fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.u32(items.len() as u32);
        items.iter().for_each(|item| each(self, item));
        self
    }

    /// The message.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// Parses a message. The parser trusts no length: it checks each against the remaining bytes.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Begins to parse these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| malformed("ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes bytes of a length that both sides know.
    pub fn raw<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many were taken"))
    }

    /// Takes a byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.raw::<1>()?[0])
    }

    /// Takes a number.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.raw()?))
    }

    /// Takes a number.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.raw()?))
    }

    /// Takes bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    /// Takes a list whose items have at least `least` bytes each.
    pub fn list<T>(&mut self, least: usize, mut each: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()? as usize;
        if count.saturating_mul(least) > self.0.len() {
            return Err(malformed("has a list that is longer than it"));
        }
        (0..count).map(|_| each(self)).collect()
    }

    /// Checks that the whole message has been taken.
    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed("goes on after its end")) }
    }
}

/// The error of a malformed message.
pub fn malformed(what: &str) -> Error {
    Error::Protocol(format!("a message {what}"))
}
