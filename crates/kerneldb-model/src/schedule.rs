//! Selection of interleavings: at random, by priorities with random changes (PCT), or all of them with a limited
//! number of delays.
//!
//! Every scheduler is restricted to the tasks that may run: see [`crate::world`].

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, Runner};

use crate::limits::STACK_BYTES;
use crate::world;

/// Restricts a scheduler to the tasks that may run.
struct Processors<S>(S);

impl<S: Scheduler> Scheduler for Processors<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.0.new_execution()
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let allowed: Vec<&Task> =
            runnable.iter().copied().filter(|task| world::may_run(usize::from(task.id()))).collect();
        assert!(!allowed.is_empty(), "the processors' rules let no task run");
        let current = current.filter(|id| !is_yielding || allowed.iter().any(|task| task.id() == *id));
        self.0.next_task(&allowed, current, is_yielding && current.is_some())
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

/// Every schedule that departs from a fixed one at most `delays` times (delay-bounded search). The fixed one
/// lets a task run until it waits or ends, and then takes the next in turn; a delay passes over one task.
struct DelayBounded {
    delays: usize,
    executions: u64,
    max_executions: u64,
    /// The decisions of this execution: the choice, and the number of alternatives.
    decisions: Vec<(usize, usize)>,
    next: usize,
    first: bool,
    complete: Arc<AtomicBool>,
}

impl DelayBounded {
    /// Goes on to the next schedule; false when there is none.
    fn advance(&mut self) -> bool {
        while let Some((chosen, count)) = self.decisions.pop() {
            let spent: usize = self.decisions.iter().map(|decision| decision.0).sum();
            if chosen + 1 < count && spent + chosen < self.delays {
                self.decisions.push((chosen + 1, count));
                return true;
            }
        }
        false
    }
}

impl Scheduler for DelayBounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if !std::mem::take(&mut self.first) && !self.advance() {
            self.complete.store(true, Relaxed);
            return None;
        }
        if self.executions >= self.max_executions {
            return None;
        }
        self.executions += 1;
        self.next = 0;
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let mut order: Vec<usize> = runnable.iter().map(|task| usize::from(task.id())).collect();
        order.sort_unstable();
        let from = current.map_or(0, usize::from);
        // The current task first, unless it waits; then those behind it in turn.
        let first = order.partition_point(|&id| if is_yielding { id <= from } else { id < from });
        order.rotate_left(first % runnable.len());
        if order.len() == 1 {
            return Some(TaskId::from(order[0]));
        }
        if self.next == self.decisions.len() {
            self.decisions.push((0, order.len()));
        }
        let (chosen, count) = self.decisions[self.next];
        assert_eq!(count, order.len(), "the model behaves differently when a schedule is repeated");
        self.next += 1;
        Some(TaskId::from(order[chosen]))
    }

    fn next_u64(&mut self) -> u64 {
        0
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config
}

/// Factor for the duration of the randomized tests: the environment variable `BEDPLATE_TEST_MODEL`.
fn factor() -> f64 {
    std::env::var("BEDPLATE_TEST_MODEL").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

/// Runs `model` under random schedules and under PCT, `executions` times in all.
pub fn randomized(executions: usize, model: impl Fn() + Send + Sync + Clone + 'static) {
    let executions = ((executions as f64 * factor()) as usize).max(2);
    Runner::new(Processors(RandomScheduler::new(executions / 2)), config()).run(model.clone());
    for depth in [2, 3, 5] {
        Runner::new(Processors(PctScheduler::new(depth, executions.div_ceil(6))), config())
            .run(model.clone());
    }
}

/// The extent of an exhaustive search.
#[derive(Clone, Copy, Debug)]
pub struct Covered {
    /// Schedules that were run.
    pub schedules: u64,
    /// Whether these were all schedules with the given number of delays.
    pub complete: bool,
}

/// Runs `model` under every schedule with at most `delays` delays, up to `max_executions` of them. The model must
/// not draw random numbers.
pub fn exhaustive(
    delays: usize,
    max_executions: u64,
    model: impl Fn() + Send + Sync + Clone + 'static,
) -> Covered {
    let complete = Arc::new(AtomicBool::new(false));
    let schedules = Arc::new(AtomicU64::new(0));
    let scheduler = DelayBounded {
        delays,
        executions: 0,
        max_executions: (max_executions as f64 * factor().max(1.0)) as u64,
        decisions: Vec::new(),
        next: 0,
        first: true,
        complete: complete.clone(),
    };
    let count = schedules.clone();
    Runner::new(Processors(scheduler), config()).run(move || {
        count.fetch_add(1, Relaxed);
        model();
    });
    Covered { schedules: schedules.load(Relaxed), complete: complete.load(Relaxed) }
}
