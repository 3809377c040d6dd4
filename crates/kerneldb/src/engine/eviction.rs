//! State that eviction and the storage engines share: the policy, the requests of writers that find no memory, and the
//! interface through which a storage engine shows its keys.
//!
//! Lock: `Eviction::requests`, after all others, and for moments only.

use std::{
    str::FromStr,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    layout::{KDB_USAGE_COUNT, KDB_USAGE_IDLE, KDB_USAGE_NONE},
    limits::{EVICTION_WAIT, PARTITIONS_MAX, USAGE_FACTOR_DEFAULT},
};

/// Which keys the database deletes when memory becomes short. The names are those of Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EvictionPolicy {
    /// None: a write that finds no memory fails with [`Error::NoMemory`].
    #[default]
    NoEviction,
    /// The least recently used keys.
    AllkeysLru,
    /// The least frequently used keys.
    AllkeysLfu,
    /// Keys at random.
    AllkeysRandom,
    /// The least recently used keys among those that have an expiry.
    VolatileLru,
    /// The least frequently used keys among those that have an expiry.
    VolatileLfu,
    /// Keys at random among those that have an expiry.
    VolatileRandom,
    /// The keys that expire first.
    VolatileTtl,
}

/// The order in which keys are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionOrder {
    LeastRecent,
    LeastFrequent,
    Random,
    FirstToExpire,
}

impl EvictionPolicy {
    /// All policies.
    pub const ALL: [EvictionPolicy; 8] = [
        EvictionPolicy::NoEviction,
        EvictionPolicy::AllkeysLru,
        EvictionPolicy::AllkeysLfu,
        EvictionPolicy::AllkeysRandom,
        EvictionPolicy::VolatileLru,
        EvictionPolicy::VolatileLfu,
        EvictionPolicy::VolatileRandom,
        EvictionPolicy::VolatileTtl,
    ];

    /// The policy's name in Redis.
    pub fn name(self) -> &'static str {
        match self {
            EvictionPolicy::NoEviction => "noeviction",
            EvictionPolicy::AllkeysLru => "allkeys-lru",
            EvictionPolicy::AllkeysLfu => "allkeys-lfu",
            EvictionPolicy::AllkeysRandom => "allkeys-random",
            EvictionPolicy::VolatileLru => "volatile-lru",
            EvictionPolicy::VolatileLfu => "volatile-lfu",
            EvictionPolicy::VolatileRandom => "volatile-random",
            EvictionPolicy::VolatileTtl => "volatile-ttl",
        }
    }

    /// Whether only keys with an expiry are evicted.
    pub(crate) fn is_volatile(self) -> bool {
        use EvictionPolicy::*;
        matches!(self, VolatileLru | VolatileLfu | VolatileRandom | VolatileTtl)
    }

    /// The order of eviction; `None` for [`EvictionPolicy::NoEviction`].
    pub(crate) fn order(self) -> Option<EvictionOrder> {
        Some(match self {
            EvictionPolicy::NoEviction => return None,
            EvictionPolicy::AllkeysLru | EvictionPolicy::VolatileLru => EvictionOrder::LeastRecent,
            EvictionPolicy::AllkeysLfu | EvictionPolicy::VolatileLfu => EvictionOrder::LeastFrequent,
            EvictionPolicy::AllkeysRandom | EvictionPolicy::VolatileRandom => EvictionOrder::Random,
            EvictionPolicy::VolatileTtl => EvictionOrder::FirstToExpire,
        })
    }

    /// `KDB_USAGE_*`: the usage that the operators keep for the policy.
    pub(crate) fn usage_kind(self) -> u32 {
        match self.order() {
            Some(EvictionOrder::LeastRecent) => KDB_USAGE_IDLE,
            Some(EvictionOrder::LeastFrequent) => KDB_USAGE_COUNT,
            _ => KDB_USAGE_NONE,
        }
    }
}

impl FromStr for EvictionPolicy {
    type Err = Error;

    fn from_str(name: &str) -> Result<EvictionPolicy> {
        let policy = EvictionPolicy::ALL.into_iter().find(|policy| policy.name().eq_ignore_ascii_case(name));
        policy.ok_or_else(|| {
            let names = EvictionPolicy::ALL.map(EvictionPolicy::name).join(", ");
            Error::Config(format!("no such policy of eviction: {name}; the policies are {names}"))
        })
    }
}

