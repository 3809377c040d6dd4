//! Messages between the control loop and other threads. There is one lock, and threads hold it only briefly.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Result;
use crate::board::Board;
use crate::engine::Bell;
use crate::extents::Extents;
use crate::memory::Frames;
use crate::plan::{Chunk, Plan, Range};
use crate::source::File;
use crate::worker::Cancelled;

/// A channel to open. The thread that asks for it has already asked the file system for everything, because the loop waits for no
/// file system.
pub struct Opening {
    pub board: Arc<Board>,
    pub frames: Arc<Frames>,
    pub files: Vec<File>,
    pub extents: Vec<Extents>,
    pub plan: Plan,
    pub terms: Terms,
}

/// The terms of a scan, on which the service and the worker agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// If a file changes before a worker has a chunk of it, the service reads the chunk again.
    pub is_watched: bool,
    /// Maximum number of pages that may be out at a time.
    pub pages_held: usize,
}

/// A pool to make. Its chunks cover all of its files. The asking thread lists them, because there may be many.
pub struct Founding {
    pub frames: Arc<Frames>,
    pub files: Vec<File>,
    pub extents: Vec<Extents>,
    pub chunks: Vec<Chunk>,
    pub terms: Terms,
}

/// A command to the control loop.
pub enum Command {
    Open(Opening, Sender<Result<usize>>),
    Found(Founding, Sender<Result<usize>>),
    /// A pool, and the board of the worker that joins it.
    Join(usize, Arc<Board>, Sender<Result<usize>>),
    /// A pool and its member.
    Leave(usize, usize),
    /// A pool that nobody can join any more.
    Dissolve(usize),
    Ranges(usize, Vec<Range>, Sender<Result<()>>),
    Cancel(usize, Vec<Range>, Sender<Result<Cancelled>>),
    Close(usize),
}

#[derive(Default)]
struct State {
    commands: Vec<Command>,
    stop: bool,
    /// Whether the loop has ended.
    over: bool,
}

/// The inbox.
pub struct Inbox {
    state: Mutex<State>,
    pub bell: Arc<Bell>,
    /// Bytes that were read from files.
    pub bytes_read: AtomicU64,
    /// Number of times that the loop woke.
    pub rounds: AtomicU64,
    /// Numbers of channels, pools, and frames of pools that are in use.
    census: [AtomicU64; 3],
}

impl Inbox {
    /// Creates an empty inbox.
    pub fn new(bell: Arc<Bell>) -> Self {
        Self {
            state: Mutex::default(),
            bell,
            bytes_read: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            census: Default::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command to the loop. `false`: the loop has ended.
    pub fn send(&self, command: Command) -> bool {
        {
            let mut state = self.state();
            if state.over {
                return false;
            }
            state.commands.push(command);
        }
        self.bell.ring();
        true
    }

    /// Tells the loop to end.
    pub fn stop(&self) {
        self.state().stop = true;
        self.bell.ring();
    }

    /// Takes the commands, in the loop. Also returns whether the loop must end.
    pub fn take(&self) -> (Vec<Command>, bool) {
        let mut state = self.state();
        (std::mem::take(&mut state.commands), state.stop)
    }

    /// Records that the loop has ended. Threads that wait for an answer learn that there is none.
    pub fn over(&self) {
        let mut state = self.state();
        state.over = true;
        state.commands.clear();
    }

    /// Publishes the current numbers, in the loop.
    pub fn count(&self, now: [u64; 3]) {
        self.census.iter().zip(now).for_each(|(word, now)| word.store(now, Relaxed));
    }

    /// The numbers at the end of the loop's last round, or when it opened something since then.
    pub fn census(&self) -> [u64; 3] {
        std::array::from_fn(|index| self.census[index].load(Relaxed))
    }
}
