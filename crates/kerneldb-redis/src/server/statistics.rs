//! INFO's statistics about the kernel's part: counters since the start or the last CONFIG RESETSTAT, and the
//! rate of commands.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::layout::*;
use crate::command::KernelActivity;
use bedplate_kerneldb::Database;

/// Names of the commands that the kernel answers.
const CALLS: [(&str, u32); SRV_CALLS as usize] = [
    ("get", SRV_CALL_GET),
    ("set", SRV_CALL_SET),
    ("del", SRV_CALL_DEL),
    ("ping", SRV_CALL_PING),
    ("begin", SRV_CALL_BEGIN),
    ("commit", SRV_CALL_COMMIT),
    ("rollback", SRV_CALL_ROLLBACK),
    ("multi", SRV_CALL_MULTI),
    ("exec", SRV_CALL_EXEC),
    ("discard", SRV_CALL_DISCARD),
    ("call", SRV_CALL_CALL),
    ("incr", SRV_CALL_INCR),
    ("decr", SRV_CALL_DECR),
    ("incrby", SRV_CALL_INCRBY),
    ("decrby", SRV_CALL_DECRBY),
    ("exists", SRV_CALL_EXISTS),
    ("touch", SRV_CALL_TOUCH),
    ("strlen", SRV_CALL_STRLEN),
    ("ttl", SRV_CALL_TTL),
    ("pttl", SRV_CALL_PTTL),
    ("expire", SRV_CALL_EXPIRE),
    ("pexpire", SRV_CALL_PEXPIRE),
    ("expireat", SRV_CALL_EXPIREAT),
    ("setnx", SRV_CALL_SETNX),
    ("setex", SRV_CALL_SETEX),
    ("psetex", SRV_CALL_PSETEX),
    ("getset", SRV_CALL_GETSET),
    ("getdel", SRV_CALL_GETDEL),
    ("getex", SRV_CALL_GETEX),
    ("mget", SRV_CALL_MGET),
    ("mset", SRV_CALL_MSET),
    ("unlink", SRV_CALL_UNLINK),
];

/// Number of samples over which the rate of commands is computed.
const SAMPLES: usize = 4;
/// Samples are at least this far apart.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(400);

/// Counters that only grow.
#[derive(Clone, Copy)]
pub(super) struct Totals {
    server: srv_stats,
    database: DatabaseTotals,
}

impl Totals {
    pub(super) fn new(server: srv_stats, database: &Database) -> Totals {
        let database = DatabaseTotals {
            expired: database.stats().expired,
            time_cap_reached: database.expiry_stats().time_cap_reached,
            evicted: database.eviction_stats().evicted,
        };
        Totals { server, database }
    }
}

/// Counters of a database. They begin at zero when the server goes on with another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DatabaseTotals {
    expired: u64,
    time_cap_reached: u64,
    evicted: u64,
}

impl DatabaseTotals {
    /// These counts and those of the time from `before` to `now`.
    fn plus(self, before: DatabaseTotals, now: DatabaseTotals) -> DatabaseTotals {
        DatabaseTotals {
            expired: self.expired + now.expired.saturating_sub(before.expired),
            time_cap_reached: self.time_cap_reached
                + now.time_cap_reached.saturating_sub(before.time_cap_reached),
            evicted: self.evicted + now.evicted.saturating_sub(before.evicted),
        }
    }
}

struct State {
    baseline: Totals,
    /// Counts of databases before the present one.
    earlier: DatabaseTotals,
    /// Total number of commands at some moments, the oldest first.
    samples: VecDeque<(Instant, u64)>,
}

impl State {
    fn counting_from(baseline: Totals) -> State {
        State { baseline, earlier: DatabaseTotals::default(), samples: VecDeque::new() }
    }
}

/// The baseline that counters are compared with, and samples of the rate. The lock is held for a few
/// instructions.
pub(super) struct Statistics(Mutex<State>);

