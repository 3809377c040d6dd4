//! The handlers of libraries: procedures that run at events of the kernel (`bpf/include/bedplate/handler.h`), and the events that they
//! are attached to.
//!
//! A handler is attached by a descriptor of this process. So the kernel detaches it when the handler's library is removed, when the
//! database is dropped, and when the process ends in any way.
//!
//! Locks, in order: `slots`, `changes` of the procedures, `by_name`, `detached`. Programs that start and stop timers run under `by_name`.

mod counts;
mod event;
mod registered;
mod suspended;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    Error, Result,
    bpf::GracePeriod,
    layout::KDB_MAX_CPUS,
    limits::{HANDLER_TARGETS_MAX, HANDLERS_MAX},
};

use counts::CountsMap;
pub use counts::HandlerCounts;
pub use event::{Direction, HandlerKind, HandlerTarget};
pub(crate) use registered::{HandlerProgram, RegisteredHandler, Trigger};
pub use suspended::SuspendedHandler;

/// All handlers, by name.
pub(crate) struct Handlers {
    cpus: u32,
    by_name: Mutex<BTreeMap<String, RegisteredHandler>>,
    /// The map with the buffers of handlers, which the first library with handlers has created.
    slots: Mutex<Option<OwnedFd>>,
    /// Handlers that were detached, and may still run.
    detached: Mutex<Vec<RegisteredHandler>>,
}

impl Handlers {
    /// For a machine with this number of processors.
    pub fn new(cpus: u32) -> Handlers {
        Handlers {
            cpus: cpus.min(KDB_MAX_CPUS),
            by_name: Mutex::default(),
            slots: Mutex::default(),
            detached: Mutex::default(),
        }
    }

    /// Number of elements of the map with the buffers.
    pub fn slot_count(&self) -> u32 {
        self.cpus
    }

