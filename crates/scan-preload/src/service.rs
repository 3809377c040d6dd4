//! The connection to the daemon, which begins with the first file that is to be served.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::Instant;

use bedplate_scan::{Error, RangeReader, Service};
use bedplate_threads::forks::PerProcess;

use crate::connections::Connection;
use crate::limits::{PATIENCE, PAUSE};
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

/// A reader of an open file. `None`: the daemon has none for it.
pub fn reader(file: BorrowedFd<'_>) -> Option<Reader> {
    static OWN: PerProcess<Mutex<State>> = PerProcess::new();
    let service = {
        // A thread that connects takes a while; others do without.
        let mut state = OWN.get().try_lock().ok()?;
        if state.pause.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        match &state.service {
            Some(service) => service.clone(),
            None => match Service::connect_within(settings()?.socket.as_ref()?, PATIENCE) {
                Ok(service) => state.service.insert(service).clone(),
                Err(_) => {
                    state.pause = Some(Instant::now() + PAUSE);
                    return None;
                }
            },
        }
    };
    match service.reader_of(file) {
        Ok(ranges) => {
            let connection = Connection::note(ranges.descriptor()?)?;
            Some(Reader { ranges, _connection: connection })
        }
        // This file is refused, and the next one may be taken.
        Err(Error::Refused(_) | Error::Invalid(_)) => None,
        Err(_) => {
            let mut state = OWN.get().try_lock().ok()?;
            *state = State { service: None, pause: Some(Instant::now() + PAUSE) };
            None
        }
    }
}
