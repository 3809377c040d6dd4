//! The connection to the daemon, which begins with the first file that is to be served.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_scan::{Error, RangeReader, Service};
use bedplate_threads::forks::PerProcess;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::connections::{self, Connection};
use crate::descriptors;
use crate::limits::{DESCRIPTORS_PER_READER, PATIENCE, PAUSE, SHORT_PAUSE};
use crate::settings::settings;

#[derive(Default)]
struct State {
    service: Option<Service>,
    /// The daemon did not answer, and is not asked before.
    pause: Option<Instant>,
}

/// A reader, whose connection a forked child closes.
pub struct Reader {
    pub ranges: RangeReader,
    _connection: Connection,
}

static OWN: PerProcess<Mutex<State>> = PerProcess::new();

/// Whether the process does without the daemon. It is asked for each read, without a lock.
static IS_PAUSED: AtomicBool = AtomicBool::new(false);

/// Whether the process does without the daemon for a while, also where it has readers.
pub fn is_paused() -> bool {
    IS_PAUSED.load(Ordering::Relaxed)
}

/// The daemon did not answer in time: the process does without it for a while.
pub fn pause() {
    IS_PAUSED.store(true, Ordering::Relaxed);
    forget_service(PAUSE);
}

/// The next reader connects anew, after a while.
fn forget_service(pause: Duration) {
    if let Ok(mut state) = OWN.get().try_lock() {
        *state = State { service: None, pause: Some(Instant::now() + pause) };
    }
}

/// Whether the process has enough of its descriptors and addresses left for one reader more.
fn has_room() -> bool {
    let is_finite = |resource| getrlimit(resource).current;
    let descriptors = is_finite(Resource::Nofile).map_or(usize::MAX, |most| most as usize);
    // A reader maps the cache's memory of its file. Programs that limit their addresses want them for themselves.
    is_finite(Resource::As).is_none()
        && is_finite(Resource::Data).is_none()
        && connections::count() < descriptors / DESCRIPTORS_PER_READER
}

/// Why there is no reader.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// Another thread is connecting, or a connection has just ended.
    ForNow,
    /// The file cannot be served, or there is no daemon.
    ForLong,
}

/// A reader of an open file.
pub fn reader(file: BorrowedFd<'_>) -> Result<Reader, Refusal> {
    if !descriptors::is_own_process() || !has_room() {
        return Err(Refusal::ForLong);
    }
    match service()?.reader_of(file) {
        Ok(ranges) => {
            let connection = ranges.descriptor().and_then(Connection::note).ok_or(Refusal::ForLong)?;
            Ok(Reader { ranges, _connection: connection })
        }
        // This file is refused, and the next one may be taken.
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

/// The service.
fn service() -> Result<Service, Refusal> {
    // A thread that connects takes a while; others do without.
    let mut state = OWN.get().try_lock().map_err(|_| Refusal::ForNow)?;
    if state.pause.is_some_and(|until| Instant::now() < until) {
        return Err(Refusal::ForLong);
    }
    IS_PAUSED.store(false, Ordering::Relaxed);
    if let Some(service) = &state.service {
        return Ok(service.clone());
    }
    let socket = settings().and_then(|settings| settings.socket.as_ref()).ok_or(Refusal::ForLong)?;
    let connected = Service::connect_within(socket, PATIENCE).inspect_err(|_| {
        state.pause = Some(Instant::now() + PAUSE);
    });
    Ok(state.service.insert(connected.map_err(|_| Refusal::ForLong)?).clone())
}
