//! The thread that works ahead: it arms what has become cold, keeps for a new snapshot what will be written at once, and
//! lets go of snapshots whose process has ended.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::event::poll;
use rustix::time::Timespec;

use super::region::Region;
use super::target::Target;
use crate::region::{Region as _, now};

/// The time between two sweeps while there is something to do, and while there is not.
const SWEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const REST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The processor time that the process takes from one sweep to the next: a page that is not written while the process
/// waits is not cold for that.
const WORK_NS: u64 = 50_000_000;

/// The processor time that the process has taken, in nanoseconds.
fn work() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Region {
    /// The worker's life.
    pub(super) fn keep_ahead(&self) {
        let mut faults = self.counters.faults.load(Ordering::Relaxed);
        let (mut swept, mut worked) = (now(), work());
        let (mut latest, mut next) = (0, 0);
        while !self.is_over() {
            let busy = self.unarmed_count.load(Ordering::Relaxed) > 0 || self.has_children();
            let mut waits = [self.wake_up.poll()];
            let _ = poll(&mut waits, Some(if busy { &SWEEP } else { &REST }));
            self.wake_up.clear();
            let snapshots = self.end_children();
            self.publish();
            if !snapshots {
                self.crew.unbind();
            }
            let newest = self.newest();
            if std::mem::replace(&mut latest, newest) != newest {
                self.keep_hot();
            }
            let time = now();
            if time - swept < SWEEP.tv_nsec as u64 || !self.is_served() {
                continue;
            }
            swept = time;
            if let Some(apart) = &self.apart {
                apart.map_again(self.base, self.used());
            }
            if work() - worked < WORK_NS {
                continue;
            }
            worked = work();
            let before = std::mem::replace(&mut faults, self.counters.faults.load(Ordering::Relaxed));
            self.heat.tick((!snapshots).then_some(faults - before));
            // What is written while there are snapshots would soon be written again.
            if !snapshots {
                next = self.arm_ahead(next).unwrap_or(0);
            }
        }
    }

    fn newest(&self) -> u32 {
        self.gate.read().unwrap_or_else(PoisonError::into_inner).epoch
    }

    fn has_children(&self) -> bool {
        let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        open.active().any(|slot| matches!(slot.target, Target::Child(_)))
    }

    /// Ends the snapshots of processes that are gone, and says whether there are others.
    fn end_children(&self) -> bool {
        let mut gone = 0u32;
        let active = {
            let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            for (index, slot) in open.slots.iter().enumerate() {
                if let Some(slot) = slot
                    && let Target::Child(child) = &slot.target
                    && !child.is_there(self)
                {
                    gone |= 1 << index;
                }
            }
            open.active().count() > gone.count_ones() as usize
        };
        if gone != 0 {
            // Only this thread ends children's snapshots, so the slots are what they were.
            let mut snapshots = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            for (index, slot) in snapshots.slots.iter_mut().enumerate() {
                if gone >> index & 1 != 0 {
                    *slot = None;
                }
            }
        }
        active
    }
}