impl Statistics {
    /// Counts from these totals on.
    pub(super) fn new(baseline: Totals) -> Statistics {
        Statistics(Mutex::new(State::counting_from(baseline)))
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts from these totals on.
    pub(super) fn reset(&self, baseline: Totals) {
        self.with(|state| {
            let samples = std::mem::take(&mut state.samples);
            *state = State { samples, ..State::counting_from(baseline) };
        });
    }

    /// Goes on with another database. `last` are the totals with the one before, `first` those with the new one, whose counters begin
    /// at zero.
    pub(super) fn change_database(&self, last: &Totals, first: &Totals) {
        self.with(|state| {
            state.earlier = state.earlier.plus(state.baseline.database, last.database);
            state.baseline.database = first.database;
        });
    }

    /// Records the number of commands so far. A reset may have lowered it.
    pub(super) fn sample(&self, now: Instant, commands: u64) {
        self.with(|state| {
            if state.samples.back().is_some_and(|(_, before)| *before > commands) {
                state.samples.clear();
            }
            if state.samples.back().is_none_or(|(at, _)| now.duration_since(*at) >= SAMPLE_INTERVAL) {
                state.samples.push_back((now, commands));
            }
            if state.samples.len() > SAMPLES {
                state.samples.pop_front();
            }
        });
    }

    /// The activity since the baseline.
    pub(super) fn activity(&self, now: &Totals, stale_percent: f64) -> KernelActivity {
        let (before, earlier, ops_per_second) =
            self.with(|state| (state.baseline, state.earlier, rate(&state.samples)));
        let database = earlier.plus(before.database, now.database);
        let (server, old) = (&now.server, &before.server);
        let calls = |call: u32| server.calls[call as usize].saturating_sub(old.calls[call as usize]);
        let lookups = server.lookups.saturating_sub(old.lookups);
        let misses = server.misses.saturating_sub(old.misses);
        // Bytes that were passed to the event loop are counted where they are parsed.
        let input = |s: &srv_stats| s.bytes.saturating_sub(s.passed_bytes) + s.local_bytes;
        let output = |s: &srv_stats| s.reply_bytes + s.local_reply_bytes;
        KernelActivity {
            commands: server.commands.saturating_sub(old.commands),
            input_bytes: input(server).saturating_sub(input(old)),
            output_bytes: output(server).saturating_sub(output(old)),
            hits: lookups.saturating_sub(misses),
            misses,
            refusals: server.refusals.saturating_sub(old.refusals),
            calls: CALLS.map(|(name, call)| (name, calls(call))).to_vec(),
            expired: database.expired,
            expired_stale_percent: stale_percent,
            expired_time_cap_reached: database.time_cap_reached,
            evicted: database.evicted,
            ops_per_second,
        }
    }
}

fn rate(samples: &VecDeque<(Instant, u64)>) -> u64 {
    let (Some((from, first)), Some((to, last))) = (samples.front(), samples.back()) else { return 0 };
    let ms = to.duration_since(*from).as_millis() as u64;
    ((last - first) * 1000).checked_div(ms).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_samples() {
        // SAFETY: integers only.
        let nothing: srv_stats = unsafe { std::mem::zeroed() };
        let totals = Totals { server: nothing, database: DatabaseTotals::default() };
        let statistics = Statistics::new(totals);
        let start = Instant::now();
        let ops = || statistics.activity(&totals, 0.0).ops_per_second;
        assert_eq!(ops(), 0);
        for second in 0..6 {
            statistics.sample(start + Duration::from_secs(second), 100 * second * second);
        }
        statistics.sample(start + Duration::from_millis(5001), 1_000_000);
        // Seconds 2 to 5: 2500 - 400 commands. A sample that comes too soon does not count.
        assert_eq!(ops(), 700);
        statistics.sample(start + Duration::from_secs(6), 0);
        assert_eq!(ops(), 0, "after a reset");
    }

    #[test]
    fn counters_count_from_the_baseline() {
        // SAFETY: integers only.
        let mut server: srv_stats = unsafe { std::mem::zeroed() };
        server.calls[SRV_CALL_GET as usize] = 5;
        (server.lookups, server.misses) = (3, 2);
        (server.bytes, server.passed_bytes, server.local_bytes) = (100, 30, 8);
        let of = |expired, evicted| DatabaseTotals { expired, time_cap_reached: 1, evicted };
        let statistics = Statistics::new(Totals { server, database: of(7, 10) });
        server.calls[SRV_CALL_GET as usize] += 4;
        (server.lookups, server.misses) = (10, 3);
        (server.bytes, server.passed_bytes, server.local_bytes) = (120, 35, 10);
        let activity = statistics.activity(&Totals { server, database: of(9, 15) }, 1.5);
        assert_eq!((activity.hits, activity.misses, activity.input_bytes), (6, 1, 17));
        assert_eq!((activity.expired, activity.expired_time_cap_reached, activity.evicted), (2, 0, 5));
        assert_eq!(activity.calls[0], ("get", 4));
        // Another database, which counts from zero.
        let totals = |expired, evicted| Totals { server, database: of(expired, evicted) };
        statistics.change_database(&totals(9, 15), &totals(0, 0));
        let activity = statistics.activity(&totals(3, 1), 0.0);
        assert_eq!((activity.expired, activity.evicted), (5, 6));
        statistics.reset(totals(3, 1));
        let activity = statistics.activity(&totals(4, 1), 0.0);
        assert_eq!((activity.expired, activity.evicted), (1, 0));
    }
}
