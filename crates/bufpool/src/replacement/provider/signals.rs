//! Signals between the provider's threads and the threads that need frames.
//!
//! A thread that needs a frame and finds nothing clean makes a request, which has a number, and waits. A round of the provider
//! answers all requests that were made before it began. A round that freed no frame ends with an error, or with nothing to evict.
//! So no thread receives the error of a write that began before it asked. A request begins a round at once, even after an error.
//! Without requests, the provider waits longer after each failed round ([`DELAYS`]).
//!
//! The lock protects [`State`]. It is a leaf, and is not held during a round.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::protocol::frame_table::FrameId;

/// The shortest and the longest time between a failed round and the next one, if no thread requests one earlier. The time doubles with each
/// failed round in a row.
const DELAYS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(1);

/// Maximum number of dirty pages that are remembered for the provider. It finds the others when the clock's hand comes again.
pub(crate) const MOST_OFFERED: usize = 256;

/// The reason why a round ended.
pub(super) enum Outcome {
    /// Enough frames are free.
    Enough,
    /// No page can be evicted or written now: threads use them all.
    Nothing,
    /// Dirty pages could not be written, or memory could not be released.
    Failed {
        error: Error,
        /// Whether frames became free nevertheless.
        progress: bool,
    },
    /// The pool is being closed or dropped.
    Interrupted,
}

/// The outcome for a thread that waited for a frame.
pub(crate) enum Answer {
    /// A frame became free, or the time is over: the caller looks again.
    LookAgain,
    /// No page could be evicted or written.
    Nothing,
    /// Pages could not be written.
    Failed(Error),
    /// The provider has no thread.
    Gone,
}

pub(super) struct Signals {
    state: Mutex<State>,
    /// Wakes the provider's threads.
    work: Condvar,
    /// Wakes threads that wait for a frame or for the end of rounds.
    progress: Condvar,
    /// Whether the provider should work without a request.
    is_awake: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// Number of callers that prevent the provider from working.
    pauses: usize,
    /// Threads of the provider, and whether they have been started.
    threads: usize,
    started: bool,
    /// Number of them that are in a round.
    in_round: usize,
    /// Number of threads that wait at `progress`.
    waiting: usize,
    /// The number of the last request, and of the last one that has been answered.
    requests: u64,
    answered: u64,
    /// The error of the last round.
    error: Option<Error>,
    /// Number of times that frames became free.
    freed: u64,
    /// The time of the next round without a request, and its delay after the last round.
    retry: Option<(Instant, Duration)>,
    /// Dirty pages that other threads found.
    offered: Vec<FrameId>,
}

