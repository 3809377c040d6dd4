//! Files of a scan: they are opened to bypass the page cache, and watched for changes.
//!
//! A *stamp* is the kernel's record of a file's last change. A thread takes one before a read and one after it. If both are
//! equal, no process wrote the file in between.
//!
//! Since Linux 6.13, ext4, XFS, Btrfs and tmpfs make a new stamp for every change after a read of the stamp. Elsewhere two
//! changes within one tick of the kernel's coarse clock (1 to 10 ms) have equal stamps. A stamp there is *racy* if it is of a
//! change in the tick in which it was taken. A racy stamp proves nothing, so the service takes a later one. (git does the same.)
//!
//! A write stamps the file when it begins. A write that is still in progress at that time is not missed, because direct reads
//! wait for it. File systems admit either one writer or readers to a file. There are two exceptions. Stores to memory that is
//! mapped from the file stamp it once, not for every store. Reads through the page cache do not wait for writes, and some file
//! systems have no other reads. [`FileSystem`] knows these file systems. It also knows the ones whose stamps prove nothing
//! because another machine can change their files.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, StatxFlags, openat, seek, statx};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_getres, clock_gettime};

use crate::board::StampWords;
use crate::file_system::{FileSystem, StampQuality, direct_alignment};
use crate::memory::FRAME;
use crate::{Error, Result};

/// A file or device to scan.
#[derive(Debug)]
pub enum Source {
    /// The name of a file or block device.
    Path(PathBuf),
    /// A descriptor that is open for reading. The service opens the file again, so the descriptor's offset and flags stay
    /// unchanged.
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
    /// A name by which other processes may open the source. It is empty if there is no such name.
    pub(crate) fn name(&self) -> Vec<u8> {
        let path = match self {
            Self::Path(path) => std::path::absolute(path).ok(),
            Self::Descriptor(file) => std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok(),
        };
        let path = path.filter(|path| path.is_absolute()).unwrap_or_default().into_os_string();
        // The kernel refuses a longer name, and so does a message.
        if path.len() < 4096 { path.into_vec() } else { Vec::new() }
    }
}

/// The attributes of a file that change whenever the file changes.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
    links: u32,
    /// A later change may have an equal stamp.
    is_racy: bool,
    /// An equal stamp proves nothing, however much later it is taken.
    is_unproven: bool,
    /// The kernel did not report the stamp.
    is_unknown: bool,
}

/// Two stamps are equal if nothing in them shows different changes. An unknown stamp equals no stamp.
impl PartialEq for Stamp {
    fn eq(&self, other: &Self) -> bool {
        let seen = |stamp: &Stamp| (stamp.size, stamp.modified, stamp.changed, stamp.links);
        !self.is_unknown && !other.is_unknown && seen(self) == seen(other)
    }
}

impl Stamp {
    /// A stamp that differs for each number, for tests without files.
    #[cfg(test)]
    pub fn numbered(number: i64) -> Self {
        Self { modified: (number, 0), changed: (number, 0), links: 1, is_unknown: false, ..Self::unknown() }
    }

    /// The stamp of a file whose stamp the kernel does not report. Such a file counts as changed.
    pub fn unknown() -> Self {
        Self {
            size: 0,
            modified: (0, 0),
            changed: (0, 0),
            // With this value the file never counts as having lost a name.
            links: u32::MAX,
            is_racy: false,
            is_unproven: false,
            is_unknown: true,
        }
    }

