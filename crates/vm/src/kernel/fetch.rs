//! Fetches a kernel from Debian's archive with apt, which verifies its downloads.
//!
//! apt uses its own state in the cache's folder, with the series' parts of the archive as its only source. It neither uses nor
//! changes the system's sources and packages. It therefore works on other releases and without privileges.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{MODULES, Series, modules};
use crate::{Error, Result};

/// The keys with which Debian signs its archive.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The modules that guests may need. Other modules are not kept.
const KEPT: [&str; 12] = [
    "kvm-amd",
    "kvm-intel",
    "9p",
    "9pnet_virtio",
    "virtio_pci",
    "virtio_blk",
    "nvme",
    "loop",
    "ext4",
    "overlay",
    "fuse",
    "tun",
];

/// Replaces the series' folder in the cache by the newest kernel. The caller must hold the cache's [`lock`].
pub(super) fn into(series: Series, cache: &Path) -> Result<()> {
    let failed = |problem: String| Error::NoKernel { series: series.name().into(), problem };
    if !Path::new(KEYRING).exists() {
        return Err(failed(format!("{KEYRING} is not there (package debian-archive-keyring)")));
    }
    // The folder is on the cache's file system, so that the result can be renamed into place.
    let work = tempfile::tempdir_in(cache).map_err(Error::io("create a folder in the cache"))?;
    let apt = Apt::new(work.path(), series.sources())?;
    apt.run("apt-get", &["update", "-qq"]).map_err(failed)?;
    let packages = apt.kernel_packages(series.package()).map_err(failed)?;
    let download: Vec<_> =
        ["download", "-qq"].into_iter().chain(packages.iter().map(String::as_str)).collect();
    apt.run("apt-get", &download).map_err(failed)?;
    let whole = work.path().join("whole");
    let files = fs::read_dir(work.path()).into_iter().flatten().flatten().map(|entry| entry.path());
    let downloaded: Vec<_> = files.filter(|file| file.extension().is_some_and(|e| e == "deb")).collect();
    if downloaded.len() != packages.len() {
        return Err(failed(format!("apt-get downloaded {downloaded:?} for {packages:?}")));
    }
    for deb in &downloaded {
        let args = ["-x".as_ref(), deb.as_os_str(), whole.as_os_str()];
        command("dpkg-deb", &args, work.path()).map_err(failed)?;
    }
    let kept = work.path().join("kept");
    let image = image(&whole).ok_or_else(|| failed(format!("{packages:?} have no kernel image")))?;
    keep(image, &whole, &kept)?;
    let place = cache.join(series.name());
    if place.exists() {
        fs::remove_dir_all(&place).map_err(Error::io(format!("remove {}", place.display())))?;
    }
    fs::rename(&kept, &place).map_err(Error::io(format!("create {}", place.display())))
}

/// Locks the cache against changes by other processes. The lock is released when the file is closed.
pub(super) fn lock(cache: &Path) -> Result<fs::File> {
    fs::create_dir_all(cache).map_err(Error::io(format!("create {}", cache.display())))?;
    let path = cache.join(".lock");
    let file = fs::File::create(&path).map_err(Error::io(format!("create {}", path.display())))?;
    file.lock().map_err(Error::io(format!("lock {}", path.display())))?;
    Ok(file)
}

/// Copies the kernel image, and unpacks the modules that guests may need.
fn keep((image, name): (PathBuf, OsString), whole: &Path, kept: &Path) -> Result<()> {
    let boot = kept.join("boot");
    fs::create_dir_all(&boot).map_err(Error::io("create a folder in the cache"))?;
    fs::copy(&image, boot.join(name)).map_err(Error::io("copy the kernel's image"))?;
    keep_modules(whole, &kept.join(MODULES))
}

/// The kernel's image in the unpacked packages, and its name with the release. Newer packages have it beside the modules, as
/// `usr/lib/modules/RELEASE/vmlinuz`.
fn image(whole: &Path) -> Option<(PathBuf, OsString)> {
    if let Some(image) = super::only_entry(&whole.join("boot"), "vmlinuz-") {
        let name = image.file_name()?.to_owned();
        return Some((image, name));
    }
    let mut releases = fs::read_dir(whole.join("usr/lib/modules")).ok()?.flatten();
    releases.find_map(|release| {
        let image = release.path().join("vmlinuz");
        let mut name = OsString::from("vmlinuz-");
        name.push(release.file_name());
        image.is_file().then_some((image, name))
    })
}

/// Unpacks the modules below `from` that guests may need, and those they depend on, into `folder`.
pub(super) fn keep_modules(from: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::io("create a folder in the cache"))?;
    let mut files = HashMap::new();
    modules_below(from, &mut files).map_err(Error::io("list the modules"))?;
    modules::closure(&KEPT, &mut |name| {
        let Some(packed) = files.get(&modules::plain(name)) else { return Ok(None) };
        let to = folder.join(modules::plain(name)).with_extension("ko");
        if !to.exists() {
            unpack(packed, &to)?;
        }
        Ok(Some(to))
    })
    .map(drop)
}

