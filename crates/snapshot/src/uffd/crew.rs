//! The handlers, one per processor, and which of them are on duty.
//!
//! A fault that another processor has to be woken for takes tens of times as long as one whose handler runs next on the
//! writer's. So handlers are bound to processors; on duty are those of the processors on which writers were seen
//! lately. Each looks now and then where the thread is whose fault it serves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::keeper::Bell;

/// The most handlers. Machines with more processors have several of them share one.
pub const MOST: usize = 64;

/// Faults of a writer's between two looks at where it is.
const LOOK_EVERY: u64 = 64;
/// A pause between faults after which one looks again, and after which a processor is not a writer's any more.
const LOOK_AFTER_NS: u64 = 10_000_000;
const OFF_DUTY_AFTER_NS: u64 = 300_000_000;

/// A handler's place.
pub struct Post {
    on_duty: AtomicBool,
    /// When a writer was last seen on its processors.
    seen: AtomicU64,
    pub bell: Bell,
}

/// All places.
pub struct Crew {
    posts: [Option<Post>; MOST],
    count: usize,
    moves: AtomicU64,
}

impl Crew {
    /// One place per processor that there can be; the one of the caller's processor is on duty.
    pub fn new() -> Result<Self, Errno> {
        let count = processors().min(MOST);
        let mut posts = [const { None }; MOST];
        for post in &mut posts[..count] {
            *post =
                Some(Post { on_duty: AtomicBool::new(false), seen: AtomicU64::new(0), bell: Bell::new()? });
        }
        let crew = Self { posts, count, moves: AtomicU64::new(0) };
        crew.post(rustix::thread::sched_getcpu()).on_duty.store(true, Ordering::Release);
        Ok(crew)
    }

    pub fn count(&self) -> usize {
        self.count
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
        if post.on_duty.swap(true, Ordering::AcqRel) {
            return;
        }
        self.moves.fetch_add(1, Ordering::Relaxed);
        post.bell.ring();
        for other in self.posts() {
            let unseen = now.saturating_sub(other.seen.load(Ordering::Relaxed)) > OFF_DUTY_AFTER_NS;
            if unseen && other.on_duty.swap(false, Ordering::AcqRel) {
                // It must stop waiting for faults.
                other.bell.ring();
            }
        }
    }
}

impl Post {
    pub fn is_on_duty(&self) -> bool {
        self.on_duty.load(Ordering::Acquire)
    }
}

/// When a handler last looked where its writer is.
#[derive(Default)]
pub struct Lookout {
    faults: u64,
    latest: u64,
}

impl Lookout {
    /// A thread's fault is being served.
    pub fn saw(&mut self, crew: &Crew, thread: u32) {
        let now = super::region::now();
        let pause = now - std::mem::replace(&mut self.latest, now);
        if self.faults.is_multiple_of(LOOK_EVERY) || pause > LOOK_AFTER_NS {
            self.faults = 0;
            if let Some(processor) = super::threads::processor_of(thread) {
                crew.note(processor, now);
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
