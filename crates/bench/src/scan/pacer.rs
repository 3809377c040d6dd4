//! A pace for workers that would otherwise be as fast as memory. It stands for the other work of a query on a page.

use std::time::Duration;

use bedplate_scan::Clock;

/// Slows a worker down to a certain speed. The worker makes up for time that it overslept, but not for time in which it
/// waited for a page.
pub struct Pacer {
    clock: Clock,
    slice: u64,
    slice_ns: u64,
    since: u64,
    bytes: u64,
    late_ns: u64,
    /// Number of its sleeps; each is a system call.
    pub rests: u64,
}

impl Pacer {
    /// A pacer for a number of bytes per second. It rests after each `slice` bytes, which should be fewer than a worker
    /// waits for at once.
    pub fn new(bytes_per_s: f64, slice: u64) -> Self {
        let slice_ns = (slice as f64 / bytes_per_s * 1e9) as u64;
        Self { clock: Clock::best(), slice, slice_ns, since: 0, bytes: 0, late_ns: 0, rests: 0 }
    }

    /// The worker has a page.
    pub fn begin(&mut self) {
        if self.bytes == 0 {
            self.since = self.clock.now();
        }
    }

    /// The worker has consumed `bytes` bytes. Returns whether that was the end of a slice.
    pub fn end(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        if self.bytes < self.slice {
            return false;
        }
        self.bytes = 0;
        let due = (self.since + self.slice_ns).saturating_sub(self.late_ns);
        let now = self.clock.now();
        if now < due {
            std::thread::sleep(Duration::from_nanos(due - now));
            self.rests += 1;
        }
        // A worker that is very late makes up for at most one slice.
        self.late_ns = self.clock.now().saturating_sub(due).min(self.slice_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_kept_and_waiting_is_not_made_up_for() {
        // 64 slices of 1 ms.
        let mut pacer = Pacer::new(1e9, 1_000_000);
        let (clock, mut waited, mut slices) = (Clock::best(), 0, 0);
        let start = clock.now();
        for page in 0..128 {
            if page % 32 == 0 {
                let before = clock.now();
                std::thread::sleep(Duration::from_millis(5));
                waited += clock.now() - before;
            }
            pacer.begin();
            slices += u64::from(pacer.end(500_000));
        }
        let worked = clock.now() - start - waited;
        assert_eq!(slices, 64);
        assert!(pacer.rests > 0 && worked >= 62_000_000, "{worked} ns, {} rests", pacer.rests);
    }
}
