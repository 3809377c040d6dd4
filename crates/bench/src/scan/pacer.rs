//! A pace for workers that would otherwise be as fast as memory: what a query does with a page besides adding it up.

use std::time::Duration;

use bedplate_scan::Clock;

/// Lets a worker take as long for its bytes as one of a certain speed would. Time in which it waits for a page is not its
/// own and is not made up for; what it overslept is.
pub struct Pacer {
    clock: Clock,
    slice: u64,
    slice_ns: u64,
    since: u64,
    bytes: u64,
    late_ns: u64,
    /// How often it slept, which is a system call each.
    pub rests: u64,
}

impl Pacer {
    /// A pacer for a number of bytes per second. It rests after each `slice` bytes, which should be less than a worker waits for.
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

    /// It is through with so much. Whether that was the end of a slice.
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
        // A side that was late for long does not run ahead for long afterwards.
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
