//! The shared libraries of a program, as the host's dynamic loader finds them.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSegment};

use crate::{Error, Result};

/// The libraries of a program and the loader itself, under the names by which the loader opens them. Empty
/// for files that are not dynamically linked.
pub(super) fn of(program: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let bytes = std::fs::read(program).map_err(Error::io(format!("read {}", program.display())))?;
    if !is_dynamic(&bytes) {
        return Ok(Vec::new());
    }
    let output =
        Command::new("ldd").arg(program).env("LC_ALL", "C").output().map_err(Error::io("run ldd"))?;
    parse(&String::from_utf8_lossy(&output.stdout))
        .map_err(|problem| Error::NotFound { path: program.into(), problem })
}

fn is_dynamic(bytes: &[u8]) -> bool {
    let Ok(elf) = object::File::parse(bytes) else { return false };
    // A static position-independent executable has a dynamic section too, but imports nothing.
    let loaded = elf.segments().any(|segment| segment.size() > 0);
    loaded && (elf.section_by_name(".interp").is_some() || elf.imports().is_ok_and(|i| !i.is_empty()))
}

/// Parses the output of ldd. Lines are `name => /path (address)`, `/path (address)`, `name (address)` (of the
/// kernel), or `name => not found`.
fn parse(text: &str) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some((name, _)) = line.split_once(" => not found") {
            return Err(format!("its library {name} is not installed"));
        }
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        if let Some((path, _)) = path.split_once(" (").filter(|(path, _)| path.starts_with('/')) {
            libraries.push((PathBuf::from(path), PathBuf::from(path)));
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_ldd_is_parsed() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f01)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        let found: Vec<PathBuf> = parse(text).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            found,
            ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
        assert!(parse("\tlibnone.so.1 => not found").unwrap_err().contains("libnone.so.1"));
        assert!(parse("\tstatically linked").unwrap().is_empty());
    }

    #[test]
    fn this_program_needs_the_c_library() {
        let found = of(&std::env::current_exe().unwrap()).unwrap();
        assert!(found.iter().any(|(name, _)| name.to_string_lossy().contains("libc.so")), "{found:?}");
        assert!(of(Path::new("/etc/passwd")).unwrap().is_empty());
    }
}