    /// Makes the stamp of a file from a `statx` during which the coarse clock advanced from `before` to `after`.
    fn new(stat: &rustix::fs::Statx, before: (i64, u32), after: (i64, u32), quality: StampQuality) -> Self {
        let changed = (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        Self {
            size: stat.stx_size,
            modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            changed,
            links: stat.stx_nlink,
            // Every change sets the time of the last change. A time in the future comes from a clock that was set back since
            // then, so a later change gets a different time.
            is_racy: quality != StampQuality::Fine && (before..=after).contains(&changed),
            is_unproven: quality == StampQuality::Unproven,
            is_unknown: false,
        }
    }

    /// Whether a file with an equal stamp may have been changed after this stamp was taken. An equal stamp that is taken one
    /// [tick] later is not racy.
    pub fn is_racy(&self) -> bool {
        self.is_racy
    }

    /// The size of the file, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The time of the file's last change. `None`: the time is before 1970, or too late for [`SystemTime`].
    pub fn changed_at(&self) -> Option<SystemTime> {
        let (seconds, nanoseconds) = self.changed;
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds.try_into().ok()?, nanoseconds))
    }

    /// Converts the stamp to numbers for a board. A stamp that proves nothing, for any reason, becomes a racy one.
    pub fn to_words(self) -> StampWords {
        let times = u64::from(self.modified.1) << 32 | u64::from(self.changed.1);
        let links = u64::from(self.links) << 1 | u64::from(!self.is_proof());
        [self.size, self.modified.0 as u64, self.changed.0 as u64, times, links]
    }

    /// Converts the numbers back to a stamp.
    pub fn from_words([size, modified, changed, times, links]: StampWords) -> Self {
        Self {
            size,
            modified: (modified as i64, (times >> 32) as u32),
            changed: (changed as i64, times as u32),
            links: (links >> 1) as u32,
            is_racy: links & 1 != 0,
            is_unproven: false,
            is_unknown: false,
        }
    }

    /// Whether an equal later stamp proves that the file is unchanged.
    fn is_proof(&self) -> bool {
        !self.is_racy && !self.is_unproven && !self.is_unknown
    }

    /// Whether the stamps prove that a file, which now has the stamp `now`, was not changed after this stamp was taken.
    pub fn proves_unchanged(&self, now: &Stamp) -> bool {
        self.is_proof() && self == now
    }

    /// Whether the file lost a name since `earlier`: the name was deleted, or another file replaced it.
    pub fn lost_a_name_since(&self, earlier: &Stamp) -> bool {
        self.links < earlier.links
    }
}

/// The identity of a file among the files that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Converts the identity to numbers, for another process.
    pub fn to_words(self) -> [u64; 2] {
        [self.device, self.inode]
    }

    /// Converts the numbers back to an identity.
    pub fn from_words([device, inode]: [u64; 2]) -> Self {
        Self { device, inode }
    }
}

/// A version of a regular file: its identity, and the stamp of its last change. Two versions of one file have different stamps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileVersion {
    identity: Identity,
    stamp: Stamp,
}

impl FileVersion {
    /// Makes the version of a stamp. The stamp must be one that proves that the file is unchanged.
    pub(crate) fn new(identity: Identity, stamp: Stamp) -> Self {
        Self { identity, stamp }
    }

    pub(crate) fn to_words(self) -> ([u64; 2], StampWords) {
        (self.identity.to_words(), self.stamp.to_words())
    }

    pub(crate) fn from_words(identity: [u64; 2], stamp: StampWords) -> Self {
        Self { identity: Identity::from_words(identity), stamp: Stamp::from_words(stamp) }
    }

    /// The size of the file in this version, in bytes.
    pub fn size(&self) -> u64 {
        self.stamp.size
    }

    /// Whether a descriptor is open for this file, and the file still has this version. The call makes one `statx`.
    ///
    /// If so, a read of any range at the moment of this call returns the content of this version.
    ///
    /// # Errors
    /// `statx` fails.
    pub fn is_current(&self, file: impl AsFd) -> rustix::io::Result<bool> {
        let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let is_it = Identity { device, inode: stat.stx_ino } == self.identity;
        // The stamp of the version is a proof. It does not matter whether the later stamp is one.
        Ok(is_it && self.stamp.proves_unchanged(&Stamp::new(&stat, (0, 0), (0, 0), StampQuality::Fine)))
    }
}

/// An open file of a scan. Cheap to clone.
#[derive(Clone, Debug)]
pub struct File {
    descriptor: Arc<OwnedFd>,
    /// The size when the file was opened, in bytes.
    pub size: u64,
    /// Offsets, lengths and addresses of reads are multiples of this number of bytes.
    pub unit: u32,
    /// `Ok`: reads bypass the page cache. An error is the reason why they do not.
    pub direct: std::result::Result<(), Errno>,
    /// The device that has the file.
    pub device: u64,
    /// The stamp when the file was opened. A block device has none.
    pub stamp: Option<Stamp>,
    /// The proof that equal stamps of this file give.
    stamp_quality: StampQuality,
    /// Whether a direct read waits for a write that is still in progress.
    pub waits_for_writes: bool,
    /// The identity of the file. For a block device it names the device, independently of the path.
    pub identity: Identity,
}

