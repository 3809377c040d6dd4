//! An image of a database in memory, from which another database is filled: for stores without a data directory.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::checkpoint::files;
use super::checkpoint::source::DatabaseSnapshot;
use super::datadir::DataDir;
use super::disk::memory::MemoryDir;
use crate::{Database, Error, Result};

/// Of the memory that an image may take, this share is left free: the kernel estimates what is available.
const SPARE_SHARE: u64 = 16;

/// Writes an image: a data directory in memory, with one checkpoint that has everything. Returns the checkpoint's timestamp, too.
pub(super) fn write(database: &Database) -> Result<(DataDir, u64)> {
    let data = DataDir::without_path(Arc::new(MemoryDir::default()), Arc::new(MemoryDir::default()));
    let source = Box::new(DatabaseSnapshot::take(database)?);
    let info = files::write(&*data.checkpoint, source, data.id, None, &mut |_| ControlFlow::Continue(()))?;
    files::publish(&*data.checkpoint, info.ts, 1)?;
    Ok((data, info.ts))
}

/// Checks that the machine has memory for an image of this much data. The database stays in memory while the image is written, and the
/// image stays while another database is filled.
pub(super) fn check_memory(data_bytes: u64) -> Result<()> {
    // A kernel that does not say so has what it takes, or ends the process.
    available_memory().map_or(Ok(()), |available| check_available(data_bytes, available))
}

fn check_available(data_bytes: u64, available: u64) -> Result<()> {
    let room = available - available / SPARE_SHARE;
    if data_bytes > room {
        return Err(Error::Config(format!(
            "the data takes {data_bytes} bytes, and the machine has memory for {room} bytes more, but the change needs a copy"
        )));
    }
    Ok(())
}

/// Bytes of memory that programs could still get, as the kernel estimates it.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_needs_memory() {
        assert!(check_available(15 << 20, 16 << 20).is_ok());
        let error = check_available((15 << 20) + 1, 16 << 20).unwrap_err().to_string();
        assert!(error.contains("15728641 bytes") && error.contains("15728640 bytes more"), "{error}");
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
