//! Pools on block devices. The tests use loop devices, which need root.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_bufpool::{Choice, Error, Kind, PAGE, Pool};
use common::{fill, kinds, version};
use tempfile::TempDir;

/// A loop device over a file. It is detached on drop.
struct Device {
    path: PathBuf,
    file: PathBuf,
    _folder: TempDir,
}

impl Device {
    /// Returns none if the machine has no loop devices, and prints the reason.
    fn new(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("device");
        File::create(&file).unwrap().set_len(bytes).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let why = match made {
            Ok(made) if made.status.success() => {
                let path = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
                return Some(Self { path, file, _folder: folder });
            }
            Ok(made) => String::from_utf8_lossy(&made.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        // SAFETY: `geteuid` has no preconditions.
        assert!(unsafe { libc::geteuid() } != 0 || !Path::new("/dev/loop-control").exists(), "{why}");
        println!("skipped: needs a loop device: {why}");
        None
    }

    fn pool(&self, kind: Kind) -> Result<Pool, Error> {
        Pool::builder(&self.path).memory(64 * PAGE).engine(Choice::Only(kind)).open()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let done = Command::new("losetup").arg("--detach").arg(&self.path).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn a_device_holds_as_many_pages_as_it_has_room_for() {
    for kind in kinds() {
        // The pool's own pages use the first MiB.
        let Some(device) = Device::new(9 << 20) else { return };
        let room = 8 << 20 >> 12;
        let pool = device.pool(kind).unwrap();
        let mut ids = Vec::new();
        let error = loop {
            match pool.allocate() {
                Ok(mut page) => {
                    let id = page.page();
                    fill(&mut page, id.0, 1);
                    ids.push(id);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { pages } if pages == room), "{kind}: {error}");
        assert_eq!(ids.len() as u64, room);
        pool.close().unwrap();
        drop(pool);
        let pool = device.pool(kind).unwrap();
        for id in &ids {
            assert_eq!(version(&pool.pin_shared(*id).unwrap(), id.0), 1, "{kind}");
        }
        // A freed page can be allocated again.
        pool.free(pool.pin_exclusive(ids[5]).unwrap()).unwrap();
        assert_eq!(pool.allocate().unwrap().page(), ids[5]);
    }
}

#[test]
fn whose_device_it_is_already_keeps_it() {
    let Some(device) = Device::new(16 << 20) else { return };
    let pool = device.pool(Kind::Stock).unwrap();
    let error = device.pool(Kind::Stock).map(drop).unwrap_err();
    assert!(error.to_string().contains("mounted, or in use"), "{error}");
    drop(pool);
    drop(device.pool(Kind::Stock).unwrap());
}

/// File systems start at different offsets: ext4 in the first page, ISO 9660 at 32 KiB, Btrfs at 64 KiB.
#[test]
fn what_else_is_on_a_device_is_not_overwritten() {
    for at in [0, 1080, 32 << 10, 64 << 10, (1 << 20) - 1] {
        let Some(device) = Device::new(16 << 20) else { return };
        std::fs::OpenOptions::new().write(true).open(&device.path).unwrap().write_all_at(b"x", at).unwrap();
        let before = std::fs::read(&device.path).unwrap();
        let error = device.pool(Kind::Stock).map(drop).unwrap_err();
        assert!(matches!(error, Error::Format(_)), "{at}: {error}");
        assert!(std::fs::read(&device.path).unwrap() == before);
    }
}

#[test]
fn a_pool_is_not_opened_on_a_device_that_lost_a_part_of_it() {
    let Some(device) = Device::new(16 << 20) else { return };
    let pool = device.pool(Kind::Stock).unwrap();
    while pool.allocate().is_ok() {}
    pool.close().unwrap();
    drop(pool);
    File::options().write(true).open(&device.file).unwrap().set_len(8 << 20).unwrap();
    assert!(Command::new("losetup").arg("--set-capacity").arg(&device.path).status().unwrap().success());
    let error = device.pool(Kind::Stock).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "a device of 8388608: the pool in it needs more");
}

#[test]
fn a_device_that_is_too_small_is_refused() {
    let Some(device) = Device::new(1 << 20) else { return };
    let error = device.pool(Kind::Stock).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a device of 1048576: a pool takes more than 256 pages, which are 1 MiB of pages of 4 KiB"
    );
    assert!(std::fs::read(&device.file).unwrap().iter().all(|byte| *byte == 0));
}
