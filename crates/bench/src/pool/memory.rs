//! A `BTreeMap` as a store, for tests of the workloads.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use super::plain::{Plain, PlainSession};
use super::store::{Expected, Store, Visit};
use crate::Result;

/// Keys and their values.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The store.
pub struct Memory(RwLock<Map>);

impl Memory {
    /// A store that has the entries of a map at the start.
    pub fn new(map: Map) -> Self {
        Self(RwLock::new(map))
    }

    /// A copy of its current entries.
    pub fn copy(&self) -> Map {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Store for Memory {
    type Session<'s> = PlainSession<&'s RwLock<Map>>;

    fn session(&self) -> Result<Self::Session<'_>> {
        Ok(PlainSession::new(&self.0))
    }
}

impl Plain for &RwLock<Map> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        let found = map.get(key);
        value.clear();
        value.extend_from_slice(found.map_or(&[], Vec::as_slice));
        Ok(found.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut map = self.write().unwrap_or_else(PoisonError::into_inner);
        map.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.write().unwrap_or_else(PoisonError::into_inner).remove(key).is_some())
    }

    fn scan(&mut self, from: &[u8], _: Expected, visit: Visit<'_>) -> Result<()> {
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in
            map.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded))
        {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}
