//! Decides whether libraries can be preloaded into a program.
//!
//! Only the loader of the GNU C library preloads them, and only into programs that it starts and may change. The answer is about
//! the first program. Programs that it starts inherit the environment, and their own loaders decide.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{DT_SONAME, ET_DYN, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache};

/// Number of interpreters of interpreters that the kernel follows.
const INTERPRETERS: usize = 5;
/// The bytes that the kernel reads of a script's first line.
const FIRST_LINE: u64 = 256;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = object::elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = object::elf::EM_AARCH64;

/// The reason why libraries cannot be preloaded into a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No loader starts it.
    Static,
    /// The loader of another C library starts it.
    Loader(PathBuf),
    /// It is for other processors.
    Machine,
    /// It gets more rights than the user who starts it has.
    Privileged,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str(
                "is statically linked, and libraries can only be preloaded into dynamically linked programs",
            ),
            Self::Loader(loader) => {
                write!(f, "is started by {}, and the libraries need the GNU C library", loader.display())
            }
            Self::Machine => f.write_str("is for other processors than the libraries"),
            Self::Privileged => {
                f.write_str("gets more rights than its user has, and then libraries are not preloaded")
            }
        }
    }
}

/// The file that a command runs, and the reason why libraries cannot be preloaded into it; `None` if they can. A file that cannot
/// be read is no obstacle, because running it gives the error.
pub fn obstacle(command: &OsStr) -> Option<(PathBuf, Obstacle)> {
    let mut program = find(command)?;
    for _ in 0..INTERPRETERS {
        // Opening a pipe would wait for its other end.
        let file = program.is_file().then(|| File::open(&program).ok())??;
        if let Some(interpreter) = interpreter(&file) {
            program = interpreter;
            continue;
        }
        let found = if is_privileged(&program, &file.metadata().ok()?) {
            Some(Obstacle::Privileged)
        } else {
            of_file(file)
        };
        return found.map(|obstacle| (program, obstacle));
    }
    None
}

/// The file that a command names, as `execvp` finds it.
fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(command)).find(is_program)
}

/// The interpreter of a script.
fn interpreter(file: &File) -> Option<PathBuf> {
    let mut text = Vec::new();
    file.take(FIRST_LINE).read_to_end(&mut text).ok()?;
    let line = text.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let path = line.split(u8::is_ascii_whitespace).next()?;
    Some(OsString::from_vec(path.to_vec()).into())
}

/// Whether the kernel gives a program other rights than this process has.
fn is_privileged(program: &Path, metadata: &Metadata) -> bool {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mode = metadata.permissions().mode();
    let other_user = mode & 0o4000 != 0 && metadata.uid() != user;
    let other_group = mode & 0o2010 == 0o2010 && metadata.gid() != group;
    // The superuser has all capabilities in any case.
    let capabilities = user != 0 && {
        let nothing: &mut [u8] = &mut [];
        rustix::fs::getxattr(program, "security.capability", nothing).is_ok_and(|bytes| bytes > 0)
    };
    other_user || other_group || capabilities
}

/// The reason in a program's headers why libraries cannot be preloaded into it. The program is no script.
fn of_file(file: File) -> Option<Obstacle> {
    let data = ReadCache::new(file);
    match FileKind::parse(&data).ok()? {
        FileKind::Elf64 => of_elf(&data).ok()?,
        FileKind::Elf32 => Some(Obstacle::Machine),
        _ => None,
    }
}

fn of_elf(data: &ReadCache<File>) -> object::Result<Option<Obstacle>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    if header.e_machine(endian) != MACHINE {
        return Ok(Some(Obstacle::Machine));
    }
    let mut has_name = false;
    for segment in header.program_headers(endian, data)? {
        if let Some(loader) = segment.interpreter(endian, data)? {
            let loader = Path::new(OsStr::from_bytes(loader));
            return Ok((!is_of_gnu(loader)).then(|| Obstacle::Loader(loader.into())));
        }
        if let Some(entries) = segment.dynamic(endian, data)? {
            has_name |= entries.iter().any(|entry| entry.d_tag(endian) == DT_SONAME);
        }
    }
    // A shared object that is run as a program is the loader itself.
    let is_loader = header.e_type(endian) == ET_DYN && has_name;
    Ok((!is_loader).then_some(Obstacle::Static))
}

