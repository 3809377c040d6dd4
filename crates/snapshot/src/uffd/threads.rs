//! A region's threads: handlers, helpers that arm, and the worker.

use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::CpuSet;

use super::crew::Lookout;
use super::region::Region;
use super::window::Window;
use crate::region::{Thread, Threaded};

/// Helpers that arm, at most: more would wait for the same locks.
const HELPERS: usize = 7;
/// What handlers are called.
pub(super) const HANDLER: &str = "bedplate-fault";

impl Threaded for Region {
    fn threads(&self) -> Vec<Thread<Self>> {
        let handlers = self.crew.count();
        let mut threads = Vec::new();
        for processor in 0..handlers {
            let life = Box::new(move |region: &Self| handle(region, processor));
            threads.push(Thread { name: HANDLER, life });
        }
        for _ in 0..(handlers - 1).min(HELPERS) {
            let life = Box::new(|region: &Self| region.team.help(|share| region.arm_share(share)));
            threads.push(Thread { name: "bedplate-arm", life });
        }
        threads.push(Thread { name: "bedplate-ahead", life: Box::new(Self::keep_ahead) });
        threads
    }

    fn threads_run(&self) {
        self.served.store(true, Ordering::Release);
        self.wake_up.notify();
    }

    fn end_threads(&self) {
        self.over.store(true, Ordering::Release);
        self.team.dismiss();
        self.wake_up.notify();
        for processor in 0..self.crew.count() {
            self.crew.post(processor).wake_up.notify();
        }
    }
}

impl Region {
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// Binds this thread, a handler, to its processor, and puts it before writers.
fn go_first(processor: usize) {
    let mut only = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        only.set(processor);
        // Where it may not run it serves faults from elsewhere, only slower.
        let _ = rustix::thread::sched_setaffinity(None, &only);
    }
    // The writer waits for it, so it goes first; without the privilege it waits for its turn.
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: this thread's own scheduling.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
}

/// A handler's life.
fn handle(region: &Region, processor: usize) {
    if region.crew.may_schedule() {
        go_first(processor);
    }
    let post = region.crew.post(processor);
    let (mut window, mut lookout) = (Window::default(), Lookout::default());
    while !region.is_over() {
        let mut waits = [post.wake_up.poll(), PollFd::new(&region.descriptor, PollFlags::IN)];
        let on_duty = post.is_on_duty();
        let _ = poll(&mut waits[..if on_duty { 2 } else { 1 }], None);
        if !waits[0].revents().is_empty() {
            post.wake_up.clear();
        }
        if on_duty && !waits[1].revents().is_empty() {
            while let Some(fault) = region.descriptor.read() {
                let snapshots = region.serve(fault, &mut window);
                lookout.saw(&region.crew, fault.thread, snapshots);
            }
        }
    }
}
