//! How the bytes of a range that has arrived reach the decoder: lent without a copy, or copied.
//!
//! A daemon gives the memory of a range to other ranges when its connection to this process ends. The reader learns of that after it
//! has read ([`PinnedRange::is_held`]). A decoder reads lent bytes whenever it likes, and batches may refer to them for as long as
//! they are kept. So the bytes of a daemon's range are never lent: they are copied, and the copy is checked before anybody gets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_scan::{Error, PinnedRange, RangeReader, Result};
use bytes::Bytes;

use crate::buffers::Buffer;

/// Whether the memory of a reader's ranges stays as it is for as long as this process holds them. It does unless a daemon has it.
pub fn may_be_lent(reader: &RangeReader) -> bool {
    reader.descriptor().is_none()
}

/// A range that the decoder has, without a copy.
struct Lent {
    range: PinnedRange,
    lent: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.range
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lends a range of a reader that [may lend](may_be_lent). `lent` counts it until the decoder drops the bytes.
pub fn lend(range: PinnedRange, lent: &Arc<AtomicUsize>) -> Bytes {
    lent.fetch_add(1, Ordering::Relaxed);
    Bytes::from_owner(Lent { range, lent: lent.clone() })
}

/// Appends the bytes of a range to a buffer.
///
/// # Errors
/// [`Error::Gone`]: the connection to the daemon has ended, and the buffer may have bytes of other ranges.
pub fn copy(range: &PinnedRange, buffer: &mut Buffer) -> Result<()> {
    buffer.copy(range);
    if range.is_held() { Ok(()) } else { Err(Error::Gone) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bedplate_scan::{Daemon, Options, Service};
    use rustix::net::{Shutdown, shutdown};

    use super::*;
    use crate::buffers::Buffers;

    #[test]
    fn a_copy_of_a_range_that_is_not_held_any_more_is_an_error() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let settling = Duration::from_millis(100);
        std::thread::sleep(2 * settling);
        let service = || Service::builder().settling_time(settling).build().unwrap();
        match service().reader(&path) {
            Ok(reader) => assert!(may_be_lent(&reader)),
            Err(error) => return println!("skipped: {error}"),
        }
        let daemon = Daemon::bind(service(), folder.path().join("socket"), &Options::default()).unwrap();
        let (socket, stopper) = (daemon.path(), daemon.stopper());
        let thread = std::thread::spawn(move || daemon.run());
        let reader = Service::connect(socket).unwrap().reader(&path).unwrap();
        assert!(!may_be_lent(&reader));
        let range = reader.fetch(1, 5000).unwrap().wait().unwrap();
        let mut buffer = Buffers::default().take(5000);
        copy(&range, &mut buffer).unwrap();
        assert!(buffer.into_bytes()[..] == [7; 5000]);
        shutdown(reader.descriptor().unwrap(), Shutdown::Both).unwrap();
        let begin = Instant::now();
        while range.is_held() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the daemon does not notice the end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let copied = copy(&range, &mut Buffers::default().take(5000));
        assert!(matches!(copied, Err(Error::Gone)), "{copied:?}");
        stopper.stop();
        thread.join().unwrap().unwrap();
    }
}
