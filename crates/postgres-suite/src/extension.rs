//! Builds the extension for an installation.
//!
//! Each build has a folder of its own, because objects for one version of PostgreSQL are of no use for another. A file in the
//! folder is locked during the build, so that tests that run at the same time build it once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use bedplate_suite_support::programs;

use crate::{Installation, Result, run};

/// The folder of the extension's sources, and that of the header of the library that it uses.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../integrations/postgresql");
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scan-c/include");
/// The name of the extension's shared library.
pub const MODULE: &str = "bedplate_scan.so";

/// Whether the tests are to run without the extension. Comparisons must then pass, too; tests of the extension itself fail.
pub fn is_stock() -> bool {
    std::env::var_os("BEDPLATE_TEST_STOCK").is_some_and(|value| value == "1")
}

/// A way to build the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The build that is installed.
    Product,
    /// The build with gates, faults and mutants.
    Faults,
}

impl Build {
    fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Faults => "faults",
        }
    }
}

/// Builds the extension for an installation below `target`, a folder of the caller's, and returns its shared library.
/// `library` is `libbedplate_scan.a`.
pub fn build(installation: &Installation, build: Build, library: &Path, target: &Path) -> Result<PathBuf> {
    let folder = target.join(format!("bedplate_scan-{}-{}", installation.version, build.name()));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let lock = File::create(folder.join("lock")).map_err(|e| format!("{}: {e}", folder.display()))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| format!("locking {}: {e}", folder.display()))?;
    copy_sources(Path::new(SOURCES), &folder)?;
    let mut make = Command::new("make");
    make.arg("-C").arg(&folder).stdin(Stdio::null());
    // This make must not get the settings of a make that runs the tests.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("MFLAGS");
    make.arg(format!("PG_CONFIG={}", installation.pg_config.display()));
    make.arg(format!("SCAN_INCLUDE={HEADERS}")).arg(format!("SCAN_LIB={}", library.display()));
    if build == Build::Faults {
        make.arg("FAULTS=1");
    }
    run(&mut make)?;
    let module = folder.join(MODULE);
    if module.exists() { Ok(module) } else { Err(format!("make has not built {}", module.display())) }
}

/// Copies sources that have changed, so that `make` builds the files that depend on them.
fn copy_sources(from: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| format!("{path}: {e}")
    };
    for entry in fs::read_dir(from).map_err(failed(from))? {
        let path = entry.map_err(failed(from))?.path();
        let name = path.file_name().unwrap_or_default();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let is_source = name == "Makefile" || matches!(extension, "c" | "h" | "control" | "sql" | "mk");
        if path.is_dir() && !matches!(name.to_str(), Some("tests" | "target")) {
            let inner = to.join(name);
            fs::create_dir_all(&inner).map_err(failed(&inner))?;
            copy_sources(&path, &inner)?;
        } else if is_source {
            let content = fs::read(&path).map_err(failed(&path))?;
            let copy = to.join(name);
            if fs::read(&copy).ok().as_ref() != Some(&content) {
                fs::write(&copy, content).map_err(failed(&copy))?;
            }
        }
    }
    Ok(())
}

/// The static library of `crates/scan-c`, built by cargo as the calling test was.
pub fn build_library() -> Result<PathBuf> {
    programs::build(&["scan-c"])?;
    Ok(programs::folder()?.join("libbedplate_scan.a"))
}

/// The command `bedplate`, whose daemon reads for backends that share.
pub fn build_program() -> Result<PathBuf> {
    programs::bedplate()
}
