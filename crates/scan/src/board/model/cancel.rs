//! Ranges that the worker cancels and then announces again.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{Board, check, words};

/// The chunks to publish, the number of chunks published so far, the value to cancel, and the number of chunks published before
/// the cancellation.
type Told = (Vec<u64>, u64, Option<u64>, Option<u64>);

/// A service that publishes chunks. Its worker asks it to cancel a chunk, and later announces the chunk again.
struct Scan {
    board: Arc<Board<4>>,
    told: Mutex<Told>,
    total: loom::sync::atomic::AtomicU64,
}

impl Scan {
    /// Service side: performs the next step, if there is one.
    fn step(&self) {
        let mut told = self.told.lock().unwrap();
        let (plan, next, question, answer) = &mut *told;
        if let Some(value) = question.take() {
            plan.retain(|planned| *planned != value);
            let total = *next + u64::from(!plan.is_empty());
            self.total.store(total, words::Ordering::Release);
            *answer = Some(*next);
        } else if !plan.is_empty() {
            let (number, value) = (*next, plan.remove(0));
            *next += 1;
            self.total.store(*next + u64::from(!plan.is_empty()), words::Ordering::Release);
            drop(told);
            self.board.give_turn(number, number as usize, value);
        }
    }
}

/// A cancelled chunk does not arrive, whether it was published or not. A chunk that is announced again arrives. Every other chunk
/// arrives exactly once.
fn cancel(passes_over: impl Fn(u64, u64) -> bool + Copy + Send + Sync + 'static) {
    check(move || {
        let scan = Arc::new(Scan {
            board: Board::new(),
            told: Mutex::new((vec![1, 2], 0, None, None)),
            total: loom::sync::atomic::AtomicU64::new(1),
        });
        let service = scan.clone();
        let service = thread::spawn(move || (0..3).for_each(|_| service.step()));
        // The worker asks, and waits for the answer. The service thread may have finished its steps before, so the worker runs
        // the remaining ones.
        scan.told.lock().unwrap().2 = Some(2);
        service.join().unwrap();
        while scan.told.lock().unwrap().3.is_none() {
            scan.step();
        }
        let before = {
            let mut told = scan.told.lock().unwrap();
            told.0.push(2);
            scan.total.store(told.1 + 1, words::Ordering::Release);
            told.3.unwrap()
        };
        let service = scan.clone();
        let service = thread::spawn(move || (0..3).for_each(|_| service.step()));
        let (mut seen, mut taken) = (Vec::new(), 0);
        while taken < scan.total.load(words::Ordering::Acquire) {
            let Some(slot) = scan.board.find_turn(taken) else {
                thread::yield_now();
                continue;
            };
            let value = scan.board.take(slot).unwrap();
            if !(value == 2 && passes_over(taken, before)) {
                seen.push(value);
            }
            taken += 1;
            scan.board.entries[slot].word.finish();
        }
        service.join().unwrap();
        assert_eq!(seen, [1, 2]);
    });
}

#[test]
fn cancelled_chunks_do_not_come_and_all_others_do() {
    cancel(|number, before| number < before);
}

/// The model detects a worker that also skips the chunk that was announced again.
#[test]
#[should_panic(expected = "assertion")]
fn who_passes_over_everything_loses_what_was_announced_again() {
    cancel(|_, _| true);
}

/// The model detects a worker that skips nothing.
#[test]
#[should_panic(expected = "assertion")]
fn who_passes_over_nothing_has_what_was_cancelled() {
    cancel(|_, _| false);
}
