//! What happened in ring 0, counted by each processor for itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that one processor keeps and everybody may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more. Only the processor's owner, or its handlers, do this; an interrupt between reading and writing may
    /// lose one, which is the price for not locking the bus.
    #[inline]
    pub fn increment(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! statistics {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counts of one processor.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// What happened, on one processor or on all.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(C)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The counts now.
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

            /// What happened between two readings.
            fn sub(self, earlier: Statistics) -> Statistics {
                Statistics { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }

        impl Statistics {
            /// Every count and its name.
            pub fn list(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

statistics! {
    /// Times a thread entered ring 0.
    entries,
    /// Returns of KVM to this process, for whatever reason.
    exits,
    /// Returns of KVM because of a signal.
    exits_signal,
    /// Returns of KVM because memory could not be accessed as asked.
    exits_memory,
    /// Returns of KVM for reasons that ring 0 does not know; the code goes on natively.
    exits_unknown,
    /// System calls that Linux was asked for.
    system_calls,
    /// System calls that a handler answered.
    system_calls_answered,
    /// Calls of native code by ring 0.
    native_calls,
    /// Page faults in ring 0.
    page_faults,
    /// Page faults that a handler handled.
    page_faults_handled,
    /// Other exceptions.
    exceptions,
    /// Other exceptions that a handler handled.
    exceptions_handled,
    /// Interrupts taken.
    interrupts,
    /// Interrupts that nobody expected.
    interrupts_spurious,
    /// Windows that were added because somebody touched memory there.
    windows_added,
    /// Times that code lost ring 0 because of a fault, and went on natively.
    resumed_natively,
    /// Child threads and processes started.
    clones,
    /// Interrupts sent to other processors.
    ipis_sent,
    /// Functions called on request of other processors.
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
