//! Kernels: an image and its modules, fetched from Debian's archive once and kept in the user's cache.

mod fetch;
mod modules;

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Series of Debian's kernels for virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Series {
    /// Linux 6.1, of Debian 12.
    V6_1,
    /// Linux 6.12, of Debian 13, as Debian 12 has it beside its own.
    V6_12,
}

impl Series {
    /// All of them, the oldest first.
    pub const ALL: [Series; 2] = [Series::V6_1, Series::V6_12];

    /// `6.1` or `6.12`.
    pub fn name(self) -> &'static str {
        match self {
            Series::V6_1 => "6.1",
            Series::V6_12 => "6.12",
        }
    }

    /// The package that depends on the newest kernel of the series.
    fn package(self) -> &'static str {
        match self {
            Series::V6_1 => "linux-image-cloud-amd64",
            Series::V6_12 => "linux-image-6.12-cloud-amd64",
        }
    }
}

/// The modules' folder in a kernel's one, a file each: `kvm_amd.ko`.
const MODULES: &str = "modules";

/// How many times a second the clock of Debian's kernels ticks.
const TICKS: u64 = 250;

/// A kernel to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    image: PathBuf,
    /// The folder of its modules, if it has any.
    modules: Option<PathBuf>,
    ticks: Option<u64>,
}

impl Kernel {
    /// The kernel of a series, from the cache if it is there, else from Debian's archive.
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
                // Somebody else may have fetched it meanwhile.
                match Kernel::cached(series)? {
                    Some(kernel) => Ok(kernel),
                    None => Kernel::replaced(series, &cache),
                }
            }
        }
    }

    /// The newest kernel of a series from Debian's archive; replaces what the cache has.
    ///
    /// # Errors
    /// As [`Kernel::get`].
    pub fn fetch(series: Series) -> Result<Kernel> {
        let cache = cache()?;
        let _lock = fetch::lock(&cache)?;
        Kernel::replaced(series, &cache)
    }

    /// Fetches a kernel into the cache, which is locked.
    fn replaced(series: Series, cache: &Path) -> Result<Kernel> {
        fetch::into(series, cache)?;
        Kernel::cached(series)?.ok_or_else(|| Error::NoKernel {
            series: series.name().into(),
            problem: "the package has no kernel image".into(),
        })
    }

    /// A kernel image of one's own. Its modules are those that this machine has in `/lib/modules` under the
    /// release in the image's name (`vmlinuz-RELEASE`); without, what it needs must be built in.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such file; [`Error::Io`] if its modules cannot be unpacked.
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
            // Anew each time: a kernel that was built again may have the same release.
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

    /// The image's file.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// How many times a second its clock ticks, where that is known.
    pub(crate) fn ticks(&self) -> Option<u64> {
        self.ticks
    }

    /// The version, as `uname -r` says it, or the image's file name.
    pub fn version(&self) -> String {
        let name = self.image.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("vmlinuz-").unwrap_or(&name).to_owned()
    }

    /// The files of the modules with these names and of those they depend on, in the order of loading. Those
    /// that the kernel does not have are left out: they may be built in.
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

/// Where kernels are kept: `$XDG_CACHE_HOME/bedplate/kernels`.
fn cache() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    Ok(base.unwrap_or_else(std::env::temp_dir).join("bedplate/kernels"))
}