/// Collects the files of all modules below a folder, by module name.
fn modules_below(folder: &Path, files: &mut HashMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            modules_below(&path, files)?;
        } else if path.file_name().is_some_and(|n| n.to_string_lossy().contains(".ko")) {
            files.insert(modules::name(&path), path);
        }
    }
    Ok(())
}

/// Copies a module's file and decompresses it, because the guest's tools cannot.
fn unpack(packed: &Path, to: &Path) -> Result<()> {
    let bytes = match packed.extension().and_then(|e| e.to_str()) {
        Some("xz") => {
            let output = Command::new("xz").arg("-dc").arg(packed).output().map_err(Error::io("run xz"))?;
            if !output.status.success() {
                return Err(Error::NotFound {
                    path: packed.into(),
                    problem: "xz cannot decompress it".into(),
                });
            }
            output.stdout
        }
        _ => fs::read(packed).map_err(Error::io(format!("read {}", packed.display())))?,
    };
    fs::write(to, bytes).map_err(Error::io(format!("write {}", to.display())))
}

/// apt with its own state.
struct Apt<'a> {
    work: &'a Path,
    options: Vec<String>,
}

impl<'a> Apt<'a> {
    fn new(work: &'a Path, sources: &[(&str, &str)]) -> Result<Self> {
        // If apt runs as root, it reads these files with the rights of another user.
        let set_up = || {
            fs::set_permissions(work, fs::Permissions::from_mode(0o755))?;
            for folder in ["lists/partial", "cache/archives/partial"] {
                fs::create_dir_all(work.join(folder))?;
            }
            fs::write(work.join("status"), "")?;
            let mirror = std::env::var("BEDPLATE_DEBIAN_MIRROR");
            let mirror = mirror.as_deref().unwrap_or("http://deb.debian.org").trim_end_matches('/');
            let source = |(archive, suite): &(&str, &str)| {
                format!("deb [arch=amd64 signed-by={KEYRING}] {mirror}/{archive} {suite} main\n")
            };
            fs::write(work.join("sources.list"), sources.iter().map(source).collect::<String>())
        };
        set_up().map_err(Error::io("prepare apt's folder"))?;
        let path = |name: &str| work.join(name).display().to_string();
        let options = [
            ("Dir::Etc::sourcelist", path("sources.list")),
            ("Dir::Etc::sourceparts", "-".into()),
            ("Dir::Etc::preferencesparts", "-".into()),
            ("Dir::State::lists", path("lists")),
            ("Dir::State::status", path("status")),
            ("Dir::Cache", path("cache")),
            ("APT::Architecture", "amd64".into()),
            ("APT::Sandbox::User", "root".into()),
            ("Acquire::Languages", "none".into()),
            ("Acquire::Retries", "3".into()),
        ];
        let options = options.into_iter().map(|(name, value)| format!("-o{name}={value}")).collect();
        Ok(Apt { work, options })
    }

    fn run(&self, program: &'static str, args: &[&str]) -> Result<String, String> {
        let args: Vec<_> = self.options.iter().map(String::as_str).chain(args.iter().copied()).collect();
        command(program, &args, self.work)
    }

    /// The packages of a kernel: the one on which the empty package `package` depends, and those on which that one depends. Newer
    /// kernels have the image and the modules in separate packages.
    fn kernel_packages(&self, package: &str) -> Result<Vec<String>, String> {
        let kernel = self.dependencies(package, &["linux-image-"])?;
        let kernel = kernel.into_iter().next().ok_or_else(|| format!("{package} depends on no kernel"))?;
        let mut all = self.dependencies(&kernel, &["linux-binary-", "linux-modules-"])?;
        all.push(kernel);
        Ok(all)
    }

    /// The packages on which a package depends, and whose names begin with one of `beginnings`.
    fn dependencies(&self, package: &str, beginnings: &[&str]) -> Result<Vec<String>, String> {
        let text = self.run("apt-cache", &["depends", "--no-recommends", "--no-suggests", package])?;
        let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends:")).map(str::trim);
        let wanted = |name: &&str| beginnings.iter().any(|beginning| name.starts_with(beginning));
        Ok(depends.filter(wanted).map(str::to_owned).collect())
    }
}

/// Runs a program to its end. Returns its output, or the reason of its failure.
fn command<S: AsRef<std::ffi::OsStr>>(program: &str, args: &[S], folder: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = words.lines().filter(|l| !l.trim().is_empty()).collect();
    Err(format!("{program}: {}", last[last.len().saturating_sub(3)..].join("; ")))
}
