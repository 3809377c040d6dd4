//! LMDB. Without durability it has `WRITEMAP` and `NOSYNC`, its fastest mode; with durability it has its defaults, which
//! are safe. Both have `NORDAHEAD`, as its manual recommends for data larger than memory and random access.
//!
//! A read transaction is kept for one operation, or for several, which then see the same snapshot.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithTls};

use super::Setting;
use crate::pool::store::{Access, Body, Expected, Session, Store, Transaction, Verdict, Visit};
use crate::{Error, Result};

type Database = heed::Database<'static, Bytes, Bytes>;

/// Address space. The file is sparse, and as long as the data and the free space in it.
const MAP_BYTES: usize = 64 << 30;

/// An LMDB environment with one database.
pub struct Lmdb {
    env: Env,
    database: Database,
    reads_per_transaction: u32,
}

fn failed(error: heed::Error) -> Error {
    Error::Store { store: "LMDB", problem: error.to_string() }
}

impl Lmdb {
    /// Opens the store in a directory, or creates it.
    pub fn open(directory: &Path, setting: Setting, reads_per_transaction: u32) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        let unsynced =
            if setting.durable { EnvFlags::empty() } else { EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP };
        // SAFETY: the file is in a directory of this process alone, and no other process writes to it. A file that a
        // crash has damaged is not opened again.
        let env =
            unsafe { options.flags(unsynced | EnvFlags::NO_READ_AHEAD).open(directory) }.map_err(failed)?;
        let write = env.write_txn().map_err(failed)?;
        let database = env
            .create_databases_and_commit(write, |opener, write| {
                opener.create_database::<Bytes, Bytes>(write, None).map(CommitOrAbort::<_, ()>::Commit)
            })
            .map_err(failed)?
            .unwrap_commit();
        Ok(Self { env, database, reads_per_transaction })
    }
}

impl Store for Lmdb {
    type Session<'s> = LmdbSession<'s>;

    fn session(&self) -> Result<LmdbSession<'_>> {
        Ok(LmdbSession { store: self, read: None })
    }

    fn isolates(&self) -> bool {
        true
    }

    fn settle(&self) -> Result<()> {
        self.env.force_sync().map_err(failed)
    }
}

/// A thread's session.
pub struct LmdbSession<'s> {
    store: &'s Lmdb,
    /// A read transaction and how many operations it is kept for.
    read: Option<(RoTxn<'s, WithTls>, u32)>,
}

impl<'s> LmdbSession<'s> {
    fn reading<T>(&mut self, operation: impl FnOnce(&Database, &RoTxn<'s>) -> Result<T>) -> Result<T> {
        let (read, left) = match self.read.take() {
            Some(kept) => kept,
            None => (self.store.env.read_txn().map_err(failed)?, self.store.reads_per_transaction),
        };
        let result = operation(&self.store.database, &read);
        self.read = (left > 1).then(|| (read, left - 1));
        result
    }
}

impl Session for LmdbSession<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.reading(|database, read| get(database, read, key, value))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.read = None;
        let mut write = self.store.env.write_txn().map_err(failed)?;
        self.store.database.put(&mut write, key, value).map_err(failed)?;
        write.commit().map_err(failed)
    }

    fn scan(&mut self, from: &[u8], _: Expected, visit: Visit<'_>) -> Result<()> {
        self.reading(|database, read| scan(database, read, from, visit))
    }

    fn transaction(&mut self, access: Access, body: Body<'_>) -> Result<Verdict> {
        self.read = None;
        let database = &self.store.database;
        if access == Access::Read {
            let read = self.store.env.read_txn().map_err(failed)?;
            return body(&mut Reading { database, read });
        }
        let mut open =
            Writing { database, write: self.store.env.write_txn().map_err(failed)?, new: Vec::new() };
        let verdict = body(&mut open)?;
        // A write transaction that is not committed is aborted when it is dropped.
        if verdict == Verdict::Commit {
            open.write.commit().map_err(failed)?;
        }
        Ok(verdict)
    }
}

fn get(database: &Database, read: &RoTxn<'_>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    let found = database.get(read, key).map_err(failed)?;
    value.clear();
    value.extend_from_slice(found.unwrap_or_default());
    Ok(found.is_some())
}

fn scan(database: &Database, read: &RoTxn<'_>, from: &[u8], visit: Visit<'_>) -> Result<()> {
    // LMDB has no empty keys and accepts none as the start of a range.
    let first = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
    let bounds = (first, Bound::Unbounded);
    for pair in database.range(read, &bounds).map_err(failed)? {
        let (key, value) = pair.map_err(failed)?;
        if !visit(key, value) {
            break;
        }
    }
    Ok(())
}

struct Reading<'t> {
    database: &'t Database,
    read: RoTxn<'t, WithTls>,
}

impl Transaction for Reading<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.database, &self.read, key, value)
    }

    fn insert(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(read_only())
    }

    fn update(&mut self, _: &[u8], _: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool> {
        Err(read_only())
    }

    fn remove(&mut self, _: &[u8]) -> Result<bool> {
        Err(read_only())
    }

    fn scan(&mut self, from: &[u8], _: Expected, visit: Visit<'_>) -> Result<()> {
        scan(self.database, &self.read, from, visit)
    }
}

fn read_only() -> Error {
    Error::Store { store: "LMDB", problem: "the transaction only reads".to_owned() }
}

struct Writing<'t> {
    database: &'t Database,
    write: RwTxn<'t>,
    new: Vec<u8>,
}

impl Transaction for Writing<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.database, &self.write, key, value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.put(&mut self.write, key, value).map_err(failed)
    }

    fn update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool> {
        if !get(self.database, &self.write, key, &mut self.new)? {
            return Ok(false);
        }
        change(&mut self.new);
        self.database.put(&mut self.write, key, &self.new).map_err(failed)?;
        Ok(true)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.database.delete(&mut self.write, key).map_err(failed)
    }

    fn scan(&mut self, from: &[u8], _: Expected, visit: Visit<'_>) -> Result<()> {
        scan(self.database, &self.write, from, visit)
    }
}
