//! The connection to the daemon. It is made for the first file that should be served.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use bedplate_scan::{Error, RangeReader, Service};
use bedplate_threads::forks::PerProcess;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::connections::{self, Connection};
use crate::descriptors;
use crate::limits::{CONNECTING, CONNECTING_STEPS, DESCRIPTORS_PER_READER, PAUSE, SHORT_PAUSE};
use crate::settings::settings;

#[derive(Default)]
struct State {
    service: Option<Service>,
    /// The time until which the process does not ask the daemon, because it failed.
    pause: Option<Instant>,
}

/// A reader. A forked child closes its copy of the reader's connection.
pub struct Reader {
    pub ranges: RangeReader,
    _connection: Connection,
}

static OWN: PerProcess<Mutex<State>> = PerProcess::new();

/// Whether the daemon did not answer in time, so that the process does not ask it. Each read checks this, without a lock.
static IS_PAUSED: AtomicBool = AtomicBool::new(false);

/// Whether the process does not ask the daemon for a while, even if it has readers.
pub fn is_paused() -> bool {
    IS_PAUSED.load(Ordering::Relaxed)
}

/// Records that the daemon did not answer in time. The process then does not ask it for [`PAUSE`].
pub fn pause() {
    IS_PAUSED.store(true, Ordering::Relaxed);
    forget_service(PAUSE);
}

/// Drops the service. The next reader after `pause` connects again.
fn forget_service(pause: Duration) {
    if let Ok(mut state) = OWN.get().try_lock() {
        *state = State { service: None, pause: Some(Instant::now() + pause) };
    }
}

/// Whether the process has enough descriptors left for one more reader, and no limit on its addresses.
fn has_room() -> bool {
    let is_finite = |resource| getrlimit(resource).current;
    let descriptors = is_finite(Resource::Nofile).map_or(usize::MAX, |most| most as usize);
    // A reader maps the cache's memory of its file. A program that limits its addresses needs them itself.
    is_finite(Resource::As).is_none()
        && is_finite(Resource::Data).is_none()
        && connections::count() < descriptors / DESCRIPTORS_PER_READER
}

/// The reason why there is no reader.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// Another thread is connecting, or a connection has just ended.
    ForNow,
    /// The file cannot be served, or there is no daemon.
    ForLong,
}

/// Makes a reader of an open file.
pub fn reader(file: BorrowedFd<'_>) -> Result<Reader, Refusal> {
    if !descriptors::is_own_process() || !has_room() {
        return Err(Refusal::ForLong);
    }
    match service()?.reader_of(file) {
        Ok(ranges) => {
            let connection = ranges.descriptor().and_then(Connection::note).ok_or(Refusal::ForLong)?;
            Ok(Reader { ranges, _connection: connection })
        }
        // The daemon refuses this file. It may accept the next one.
        Err(Error::Refused(_) | Error::Invalid(_)) => Err(Refusal::ForLong),
        Err(Error::System { source: Errno::TIMEDOUT, .. }) => {
            pause();
            Err(Refusal::ForLong)
        }
        // The daemon has ended, or the program has closed the connection.
        Err(_) => {
            forget_service(SHORT_PAUSE);
            Err(Refusal::ForNow)
        }
    }
}

/// The state, which another thread locks while it connects. The calling thread sleeps meanwhile, so that the other thread gets a processor.
/// `None`: this takes too long, or that thread has left the library with the lock.
fn state_soon() -> Option<MutexGuard<'static, State>> {
    let begin = Instant::now();
    loop {
        match OWN.get().try_lock() {
            Err(TryLockError::WouldBlock) if begin.elapsed() < CONNECTING => {
                std::thread::sleep(CONNECTING / CONNECTING_STEPS);
            }
            state => return state.ok(),
        }
    }
}

/// The service. If there is none, this connects to the daemon.
fn service() -> Result<Service, Refusal> {
    let mut state = state_soon().ok_or(Refusal::ForNow)?;
    if state.pause.is_some_and(|until| Instant::now() < until) {
        return Err(Refusal::ForLong);
    }
    IS_PAUSED.store(false, Ordering::Relaxed);
    if let Some(service) = &state.service {
        return Ok(service.clone());
    }
    let settings = settings().ok_or(Refusal::ForLong)?;
    let socket = settings.socket.as_ref().ok_or(Refusal::ForLong)?;
    let connected = Service::connect_within(socket, settings.patience).inspect_err(|_| {
        state.pause = Some(Instant::now() + PAUSE);
    });
    Ok(state.service.insert(connected.map_err(|_| Refusal::ForLong)?).clone())
}
