//! Kernels: an image and its modules, fetched once from Debian's archive and kept in the user's cache.

mod fetch;
mod modules;

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Series of Debian's kernels for virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Series {
    /// Linux 6.1 of Debian 12.
    V6_1,
    /// Linux 6.12 of Debian 13, which Debian 12 contains as an additional package.
    V6_12,
    /// The newest Linux that Debian packages for Debian 13: the one in its backports.
    Backports,
}

impl Series {
    /// All series, the oldest first.
    pub const ALL: [Series; 3] = [Series::V6_1, Series::V6_12, Series::Backports];

    /// The name: `6.1`, `6.12` or `backports`.
    pub fn name(self) -> &'static str {
        match self {
            Series::V6_1 => "6.1",
            Series::V6_12 => "6.12",
            Series::Backports => "backports",
        }
    }

    /// The parts of Debian's archive that have the series: archives with their suites.
    fn sources(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Series::V6_1 | Series::V6_12 => {
                &[("debian", "bookworm"), ("debian-security", "bookworm-security")]
            }
            Series::Backports => &[("debian", "trixie-backports")],
        }
    }

    /// The package that depends on the newest kernel of the series.
    fn package(self) -> &'static str {
        match self {
            Series::V6_1 | Series::Backports => "linux-image-cloud-amd64",
            Series::V6_12 => "linux-image-6.12-cloud-amd64",
        }
    }
}

/// The folder of modules in a kernel's folder. It has one file for each module, for example `kvm_amd.ko`.
const MODULES: &str = "modules";

/// Timer frequency of Debian's kernels, in ticks per second.
const TICKS: u64 = 250;

/// A kernel to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    image: PathBuf,
    /// The folder of the kernel's modules, if it has any.
    modules: Option<PathBuf>,
    ticks: Option<u64>,
}

impl Kernel {
    /// Gets the kernel of a series from the cache, or from Debian's archive if the cache does not have it.
    ///
    /// # Errors
    /// [`Error::NoKernel`] without a network, apt or Debian's keyring; [`Error::Io`] if the cache cannot be
    /// written.
    pub fn get(series: Series) -> Result<Kernel> {
        match Kernel::cached(series)? {
            Some(kernel) => Ok(kernel),
            None => {
                let cache = cache()?;
                let _lock = fetch::lock(&cache)?;
                // Another process may have fetched it meanwhile.
                match Kernel::cached(series)? {
                    Some(kernel) => Ok(kernel),
                    None => Kernel::replaced(series, &cache),
                }
            }
        }
    }

    /// Gets the newest kernel of a series from Debian's archive, and replaces the one in the cache.
    ///
    /// # Errors
    /// The errors of [`Kernel::get`].
    pub fn fetch(series: Series) -> Result<Kernel> {
        let cache = cache()?;
        let _lock = fetch::lock(&cache)?;
        Kernel::replaced(series, &cache)
    }

    /// Fetches a kernel into the cache. The caller must hold the cache's lock.
    fn replaced(series: Series, cache: &Path) -> Result<Kernel> {
        fetch::into(series, cache)?;
        Kernel::cached(series)?.ok_or_else(|| Error::NoKernel {
            series: series.name().into(),
            problem: "the package has no kernel image".into(),
        })
    }

    /// Uses a kernel image of the user's. Its modules are those in `/lib/modules` of this machine, under the
    /// release in the image's name (`vmlinuz-RELEASE`). Without modules, everything it needs must be built
    /// in.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such file; [`Error::Io`] if the modules cannot be unpacked.
    pub fn from_image(image: &Path) -> Result<Kernel> {
        if !image.is_file() {
            return Err(Error::NotFound { path: image.into(), problem: "no such kernel image".into() });
        }
        let mut kernel = Kernel { image: image.into(), modules: None, ticks: None };
        let installed = Path::new("/lib/modules").join(kernel.version());
        if installed.is_dir() {
            let cache = cache()?;
            let _lock = fetch::lock(&cache)?;
            let folder = cache.join("own").join(kernel.version()).join(MODULES);
            // Unpack the modules every time, because a kernel that was built again may have the same release.
            if folder.exists() {
                fs::remove_dir_all(&folder).map_err(Error::io(format!("remove {}", folder.display())))?;
            }
            fetch::keep_modules(&installed, &folder)?;
            kernel.modules = Some(folder);
        }
        Ok(kernel)
    }

    fn cached(series: Series) -> Result<Option<Kernel>> {
        let root = cache()?.join(series.name());
        let Some(image) = only_entry(&root.join("boot"), "vmlinuz-") else { return Ok(None) };
        Ok(Some(Kernel { image, modules: Some(root.join(MODULES)), ticks: Some(TICKS) }))
    }

    /// The path of the image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The timer frequency in ticks per second, if it is known.
    pub(crate) fn ticks(&self) -> Option<u64> {
        self.ticks
    }

    /// The version, as `uname -r` prints it, or the image's file name.
    pub fn version(&self) -> String {
        let name = self.image.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("vmlinuz-").unwrap_or(&name).to_owned()
    }

    /// The files of the modules with these names and of those they depend on, in load order. Modules that the
    /// kernel does not have are omitted, because they may be built in.
    pub(crate) fn modules(&self, names: &[&str]) -> Result<Vec<PathBuf>> {
        let Some(folder) = &self.modules else { return Ok(Vec::new()) };
        modules::closure(names, &mut |name| {
            let file = folder.join(modules::plain(name)).with_extension("ko");
            Ok(file.exists().then_some(file))
        })
    }
}

fn only_entry(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries.map(|e| e.path()).find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
}

/// The folder of the cache: `$XDG_CACHE_HOME/bedplate/kernels`.
fn cache() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    Ok(base.unwrap_or_else(std::env::temp_dir).join("bedplate/kernels"))
}