impl File {
    /// Opens a source, with direct I/O if its file system supports that.
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
        // Opening a FIFO must not block. The FIFO is refused below.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let open = |flags| openat(CWD, path, flags, Mode::empty());
        let direct = open(flags | OFlags::DIRECT).and_then(|file| Self::opened(file, Ok(())));
        // A file system may accept the flag and still copy from the page cache. Then the file is opened without the flag.
        match direct.and_then(|file| file.direct.map(|()| file)) {
            Err(refused @ (Errno::INVAL | TOO_COARSE)) => {
                open(flags).and_then(|file| Self::opened(file, Err(refused)))
            }
            other => other,
        }
        .map_err(failed)
    }

    /// A file that another process opened for reading, with its own rights. This process must read no file for another process
    /// that the other process must not read.
    ///
    /// The descriptor is used as it is. Opening the file again would use this process's rights, which may be greater.
    pub fn handed_over(file: OwnedFd) -> rustix::io::Result<Self> {
        // A file system in user space is refused, because its process may never answer a request. The control loop looks at files
        // later, and must not wait for any process.
        let flags = rustix::fs::fcntl_getfl(&file)?;
        if flags.contains(OFlags::PATH) || flags.intersection(OFlags::RWMODE) == OFlags::WRONLY {
            return Err(Errno::ACCESS);
        }
        if FileSystem::of(&file)?.is_in_user_space() {
            return Err(Errno::OPNOTSUPP);
        }
        let direct = if flags.contains(OFlags::DIRECT) { Ok(()) } else { Err(Errno::INVAL) };
        Self::opened(file, direct)
    }

    /// Opens anew, with direct I/O, the file of a descriptor that another process handed over. The descriptor shows that the other
    /// process may read the file, so this process may read it for the other one.
    ///
    /// This function closes the descriptor, so that locks that belong to it last no longer than the other process keeps them.
    pub fn reopened(file: OwnedFd) -> rustix::io::Result<Self> {
        let handed_over = Self::handed_over(file)?;
        if handed_over.stamp.is_none() {
            return Err(Errno::OPNOTSUPP);
        }
        let path = format!("/proc/self/fd/{}", handed_over.descriptor.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::DIRECT;
        let file = Self::opened(openat(CWD, path, flags, Mode::empty())?, Ok(()))?;
        // The path may have led to another file.
        if file.identity == handed_over.identity { Ok(file) } else { Err(Errno::STALE) }
    }

    fn opened(file: OwnedFd, direct: std::result::Result<(), Errno>) -> rustix::io::Result<Self> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let before = coarse_now();
        let stat = statx(&file, c"", AtFlags::EMPTY_PATH, flags)?;
        let after = coarse_now();
        // If the kernel does not report the file system, stamps of the file prove nothing.
        let file_system = FileSystem::of(&file);
        let stamp_quality = file_system.map_or(StampQuality::Unproven, FileSystem::stamp_quality);
        let waits_for_writes = file_system.is_ok_and(FileSystem::waits_for_writes);
        let alignment = direct_alignment(stat.stx_mask, stat.stx_dio_offset_align);
        let mut direct = direct;
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let (size, device, stamp, inode) = match kind {
            FileType::RegularFile => {
                let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
                let known = file_system.map_err(|_| Errno::OPNOTSUPP);
                direct = direct.and(known).and_then(|known| known.check_direct(alignment));
                (stat.stx_size, device, Some(Stamp::new(&stat, before, after, stamp_quality)), stat.stx_ino)
            }
            FileType::BlockDevice => {
                let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
                (seek(&file, SeekFrom::End(0))?, device, None, 0)
            }
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::SPIPE),
        };
        let wanted = alignment.filter(|alignment| *alignment != 0 && direct.is_ok());
        let unit = unit(wanted)?;
        let identity = Identity { device, inode };
        let descriptor = Arc::new(file);
        Ok(Self { descriptor, size, unit, direct, device, stamp, stamp_quality, waits_for_writes, identity })
    }

    /// Takes the stamp now. `None`: a block device has no stamp.
    pub fn stamp_now(&self) -> rustix::io::Result<Option<Stamp>> {
        if self.stamp.is_none() {
            return Ok(None);
        }
        let before = coarse_now();
        let stat = statx(&*self.descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(Some(Stamp::new(&stat, before, coarse_now(), self.stamp_quality)))
    }

    /// The same file with a descriptor for which the kernel fails every call.
    #[cfg(test)]
    pub fn unanswered(&self) -> Self {
        use std::os::fd::FromRawFd;
        // SAFETY: no descriptor has this number. The value is leaked, so it never closes a descriptor.
        let descriptor = Arc::new(unsafe { OwnedFd::from_raw_fd(i32::MAX) });
        std::mem::forget(descriptor.clone());
        Self { descriptor, ..self.clone() }
    }

    /// The descriptor. A clone of the `Arc` keeps it open.
    pub fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The error for a file whose direct reads need larger units than a frame.
const TOO_COARSE: Errno = Errno::OPNOTSUPP;

/// The unit of reads, in bytes. `wanted` is the alignment that the file system reports.
fn unit(wanted: Option<u32>) -> rustix::io::Result<u32> {
    const LEAST: u32 = 4096;
    let unit = wanted.map_or(LEAST, |unit| unit.max(LEAST).checked_next_power_of_two().unwrap_or(u32::MAX));
    if unit as usize > FRAME { Err(TOO_COARSE) } else { Ok(unit) }
}

/// Reads the clock from which the kernel takes the stamps of files without fine stamps.
fn coarse_now() -> (i64, u32) {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    (now.tv_sec, now.tv_nsec as u32)
}

/// The length of a tick of the coarse clock, in nanoseconds.
pub fn tick() -> u64 {
    clock_getres(ClockId::RealtimeCoarse).tv_nsec as u64
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
        use StampQuality::{Coarse, Fine, Unproven};
        let is_racy = |before, after, quality| Stamp::new(&stat, before, after, quality).is_racy();
        let (changed, later) = ((seconds, nanos), (seconds + 1, nanos));
        let earlier = (seconds - 1, nanos);
        assert!(is_racy(changed, changed, Coarse));
        assert!(
            is_racy(earlier, changed, Coarse) && is_racy(changed, later, Coarse),
            "the clock went on meanwhile"
        );
        assert!(!is_racy(later, later, Coarse), "a later change has a later tick");
        assert!(!is_racy(earlier, earlier, Coarse), "the clock was set back");
        assert!(!is_racy(changed, changed, Fine));
        let (racy, sound) =
            (Stamp::new(&stat, changed, changed, Coarse), Stamp::new(&stat, later, later, Coarse));
        assert_eq!(racy, sound, "of the same change");
        assert!(sound.proves_unchanged(&racy) && sound.proves_unchanged(&sound));
        assert!(!racy.proves_unchanged(&racy) && !racy.proves_unchanged(&sound));
        let foreign = Stamp::new(&stat, later, later, Unproven);
        assert!(foreign == sound && !foreign.is_racy(), "it is waited for as any other");
        assert!(!foreign.proves_unchanged(&foreign), "and proves nothing");
        assert!(!Stamp::from_words(foreign.to_words()).proves_unchanged(&sound), "nor on a board");
        assert!(Stamp::from_words(sound.to_words()).proves_unchanged(&sound));
        for stamp in [racy, sound, Stamp { modified: (-1, 999_999_999), links: u32::MAX, ..racy }] {
            let again = Stamp::from_words(stamp.to_words());
            assert_eq!((again, again.is_racy()), (stamp, stamp.is_racy()));
        }
    }

    #[test]
    fn files_in_memory_are_not_read_past_the_page_cache() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            println!("skipped: there is no /dev/shm");
            return;
        };
        file.set_len(10_000).unwrap();
        let opened = File::open(&Source::from(file.try_clone().unwrap())).unwrap();
        // A kernel whose tmpfs refuses the flag returns `EINVAL`.
        assert!(matches!(opened.direct, Err(Errno::OPNOTSUPP | Errno::INVAL)), "{:?}", opened.direct);
        assert_eq!((opened.size, opened.unit), (10_000, 4096));
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let Ok(direct) = openat(CWD, name, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()) else {
            println!("skipped: /dev/shm refuses O_DIRECT");
            return;
        };
        let handed_over = File::handed_over(direct).unwrap();
        assert_eq!(handed_over.direct, Err(Errno::OPNOTSUPP));
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
