//! The procedures that can be called by name.
//!
//! A library is an eBPF object with procedures. It is added, replaced and removed as a whole, under one lock, so a caller
//! finds all of its procedures or none, and all from the same object. Calls that run keep what they have found.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::{Error, Result, bpf::Program, limits::PROCEDURES_MAX};

/// A procedure that can be called.
pub(crate) struct Registered {
    pub library: Arc<str>,
    pub read_only: bool,
    /// The program for each partition.
    pub programs: Vec<Program>,
}

/// All procedures, by name.
#[derive(Default)]
pub(crate) struct Procedures(RwLock<BTreeMap<String, Arc<Registered>>>);

impl Procedures {
    /// Finds a procedure.
    pub fn find(&self, name: &str) -> Option<Arc<Registered>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// All procedures in the order of their names.
    pub fn all(&self) -> Vec<(String, Arc<Registered>)> {
        let procedures = self.0.read().unwrap_or_else(PoisonError::into_inner);
        procedures.iter().map(|(name, procedure)| (name.clone(), procedure.clone())).collect()
    }

    /// Whether there is a library.
    pub fn has(&self, library: &str) -> bool {
        let procedures = self.0.read().unwrap_or_else(PoisonError::into_inner);
        procedures.values().any(|procedure| &*procedure.library == library)
    }

    /// Adds a library, in the place of the library of the same name if there is one. An error changes nothing.
    pub fn put(&self, library: &str, new: BTreeMap<String, Registered>) -> Result<()> {
        let mut procedures = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let others = procedures.values().filter(|procedure| &*procedure.library != library).count();
        if others + new.len() > PROCEDURES_MAX {
            return Err(Error::Config(format!("there are more than {PROCEDURES_MAX} procedures")));
        }
        for name in new.keys() {
            if let Some(other) = procedures.get(name).filter(|other| &*other.library != library) {
                let text = format!("the procedure {name} is in the library {} already", other.library);
                return Err(Error::Config(text));
            }
        }
        procedures.retain(|_, procedure| &*procedure.library != library);
        procedures.extend(new.into_iter().map(|(name, procedure)| (name, Arc::new(procedure))));
        Ok(())
    }

    /// Removes a library; false if there is none.
    pub fn remove(&self, library: &str) -> bool {
        let mut procedures = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = procedures.len();
        procedures.retain(|_, procedure| &*procedure.library != library);
        procedures.len() < before
    }
}