impl Signals {
    pub fn new(is_awake: Arc<AtomicBool>) -> Self {
        Self { state: Mutex::default(), work: Condvar::new(), progress: Condvar::new(), is_awake }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_progress(&self, state: &State) {
        if state.waiting > 0 {
            self.progress.notify_all();
        }
    }

    /// The flag says that the provider is awake now.
    pub fn wake(&self) {
        // A thread that has read the flag before has begun to wait when this has the lock.
        drop(self.state());
        self.work.notify_all();
    }

    pub fn offer(&self, dirty: &[FrameId]) {
        let mut state = self.state();
        let room = MOST_OFFERED - state.offered.len();
        state.offered.extend(&dirty[..dirty.len().min(room)]);
    }

    /// Takes up to `most` of the dirty pages that were offered.
    pub fn take_offered(&self, most: usize) -> Vec<FrameId> {
        let mut state = self.state();
        let rest = state.offered.len().saturating_sub(most);
        state.offered.split_off(rest)
    }

    /// Records that frames have become free.
    pub fn freed(&self) {
        let mut state = self.state();
        state.freed += 1;
        self.notify_progress(&state);
    }

    /// Requests a round, and waits for a frame or for the end of the round.
    pub fn ask(&self, timeout: Duration) -> Answer {
        let mut state = self.state();
        state.requests += 1;
        let (request, freed) = (state.requests, state.freed);
        state.waiting += 1;
        self.work.notify_all();
        let waits = |state: &mut State| {
            state.freed == freed && state.answered < request && (state.threads > 0 || !state.started)
        };
        let waited = self.progress.wait_timeout_while(state, timeout, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        if state.freed != freed {
            Answer::LookAgain
        } else if state.answered >= request {
            state.error.as_ref().map_or(Answer::Nothing, |error| Answer::Failed(error.same()))
        } else if state.threads == 0 && state.started {
            Answer::Gone
        } else {
            Answer::LookAgain
        }
    }

    /// Whether a round may continue.
    pub fn may_work(&self) -> bool {
        let state = self.state();
        !state.stopped && state.pauses == 0
    }

    /// Prevents the provider from working. Returns when no round runs.
    pub fn pause(&self) -> Paused<'_> {
        let mut state = self.state();
        state.pauses += 1;
        state.waiting += 1;
        while state.in_round > 0 {
            state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        Paused(self)
    }

    /// Makes the threads end.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.work.notify_all();
    }

    /// Must be called before a thread is started. The thread, or the caller if the start fails, then calls [`Signals::thread`].
    pub fn thread_starts(&self) {
        let mut state = self.state();
        state.threads += 1;
        state.started = true;
    }

    /// Makes the calling thread one of the provider until the result is dropped.
    pub fn thread(&self) -> ProviderThread<'_> {
        ProviderThread { signals: self, round: None, seen: 0 }
    }
}

/// While this exists, the provider does not work.
pub(super) struct Paused<'s>(&'s Signals);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.state().pauses -= 1;
        self.0.work.notify_all();
    }
}

/// A thread of the provider. If it panics, other threads do not wait for it.
pub(super) struct ProviderThread<'s> {
    signals: &'s Signals,
    /// The number of the last request before the current round.
    round: Option<u64>,
    /// The number of the last request before the thread's last round, if that round found nothing while another thread had pages
    /// in flight.
    seen: u64,
}

