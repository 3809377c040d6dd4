//! The kernel's read-ahead on a device, which determines much of the time of a cold scan through the page cache.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::{Error, Result};

/// A changed read-ahead of the device of a folder, until this is dropped.
#[derive(Debug)]
pub struct ReadAhead {
    setting: PathBuf,
    before: String,
}

/// The file with the setting of the file systems of a folder's device, in KiB. `None`: the folder is on no single device.
fn setting(folder: &Path) -> Option<PathBuf> {
    let device = fs::metadata(folder).ok()?.dev();
    let path = PathBuf::from(format!("/sys/class/bdi/{}:{}/read_ahead_kb", major(device), minor(device)));
    path.exists().then_some(path)
}

/// The kernel's read-ahead on the device of a folder, in KiB, if it reports it.
pub fn of(folder: &Path) -> Option<u64> {
    fs::read_to_string(setting(folder)?).ok()?.trim().parse().ok()
}

impl ReadAhead {
    /// Sets the read-ahead of the device of a folder, in KiB.
    ///
    /// # Errors
    /// The folder is on no single device; the process is not root.
    pub fn set(folder: &Path, kib: u64) -> Result<Self> {
        let missing = |what: String| Error::Missing { what, hint: "do without --read-ahead" };
        let setting = setting(folder)
            .ok_or_else(|| missing(format!("{} is on no device that reads ahead", folder.display())))?;
        let before = fs::read_to_string(&setting).map_err(Error::io("read the device's read-ahead"))?;
        fs::write(&setting, kib.to_string())
            .map_err(|error| missing(format!("{} cannot be set: {error}", setting.display())))?;
        Ok(Self { setting, before })
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.setting, self.before.trim()) {
            tracing::warn!("{} does not get its value {} back: {error}", self.setting.display(), self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_nothing_ahead_is_an_error() {
        let error = ReadAhead::set(Path::new("/proc"), 128).unwrap_err();
        assert!(error.to_string().contains("/proc"), "{error}");
        assert_eq!(of(Path::new("/proc")), None);
    }
}
