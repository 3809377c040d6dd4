//! A file system of a few megabytes.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A tmpfs that is mounted until this is dropped.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Returns none, with a message, if tests may not mount a file system.
    pub fn mount(megabytes: usize) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(folder.path()).output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            Some(Self { folder })
        } else {
            eprintln!("skipped: this test mounts a file system, which takes root");
            None
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Takes all the remaining space.
    pub fn fill(&self) {
        let mut file = File::options().append(true).create(true).open(self.filler()).unwrap();
        for size in [1 << 20, 4096, 1] {
            while file.write(&vec![0; size]).is_ok_and(|written| written > 0) {}
        }
    }

    /// Releases that space.
    pub fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
