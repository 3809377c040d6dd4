//! The libraries and functions that there are. A catalog does not change: a change makes another one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::super::flags::Flags;
use crate::limits::{FUNCTION_BYTES_MAX, FUNCTION_LIBRARIES_MAX, FUNCTIONS_MAX};

/// A function as a library has registered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FunctionInfo {
    pub name: String,
    pub description: Option<Vec<u8>>,
    pub flags: Flags,
}

impl FunctionInfo {
    fn bytes(&self) -> usize {
        self.name.len() + self.description.as_ref().map_or(0, Vec::len)
    }
}

/// A library.
#[derive(Debug)]
pub(crate) struct Library {
    /// A number that no other library of the server has.
    pub id: u64,
    pub name: String,
    /// The whole code with its first line.
    pub code: Vec<u8>,
    /// The functions by their names.
    pub functions: BTreeMap<String, FunctionInfo>,
}

impl Library {
    /// Bytes that count for the limit on all libraries.
    fn bytes(&self) -> usize {
        self.name.len() + self.code.len() + self.functions.values().map(FunctionInfo::bytes).sum::<usize>()
    }
}

/// A set of libraries. Errors are the client's replies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// A number that no other catalog of the server has.
    pub number: u64,
    libraries: BTreeMap<String, Arc<Library>>,
    /// The library of each function, and its name there. The keys are lower-case.
    functions: HashMap<String, (Arc<Library>, String)>,
    bytes: usize,
}

impl Catalog {
    /// A function by its name, whose case does not matter.
    pub fn function(&self, name: &[u8]) -> Option<(&Arc<Library>, &FunctionInfo)> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        let (library, name) = self.functions.get(&name)?;
        Some((library, library.functions.get(name)?))
    }

    /// The libraries, sorted by name.
    pub fn libraries(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.libraries.values()
    }

    pub fn contains(&self, library: &str) -> bool {
        self.libraries.contains_key(library)
    }

    /// Number of functions.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Bytes of the code, and of the names and descriptions of functions.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The catalog without a library; `None` if it is not there.
    pub fn without(&self, library: &str) -> Option<Catalog> {
        let mut changed = self.clone();
        changed.remove(library).then_some(changed)
    }

    /// The catalog with another library, which takes the place of one of the same name.
    pub fn with(&self, library: &Arc<Library>) -> Result<Catalog, String> {
        let mut changed = self.clone();
        changed.remove(&library.name);
        changed.add(library)?;
        Ok(changed)
    }

    /// The catalog with all libraries of another one, which take the places of those of the same names if `replace`.
    pub fn joined(&self, other: &Catalog, replace: bool) -> Result<Catalog, String> {
        let mut changed = self.clone();
        for library in other.libraries.values() {
            if changed.remove(&library.name) && !replace {
                return Err(format!("ERR Library {} already exists", library.name));
            }
        }
        other.libraries.values().try_for_each(|library| changed.add(library))?;
        Ok(changed)
    }

    fn remove(&mut self, library: &str) -> bool {
        let Some(library) = self.libraries.remove(library) else { return false };
        self.functions.retain(|_, (of, _)| !Arc::ptr_eq(of, &library));
        self.bytes -= library.bytes();
        true
    }

    fn add(&mut self, library: &Arc<Library>) -> Result<(), String> {
        for name in library.functions.keys() {
            let named = (library.clone(), name.clone());
            if self.functions.insert(name.to_ascii_lowercase(), named).is_some() {
                return Err(format!("ERR Function {name} already exists"));
            }
        }
        self.bytes += library.bytes();
        self.libraries.insert(library.name.clone(), library.clone());
        if self.libraries.len() > FUNCTION_LIBRARIES_MAX {
            return Err(format!("ERR there are at most {FUNCTION_LIBRARIES_MAX} libraries of functions"));
        }
        if self.functions.len() > FUNCTIONS_MAX {
            return Err(format!("ERR there are at most {FUNCTIONS_MAX} functions"));
        }
        if self.bytes > FUNCTION_BYTES_MAX {
            return Err(format!("ERR all libraries of functions have at most {FUNCTION_BYTES_MAX} bytes"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, functions: &[&str], bytes: usize) -> Arc<Library> {
        let functions = functions.iter().map(|name| {
            let info = FunctionInfo { name: (*name).to_owned(), description: None, flags: Flags::default() };
            ((*name).to_owned(), info)
        });
        Arc::new(Library {
            id: 0,
            name: name.into(),
            code: vec![b' '; bytes],
            functions: functions.collect(),
        })
    }

    #[test]
    fn functions_have_one_library() {
        let one = Catalog::default().with(&library("one", &["f", "g"], 10)).unwrap();
        assert_eq!(one.function(b"F").unwrap().1.name, "f");
        assert_eq!(one.with(&library("two", &["G"], 1)).unwrap_err(), "ERR Function G already exists");
        let replaced = one.with(&library("one", &["h"], 5)).unwrap();
        assert!(replaced.function(b"f").is_none() && replaced.function(b"h").is_some());
        assert_eq!((replaced.functions(), replaced.bytes()), (1, 3 + 5 + 1));
        let other = Catalog::default().with(&library("one", &["f"], 1)).unwrap();
        assert_eq!(one.joined(&other, false).unwrap_err(), "ERR Library one already exists");
        assert_eq!(one.joined(&other, true).unwrap().functions(), 1);
        let empty = one.without("one").unwrap();
        assert_eq!((empty.functions(), empty.bytes(), empty.libraries().len()), (0, 0, 0));
        assert!(one.without("two").is_none());
    }

    #[test]
    fn one_past_each_limit_is_an_error() {
        let mut many = Catalog::default();
        for i in 0..FUNCTION_LIBRARIES_MAX {
            many = many.with(&library(&format!("l{i}"), &[&format!("f{i}")], 1)).unwrap();
        }
        assert!(many.with(&library("more", &["more"], 1)).unwrap_err().contains("libraries of functions"));
        many = many.without("l0").unwrap();
        let names: Vec<String> =
            (0..FUNCTIONS_MAX - FUNCTION_LIBRARIES_MAX + 2).map(|i| format!("g{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(many.with(&library("more", &names[1..], 1)).is_ok());
        assert!(many.with(&library("more", &names, 1)).unwrap_err().contains("functions"));
        let full = Catalog::default().with(&library("full", &["f"], FUNCTION_BYTES_MAX - 5)).unwrap();
        assert_eq!(full.bytes(), FUNCTION_BYTES_MAX);
        let over = Catalog::default().with(&library("full", &["f"], FUNCTION_BYTES_MAX - 4));
        assert!(over.unwrap_err().contains("bytes"));
    }
}
