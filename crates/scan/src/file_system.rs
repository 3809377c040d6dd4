//! The guarantees of a file system: whether reads bypass the page cache, and what the time stamps of its files prove.
//!
//! Decisions here are pure functions of the kernel's answers about a file. So tests need no particular file system.

use std::os::fd::AsFd;
use std::sync::LazyLock;

use rustix::fs::{AtFlags, MemfdFlags, StatxFlags, memfd_create, statx};
use rustix::io::Errno;

/// A file system, by the type number that `statfs` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem(u32);

const BTRFS: u32 = 0x9123_683e;
const EXT4: u32 = 0xef53;
const FUSE: u32 = 0x6573_5546;
const RAMFS: u32 = 0x8584_58f6;
const TMPFS: u32 = 0x0102_1994;
const XFS: u32 = 0x5846_5342;

/// File systems whose files can also be changed by another machine or another process. The kernel answers `statx` from a cache of
/// attributes that may be old, or by a clock that is not this machine's.
const SHARED_WITH_OTHERS: [u32; 20] = [
    0x6b41_4653, // AFS (kernel)
    0x5346_414f, // AFS (OpenAFS)
    0x1983_0326, // BeeGFS
    0x00c3_6400, // Ceph
    0xff53_4d42, // CIFS
    0x7375_7245, // Coda
    FUSE,        // also virtiofs
    0x0116_1970, // GFS2
    0x4750_5346, // GPFS
    0x0bd0_0bd0, // Lustre
    0x564c,      // NCP
    0x6969,      // NFS
    0x7461_636f, // OCFS2
    0x2003_0528, // OrangeFS
    0xaad7_aaea, // PanFS
    0x517b,      // SMB
    0xfe53_4d42, // SMB2
    0x0102_1997, // 9p
    0x786f_4256, // VirtualBox shared folders
    0xbacb_acbc, // VMware shared folders
];

/// File systems that may execute a direct read concurrently with a write. Some copy compressed or small data from the page cache.
/// Others do not lock the file.
const READ_BESIDE_WRITES: [u32; 4] = [
    0xca45_1a4e, // bcachefs
    BTRFS,
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
];

/// The conclusion that equal stamps before and after a read allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampQuality {
    /// Every change after a read of the stamp makes a new stamp.
    Fine,
    /// Changes within one tick of the kernel's coarse clock have equal stamps.
    Coarse,
    /// Equal stamps prove nothing.
    Unproven,
}

impl FileSystem {
    /// The file system of an open file.
    pub fn of(file: impl AsFd) -> rustix::io::Result<Self> {
        // All of these numbers have 32 bits. On some machines the field is wider, and signed.
        Ok(Self(rustix::fs::fstatfs(file)?.f_type as u32))
    }

    /// Whether a process serves the file system. The process may never answer.
    pub fn is_in_user_space(self) -> bool {
        self.0 == FUSE
    }

    /// Whether a direct read of a regular file waits for a write that is still in progress.
    pub fn waits_for_writes(self) -> bool {
        !READ_BESIDE_WRITES.contains(&self.0)
    }

    /// The proof that equal stamps of its regular files give.
    pub fn stamp_quality(self) -> StampQuality {
        match self.0 {
            other if SHARED_WITH_OTHERS.contains(&other) => StampQuality::Unproven,
            BTRFS | EXT4 | TMPFS | XFS if *KERNEL_HAS_FINE_STAMPS => StampQuality::Fine,
            _ => StampQuality::Coarse,
        }
    }

    /// Checks that reads of a regular file that was opened with `O_DIRECT` bypass the page cache. `alignment` is the file's
    /// direct I/O alignment from `statx`: 0 if the file has no direct I/O, and `None` if `statx` does not report it.
    ///
    /// # Errors
    /// `OPNOTSUPP`: the file system accepts the flag and copies from the page cache. Such a read does not wait for a write that
    /// is still in progress, so it may return half of that write.
    pub fn check_direct(self, alignment: Option<u32>) -> rustix::io::Result<()> {
        match (self.0, alignment) {
            (RAMFS | TMPFS, _) | (_, Some(0)) => Err(Errno::OPNOTSUPP),
            _ => Ok(()),
        }
    }
}

/// The direct I/O alignment of a file as `statx` reports it. `None`: the kernel does not report it.
pub fn direct_alignment(mask: u32, alignment: u32) -> Option<u32> {
    (mask & StatxFlags::DIOALIGN.bits() != 0).then_some(alignment)
}

/// Whether this kernel has fine stamps at all. The first use runs the test; the process keeps the result.
static KERNEL_HAS_FINE_STAMPS: LazyLock<bool> = LazyLock::new(|| are_stamps_fine().unwrap_or(false));

/// Alternately changes a file in memory and reads its stamp. Each step takes less than a tick.
fn are_stamps_fine() -> rustix::io::Result<bool> {
    const CHANGES: usize = 50;
    let file = memfd_create("bedplate-stamps", MemfdFlags::CLOEXEC)?;
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

    #[test]
    fn an_alignment_of_zero_means_no_direct_io() {
        let known = StatxFlags::DIOALIGN.bits();
        let basic = StatxFlags::BASIC_STATS.bits();
        let check = |of: u32, mask, alignment| FileSystem(of).check_direct(direct_alignment(mask, alignment));
        assert_eq!(check(EXT4, basic | known, 0), Err(Errno::OPNOTSUPP), "for instance data=journal");
        assert_eq!(check(EXT4, basic | known, 512), Ok(()));
        assert_eq!(check(EXT4, basic, 0), Ok(()), "the kernel does not know the question");
        assert_eq!(check(TMPFS, basic, 0), Err(Errno::OPNOTSUPP));
        assert_eq!(check(TMPFS, basic | known, 4096), Err(Errno::OPNOTSUPP));
        assert_eq!(check(RAMFS, basic, 0), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn direct_reads_of_some_file_systems_do_not_wait_for_writes() {
        assert!([EXT4, XFS].iter().all(|of| FileSystem(*of).waits_for_writes()));
        assert!([BTRFS, 0xf2f5_2010].iter().all(|of| !FileSystem(*of).waits_for_writes()));
    }

    #[test]
    fn stamps_of_network_file_systems_prove_nothing() {
        let quality = |of| FileSystem(of).stamp_quality();
        // NFS, SMB, CIFS, SMB2, Ceph, 9p, AFS, FUSE.
        for of in
            [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400, 0x0102_1997, 0x6b41_4653, 0x6573_5546]
        {
            assert_eq!(quality(of), StampQuality::Unproven, "{of:#x}");
        }
        let local = if *KERNEL_HAS_FINE_STAMPS { StampQuality::Fine } else { StampQuality::Coarse };
        for of in [EXT4, XFS, BTRFS, TMPFS] {
            assert_eq!(quality(of), local, "{of:#x}");
        }
        // F2FS, and the overlay file system, which does not report the file system below it.
        for of in [0xf2f5_2010, 0x794c_7630] {
            assert_eq!(quality(of), StampQuality::Coarse, "{of:#x}");
        }
    }
}
