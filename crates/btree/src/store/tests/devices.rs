//! A disk for the log, in memory, that fails and loses power.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use bedplate_bufpool::storage::Storage;

use super::faulty::Faulty;
use crate::store::disk::{Disk, Segment};
use crate::store::site::{Site, StoreSite};
use crate::store::{Error, Result};

/// The devices of a store.
pub struct Devices {
    pub pages: Faulty,
    pub log: Memory,
}

impl Devices {
    pub fn new(seed: u64) -> Self {
        Self { pages: Faulty::new(seed), log: Memory::new(seed) }
    }

    /// Makes the power fail and return.
    pub fn crash(&self) {
        self.pages.crash();
        self.log.crash();
    }
}

/// A disk. Clones are the same disk. A clone from before a power failure belongs to a computer that has lost its power, so its
/// operations fail. Threads of a store that was forgotten may still use it.
pub struct Memory {
    state: Arc<Mutex<State>>,
    /// Number of power failures before this clone was made.
    failures: u64,
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), failures: self.state().failures }
    }
}

struct State {
    segments: BTreeMap<u64, Content>,
    /// Number of operations until the power fails; 0 means never.
    fuse: u64,
    dead: bool,
    /// Number of power failures.
    failures: u64,
    /// Errors of the next operations.
    fail: Option<i32>,
    /// Maximum number of bytes of all segments and their reservations.
    space: u64,
    random: SmallRng,
}

#[derive(Clone, Default)]
struct Content {
    durable: Vec<u8>,
    /// Bytes written since the last sync.
    pending: Vec<u8>,
    /// Whether `pending` stays until the power fails, and no sync makes it durable.
    is_cached: bool,
    /// Number of bytes that the segment can have on a full disk, including those that it has.
    reserved: u64,
}

impl Content {
    fn takes(&self) -> u64 {
        self.reserved.max((self.durable.len() + self.pending.len()) as u64)
    }
}

impl State {
    /// Bytes that are free.
    fn free(&self) -> u64 {
        self.space.saturating_sub(self.segments.values().map(Content::takes).sum())
    }

    /// Reserves space for a segment.
    fn reserve(&mut self, number: u64, bytes: u64) -> io::Result<()> {
        let takes = self.segments.get(&number).map_or(0, Content::takes);
        if bytes.saturating_sub(takes) > self.free() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let content = self.segments.entry(number).or_default();
        content.reserved = content.reserved.max(bytes);
        Ok(())
    }

    /// Whether an operation takes place. An error may have completed a part of it.
    fn operation(&mut self) -> io::Result<()> {
        if self.fuse > 0 {
            self.fuse -= 1;
            self.dead |= self.fuse == 0;
        }
        match (self.dead, self.fail) {
            (true, _) => Err(io::Error::from_raw_os_error(libc::EIO)),
            (_, Some(error)) => Err(io::Error::from_raw_os_error(error)),
            _ => Ok(()),
        }
    }
}

impl Memory {
    fn new(seed: u64) -> Self {
        let state = State {
            segments: BTreeMap::new(),
            fuse: 0,
            dead: false,
            failures: 0,
            fail: None,
            space: u64::MAX,
            random: SmallRng::seed_from_u64(seed),
        };
        Self { state: Arc::new(Mutex::new(state)), failures: 0 }
    }

    /// A clone from the same time.
    fn same(&self) -> Self {
        Self { state: self.state.clone(), failures: self.failures }
    }

    /// The state, for an operation that changes it. It fails if the power has failed since this clone was made.
    fn powered(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        match state.failures == self.failures {
            true => Ok(state),
            false => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Makes the power fail at that operation from now on.
    pub fn fuse(&self, operations: u64) {
        self.state().fuse = operations;
    }

    /// Makes all operations fail from now on, or none.
    pub fn fail(&self, error: Option<i32>) {
        self.state().fail = error;
    }

    /// Limits the bytes of all segments and their reservations from now on. The limit is at least the bytes that they have.
    pub fn limit(&self, bytes: u64) {
        self.state().space = bytes;
    }

    /// Bytes of all segments and their reservations.
    pub fn takes(&self) -> u64 {
        self.state().segments.values().map(Content::takes).sum()
    }

    /// Removes all segments.
    pub fn clear(&self) {
        self.state().segments.clear();
    }

    /// Crashes. A random number of the bytes that were not synced is kept, and the last of these may be wrong.
    pub fn crash(&self) {
        let state = &mut *self.state();
        (state.dead, state.fuse, state.fail) = (false, 0, None);
        state.failures += 1;
        for content in state.segments.values_mut() {
            let mut rest = std::mem::take(&mut content.pending);
            rest.truncate(state.random.random_range(0..=rest.len()));
            if state.random.random()
                && let Some(last) = rest.last_mut()
            {
                *last ^= 0x55;
            }
            content.durable.extend(rest);
            content.is_cached = false;
        }
    }
}

impl Disk for Memory {
    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.state().segments.keys().copied().collect())
    }

    fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        let state = self.state();
        let content = state.segments.get(&number).ok_or(io::ErrorKind::NotFound)?;
        Ok([&content.durable[..], &content.pending].concat())
    }

    fn create(&self, number: u64, bytes: &[u8], reserve: u64) -> io::Result<Box<dyn Segment>> {
        let state = &mut *self.powered()?;
        let reserve = reserve.max(bytes.len() as u64);
        if reserve > state.free() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let done = state.operation();
        // The rename may have become durable nevertheless.
        if done.is_ok() || state.random.random() {
            let content = Content { durable: bytes.to_vec(), reserved: reserve, ..Content::default() };
            state.segments.insert(number, content);
        }
        done?;
        Ok(Box::new(Open(self.same(), number)))
    }

    fn reopen(&self, number: u64, bytes: &[u8]) -> io::Result<Box<dyn Segment>> {
        let state = &mut *self.powered()?;
        let done = state.operation();
        let content = state.segments.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        if done.is_ok() {
            (content.durable, content.is_cached) = (bytes.to_vec(), false);
            content.pending.clear();
        }
        done?;
        Ok(Box::new(Open(self.same(), number)))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        let state = &mut *self.powered()?;
        let done = state.operation();
        if done.is_ok() || state.random.random() {
            state.segments.remove(&number);
        }
        done
    }
}

/// Devices on which a store is made.
pub struct NewDevices {
    pub devices: Devices,
    /// Whether publishing was the last operation before the power failed.
    pub is_published: bool,
}

impl NewDevices {
    pub fn new(seed: u64) -> Self {
        Self { devices: Devices::new(seed), is_published: false }
    }
}

impl Site for NewDevices {
    fn pages(&mut self) -> Result<Box<dyn Storage>> {
        Ok(Box::new(self.devices.pages.clone()))
    }

    fn publish(&mut self) -> Result<()> {
        self.devices.log.state().operation().map_err(Error::io("publish"))?;
        self.is_published = true;
        Ok(())
    }
}

impl StoreSite for NewDevices {
    fn log(&self) -> Arc<dyn Disk> {
        Arc::new(self.devices.log.clone())
    }
}

struct Open(Memory, u64);

impl Segment for Open {
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.0.powered()?.reserve(self.1, bytes)
    }

    fn trim(&mut self) -> io::Result<()> {
        let mut state = self.0.powered()?;
        let content = state.segments.entry(self.1).or_default();
        content.reserved = 0;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let state = &mut *self.0.powered()?;
        let len =
            state.segments.get(&self.1).map_or(0, |content| content.durable.len() + content.pending.len());
        let mut done = state.operation();
        if done.is_ok() {
            let reserved = state.segments.get(&self.1).map_or(0, |content| content.reserved);
            done = state.reserve(self.1, reserved.max((len + bytes.len()) as u64));
        }
        let len = if done.is_ok() { bytes.len() } else { state.random.random_range(0..=bytes.len()) };
        state.segments.entry(self.1).or_default().pending.extend(&bytes[..len]);
        done
    }

    fn sync(&mut self) -> io::Result<()> {
        let state = &mut *self.0.powered()?;
        let done = state.operation();
        let content = state.segments.entry(self.1).or_default();
        if done.is_err() {
            // The kernel has marked the bytes as clean.
            content.is_cached = true;
        } else if !content.is_cached {
            let pending = std::mem::take(&mut content.pending);
            content.durable.extend(pending);
        }
        done
    }
}