/// Whether a loader is the GNU C library's, in any folder.
fn is_of_gnu(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default();
    name.as_bytes().starts_with(b"ld-linux")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    fn folder() -> TempDir {
        tempfile::tempdir().unwrap()
    }

    /// Compiles a program with a compiler and its options.
    fn compile(folder: &Path, compiler: &str, options: &[&str]) -> PathBuf {
        let (source, program) = (folder.join("program.c"), folder.join("program"));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        let status = Command::new(compiler).args(options).arg("-o").arg(&program).arg(&source).status();
        assert!(status.unwrap().success(), "{compiler} {options:?}");
        program
    }

    fn script(folder: &Path, text: &[u8]) -> PathBuf {
        let script = folder.join("script");
        std::fs::write(&script, text).unwrap();
        script
    }

    #[track_caller]
    fn is(command: &Path, expected: Option<Obstacle>) {
        assert_eq!(obstacle(command.as_os_str()).map(|(_, obstacle)| obstacle), expected);
    }

    #[test]
    fn dynamically_linked_programs_have_no_obstacle() {
        let folder = folder();
        for options in [["-pie", "-fPIE"], ["-no-pie", "-fno-pie"]] {
            is(&compile(folder.path(), "cc", &options), None);
        }
    }

    #[test]
    fn statically_linked_programs_are_found() {
        let folder = folder();
        for options in ["-static", "-static-pie"] {
            is(&compile(folder.path(), "cc", &[options]), Some(Obstacle::Static));
        }
    }

    #[test]
    fn programs_of_another_c_library_are_found() {
        let folder = folder();
        let program = compile(folder.path(), "musl-gcc", &[]);
        let Some((_, Obstacle::Loader(loader))) = obstacle(program.as_os_str()) else {
            panic!("no obstacle")
        };
        assert!(loader.to_str().unwrap().contains("ld-musl"), "{loader:?}");
    }

    #[test]
    fn programs_for_other_processors_are_found() {
        let folder = folder();
        let program = compile(folder.path(), "cc", &[]);
        let mut bytes = std::fs::read(&program).unwrap();
        // The machine is at the same place of every header; this is an IBM System/390's.
        bytes[18..20].copy_from_slice(&22u16.to_le_bytes());
        std::fs::write(&program, bytes).unwrap();
        is(&program, Some(Obstacle::Machine));
    }

    #[test]
    fn the_loader_itself_is_no_obstacle() {
        let folder = folder();
        let program = compile(folder.path(), "cc", &[]);
        let data = ReadCache::new(File::open(&program).unwrap());
        let header = FileHeader64::<Endianness>::parse(&data).unwrap();
        let endian = header.endian().unwrap();
        let segments = header.program_headers(endian, &data).unwrap();
        let loader = segments.iter().find_map(|segment| segment.interpreter(endian, &data).unwrap()).unwrap();
        is(Path::new(OsStr::from_bytes(loader)), None);
    }

    #[test]
    fn scripts_are_what_their_interpreters_are() {
        let folder = folder();
        let program = compile(folder.path(), "cc", &["-static"]);
        let line = format!("#! {} -x\necho\n", program.display());
        let script = script(folder.path(), line.as_bytes());
        assert_eq!(obstacle(script.as_os_str()), Some((program, Obstacle::Static)));
    }

    #[test]
    fn scripts_that_interpret_themselves_end() {
        let folder = folder();
        let path = folder.path().join("script");
        let line = format!("#!{}\n", path.display());
        is(&script(folder.path(), line.as_bytes()), None);
    }

    #[test]
    fn programs_that_change_their_user_are_found() {
        let folder = folder();
        let program = compile(folder.path(), "cc", &[]);
        let set = |mode| std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        // The program's owner runs it, so the bit changes nothing.
        set(0o4755);
        is(&program, None);
        if !rustix::process::getuid().is_root() {
            println!("skipped: only the superuser can give a file another owner");
            return;
        }
        std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
        set(0o4755);
        is(&program, Some(Obstacle::Privileged));
        set(0o755);
        is(&program, None);
        std::os::unix::fs::chown(&program, None, Some(65534)).unwrap();
        set(0o2755);
        is(&program, Some(Obstacle::Privileged));
    }

    #[test]
    fn what_is_no_program_is_no_obstacle() {
        let folder = folder();
        for text in [&b""[..], b"#!", b"#!\n", b"\x7fELF", b"echo", &[0; 5000], b"\x7fELF\x02\x01\x01"] {
            is(&script(folder.path(), text), None);
        }
        is(&folder.path().join("missing"), None);
        is(Path::new("a command that no folder has"), None);
    }
}
