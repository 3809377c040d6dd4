//! Statistics of ring 0. Each processor has its own counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one processor updates and any thread may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one. Only the processor's owner and its handlers may call this. The addition is not atomic, to avoid a
    /// locked instruction; an interrupt between load and store may lose a count.
    #[inline]
    pub fn increment(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Reads the counter.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! statistics {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one processor.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// The statistics of one processor, or the sum over all processors.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(C)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Reads all counters.
            pub fn read(&self) -> Statistics {
                Statistics { $($name: self.$name.get(),)* }
            }
        }

        impl std::ops::AddAssign for Statistics {
            fn add_assign(&mut self, other: Statistics) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }

        impl std::ops::Sub for Statistics {
            type Output = Statistics;

            /// The difference between two readings.
            fn sub(self, earlier: Statistics) -> Statistics {
                Statistics { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }

        impl Statistics {
            /// Iterates over all counts with their names.
            pub fn list(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

statistics! {
    /// Times a thread entered ring 0.
    entries,
    /// Times KVM_RUN returned to this process, for any reason.
    exits,
    /// Returns of KVM_RUN because of a signal.
    exits_signal,
    /// Returns of KVM_RUN because memory could not be accessed as requested.
    exits_memory,
    /// Returns of KVM_RUN for a reason that ring 0 does not know; the thread continues in ring 3.
    exits_unknown,
    /// System calls passed to Linux.
    system_calls,
    /// System calls that a handler answered.
    system_calls_answered,
    /// Functions that ring 0 called in ring 3.
    native_calls,
    /// Page faults in ring 0.
    page_faults,
    /// Page faults that a handler handled.
    page_faults_handled,
    /// Exceptions other than page faults.
    exceptions,
    /// Exceptions other than page faults that a handler handled.
    exceptions_handled,
    /// Interrupts taken.
    interrupts,
    /// Spurious interrupts, and interrupts without a handler.
    interrupts_spurious,
    /// Windows added on the first access to memory in them.
    windows_added,
    /// Times a thread lost ring 0 because of a fault and continued in ring 3.
    resumed_natively,
    /// Child threads and processes started.
    clones,
    /// Interrupts sent to other processors.
    ipis_sent,
    /// Functions called on behalf of other processors.
    remote_calls,
    /// Shootdowns started.
    shootdowns,
    /// Signals handled in ring 0.
    signals_in_ring0,
    /// Ticks of the preemption timer.
    ticks,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_subtract() {
        let counters = Counters::default();
        counters.exits.increment();
        counters.exits.increment();
        counters.ticks.increment();
        let first = counters.read();
        let mut sum = first;
        sum += first;
        assert_eq!((sum.exits, sum.ticks, sum.entries), (4, 2, 0));
        assert_eq!(sum - first, first);
        assert_eq!(sum.list().find(|(name, _)| *name == "exits"), Some(("exits", 4)));
    }
}
