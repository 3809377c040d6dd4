//! Files of a scan: opened past the page cache, and watched for changes.
//!
//! A *stamp* is what the kernel says of a file's last change. Reading is bracketed by two of them: if they are the same,
//! nobody wrote meanwhile. They are as fine as the file system's time stamps: since Linux 6.13 ext4, XFS, Btrfs and tmpfs
//! make a new one for every change that follows a look; before that two changes within one timer tick (4 ms) look alike.
//! A write stamps the file when it begins. One that is still going on then does not go unnoticed, because reads past the
//! page cache wait for it: file systems let one writer, or readers, at a file. Two things do: stores to memory that is
//! mapped from the file, which stamp it once and not for every store, and writes to a file whose file system only
//! reads through the page cache, where readers do not wait.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, StatxFlags, openat, seek, statx};
use rustix::io::Errno;

use crate::memory::FRAME;
use crate::{Error, Result};

/// What is to be scanned.
#[derive(Debug)]
pub enum Source {
    /// A file or block device by its name.
    Path(PathBuf),
    /// One that is open for reading. It is opened again, so its offset and flags stay as they are.
    Descriptor(OwnedFd),
}

impl<P: AsRef<OsStr> + ?Sized> From<&P> for Source {
    fn from(path: &P) -> Self {
        Self::Path(PathBuf::from(path.as_ref()))
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

impl From<OwnedFd> for Source {
    fn from(file: OwnedFd) -> Self {
        Self::Descriptor(file)
    }
}

impl From<std::fs::File> for Source {
    fn from(file: std::fs::File) -> Self {
        Self::Descriptor(file.into())
    }
}

impl Source {
    /// What other processes may open it by; empty if there is no such name.
    pub(crate) fn name(&self) -> Vec<u8> {
        let path = match self {
            Self::Path(path) => std::path::absolute(path).ok(),
            Self::Descriptor(file) => std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok(),
        };
        let path = path.filter(|path| path.is_absolute()).unwrap_or_default().into_os_string();
        // What is too long for the kernel is too long for a message.
        if path.len() < 4096 { path.into_vec() } else { Vec::new() }
    }
}

/// What changes when a file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
    links: u32,
}

impl Stamp {
    /// One of many, for tests without files.
    #[cfg(test)]
    pub fn numbered(number: i64) -> Self {
        Self { size: 0, modified: (number, 0), changed: (number, 0), links: 1 }
    }

    /// Whether the file lost a name since `earlier`: it was deleted, or another took its place.
    pub fn lost_a_name_since(&self, earlier: &Stamp) -> bool {
        self.links < earlier.links
    }
}

/// Which file it is, among those that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

/// An open file of a scan. Cheap to clone.
#[derive(Clone, Debug)]
pub struct File {
    descriptor: Arc<OwnedFd>,
    /// Its size when it was opened.
    pub size: u64,
    /// Offsets, lengths and addresses of reads are multiples of it.
    pub unit: u32,
    /// Whether reads go past the page cache; if they do not, why.
    pub direct: std::result::Result<(), Errno>,
    /// The device it is on.
    pub device: u64,
    /// Its stamp when it was opened; a block device has none.
    pub stamp: Option<Stamp>,
    /// Which one it is: for a block device which device, whatever it is called by.
    pub identity: Identity,
}

impl File {
    /// Opens what is to be scanned, past the page cache if its file system can do that.
    pub fn open(source: &Source) -> Result<Self> {
        match source {
            Source::Path(path) => Self::by_name(path, path),
            Source::Descriptor(file) => {
                let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
                Self::by_name(&path, &path)
            }
        }
    }

    fn by_name(path: &Path, name: &Path) -> Result<Self> {
        let failed = |error: Errno| Error::File { path: name.to_owned(), source: error.into() };
        // A FIFO must not block; it is refused below.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let open = |flags| openat(CWD, path, flags, Mode::empty());
        let direct = open(flags | OFlags::DIRECT).and_then(|file| Self::opened(file, Ok(())));
        match direct {
            Err(refused @ (Errno::INVAL | TOO_COARSE)) => {
                open(flags).and_then(|file| Self::opened(file, Err(refused)))
            }
            other => other,
        }
        .map_err(failed)
    }

    /// One that another process opened for reading, with its own rights: what it must not read nobody reads for it.
    ///
    /// It is used as it is. Opening it again would be by this process's rights, which may be greater.
    pub fn handed_over(file: OwnedFd) -> rustix::io::Result<Self> {
        // Asking a file system in user space would be to wait for whom nobody knows: whoever has it may never answer. Who
        // looks at files afterwards is the control loop, which waits for nobody.
        const FUSE: u64 = 0x6573_5546;
        let flags = rustix::fs::fcntl_getfl(&file)?;
        if flags.contains(OFlags::PATH) || flags.intersection(OFlags::RWMODE) == OFlags::WRONLY {
            return Err(Errno::ACCESS);
        }
        if rustix::fs::fstatfs(&file)?.f_type as u64 == FUSE {
            return Err(Errno::OPNOTSUPP);
        }
        let direct = if flags.contains(OFlags::DIRECT) { Ok(()) } else { Err(Errno::INVAL) };
        Self::opened(file, direct)
    }