/// Figures of eviction since the database was created.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvictionStats {
    /// Keys that were evicted.
    pub evicted: u64,
    /// Processor time that the thread has used.
    pub cpu_time: Duration,
}

/// A key that a pass over the memory has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// `kdb_entry.usage`; 0 if the engine keeps none.
    pub usage: u8,
    /// Absolute expiry in milliseconds since the Unix epoch.
    pub expire_at_ms: Option<u64>,
    /// Commit timestamp of the newest version.
    pub commit_ts: u64,
    /// Bytes that the key and its value take.
    pub bytes: u64,
}

/// Called with a key that was found, and with a function that copies the key itself unless it has left.
pub(crate) type FoundKey<'a> = &'a mut dyn FnMut(Candidate, &dyn Fn() -> Option<Vec<u8>>);

/// The keys of a partition, piece by piece. The results are hints: nothing is locked and no snapshot is registered, so a
/// key may change or leave meanwhile.
pub(crate) trait EvictionSource {
    /// Number of pieces.
    fn pieces(&self) -> u64;

    /// Whether a piece may have keys.
    fn has_keys(&self, piece: u64) -> bool;

    /// Calls `found` with the keys of a piece. Returns the piece that follows.
    fn read(&mut self, piece: u64, found: FoundKey<'_>) -> Result<u64>;

    /// Calls `found` with about `keys` keys of a piece. `random` chooses them.
    fn sample(&mut self, piece: u64, keys: u64, random: u64, found: FoundKey<'_>) -> Result<()>;

    /// Replaces the usage of every key of a piece. An access at the same time may get lost.
    fn update_usage(&self, _piece: u64, _change: &mut dyn FnMut(u8) -> u8) {}
}

/// The requests of the writers of one partition.
#[derive(Clone, Copy, Default)]
struct Requests {
    /// Number of requests so far.
    made: u64,
    /// Number of requests that were answered.
    answered: u64,
    /// Whether the answer to the last ones was that there is memory now, or soon.
    helped: bool,
}

/// State that the thread and its database share.
pub(crate) struct Eviction {
    policy: AtomicU32,
    /// Changes with the policy.
    generation: AtomicU64,
    /// The usage of all keys is to be set anew, because it has another meaning now.
    reset: AtomicBool,
    pub usage_factor: AtomicU32,
    pub decay_minutes: AtomicU32,
    pub evicted: AtomicU64,
    pub cpu_ns: AtomicU64,
    /// Partitions in which the policy allows to evict nothing more at the moment, one bit each.
    exhausted: AtomicU64,
    requests: Mutex<[Requests; PARTITIONS_MAX as usize]>,
    /// Notified when there are requests, and when the policy changes.
    wake: Condvar,
    answer: Condvar,
}

impl Eviction {
    pub(crate) fn new() -> Eviction {
        Eviction {
            policy: 0.into(),
            generation: 0.into(),
            reset: false.into(),
            usage_factor: USAGE_FACTOR_DEFAULT.into(),
            decay_minutes: 1.into(),
            evicted: 0.into(),
            cpu_ns: 0.into(),
            exhausted: 0.into(),
            requests: Mutex::default(),
            wake: Condvar::new(),
            answer: Condvar::new(),
        }
    }

    pub(crate) fn policy(&self) -> EvictionPolicy {
        EvictionPolicy::ALL[self.policy.load(Ordering::Acquire) as usize]
    }

    pub(crate) fn set_policy(&self, policy: EvictionPolicy) {
        let index =
            EvictionPolicy::ALL.iter().position(|other| *other == policy).expect("ALL has all policies");
        let before = EvictionPolicy::ALL[self.policy.swap(index as u32, Ordering::AcqRel) as usize];
        if before.usage_kind() != policy.usage_kind() {
            self.reset.store(true, Ordering::Release);
        }
        self.exhausted.store(0, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// A number that changes with the policy.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether the usage of all keys is to be set anew; asks once.
    pub(crate) fn take_reset(&self) -> bool {
        self.reset.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn stats(&self) -> EvictionStats {
        EvictionStats {
            evicted: self.evicted.load(Ordering::Relaxed),
            cpu_time: Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, [Requests; PARTITIONS_MAX as usize]> {
        self.requests.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Asks the thread to evict keys of a partition for a write that finds no memory. Returns whether another attempt makes sense.
    /// It waits for the answer, for at most [`EVICTION_WAIT`].
    pub(crate) fn request(&self, partition: u32) -> bool {
        if self.policy() == EvictionPolicy::NoEviction {
            return false;
        }
        let index = partition as usize;
        let mut requests = self.lock();
        requests[index].made += 1;
        let mine = requests[index].made;
        self.wake.notify_all();
        let deadline = Instant::now() + EVICTION_WAIT;
        while requests[index].answered < mine {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            requests = self.answer.wait_timeout(requests, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        requests[index].helped
    }

    /// Whether more keys of a partition can be evicted, as far as the thread knows.
    pub(crate) fn may_help(&self, partition: u32) -> bool {
        self.policy() != EvictionPolicy::NoEviction
            && self.exhausted.load(Ordering::Acquire) >> partition & 1 == 0
    }

    /// The thread: notes whether more keys of a partition can be evicted.
    pub(crate) fn set_exhausted(&self, partition: u32, exhausted: bool) {
        if exhausted {
            self.exhausted.fetch_or(1 << partition, Ordering::AcqRel);
        } else {
            self.exhausted.fetch_and(!(1 << partition), Ordering::AcqRel);
        }
    }

    /// The thread: waits until there are requests, for at most `time`. Returns the number of requests so far in each partition that has
    /// some without an answer.
    pub(crate) fn wait(&self, time: Duration) -> Vec<(usize, u64)> {
        let open = |requests: &[Requests]| -> Vec<(usize, u64)> {
            let open = requests.iter().enumerate().filter(|(_, requests)| requests.answered < requests.made);
            open.map(|(partition, requests)| (partition, requests.made)).collect()
        };
        let mut requests = self.lock();
        if open(&*requests).is_empty() && !time.is_zero() {
            requests = self.wake.wait_timeout(requests, time).unwrap_or_else(|e| e.into_inner()).0;
        }
        open(&*requests)
    }

    /// The thread: answers the first `made` requests of a partition.
    pub(crate) fn answer(&self, partition: usize, made: u64, helped: bool) {
        let mut requests = self.lock();
        (requests[partition].answered, requests[partition].helped) = (made, helped);
        self.answer.notify_all();
    }

    /// Ends a wait of the thread.
    pub(crate) fn wake(&self) {
        let _requests = self.lock();
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_the_names_of_redis() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(policy.name().parse::<EvictionPolicy>().unwrap(), policy);
            assert_eq!(policy.name().starts_with("volatile"), policy.is_volatile());
        }
        assert_eq!("ALLKEYS-LRU".parse::<EvictionPolicy>().unwrap(), EvictionPolicy::AllkeysLru);
        let error = "allkeys-lrux".parse::<EvictionPolicy>().unwrap_err().to_string();
        assert!(error.contains("allkeys-lrux") && error.contains("volatile-ttl"), "{error}");
    }

    #[test]
    fn a_request_is_answered() {
        let eviction = Eviction::new();
        assert!(!eviction.request(0), "without a policy, nothing is evicted");
        eviction.set_policy(EvictionPolicy::AllkeysRandom);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| eviction.request(3));
            let open = loop {
                let open = eviction.wait(Duration::from_secs(1));
                if !open.is_empty() {
                    break open;
                }
            };
            assert_eq!(open, [(3, 1)]);
            eviction.answer(3, 1, true);
            assert!(writer.join().unwrap());
            assert!(eviction.wait(Duration::from_millis(1)).is_empty());
        });
    }

    #[test]
    fn another_policy_may_evict_more() {
        let eviction = Eviction::new();
        eviction.set_policy(EvictionPolicy::VolatileRandom);
        eviction.set_exhausted(2, true);
        assert!(!eviction.may_help(2) && eviction.may_help(1));
        let before = eviction.generation();
        eviction.set_policy(EvictionPolicy::AllkeysRandom);
        assert!(eviction.may_help(2) && eviction.generation() != before);
    }

    #[test]
    fn the_usage_is_reset_when_its_meaning_changes() {
        let eviction = Eviction::new();
        eviction.set_policy(EvictionPolicy::AllkeysLru);
        assert!(eviction.take_reset() && !eviction.take_reset());
        eviction.set_policy(EvictionPolicy::VolatileLru);
        assert!(!eviction.take_reset());
        eviction.set_policy(EvictionPolicy::VolatileLfu);
        assert!(eviction.take_reset());
    }
}
