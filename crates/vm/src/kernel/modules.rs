//! Dependencies between modules. Every module's file names the modules it depends on.

use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};

use crate::{Error, Result};

/// The files of the named modules and of their dependencies, in load order. `file` returns a module's
/// uncompressed file by its name. Modules for which it returns `None` are omitted, because they may be built
/// in.
pub(super) fn closure(
    names: &[&str],
    file: &mut dyn FnMut(&str) -> Result<Option<PathBuf>>,
) -> Result<Vec<PathBuf>> {
    let mut ordered = Vec::new();
    for wanted in names {
        add(wanted, file, &mut ordered)?;
    }
    Ok(ordered)
}

fn add(
    wanted: &str,
    file: &mut dyn FnMut(&str) -> Result<Option<PathBuf>>,
    ordered: &mut Vec<PathBuf>,
) -> Result<()> {
    let Some(path) = file(wanted)? else { return Ok(()) };
    if ordered.contains(&path) {
        return Ok(());
    }
    let bytes = fs::read(&path).map_err(Error::io(format!("read {}", path.display())))?;
    for dependency in depends(&bytes) {
        add(&dependency, file, ordered)?;
    }
    ordered.push(path);
    Ok(())
}

/// The modules that a module's file names as its dependencies. There are no cycles, because depmod refuses
/// them.
fn depends(bytes: &[u8]) -> Vec<String> {
    let Ok(elf) = object::File::parse(bytes) else { return Vec::new() };
    let Some(Ok(info)) = elf.section_by_name(".modinfo").map(|s| s.data()) else { return Vec::new() };
    info.split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(b"depends="))
        .flat_map(|list| list.split(|byte| *byte == b','))
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// A module's name, derived from its file name. The kernel does not distinguish underscores and dashes.
pub(super) fn name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    plain(file.split(".ko").next().unwrap_or(&file))
}

/// A module's name in the kernel's spelling.
pub(super) fn plain(name: &str) -> String {
    name.replace('-', "_")
}
