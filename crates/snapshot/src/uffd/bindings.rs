//! Writers that are bound to a processor for a while.
//!
//! What a writer starts inherits the binding. So threads that were started meanwhile and may run on that processor only
//! are let go with it; a thread whose start has just begun then may not be found yet, so they are looked for twice.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use super::tasks;
use super::threads::HANDLER;

/// A writer that is bound to a processor, or was.
#[derive(Clone, Copy)]
pub struct Binding {
    thread: Pid,
    /// Where it may run otherwise.
    before: CpuSet,
    /// Where it may run now.
    now: CpuSet,
    /// When it was bound.
    since: u64,
}

impl Binding {
    /// Binds a thread, unless it may run on one processor only, or on none of this kind.
    pub fn new(thread: Pid, processor: usize) -> Option<Self> {
        let before = sched_getaffinity(Some(thread)).ok().filter(|before| before.count() > 1)?;
        let mut now = CpuSet::new();
        now.set(processor);
        let since = tasks::now();
        sched_setaffinity(Some(thread), &now).ok()?;
        Some(Self { thread, before, now, since })
    }

    pub fn is_of(&self, thread: Pid) -> bool {
        self.thread == thread
    }

    /// Lets the writer run where it may. If its program bound it meanwhile it stays as it is.
    pub fn undo(&self) {
        self.let_go(self.thread);
    }

    /// Lets threads that inherited the binding run where the writer may.
    pub fn undo_inherited(&self) {
        tasks::each(|thread| {
            let inherited = || tasks::started(thread, HANDLER.as_bytes()).is_some_and(|at| at >= self.since);
            if self.binds(thread) && inherited() {
                self.let_go(thread);
            }
        });
    }

    fn binds(&self, thread: Pid) -> bool {
        sched_getaffinity(Some(thread)).is_ok_and(|set| set == self.now)
    }

    fn let_go(&self, thread: Pid) {
        if self.binds(thread) {
            // It can have ended.
            let _ = sched_setaffinity(Some(thread), &self.before);
        }
    }
}