    /// The map with the buffers, if there is one. The caller holds the lock while it loads an object that may create the map.
    pub fn lock_slots(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RegisteredHandler>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` for all handlers, in the order of their names.
    pub fn each<T>(&self, f: impl FnMut((&String, &RegisteredHandler)) -> T) -> Vec<T> {
        self.lock().iter().map(f).collect()
    }

    /// Whether a library has handlers.
    pub fn has_library(&self, library: &str) -> bool {
        self.lock().values().any(|handler| &*handler.library == library)
    }

    /// Checks whether the handlers of a library can be added, in the place of those of the library of the same name.
    pub fn check<'a>(&self, library: &str, new: impl ExactSizeIterator<Item = &'a String>) -> Result<()> {
        let handlers = self.lock();
        let others = handlers.values().filter(|handler| &*handler.library != library).count();
        if others + new.len() > HANDLERS_MAX {
            return Err(Error::Library(format!("there would be more than {HANDLERS_MAX} handlers")));
        }
        for name in new {
            if let Some(other) = handlers.get(name).filter(|other| &*other.library != library) {
                let text = format!("the handler {name} is in the library {} already", other.library);
                return Err(Error::Library(text));
            }
        }
        Ok(())
    }

    /// Adds the handlers of a library that [`Handlers::check`] has accepted. Those of its previous version are detached; a new one is
    /// attached to the events of the old one of the same name. The old ones are kept until [`Handlers::drop_detached`].
    pub fn put(&self, library: &str, new: BTreeMap<String, RegisteredHandler>) {
        let mut handlers = self.lock();
        let is_old = |(_, handler): &(String, RegisteredHandler)| &*handler.library == library;
        let (mut old, others): (BTreeMap<_, _>, _) =
            std::mem::take(&mut *handlers).into_iter().partition(is_old);
        *handlers = others;
        for (name, mut handler) in new {
            if let Some(old) = old.get_mut(&name) {
                handler.take_over(&name, old);
            }
            handlers.insert(name, handler);
        }
        old.values_mut().for_each(RegisteredHandler::detach_all);
        self.lock_detached().extend(old.into_values());
    }

    /// Detaches and removes the handlers of a library. They are kept as by [`Handlers::put`].
    pub fn remove(&self, library: &str) {
        self.put(library, BTreeMap::new());
    }

    /// Drops the handlers that were detached, when their last runs are over: those need the visitors until they end.
    pub fn drop_detached(&self, grace: &GracePeriod) {
        let mut detached = self.lock_detached();
        if detached.is_empty() {
            return;
        }
        match grace.wait() {
            Ok(()) => detached.clear(),
            Err(error) => {
                tracing::warn!(%error, "programs of handlers stay in memory until the next change of a library")
            }
        }
    }

    fn lock_detached(&self) -> MutexGuard<'_, Vec<RegisteredHandler>> {
        self.detached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Detaches all handlers.
    pub fn detach_all(&self) {
        self.lock().values_mut().for_each(RegisteredHandler::detach_all);
    }

    /// The program of a handler of packets. It runs without the lock.
    pub fn packet_program(&self, name: &str) -> Result<Arc<HandlerProgram>> {
        let handlers = self.lock();
        let handler = handlers.get(name).ok_or_else(|| missing(name))?;
        match handler.kind {
            HandlerKind::Tc | HandlerKind::Xdp => Ok(handler.program()),
            _ => Err(Error::Library(format!("{name} is not a handler of packets"))),
        }
    }

    /// Attaches a handler to an event.
    pub fn attach(&self, name: &str, target: &HandlerTarget) -> Result<()> {
        let mut handlers = self.lock();
        let handler = handlers.get_mut(name).ok_or_else(|| missing(name))?;
        if handler.is_attached_to(target) {
            return Err(Error::Library(format!("{name} is attached to {target} already")));
        }
        check_room(handler.targets().len())?;
        handler.attach(target)
    }

    /// Detaches a handler from an event. Runs that have begun may go on for a moment.
    pub fn detach(&self, name: &str, target: &HandlerTarget) -> Result<()> {
        let mut handlers = self.lock();
        let handler = handlers.get_mut(name).ok_or_else(|| missing(name))?;
        match handler.detach(target)? {
            true => Ok(()),
            false => Err(Error::Library(format!("{name} is not attached to {target}"))),
        }
    }

    /// Leaves all events to the stand-ins, and waits until no handler runs any more. After an error, everything is as before.
    pub fn suspend(&self, grace: &GracePeriod) -> Result<Vec<SuspendedHandler>> {
        let mut suspended = Vec::new();
        let suspend =
            |(name, handler): (&String, &mut RegisteredHandler)| handler.suspend(name, &mut suspended);
        let done = self.lock().iter_mut().try_for_each(suspend).and_then(|()| grace.wait());
        match done {
            Ok(()) => Ok(suspended),
            Err(error) => {
                self.resume(suspended, grace);
                Err(error)
            }
        }
    }

    /// Takes the events back from the stand-ins. The log has those that cannot be taken back.
    pub fn resume(&self, suspended: Vec<SuspendedHandler>, grace: &GracePeriod) {
        let mut handlers = self.lock();
        let mut counted = Vec::new();
        for SuspendedHandler { name, events, counts, counts_map } in suspended {
            match handlers.get_mut(&name) {
                Some(handler) => {
                    if handler.resume(&name, events) {
                        counted.push((name, counts, CountsMap::new(counts_map)));
                    }
                }
                None => {
                    let reason = "its library is not loaded";
                    for (target, _) in events {
                        tracing::error!(handler = name, %target, reason, "the handler is not attached any more");
                    }
                }
            }
        }
        if counted.is_empty() {
            return;
        }
        if let Err(error) = grace.wait() {
            tracing::warn!(%error, "some of the last failed events of handlers are not counted");
        }
        for (name, mut counts, map) in counted {
            match map.read() {
                Ok(last) => counts.add(last),
                Err(error) => tracing::warn!(handler = name, %error, "its counts begin anew"),
            }
            if let Some(handler) = handlers.get_mut(&name) {
                handler.set_earlier_counts(counts);
            }
        }
    }
}

/// Whether a handler with this number of events can have another one.
fn check_room(events: usize) -> Result<()> {
    match events < HANDLER_TARGETS_MAX {
        true => Ok(()),
        false => Err(Error::Library(format!("a handler has at most {HANDLER_TARGETS_MAX} events"))),
    }
}

fn missing(name: &str) -> Error {
    Error::Library(format!("there is no handler {}", name.chars().take(128).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_past_each_limit_is_refused() {
        let handlers = Handlers::new(2);
        let names: Vec<String> = (0..=HANDLERS_MAX).map(|i| format!("h{i}")).collect();
        handlers.check("a", names[1..].iter()).unwrap();
        assert!(handlers.check("a", names.iter()).unwrap_err().to_string().contains("more than 256"));
        check_room(HANDLER_TARGETS_MAX - 1).unwrap();
        assert!(check_room(HANDLER_TARGETS_MAX).unwrap_err().to_string().contains("at most 64"));
    }
}