    fn opened(file: OwnedFd, direct: std::result::Result<(), Errno>) -> rustix::io::Result<Self> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let stat = statx(&file, c"", AtFlags::EMPTY_PATH, flags)?;
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let (size, device, stamp, inode) = match kind {
            FileType::RegularFile => {
                let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
                (stat.stx_size, device, Some(stamp_of(&stat)), stat.stx_ino)
            }
            FileType::BlockDevice => {
                let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
                (seek(&file, SeekFrom::End(0))?, device, None, 0)
            }
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::SPIPE),
        };
        let known = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && stat.stx_dio_offset_align != 0;
        let wanted = (known && direct.is_ok()).then_some(stat.stx_dio_offset_align);
        let unit = unit(wanted)?;
        let identity = Identity { device, inode };
        let descriptor = Arc::new(file);
        Ok(Self { descriptor, size, unit, direct, device, stamp, identity })
    }

    /// The stamp now; `None` of what has none.
    pub fn stamp_now(&self) -> rustix::io::Result<Option<Stamp>> {
        if self.stamp.is_none() {
            return Ok(None);
        }
        let stat = statx(&*self.descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(Some(stamp_of(&stat)))
    }

    /// The descriptor, which others may keep open, too.
    pub fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// What is said of a file that goes past the page cache in larger pieces than a frame only.
const TOO_COARSE: Errno = Errno::OPNOTSUPP;

/// What reads are multiples of, where the file system says what it wants.
fn unit(wanted: Option<u32>) -> rustix::io::Result<u32> {
    const LEAST: u32 = 4096;
    let unit = wanted.map_or(LEAST, |unit| unit.max(LEAST).checked_next_power_of_two().unwrap_or(u32::MAX));
    if unit as usize > FRAME { Err(TOO_COARSE) } else { Ok(unit) }
}

fn stamp_of(stat: &rustix::fs::Statx) -> Stamp {
    Stamp {
        size: stat.stx_size,
        modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        changed: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        links: stat.stx_nlink,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_change_changes_the_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, vec![1; 10_000]).unwrap();
        let file = File::open(&Source::from(&path)).unwrap();
        assert_eq!(file.size, 10_000);
        let mut last = file.stamp_now().unwrap().unwrap();
        assert_eq!(Some(last), file.stamp);
        let mut writer = std::fs::File::options().append(true).open(&path).unwrap();
        for change in 0..20 {
            match change % 2 {
                0 => writer.write_all(b"x").unwrap(),
                _ => writer.set_len(10_000).unwrap(),
            }
            let now = file.stamp_now().unwrap().unwrap();
            assert_ne!(now, last, "change {change}");
            assert!(!now.lost_a_name_since(&last));
            last = now;
        }
        std::fs::remove_file(&path).unwrap();
        assert!(file.stamp_now().unwrap().unwrap().lost_a_name_since(&last));
    }

    #[test]
    fn what_cannot_be_scanned_is_refused() {
        let refused = |path: &Path| File::open(&Source::from(path)).unwrap_err().to_string();
        assert!(refused(Path::new("/no/such/file")).contains("/no/such/file: No such file"));
        assert!(refused(Path::new("/")).contains("directory"));
        assert!(refused(Path::new("/dev/null")).contains("/dev/null"));
    }

    #[test]
    fn reads_fit_into_frames() {
        assert_eq!(unit(None), Ok(4096));
        assert_eq!(unit(Some(512)), Ok(4096));
        assert_eq!(unit(Some(65_536)), Ok(65_536));
        assert_eq!(unit(Some(3 << 19)), Ok(2 << 20));
        assert_eq!(unit(Some((2 << 20) + 1)), Err(TOO_COARSE));
        assert_eq!(unit(Some(u32::MAX)), Err(TOO_COARSE));
    }

    #[test]
    fn names_are_those_that_others_can_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("f");
        std::fs::write(&path, "x").unwrap();
        let name = path.clone().into_os_string().into_vec();
        assert_eq!(Source::from(&path).name(), name);
        assert_eq!(Source::from(std::fs::File::open(&path).unwrap()).name(), name);
        let relative = std::env::current_dir().unwrap().join("g").into_os_string().into_vec();
        assert_eq!(Source::from("g").name(), relative);
        assert_eq!(Source::from(&"x".repeat(5000)).name(), b"");
    }

    #[test]
    fn a_descriptor_is_opened_again() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5).unwrap();
        let again = File::open(&Source::from(file.try_clone().unwrap())).unwrap();
        assert_eq!(again.size, 5);
        let flags = |file: &dyn AsFd| rustix::fs::fcntl_getfl(file.as_fd()).unwrap();
        assert!(!flags(&file).contains(OFlags::DIRECT));
        assert_eq!(flags(&again).contains(OFlags::DIRECT), again.direct.is_ok());
    }
}
