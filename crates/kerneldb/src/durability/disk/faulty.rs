//! A disk in memory for tests. It runs full and fails at chosen calls. After a crash it has kept the
//! promised bytes, and an arbitrary part of the others.
//!
//! Model of a crash: the synced bytes of a file survive. Each 512-byte sector of every unsynced write
//! survives or not, independently. The size of the file is between the synced and the current one. A
//! prefix of the unsynced changes of the directory survives. A failed sync marks the unsynced bytes
//! as clean, as Linux does: they stay readable, later syncs succeed, and a crash still loses them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use super::{Dir, DiskFile};

const SECTOR: usize = 512;

#[derive(Clone, Default)]
struct Node {
    data: Vec<u8>,
    /// Contents that a crash leaves for certain.
    durable: Vec<u8>,
    /// Ranges written since the last sync.
    dirty: Vec<(usize, usize)>,
    /// Ranges that a failed sync has forgotten: they may or may not have reached the disk.
    lost: Vec<(usize, usize)>,
}

#[derive(Clone)]
enum Change {
    Create(String, u64),
    Remove(String),
    Rename(String, String),
}

/// The calls that fail, and their errors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Numbers of the (counted) calls that fail, with the raw error (`libc::EIO`, ...).
    pub(crate) at: HashMap<u64, i32>,
    /// Bytes the disk can hold; more is ENOSPC.
    pub(crate) capacity: Option<u64>,
    /// Every sync fails with EIO.
    pub(crate) sync_fails: bool,
}

#[derive(Default)]
struct State {
    nodes: HashMap<u64, Node>,
    next: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    changes: Vec<Change>,
    calls: u64,
    faults: Faults,
}

impl State {
    /// Counts a call that can fail; returns the error if this one must fail.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        match self.faults.at.get(&self.calls) {
            Some(errno) => Err(io::Error::from_raw_os_error(*errno)),
            None => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|id| self.nodes[id].data.len() as u64).sum()
    }

    fn apply(names: &mut BTreeMap<String, u64>, change: &Change) {
        match change {
            Change::Create(name, id) => {
                names.insert(name.clone(), *id);
            }
            Change::Remove(name) => {
                names.remove(name);
            }
            Change::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
        }
    }

    fn change(&mut self, change: Change) {
        Self::apply(&mut self.names, &change);
        self.changes.push(change);
    }
}

/// See the module's comment. Clones share the disk.
#[derive(Clone, Default)]
pub(crate) struct FaultyDir(Arc<Mutex<State>>, Arc<SyncGate>);

/// Syncs of files wait here while the test holds them.
#[derive(Default)]
struct SyncGate {
    held: Mutex<bool>,
    released: Condvar,
}

struct FaultyFile {
    dir: FaultyDir,
    id: u64,
}

/// Source of the choices in a crash.
pub(crate) type Choose<'a> = &'a mut dyn FnMut(usize) -> usize;

