//! Tasks in forked children. A child runs its task, sends the result through a pipe, and exits.

use std::cell::RefCell;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::ChildWork;
use crate::task::Completion;
use crate::{Error, View};

/// Whether this process is a child that runs a task.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Disables the panic hook in children. The hook prints, and a thread that does not exist in the child may hold the
/// locks for printing. The owner learns of the panic from the exit status. A child cannot set a hook itself,
/// because a thread that panics during the fork holds the lock of the hook.
fn silence_children() {
    static SILENCED: Once = Once::new();
    // The panic hook cannot be changed by a thread that is panicking.
    if std::thread::panicking() {
        return;
    }
    SILENCED.call_once(|| {
        let of_the_program = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_CHILD.load(Ordering::Relaxed) {
                of_the_program(panic);
            }
        }));
    });
}

/// The lock of forking. A thread that forks holds it from before it creates the child's pipe until it has closed
/// the child's end. No other child can then inherit that end. Otherwise a reader of the pipe would also wait for
/// the other child.
pub(crate) fn forking() -> MutexGuard<'static, ()> {
    static FORKING: Mutex<()> = Mutex::new(());
    silence_children();
    FORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a pipe that executed programs do not inherit.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(Error::system("pipe"))
}

pub(crate) fn last_error() -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(rustix::io::Errno::IO)
}

/// Runs the work in the child, sends its result, and exits.
pub(crate) fn run_and_exit(work: ChildWork<'_>, view: &View<'_>, to: &OwnedFd) -> ! {
    IS_CHILD.store(true, Ordering::Relaxed);
    // A panic must not unwind into the owner's code, of which this process has a copy.
    let status = match catch_unwind(AssertUnwindSafe(|| work(view))) {
        Ok(bytes) => {
            let mut rest = &bytes[..];
            loop {
                if rest.is_empty() {
                    break 0;
                }
                match rustix::io::write(to, rest) {
                    Ok(n) => rest = &rest[n..],
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break 1,
                }
            }
        }
        Err(_) => PANICKED,
    };
    // SAFETY: ends the process without running the owner's exit handlers.
    unsafe { libc::_exit(status) }
}

const PANICKED: i32 = 101;

/// Number of bytes that `receive` reads at once, and the limit of reads per call. The limit keeps `is_finished`
/// from waiting for a child that sends without end.
const READ_BYTES: usize = 64 << 10;
const READS_AT_ONCE: usize = 64;

/// A child process with a task.
pub(crate) struct Child {
    pid: libc::pid_t,
    from: Option<OwnedFd>,
    /// The bytes of the result that `is_finished` has already read.
    received: RefCell<Vec<u8>>,
    /// The counter of active children, which includes this one.
    active: Arc<AtomicU64>,
    reaped: bool,
}

impl Child {
    pub(crate) fn new(pid: libc::pid_t, from: OwnedFd, active: Arc<AtomicU64>) -> Self {
        active.fetch_add(1, Ordering::Relaxed);
        Self { pid, from: Some(from), received: RefCell::default(), active, reaped: false }
    }

    /// Reads the bytes that the child has sent so far. A pipe has little room, and a child that waits for room does
    /// not exit.
    fn receive(&self) {
        let Some(from) = &self.from else { return };
        let mut received = self.received.borrow_mut();
        for _ in 0..READS_AT_ONCE {
            let mut ready = [PollFd::new(from, PollFlags::IN)];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut ready, Some(&at_once)) != Ok(1) || !ready[0].revents().contains(PollFlags::IN) {
                return;
            }
            received.reserve(READ_BYTES);
            // This does not block, because there are bytes to read.
            if rustix::io::read(from, rustix::buffer::spare_capacity(&mut received)).is_err() {
                return;
            }
        }
    }

    fn reap(&mut self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: waits for a child of this process that no other code waits for.
        while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } == -1
            && last_error() == rustix::io::Errno::INTR
        {}
        self.reaped = true;
        self.active.fetch_sub(1, Ordering::Relaxed);
        status
    }
}

impl Completion for Child {
    fn join(mut self: Box<Self>) -> Result<Vec<u8>, Error> {
        let mut bytes = self.received.take();
        let mut from = std::fs::File::from(self.from.take().expect("joined once"));
        let read = from.read_to_end(&mut bytes);
        let status = self.reap();
        if libc::WIFSIGNALED(status) {
            return Err(Error::Task(format!("its process was killed by signal {}", libc::WTERMSIG(status))));
        }
        match libc::WEXITSTATUS(status) {
            0 => {}
            PANICKED => return Err(Error::Task("it panicked".into())),
            other => return Err(Error::Task(format!("its process ended with status {other}"))),
        }
        read.map_err(|error| Error::Task(format!("what it returned cannot be read: {error}")))?;
        Ok(bytes)
    }

    fn is_finished(&self) -> bool {
        self.receive();
        // SAFETY: all zeros is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: examines a child of this process without reaping it.
        let found = unsafe { libc::waitid(libc::P_PID, self.pid as libc::id_t, &raw mut info, flags) };
        // SAFETY: filled in by the kernel, or zero.
        found == 0 && unsafe { info.si_pid() } != 0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // A thread must reap the child, and the owner does not want to wait for it.
            let mut child = Self {
                pid: self.pid,
                from: None,
                received: RefCell::default(),
                active: self.active.clone(),
                reaped: true,
            };
            let builder = std::thread::Builder::new().name("bedplate-reaper".into());
            drop(bedplate_threads::spawn(builder, move || child.reap()));
        }
    }
}
