//! The timer wheel of release times (paper 3.4.2).
//!
//! The wheel is hierarchical, like the kernel's: three wheels of 64 slots, of 64 µs, 4 ms and 262 ms each. An event that is
//! further away (17 s) waits in the last slot. An event moves to a finer wheel when its slot of the coarser one is reached. So it
//! is never early, and late by less than a slot of the finest wheel.

/// The finest slot, in nanoseconds, as a power of two: 65.5 µs.
const SHIFT: u32 = 16;
const LEVEL: u32 = 6;
const SLOTS: usize = 1 << LEVEL;
const LEVELS: usize = 3;

/// Events of a type, by the time when they are due.
#[derive(Debug)]
pub struct Wheel<T> {
    slots: [[Vec<(u64, T)>; SLOTS]; LEVELS],
    /// Bits of the slots that have events.
    occupied: [u64; LEVELS],
    /// The finest slot that has been reached.
    current: u64,
}

impl<T> Wheel<T> {
    /// Creates a wheel without events.
    pub fn new(now: u64) -> Self {
        let slots = std::array::from_fn(|_| std::array::from_fn(|_| Vec::new()));
        Self { slots, occupied: [0; LEVELS], current: now >> SHIFT }
    }

    /// Adds an event at a time in nanoseconds. An event in the past is due at once.
    pub fn insert(&mut self, time: u64, event: T) {
        // Rounded up, because an event must not be early.
        let tick = time.div_ceil(1 << SHIFT).max(self.current + 1);
        let distance = tick - self.current;
        let level = (0..LEVELS).find(|level| distance < 1 << (LEVEL * (*level as u32 + 1)));
        let (level, slot_tick) = match level {
            Some(level) => (level, tick),
            None => (LEVELS - 1, self.current + ((SLOTS as u64 - 1) << (LEVEL * (LEVELS as u32 - 1)))),
        };
        let slot = (slot_tick >> (LEVEL * level as u32)) as usize % SLOTS;
        self.slots[level][slot].push((time, event));
        self.occupied[level] |= 1 << slot;
    }

    /// Removes the entries that are due.
    pub fn advance(&mut self, now: u64, due: &mut Vec<T>) {
        let target = now >> SHIFT;
        while self.current < target {
            // The slots before the next one are empty.
            match self.next().map(|time| time >> SHIFT) {
                Some(tick) if tick <= target => self.current = tick,
                _ => {
                    self.current = target;
                    return;
                }
            }
            for level in (0..LEVELS).rev() {
                let below = (1u64 << (LEVEL * level as u32)) - 1;
                let slot = (self.current >> (LEVEL * level as u32)) as usize % SLOTS;
                if self.current & below != 0 || self.occupied[level] & 1 << slot == 0 {
                    continue;
                }
                self.occupied[level] &= !(1 << slot);
                for (time, event) in std::mem::take(&mut self.slots[level][slot]) {
                    if time.div_ceil(1 << SHIFT) <= self.current {
                        due.push(event);
                    } else {
                        self.insert(time, event);
                    }
                }
            }
        }
    }

    /// The time when [`advance`](Self::advance) should be called next. It is not later than the first event. `None`: there is no
    /// event.
    pub fn next(&self) -> Option<u64> {
        let next = |level: usize| {
            let shift = LEVEL * level as u32;
            let here = self.current >> shift;
            let rotated = self.occupied[level].rotate_right((here % SLOTS as u64) as u32);
            // The slot that has been reached was emptied, so its events are a whole turn away.
            let distance = match (rotated & !1).trailing_zeros() {
                64 if rotated & 1 != 0 => SLOTS as u64,
                64 => return None,
                distance => distance.into(),
            };
            Some((here + distance) << shift)
        };
        (0..LEVELS).filter_map(next).min().map(|tick| tick << SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLOT: u64 = 1 << SHIFT;

    #[test]
    fn an_empty_wheel_has_nothing_to_do() {
        let mut wheel = Wheel::<u32>::new(1 << 60);
        assert_eq!(wheel.next(), None);
        wheel.advance(u64::MAX, &mut Vec::new());
        assert_eq!(wheel.next(), None);
    }

    proptest! {
        /// The wheel agrees with a sorted list: nothing is early, nothing is late by more than a slot, and nothing is lost. A
        /// thread that sleeps until `next` is in time.
        #[test]
        fn events_are_in_time(
            start in 0u64..1 << 40,
            steps in prop::collection::vec((0u64..40_000_000_000, any::<bool>(), 0u64..3_000_000_000), 1..60),
        ) {
            let mut wheel = Wheel::new(start);
            let mut now = start;
            let mut pending: Vec<(u64, usize)> = Vec::new();
            let mut due = Vec::new();
            let step = |wheel: &mut Wheel<usize>, pending: &mut Vec<(u64, usize)>, due: &mut Vec<usize>, now: u64| {
                wheel.advance(now, due);
                for event in due.drain(..) {
                    let at = pending.iter().position(|(_, e)| *e == event).expect("once");
                    let (time, _) = pending.swap_remove(at);
                    prop_assert!(time <= now, "event of {time} at {now}");
                }
                let late = pending.iter().find(|(time, _)| time + 2 * SLOT <= now);
                prop_assert!(late.is_none(), "{late:?} at {now}");
                Ok(())
            };
            for (event, (delay, near, pass)) in steps.into_iter().enumerate() {
                let time = now + if near { delay >> 12 } else { delay };
                wheel.insert(time, event);
                pending.push((time, event));
                now += pass;
                step(&mut wheel, &mut pending, &mut due, now)?;
            }
            // A thread that repeatedly sleeps until the next event sees all of them in time.
            let mut sleeps = 0;
            while let Some(next) = wheel.next() {
                let first = pending.iter().map(|(time, _)| *time).min().unwrap();
                prop_assert!(next <= first.max(now) + 2 * SLOT, "{next} is after {first}");
                now = now.max(next);
                step(&mut wheel, &mut pending, &mut due, now)?;
                sleeps += 1;
                prop_assert!(sleeps < 1000);
            }
            prop_assert!(pending.is_empty());
        }
    }
}
