//! The procedures that can be called by name.
//!
//! A library is an eBPF object with procedures. It is added, replaced and removed as a whole, under one lock, so a caller
//! finds all of its procedures or none, and all from the same object. Calls that run keep what they have found.
//!
//! Locks, in order: `changes`, `by_name`, `files`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::{
    Error, Result,
    bpf::Program,
    limits::{PROCEDURE_NAME_MAX, PROCEDURES_MAX},
};

/// A procedure that can be called.
pub(crate) struct Registered {
    pub library: Arc<str>,
    pub read_only: bool,
    /// The program for each partition.
    pub programs: Vec<Program>,
}

/// All procedures, by name.
#[derive(Default)]
pub(crate) struct Procedures {
    by_name: RwLock<BTreeMap<String, Arc<Registered>>>,
    changes: Mutex<()>,
    files: Mutex<BTreeMap<String, Arc<[u8]>>>,
}

impl Procedures {
    /// Finds a procedure.
    pub fn find(&self, name: &str) -> Option<Arc<Registered>> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// All procedures in the order of their names.
    pub fn all(&self) -> Vec<(String, Arc<Registered>)> {
        let procedures = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        procedures.iter().map(|(name, procedure)| (name.clone(), procedure.clone())).collect()
    }

    /// Whether a library has procedures.
    pub fn has_library(&self, library: &str) -> bool {
        let procedures = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        procedures.values().any(|procedure| &*procedure.library == library)
    }

    /// Serializes loads and removals of libraries, which also change files.
    pub fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content of the file of each library.
    pub fn files(&self) -> BTreeMap<String, Arc<[u8]>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the content of a library's file, or forgets it.
    pub fn set_file(&self, library: &str, file: Option<Arc<[u8]>>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        match file {
            Some(file) => _ = files.insert(library.to_owned(), file),
            None => _ = files.remove(library),
        }
    }

    /// Checks whether a library can be added, in the place of the library of the same name if `replace` says so.
    pub fn check<T>(&self, library: &str, new: &BTreeMap<String, T>, replace: bool) -> Result<()> {
        let procedures = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        let others = procedures.values().filter(|procedure| &*procedure.library != library).count();
        if !replace && others < procedures.len() {
            return Err(Error::Library(format!("the library {library} is loaded already")));
        }
        if others + new.len() > PROCEDURES_MAX {
            return Err(Error::Library(format!("there would be more than {PROCEDURES_MAX} procedures")));
        }
        for name in new.keys() {
            if name.len() > PROCEDURE_NAME_MAX {
                return Err(Error::Library(format!(
                    "a procedure's name has at most {PROCEDURE_NAME_MAX} bytes"
                )));
            }
            if let Some(other) = procedures.get(name).filter(|other| &*other.library != library) {
                let text = format!("the procedure {name} is in the library {} already", other.library);
                return Err(Error::Library(text));
            }
        }
        Ok(())
    }

    /// Adds a library that [`Procedures::check`] has accepted under the same lock of changes.
    pub fn put(&self, library: &str, new: BTreeMap<String, Registered>) {
        let mut procedures = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        procedures.retain(|_, procedure| &*procedure.library != library);
        procedures.extend(new.into_iter().map(|(name, procedure)| (name, Arc::new(procedure))));
    }

    /// Removes a library; false if there is none.
    pub fn remove(&self, library: &str) -> bool {
        let mut procedures = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        let before = procedures.len();
        procedures.retain(|_, procedure| &*procedure.library != library);
        procedures.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(library: &str, names: std::ops::Range<usize>) -> BTreeMap<String, Registered> {
        let procedure = || Registered { library: library.into(), read_only: false, programs: Vec::new() };
        names.map(|i| (format!("p{i}"), procedure())).collect()
    }

    #[test]
    fn a_name_one_byte_too_long_is_refused() {
        let procedures = Procedures::default();
        let one = |bytes: usize| BTreeMap::from([("p".repeat(bytes), ())]);
        procedures.check("a", &one(PROCEDURE_NAME_MAX), false).unwrap();
        let refused = procedures.check("a", &one(PROCEDURE_NAME_MAX + 1), false).unwrap_err();
        assert!(refused.to_string().contains("at most 63 bytes"), "{refused}");
    }

    #[test]
    fn one_procedure_past_the_limit_is_refused() {
        let procedures = Procedures::default();
        procedures.put("a", library("a", 0..PROCEDURES_MAX - 1));
        let message = |result: Result<()>| result.unwrap_err().to_string();
        let two = library("b", PROCEDURES_MAX - 1..PROCEDURES_MAX + 1);
        assert!(message(procedures.check("b", &two, false)).contains("more than 256"));
        let one = library("b", PROCEDURES_MAX - 1..PROCEDURES_MAX);
        procedures.check("b", &one, false).unwrap();
        procedures.put("b", one);
        let more = library("c", PROCEDURES_MAX..PROCEDURES_MAX + 1);
        assert!(message(procedures.check("c", &more, false)).contains("more than 256"));
        // A library that is replaced gives its place up.
        procedures.check("a", &library("a", 0..PROCEDURES_MAX - 1), true).unwrap();
        assert!(message(procedures.check("a", &library("a", 0..1), false)).contains("loaded already"));
        assert_eq!(procedures.all().len(), PROCEDURES_MAX);
        assert!(procedures.remove("b") && !procedures.remove("b"));
        assert!(message(procedures.check("c", &library("c", 0..1), true)).contains("in the library a"));
        assert_eq!(procedures.all().len(), PROCEDURES_MAX - 1);
    }
}
