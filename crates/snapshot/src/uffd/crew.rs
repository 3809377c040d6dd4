//! The handlers, one per processor, and which of them are on duty.
//!
//! A fault that another processor has to be woken for takes tens of times as long as one whose handler runs next on the
//! writer's. So handlers are bound to processors; on duty are those of the processors on which writers were seen
//! lately. Each looks now and then where the thread is whose fault it serves.
//!
//! Nor must the writer leave: a scheduler that wakes it while its handler runs sends it to an idle processor. So while
//! there are snapshots one writer per processor is bound to it, the first that is seen there, until they end (`bindings`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid};

use super::bindings::Binding;
use super::tasks;
use crate::region::{EventFd, filter, now};

/// The most handlers. Machines with more processors have several of them share one.
pub const MOST: usize = 64;

/// Faults of a writer's between two looks at where it is.
const LOOK_EVERY: u64 = 64;
/// A pause between faults after which one looks again, and after which a processor is not a writer's any more.
const LOOK_AFTER_NS: u64 = 10_000_000;
const OFF_DUTY_AFTER_NS: u64 = 20_000_000;

/// A handler's place.
pub struct Post {
    on_duty: AtomicBool,
    /// When a writer was last seen on its processors.
    seen: AtomicU64,
    bindings: Mutex<Bindings>,
    pub wake_up: EventFd,
}

/// Of the writers of a processor.
#[derive(Default)]
struct Bindings {
    now: Option<Binding>,
    /// The one before, until what inherited it was looked for twice.
    before: Option<Binding>,
}

/// All places.
pub struct Crew {
    posts: [Option<Post>; MOST],
    count: usize,
    moves: AtomicU64,
    /// Whether threads may be bound to processors and given priority. Where a filter of system calls forbids that, faults
    /// are served all the same, only slower.
    may_schedule: bool,
}

impl Crew {
    /// One place per processor that there can be; the one of the caller's processor is on duty.
    pub fn new() -> Result<Self, Errno> {
        let count = processors().min(MOST);
        let mut posts = [const { None }; MOST];
        for post in &mut posts[..count] {
            *post = Some(Post {
                on_duty: AtomicBool::new(false),
                seen: AtomicU64::new(0),
                bindings: Mutex::default(),
                wake_up: EventFd::new()?,
            });
        }
        let may_schedule = filter::permits(&[libc::SYS_sched_setaffinity, libc::SYS_sched_setscheduler]);
        let crew = Self { posts, count, moves: AtomicU64::new(0), may_schedule };
        crew.post(rustix::thread::sched_getcpu()).on_duty.store(true, Ordering::Release);
        Ok(crew)
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn may_schedule(&self) -> bool {
        self.may_schedule
    }

    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// The place for a processor.
    pub fn post(&self, processor: usize) -> &Post {
        self.posts[processor % self.count].as_ref().expect("there are so many")
    }

    fn posts(&self) -> impl Iterator<Item = &Post> {
        self.posts.iter().flatten()
    }

    /// A writer is on this processor.
    fn note(&self, processor: usize, now: u64) {
        let post = self.post(processor);
        post.seen.store(now, Ordering::Relaxed);
        if !post.on_duty.swap(true, Ordering::AcqRel) {
            self.moves.fetch_add(1, Ordering::Relaxed);
            post.wake_up.notify();
        }
        for other in self.posts() {
            let unseen = now.saturating_sub(other.seen.load(Ordering::Relaxed)) > OFF_DUTY_AFTER_NS;
            if unseen && other.on_duty.swap(false, Ordering::AcqRel) {
                // It must stop waiting for faults.
                other.wake_up.notify();
            }
        }
    }

    /// Keeps a writer on the processor that it is on, if no other is kept there.
    fn bind(&self, thread: u32, processor: usize) {
        let Some(thread) = Pid::from_raw(thread as i32) else { return };
        if !self.may_schedule
            || self.count == 1
            || self.count < MOST && processor >= self.count
            || processor >= CpuSet::MAX_CPU
        {
            return;
        }
        let is_bound = |post: &Post| post.bindings().now.is_some_and(|binding| binding.is_of(thread));
        if self.posts().any(is_bound) {
            return;
        }
        let mut bindings = self.post(processor).bindings();
        if bindings.now.is_none() {
            bindings.now = Binding::new(thread, processor);
        }
    }

    /// Lets writers run where they may, and what they started meanwhile. Those whose program bound them stay as they
    /// are.
    pub fn unbind(&self) {
        for post in self.posts() {
            let mut bindings = post.bindings();
            let (now, before) = (bindings.now.take(), bindings.before.take());
            bindings.before = now;
            drop(bindings);
            if let Some(now) = now {
                now.undo();
            }
            for binding in [before, now].into_iter().flatten() {
                binding.undo_inherited();
            }
        }
    }
}

impl Post {
    pub fn is_on_duty(&self) -> bool {
        self.on_duty.load(Ordering::Acquire)
    }

    fn bindings(&self) -> MutexGuard<'_, Bindings> {
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a handler last looked where its writer is.
#[derive(Default)]
pub struct Lookout {
    faults: u64,
    latest: u64,
}

impl Lookout {
    /// A thread's fault was served, while there were snapshots or not.
    pub fn saw(&mut self, crew: &Crew, thread: u32, snapshots: bool) {
        let now = now();
        let pause = now - std::mem::replace(&mut self.latest, now);
        if self.faults.is_multiple_of(LOOK_EVERY) || pause > LOOK_AFTER_NS {
            self.faults = 0;
            if let Some(processor) = tasks::processor_of(thread) {
                crew.note(processor, now);
                if snapshots {
                    crew.bind(thread, processor);
                }
            }
        }
        self.faults += 1;
    }
}

/// Processors that there can be. Not by `sysconf`, which allocates.
fn processors() -> usize {
    let read = || {
        let file = rustix::fs::open(
            c"/sys/devices/system/cpu/possible",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .ok()?;
        let mut text = [0; 64];
        let len = rustix::io::read(&file, &mut text).ok()?;
        // "0-7": numbers from 0 on, the last one at the end.
        let text = std::str::from_utf8(&text[..len]).ok()?.trim();
        text.rsplit(['-', ',']).next()?.parse::<usize>().ok()
    };
    read().map_or(1, |last| last + 1)
}