impl FaultyDir {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.0.lock().unwrap().faults = faults;
    }

    /// Holds the syncs of files from now on, or releases them.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn hold_syncs(&self, hold: bool) {
        *self.1.held.lock().unwrap() = hold;
        self.1.released.notify_all();
    }

    /// Calls counted so far.
    pub(crate) fn calls(&self) -> u64 {
        self.0.lock().unwrap().calls
    }

    /// The current contents of a file.
    pub(crate) fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.0.lock().unwrap();
        state.names.get(name).map(|id| state.nodes[id].data.clone())
    }

    /// Creates a durable file.
    pub(crate) fn put(&self, name: &str, data: Vec<u8>) {
        let mut state = self.0.lock().unwrap();
        state.next += 1;
        let id = state.next;
        let node = Node { durable: data.clone(), data, ..Node::default() };
        state.nodes.insert(id, node);
        state.names.insert(name.into(), id);
        state.durable_names.insert(name.into(), id);
    }

    /// The disk after a power failure. `choose(n)` picks a number below `n`.
    pub(crate) fn crash(&self, choose: Choose<'_>) -> FaultyDir {
        let state = self.0.lock().unwrap();
        let mut names = state.durable_names.clone();
        let survived = choose(state.changes.len() + 1);
        for change in &state.changes[..survived] {
            State::apply(&mut names, change);
        }
        let mut after = State { next: state.next, ..State::default() };
        for id in names.values() {
            let node = &state.nodes[id];
            let mut data = node.durable.clone();
            let (low, high) = (data.len().min(node.data.len()), data.len().max(node.data.len()));
            data.resize(low + choose(high - low + 1), 0);
            for &(start, end) in node.dirty.iter().chain(&node.lost) {
                let mut at = start;
                while at < end {
                    let next = ((at / SECTOR + 1) * SECTOR).min(end);
                    if choose(2) == 1 {
                        let stop = next.min(data.len()).min(node.data.len());
                        if at < stop {
                            data[at..stop].copy_from_slice(&node.data[at..stop]);
                        }
                    }
                    at = next;
                }
            }
            after.nodes.insert(*id, Node { durable: data.clone(), data, ..Node::default() });
        }
        after.durable_names = names.clone();
        after.names = names;
        FaultyDir(Arc::new(Mutex::new(after)), Arc::default())
    }
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Dir for FaultyDir {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.lock().unwrap();
        state.call()?;
        if state.names.contains_key(name) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        state.next += 1;
        let id = state.next;
        state.nodes.insert(id, Node::default());
        state.change(Change::Create(name.into(), id));
        Ok(Box::new(FaultyFile { dir: self.clone(), id }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let state = self.0.lock().unwrap();
        let id = *state.names.get(name).ok_or_else(not_found)?;
        Ok(Box::new(FaultyFile { dir: self.clone(), id }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.call()?;
        if !state.names.contains_key(name) {
            return Err(not_found());
        }
        state.change(Change::Remove(name.into()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.call()?;
        if !state.names.contains_key(from) {
            return Err(not_found());
        }
        state.change(Change::Rename(from.into(), to.into()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.call()?;
        if state.faults.sync_fails {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        state.durable_names = state.names.clone();
        state.changes.clear();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("memory").join(name)
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.dir.0.lock().unwrap();
        let failed = state.call();
        let used = state.used();
        let capacity = state.faults.capacity.unwrap_or(u64::MAX);
        let node = state.nodes.get_mut(&self.id).unwrap();
        let start = offset as usize;
        // A failing write may have written a part.
        let mut end = start + if failed.is_ok() { data.len() } else { data.len() / 2 };
        let growth = end.saturating_sub(node.data.len()) as u64;
        let full = used + growth > capacity;
        if full {
            end = end.min(node.data.len() + capacity.saturating_sub(used) as usize).max(start);
        }
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        if start < end {
            node.data[start..end].copy_from_slice(&data[..end - start]);
            node.dirty.push((start, end));
        }
        failed?;
        if full { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let state = self.dir.0.lock().unwrap();
        let data = &state.nodes[&self.id].data;
        let start = (offset as usize).min(data.len());
        let n = buf.len().min(data.len() - start);
        buf[..n].copy_from_slice(&data[start..start + n]);
        Ok(n)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.dir.0.lock().unwrap().nodes[&self.id].data.len() as u64)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.dir.0.lock().unwrap();
        state.call()?;
        let node = state.nodes.get_mut(&self.id).unwrap();
        node.data.resize(len as usize, 0);
        for range in node.dirty.iter_mut().chain(&mut node.lost) {
            range.0 = range.0.min(len as usize);
            range.1 = range.1.min(len as usize);
        }
        Ok(())
    }

    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.dir.0.lock().unwrap();
        state.call()?;
        let end = (offset + len) as usize;
        let used = state.used();
        let capacity = state.faults.capacity.unwrap_or(u64::MAX);
        let node = state.nodes.get_mut(&self.id).unwrap();
        if used + end.saturating_sub(node.data.len()) as u64 > capacity {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let gate = &self.dir.1;
        drop(gate.released.wait_while(gate.held.lock().unwrap(), |held| *held).unwrap());
        let mut state = self.dir.0.lock().unwrap();
        let mut failed = state.call();
        if state.faults.sync_fails {
            failed = Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let node = state.nodes.get_mut(&self.id).unwrap();
        let dirty = std::mem::take(&mut node.dirty);
        if let Err(e) = failed {
            node.lost.extend(dirty);
            return Err(e);
        }
        // Everything is durable except bytes that an earlier failed sync has forgotten.
        let Node { data, durable, lost, .. } = node;
        let before = std::mem::replace(durable, data.clone());
        for &(start, end) in lost.iter() {
            for (at, byte) in durable.iter_mut().enumerate().take(end).skip(start) {
                if !dirty.iter().any(|&(from, to)| from <= at && at < to) {
                    *byte = before.get(at).copied().unwrap_or(0);
                }
            }
        }
        Ok(())
    }
}