impl ProviderThread<'_> {
    /// Waits until there is work. Returns false if the thread must end.
    pub fn begin_round(&mut self) -> bool {
        let signals = self.signals;
        let mut state = signals.state();
        loop {
            if state.stopped {
                return false;
            }
            let mut sleep = None;
            if state.pauses == 0 {
                let now = Instant::now();
                let is_requested = state.requests > state.answered.max(self.seen);
                let wait = state.retry.map_or(Duration::ZERO, |(at, _)| at.saturating_duration_since(now));
                let is_awake = signals.is_awake.load(Ordering::Acquire);
                if is_requested || is_awake && wait.is_zero() {
                    state.in_round += 1;
                    self.round = Some(state.requests);
                    return true;
                }
                sleep = is_awake.then_some(wait);
            }
            state = match sleep {
                Some(sleep) => {
                    signals.work.wait_timeout(state, sleep).unwrap_or_else(PoisonError::into_inner).0
                }
                None => signals.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Ends the round. `is_short` returns whether fewer frames are free than the low-water mark.
    ///
    /// A thread may have taken frames after the round counted them. It saw that the provider was awake, and did not wake it. So the
    /// frames are counted again after the provider has said that it sleeps.
    pub fn end_round(&mut self, outcome: Outcome, is_short: impl FnOnce() -> bool) {
        let is_enough = matches!(outcome, Outcome::Enough);
        self.publish(outcome);
        if is_enough && is_short() {
            self.signals.is_awake.store(true, Ordering::Release);
        }
    }

    /// Publishes the outcome of the round.
    fn publish(&mut self, outcome: Outcome) {
        let signals = self.signals;
        let mut state = signals.state();
        let Some(requests) = self.round.take() else { return };
        state.in_round -= 1;
        // Perhaps only the pages that another thread writes can leave. Then that thread's rounds are the answer.
        let is_nothing = matches!(outcome, Outcome::Nothing) && state.in_round > 0;
        let is_answer = !matches!(outcome, Outcome::Interrupted) && !is_nothing;
        self.seen = if is_nothing { requests } else { 0 };
        match outcome {
            Outcome::Nothing if is_nothing => signals.is_awake.store(false, Ordering::Release),
            // The requests belong to the next round, which begins after the pause.
            Outcome::Interrupted => signals.is_awake.store(true, Ordering::Release),
            Outcome::Enough | Outcome::Nothing => {
                state.error = None;
                state.retry = None;
                signals.is_awake.store(false, Ordering::Release);
            }
            Outcome::Failed { error, progress } => {
                let last = state.retry.filter(|_| !progress);
                let delay = last.map_or(*DELAYS.start(), |(_, delay)| (2 * delay).min(*DELAYS.end()));
                state.retry = Some((Instant::now() + delay, delay));
                state.error = Some(error);
                // The thread tries again, even without a request.
                signals.is_awake.store(true, Ordering::Release);
            }
        }
        if is_answer {
            state.answered = state.answered.max(requests);
        }
        signals.notify_progress(&state);
    }
}

impl Drop for ProviderThread<'_> {
    fn drop(&mut self) {
        let mut state = self.signals.state();
        state.threads -= 1;
        state.in_round -= usize::from(self.round.is_some());
        self.signals.notify_progress(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn signals() -> Signals {
        let signals = Signals::new(Arc::default());
        signals.thread_starts();
        signals
    }

    fn failed(progress: bool) -> Outcome {
        Outcome::Failed { error: Error::Log(io::Error::from_raw_os_error(libc::EIO)), progress }
    }

    fn wait_for_requests(signals: &Signals, requests: u64) {
        while signals.state().requests < requests {
            thread::yield_now();
        }
    }

    #[test]
    fn a_request_begins_a_round_and_receives_its_error() {
        let signals = signals();
        let mut provider = signals.thread();
        thread::scope(|scope| {
            let asks = scope.spawn(|| signals.ask(LONG));
            assert!(provider.begin_round());
            provider.end_round(failed(false), || false);
            assert!(matches!(asks.join().unwrap(), Answer::Failed(Error::Log(_))));
        });
    }

    /// The round began before the second request, so its error is not for that one.
    #[test]
    fn an_error_from_before_a_request_is_not_its_answer() {
        let signals = signals();
        let mut provider = signals.thread();
        thread::scope(|scope| {
            let first = scope.spawn(|| signals.ask(LONG));
            assert!(provider.begin_round());
            let second = scope.spawn(|| signals.ask(LONG));
            wait_for_requests(&signals, 2);
            provider.end_round(failed(false), || false);
            assert!(matches!(first.join().unwrap(), Answer::Failed(_)));
            assert!(provider.begin_round(), "the second request begins a round in spite of the delay");
            provider.end_round(Outcome::Nothing, || false);
            assert!(matches!(second.join().unwrap(), Answer::Nothing));
        });
    }

    #[test]
    fn the_time_between_failed_rounds_grows_until_frames_become_free() {
        let signals = signals();
        let mut provider = signals.thread();
        let delay = |provider: &mut ProviderThread<'_>, outcome| {
            signals.state().requests += 1;
            assert!(provider.begin_round());
            provider.end_round(outcome, || false);
            signals.state().retry.map(|(_, delay)| delay)
        };
        let first = *DELAYS.start();
        assert_eq!(delay(&mut provider, failed(false)), Some(first));
        assert_eq!(delay(&mut provider, failed(false)), Some(2 * first));
        for _ in 0..20 {
            delay(&mut provider, failed(false));
        }
        assert_eq!(delay(&mut provider, failed(false)), Some(*DELAYS.end()));
        assert!(signals.is_awake.load(Ordering::Relaxed));
        assert_eq!(delay(&mut provider, failed(true)), Some(first));
        assert_eq!(delay(&mut provider, Outcome::Enough), None);
        assert!(!signals.is_awake.load(Ordering::Relaxed));
    }

    /// A thread takes the last frame when the round has counted the free ones.
    #[test]
    fn frames_that_are_taken_while_a_round_ends_begin_the_next_one() {
        let signals = signals();
        let mut provider = signals.thread();
        signals.is_awake.store(true, Ordering::Relaxed);
        assert!(provider.begin_round());
        let is_short = || {
            assert!(
                !signals.is_awake.load(Ordering::Relaxed),
                "a thread that takes a frame from now on wakes the provider"
            );
            assert!(signals.state.try_lock().is_ok());
            true
        };
        provider.end_round(Outcome::Enough, is_short);
        assert!(provider.begin_round());
        provider.end_round(Outcome::Enough, || false);
        assert!(!signals.is_awake.load(Ordering::Relaxed));
    }

    /// The first thread writes all pages that can leave, so the second one finds nothing.
    #[test]
    fn a_thread_that_finds_nothing_while_another_one_writes_is_no_answer() {
        let signals = signals();
        signals.thread_starts();
        signals.is_awake.store(true, Ordering::Relaxed);
        let (mut writes, mut finds_nothing) = (signals.thread(), signals.thread());
        thread::scope(|scope| {
            let asks = scope.spawn(|| signals.ask(LONG));
            wait_for_requests(&signals, 1);
            assert!(writes.begin_round() && finds_nothing.begin_round());
            finds_nothing.end_round(Outcome::Nothing, || false);
            let again = scope.spawn(move || finds_nothing.begin_round());
            assert!(!asks.is_finished() && !again.is_finished());
            writes.end_round(Outcome::Enough, || false);
            assert!(matches!(asks.join().unwrap(), Answer::Nothing), "the round that wrote is the answer");
            signals.stop();
            assert!(!again.join().unwrap(), "there is no other request");
        });
    }

    #[test]
    fn a_pause_waits_for_the_round_and_keeps_the_next_one_back() {
        let signals = signals();
        let mut provider = signals.thread();
        signals.is_awake.store(true, Ordering::Relaxed);
        assert!(provider.begin_round() && signals.may_work());
        thread::scope(|scope| {
            let pauses = scope.spawn(|| signals.pause());
            while signals.state().pauses == 0 {
                thread::yield_now();
            }
            assert!(!signals.may_work() && !pauses.is_finished());
            provider.end_round(Outcome::Interrupted, || false);
            let paused = pauses.join().unwrap();
            let begins = scope.spawn(move || provider.begin_round());
            assert!(!begins.is_finished());
            drop(paused);
            assert!(begins.join().unwrap(), "the interrupted round begins again");
        });
    }

    #[test]
    fn the_last_thread_that_ends_is_an_answer() {
        let signals = signals();
        let mut provider = signals.thread();
        thread::scope(|scope| {
            let asks = scope.spawn(|| signals.ask(LONG));
            assert!(provider.begin_round());
            drop(provider);
            assert!(matches!(asks.join().unwrap(), Answer::Gone));
        });
        assert_eq!(signals.state().in_round, 0);
        drop(signals.pause());
    }

    #[test]
    fn no_more_dirty_pages_are_remembered_than_the_limit() {
        let signals = signals();
        signals.offer(&[1, 2, 3]);
        signals.offer(&[4; MOST_OFFERED]);
        let last = signals.take_offered(2);
        let mut offered = signals.take_offered(usize::MAX);
        assert_eq!((last.len(), offered.len()), (2, MOST_OFFERED - 2));
        offered.truncate(4);
        assert_eq!(offered, [1, 2, 3, 4]);
        assert!(signals.take_offered(usize::MAX).is_empty());
    }

    #[test]
    fn a_forked_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held() {
        let provider = crate::replacement::provider::Provider::new(1, 64);
        let held = provider.signals.state();
        // SAFETY: the child allocates nothing, and exits by itself or by the alarm.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: both calls have no preconditions.
            unsafe {
                libc::alarm(10);
                drop(provider.pause());
                libc::_exit(0);
            }
        }
        drop(held);
        let mut status = -1;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the alarm has ended the child");
    }
}
