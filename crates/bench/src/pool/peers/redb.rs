//! redb. Without durability, commits use `Durability::None`.

use std::path::Path;

use redb::{Builder, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition};

use super::Setting;
use crate::pool::store::{Access, Body, Expected, Session, Store, Transaction, Verdict, Visit};
use crate::{Error, Result};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("data");

/// A redb database with one table.
pub struct Redb {
    database: redb::Database,
    durability: Durability,
}

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::Store { store: "redb", problem: error.into().to_string() }
}

impl Redb {
    /// Opens the store in a directory, or creates it.
    pub fn open(directory: &Path, setting: Setting) -> Result<Self> {
        // The rest is for its file in the page cache, and for its memory besides its cache.
        let cache = setting.budget / 4 * 3;
        let database =
            Builder::new().set_cache_size(cache as usize).create(directory.join("redb")).map_err(failed)?;
        let durability = if setting.durable { Durability::Immediate } else { Durability::None };
        let store = Self { database, durability };
        store.writing(|_| Ok(Verdict::Commit))?;
        Ok(store)
    }

    fn writing(
        &self,
        body: impl FnOnce(&mut Table<'_, &'static [u8], &'static [u8]>) -> Result<Verdict>,
    ) -> Result<Verdict> {
        let mut write = self.database.begin_write().map_err(failed)?;
        write.set_durability(self.durability).map_err(failed)?;
        let verdict = {
            let mut table = write.open_table(TABLE).map_err(failed)?;
            body(&mut table)?
        };
        match verdict {
            Verdict::Commit => write.commit().map_err(failed)?,
            Verdict::RollBack => write.abort().map_err(failed)?,
        }
        Ok(verdict)
    }

    fn reading<T>(
        &self,
        body: impl FnOnce(&ReadOnlyTable<&'static [u8], &'static [u8]>) -> Result<T>,
    ) -> Result<T> {
        let read = self.database.begin_read().map_err(failed)?;
        body(&read.open_table(TABLE).map_err(failed)?)
    }
}

impl Store for Redb {
    type Session<'s> = &'s Redb;

    fn session(&self) -> Result<&Redb> {
        Ok(self)
    }

    fn isolates(&self) -> bool {
        true
    }

    fn settle(&self) -> Result<()> {
        // A durable commit also makes earlier commits durable.
        let mut write = self.database.begin_write().map_err(failed)?;
        write.set_durability(Durability::Immediate).map_err(failed)?;
        write.commit().map_err(failed)
    }
}

impl Session for &Redb {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.reading(|table| get(table, key, value))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.writing(|table| table.insert(key, value).map(|_| Verdict::Commit).map_err(failed))?;
        Ok(())
    }

    fn scan(&mut self, from: &[u8], _: Expected, visit: Visit<'_>) -> Result<()> {
        self.reading(|table| scan(table, from, visit))
    }

    fn transaction(&mut self, access: Access, body: Body<'_>) -> Result<Verdict> {
        match access {
            Access::Read => self.reading(|table| body(&mut Reading(table))),
            Access::Write => self.writing(|table| body(&mut Writing { table, new: Vec::new() })),
        }
    }
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool> {
    let found = table.get(key).map_err(failed)?;
    value.clear();
    if let Some(found) = &found {
        value.extend_from_slice(found.value());
    }
    Ok(found.is_some())
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    from: &[u8],
    visit: Visit<'_>,
) -> Result<()> {
    for pair in table.range(from..).map_err(failed)? {
        let (key, value) = pair.map_err(failed)?;
        if !visit(key.value(), value.value()) {
            break;
        }
    }
    Ok(())
}

struct Reading<'t>(&'t ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Transaction for Reading<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.0, key, value)
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
        scan(self.0, from, visit)
    }
}

fn read_only() -> Error {
    Error::Store { store: "redb", problem: "the transaction only reads".to_owned() }
}

struct Writing<'t, 'w> {
    table: &'t mut Table<'w, &'static [u8], &'static [u8]>,
    new: Vec<u8>,
}

impl Transaction for Writing<'_, '_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.table, key, value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.table.insert(key, value).map(drop).map_err(failed)
    }

    fn update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool> {
        if !get(self.table, key, &mut self.new)? {
            return Ok(false);
        }
        change(&mut self.new);
        self.table.insert(key, self.new.as_slice()).map(drop).map_err(failed)?;
        Ok(true)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.table.remove(key).map(|old| old.is_some()).map_err(failed)
    }

    fn scan(&mut self, from: &[u8], _: Expected, visit: Visit<'_>) -> Result<()> {
        scan(self.table, from, visit)
    }
}
