//! Libraries: eBPF objects with procedures that sessions call by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{
    Error, Result,
    attach::{self, Attachment, MapFds},
    engine::{Engine, Registered},
    limits::{LIBRARY_BYTES_MAX, LIBRARY_NAME_MAX},
};

/// Sections of the programs that are procedures, as `procedure.h` names them, and whether they only read.
const SECTIONS: [(&str, bool); 2] = [("raw_tp/procedure", false), ("raw_tp/read_only_procedure", true)];

/// A procedure that can be called by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureInfo {
    /// Its name.
    pub name: String,
    /// The library that it is in.
    pub library: String,
    /// Whether it only reads.
    pub read_only: bool,
}

/// All procedures in the order of their names.
pub(crate) fn list(db: &Engine) -> Vec<ProcedureInfo> {
    let info = |(name, procedure): (String, Arc<Registered>)| ProcedureInfo {
        name,
        library: procedure.library.to_string(),
        read_only: procedure.read_only,
    };
    db.procedures.all().into_iter().map(info).collect()
}

/// Whether a library can have this name, which is also that of a file.
fn check_name(name: &str) -> Result<()> {
    let fits = (1..=LIBRARY_NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    match fits {
        true => Ok(()),
        false => Err(Error::Library(format!(
            "a library's name has 1 to {LIBRARY_NAME_MAX} letters, digits, dashes and underscores"
        ))),
    }
}

/// Lets the kernel verify the procedures of a library that is to be loaded.
fn verify(db: &Arc<Engine>, library: &str, elf: &[u8]) -> Result<BTreeMap<String, Registered>> {
    check_name(library)?;
    if elf.len() > LIBRARY_BYTES_MAX {
        return Err(Error::Library(format!("an object has at most {} MiB", LIBRARY_BYTES_MAX >> 20)));
    }
    let mut procedures: BTreeMap<String, Registered> = BTreeMap::new();
    for partition in 0..db.config().partitions {
        let attachment =
            Attachment { name: library, elf, partition, constants: &[], maps: MapFds::new(), entries: &[] };
        let object = attach::load(db, attachment).map_err(|error| match error {
            Error::Kernel { .. } => {
                Error::Library(format!("{error}; the standard error of this process has the reason"))
            }
            error => error,
        })?;
        for (name, section) in object.programs() {
            let Some((_, read_only)) = SECTIONS.iter().find(|(known, _)| section == *known) else { continue };
            let program = object.program(&name)?;
            let procedure = procedures.entry(name).or_insert_with(|| Registered {
                library: library.into(),
                read_only: *read_only,
                programs: Vec::new(),
            });
            procedure.programs.push(program);
        }
    }
    match procedures.is_empty() {
        true => Err(Error::Library("the object has no procedure: define one with KDB_PROCEDURE".into())),
        false => Ok(procedures),
    }
}

/// Loads a library; returns the names of its procedures. `keep` is called before anybody can call them. Its error prevents
/// the load.
pub(crate) fn load(
    db: &Arc<Engine>,
    library: &str,
    elf: &[u8],
    replace: bool,
    keep: impl FnOnce() -> Result<()>,
) -> Result<Vec<String>> {
    let procedures = verify(db, library, elf)?;
    let names = procedures.keys().cloned().collect();
    let _changes = db.procedures.lock_changes();
    db.procedures.check(library, &procedures, replace)?;
    keep()?;
    db.procedures.put(library, procedures);
    Ok(names)
}
