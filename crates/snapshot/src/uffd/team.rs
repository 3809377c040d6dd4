//! Threads that arm together while a snapshot is made.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::io::Errno;

/// Work that is shared out by number.
pub struct Team {
    state: Mutex<State>,
    begin: Condvar,
    end: Condvar,
    next: AtomicUsize,
}

struct State {
    shares: usize,
    /// Counts the calls of `run`.
    round: u64,
    helpers: usize,
    working: usize,
    failed: Option<Errno>,
    over: bool,
}

impl Team {
    pub const fn new() -> Self {
        let state = State { shares: 0, round: 0, helpers: 0, working: 0, failed: None, over: false };
        Self {
            state: Mutex::new(state),
            begin: Condvar::new(),
            end: Condvar::new(),
            next: AtomicUsize::new(0),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `work` called for each share, by this thread and the helpers. One caller at a time.
    pub fn run(&self, shares: usize, work: impl Fn(usize) -> Result<(), Errno>) -> Result<(), Errno> {
        {
            let mut state = self.state();
            self.next.store(0, Ordering::Relaxed);
            (state.shares, state.round, state.failed) = (shares, state.round + 1, None);
            if state.helpers > 0 && shares > 1 {
                self.begin.notify_all();
            }
        }
        let mine = self.work(shares, work);
        let mut state = self.state();
        // Who has not begun finds nothing left.
        state.shares = 0;
        while state.working > 0 {
            state = self.end.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        mine.and(state.failed.map_or(Ok(()), Err))
    }

    fn work(&self, shares: usize, work: impl Fn(usize) -> Result<(), Errno>) -> Result<(), Errno> {
        loop {
            match self.next.fetch_add(1, Ordering::Relaxed) {
                share if share < shares => work(share)?,
                _ => return Ok(()),
            }
        }
    }

    /// A helper's life.
    pub fn help(&self, work: impl Fn(usize) -> Result<(), Errno>) {
        let mut state = self.state();
        state.helpers += 1;
        let mut round = state.round;
        loop {
            while state.round == round && !state.over {
                state = self.begin.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.over {
                return;
            }
            round = state.round;
            let shares = state.shares;
            if shares == 0 {
                continue;
            }
            state.working += 1;
            drop(state);
            let done = self.work(shares, &work);
            state = self.state();
            state.working -= 1;
            if let Err(error) = done {
                state.failed = Some(error);
            }
            if state.working == 0 {
                self.end.notify_one();
            }
        }
    }

    /// Lets helpers go.
    pub fn dismiss(&self) {
        self.state().over = true;
        self.begin.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_share_is_done_once_and_before_run_returns() {
        let team = Team::new();
        let done: Vec<AtomicU32> = (0..100).map(|_| AtomicU32::new(0)).collect();
        let work = |share: usize| {
            done[share].fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| team.help(work));
            }
            for round in 1..=500 {
                team.run(100, work).unwrap();
                assert!(done.iter().all(|count| count.load(Ordering::SeqCst) == round));
            }
            team.dismiss();
        });
    }

    #[test]
    fn a_failure_is_told() {
        let team = Team::new();
        let failing = |share| if share == 3 { Err(Errno::NOMEM) } else { Ok(()) };
        std::thread::scope(|scope| {
            scope.spawn(|| team.help(failing));
            for _ in 0..100 {
                assert_eq!(team.run(10, failing), Err(Errno::NOMEM));
                assert_eq!(team.run(3, failing), Ok(()));
            }
            team.dismiss();
        });
    }
}
