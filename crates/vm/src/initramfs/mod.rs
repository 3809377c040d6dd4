//! The guest's file system: an archive that the kernel unpacks into memory.
//!
//! It contains busybox, the kernel's modules, and the jobs as shell scripts. It also contains the programs of the
//! jobs under their own paths, with the libraries they need.

mod archive;
mod libraries;
mod pin;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use archive::Archive;

use crate::machine::Job;
use crate::{Error, Kernel, Result};

const INIT: &[u8] = include_bytes!("../../guest/init");

/// Modules that every guest gets, if the kernel has them as modules.
const MODULES: [&str; 2] = ["kvm-amd", "kvm-intel"];

/// The modules that the scratch disk needs.
const DISK_MODULES: [&str; 2] = ["loop", "ext4"];

/// A file of the host to copy into the guest.
#[derive(Clone, Debug)]
pub struct File {
    /// Path on the host. A folder is copied with everything in it, and a program with its libraries.
    pub host: PathBuf,
    /// Absolute path in the guest.
    pub guest: PathBuf,
}

/// The contents of the archive.
pub(crate) struct Contents<'a> {
    pub(crate) kernel: &'a Kernel,
    /// Further modules to load, with those they depend on.
    pub(crate) modules: &'a [String],
    /// The size of the scratch disk in bytes, if there is one.
    pub(crate) disk: Option<u64>,
    /// Whether the guest has an NVMe device.
    pub(crate) nvme: bool,
    pub(crate) files: &'a [File],
    pub(crate) jobs: &'a [Job],
    /// Number of processors besides the first one, if jobs must not run on the first one. The guest's KVM is then
    /// also kept from patching itself; see [`pin`].
    pub(crate) kept_off: Option<u32>,
    /// The environment variables of all jobs: name and value.
    pub(crate) environment: &'a [(String, String)],
}

impl Contents<'_> {
    /// Writes the archive.
    pub(crate) fn write(&self, to: &Path) -> Result<()> {
        let mut archive = Archive::create(to)?;
        archive.add_bytes("/init", INIT, 0o755)?;
        archive.add_file(&busybox()?, Path::new("/bin/busybox"))?;
        archive.add_link("/bin/sh", "busybox")?;
        archive.add_node("/dev/console", 5, 1)?;
        let mut names: Vec<&str> = MODULES.to_vec();
        names.extend(self.modules.iter().map(String::as_str));
        if let Some(bytes) = self.disk {
            names.extend(DISK_MODULES);
            archive.add_bytes("/bedplate/disk", bytes.to_string().as_bytes(), 0o644)?;
        }
        if self.nvme {
            names.push("nvme");
            archive.add_bytes("/bedplate/nvme", b"", 0o644)?;
        }
        let mut order = String::new();
        for module in self.kernel.modules(&names)? {
            let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
            archive.add_file(&module, &Path::new("/bedplate/modules").join(&name))?;
            order += &(name + "\n");
        }
        archive.add_bytes("/bedplate/modules/order", order.as_bytes(), 0o644)?;
        if let Some(others) = self.kept_off {
            archive.add_bytes("/bedplate/processors", format!("1-{others}").as_bytes(), 0o644)?;
            archive.add_bytes("/bedplate/pin", pin::program(), 0o755)?;
        }
        let mut programs = BTreeSet::new();
        for (number, job) in self.jobs.iter().enumerate() {
            let program = job.program()?;
            let script = job.script(&program, self.environment);
            archive.add_bytes(&format!("/bedplate/jobs/{number}"), script.as_bytes(), 0o644)?;
            if let Some(program) = program {
                programs.insert(program);
            }
        }
        for program in &programs {
            archive.add_file(program, program)?;
            self.add_libraries(&mut archive, program)?;
        }
        for file in self.files {
            self.add(&mut archive, &file.host, &file.guest)?;
        }
        archive.finish()
    }

    /// Adds a file, or a folder with all its contents.
    fn add(&self, archive: &mut Archive, host: &Path, guest: &Path) -> Result<()> {
        let read = || Error::io(format!("read {}", host.display()));
        if host.is_dir() {
            for entry in fs::read_dir(host).map_err(read())? {
                let name = entry.map_err(read())?.file_name();
                self.add(archive, &host.join(&name), &guest.join(&name))?;
            }
            return Ok(());
        }
        if !host.is_file() {
            return Err(Error::NotFound { path: host.into(), problem: "no such file".into() });
        }
        archive.add_file(host, guest)?;
        self.add_libraries(archive, host)
    }

    fn add_libraries(&self, archive: &mut Archive, program: &Path) -> Result<()> {
        for (name, file) in libraries::of(program)? {
            archive.add_file(&file, &name)?;
        }
        Ok(())
    }
}

/// The host's busybox, which must be statically linked.
fn busybox() -> Result<PathBuf> {
    let missing = Error::Missing { program: "a static busybox", package: "busybox-static" };
    let places = ["/bin/busybox", "/usr/bin/busybox", "/sbin/busybox"];
    let found = places.iter().map(PathBuf::from).find(|p| p.exists()).ok_or(missing)?;
    if !libraries::of(&found)?.is_empty() {
        return Err(Error::Missing { program: "a static busybox", package: "busybox-static" });
    }
    fs::canonicalize(&found).map_err(Error::io("find busybox"))
}
