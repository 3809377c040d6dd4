//! Files of a scan: opened past the page cache, and watched for changes.
//!
//! A *stamp* is what the kernel says of a file's last change. Reading is bracketed by two of them: if they are the same,
//! nobody wrote meanwhile. Since Linux 6.13 ext4, XFS, Btrfs and tmpfs make a new one for every change that follows a look.
//! Elsewhere two changes within one tick of the kernel's coarse clock (1 to 10 ms) look alike. So there a stamp of a change in
//! the very tick in which it was taken is *racy*: it proves nothing, and a later one is taken. (git does the same.)
//! A write stamps the file when it begins. One that is still going on then does not go unnoticed, because reads past the
//! page cache wait for it: file systems let one writer, or readers, at a file. Two things do: stores to memory that is
//! mapped from the file, which stamp it once and not for every store, and writes to a file whose file system only
//! reads through the page cache, where readers do not wait.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, StatxFlags, openat, seek, statx};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_getres, clock_gettime};

use crate::board::StampWords;
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
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
    links: u32,
    /// A change after this one may look the same.
    is_racy: bool,
}

/// Whether they are of the same change, as far as one can see.
impl PartialEq for Stamp {
    fn eq(&self, other: &Self) -> bool {
        let seen = |stamp: &Stamp| (stamp.size, stamp.modified, stamp.changed, stamp.links);
        seen(self) == seen(other)
    }
}

impl Stamp {
    /// One of many, for tests without files.
    #[cfg(test)]
    pub fn numbered(number: i64) -> Self {
        Self { size: 0, modified: (number, 0), changed: (number, 0), links: 1, is_racy: false }
    }

    /// One of the file's that was taken while the coarse clock went from `before` to `after`.
    fn new(stat: &rustix::fs::Statx, before: (i64, u32), after: (i64, u32), is_fine: bool) -> Self {
        let changed = (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        Self {
            size: stat.stx_size,
            modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            changed,
            links: stat.stx_nlink,
            // Every change sets the time of the last change. One in the future is of a clock that was set back since, so a
            // later change gets another one.
            is_racy: !is_fine && (before..=after).contains(&changed),
        }
    }

    /// Whether a file with an equal stamp may have been changed since this was taken. A stamp that is taken [a tick](tick)
    /// later is not racy if it is equal.
    pub fn is_racy(&self) -> bool {
        self.is_racy
    }

    /// As numbers, for a board.
    pub fn to_words(self) -> StampWords {
        let times = u64::from(self.modified.1) << 32 | u64::from(self.changed.1);
        let links = u64::from(self.links) << 1 | u64::from(self.is_racy);
        [self.size, self.modified.0 as u64, self.changed.0 as u64, times, links]
    }

    /// From these.
    pub fn from_words([size, modified, changed, times, links]: StampWords) -> Self {
        Self {
            size,
            modified: (modified as i64, (times >> 32) as u32),
            changed: (changed as i64, times as u32),
            links: (links >> 1) as u32,
            is_racy: links & 1 != 0,
        }
    }

    /// Whether a file that has the stamp `now` was not changed since this one was taken, as far as stamps tell. A racy stamp
    /// tells nothing.
    pub fn proves_unchanged(&self, now: &Stamp) -> bool {
        !self.is_racy && self == now
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
    /// Whether its file system makes a new stamp for every change that follows a look.
    has_fine_stamps: bool,
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
        let before = coarse_now();
        let stat = statx(&file, c"", AtFlags::EMPTY_PATH, flags)?;
        let after = coarse_now();
        let has_fine_stamps = has_fine_stamps(&file);
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let (size, device, stamp, inode) = match kind {
            FileType::RegularFile => {
                let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
                (stat.stx_size, device, Some(Stamp::new(&stat, before, after, has_fine_stamps)), stat.stx_ino)
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
        Ok(Self { descriptor, size, unit, direct, device, stamp, has_fine_stamps, identity })
    }

    /// The stamp now; `None` of what has none.
    pub fn stamp_now(&self) -> rustix::io::Result<Option<Stamp>> {
        if self.stamp.is_none() {
            return Ok(None);
        }
        let before = coarse_now();
        let stat = statx(&*self.descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(Some(Stamp::new(&stat, before, coarse_now(), self.has_fine_stamps)))
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

/// The clock that files without fine stamps are stamped by.
fn coarse_now() -> (i64, u32) {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    (now.tv_sec, now.tv_nsec as u32)
}

/// How long a tick of that clock is, in nanoseconds.
pub fn tick() -> u64 {
    clock_getres(ClockId::RealtimeCoarse).tv_nsec as u64
}

/// Whether the file system of a file makes a new stamp for every change that follows a look. It is known of those that do;
/// whether this kernel has it is tried out.
fn has_fine_stamps(file: &OwnedFd) -> bool {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const TMPFS: u64 = 0x0102_1994;
    static OF_THE_KERNEL: LazyLock<bool> = LazyLock::new(|| are_stamps_fine().unwrap_or(false));
    let of = rustix::fs::fstatfs(file).map_or(0, |stat| stat.f_type as u64);
    matches!(of, EXT4 | XFS | BTRFS | TMPFS) && *OF_THE_KERNEL
}

/// Changes and looks at a file in memory, one after the other, faster than ticks.
fn are_stamps_fine() -> rustix::io::Result<bool> {
    const CHANGES: usize = 50;
    let file = rustix::fs::memfd_create("bedplate-stamps", rustix::fs::MemfdFlags::CLOEXEC)?;
    let look = || {
        let stat = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::CTIME)?;
        Ok((stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec))
    };
    let mut last = look()?;
    for _ in 0..CHANGES {
        rustix::io::pwrite(&file, b"x", 0)?;
        let now = look()?;
        if now == last {
            return Ok(false);
        }
        last = now;
    }
    Ok(true)
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
    fn a_stamp_of_a_change_in_the_tick_in_which_it_is_taken_is_racy() {
        let file = tempfile::tempfile().unwrap();
        let stat = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap();
        let (seconds, nanos) = (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        let is_racy = |before, after, is_fine| Stamp::new(&stat, before, after, is_fine).is_racy();
        let (changed, later) = ((seconds, nanos), (seconds + 1, nanos));
        let earlier = (seconds - 1, nanos);
        assert!(is_racy(changed, changed, false));
        assert!(
            is_racy(earlier, changed, false) && is_racy(changed, later, false),
            "the clock went on meanwhile"
        );
        assert!(!is_racy(later, later, false), "a later change has a later tick");
        assert!(!is_racy(earlier, earlier, false), "the clock was set back");
        assert!(!is_racy(changed, changed, true));
        let (racy, sound) =
            (Stamp::new(&stat, changed, changed, false), Stamp::new(&stat, later, later, false));
        assert_eq!(racy, sound, "of the same change");
        assert!(sound.proves_unchanged(&racy) && sound.proves_unchanged(&sound));
        assert!(!racy.proves_unchanged(&racy) && !racy.proves_unchanged(&sound));
        for stamp in [racy, sound, Stamp { modified: (-1, 999_999_999), links: u32::MAX, ..racy }] {
            let again = Stamp::from_words(stamp.to_words());
            assert_eq!((again, again.is_racy()), (stamp, stamp.is_racy()));
        }
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
