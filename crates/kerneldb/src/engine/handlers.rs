//! The handlers of libraries: procedures that run at events of the kernel (`bpf/include/bedplate/handler.h`), and the events that they
//! are attached to.
//!
//! A handler is attached by a descriptor of this process. So the kernel detaches it when the handler's library is removed, when the
//! database is dropped, and when the process ends in any way.
//!
//! Locks, in order: `slots`, `changes` of the procedures, `by_name`, `detached`. Programs that start and stop timers run under `by_name`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys};

use super::timer::Timer;
use crate::{
    Error, Result,
    bpf::{GracePeriod, Link, Program, kernel_error},
    layout::{KDB_MAX_CPUS, kdb_handler, kdb_timer_arguments},
    limits::{HANDLER_TARGETS_MAX, HANDLERS_MAX, TIMER_INTERVAL},
};

/// The events that a handler is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerKind {
    /// Packets at a network interface, after the kernel has made a buffer for them.
    Tc,
    /// Packets at a network interface, before that.
    Xdp,
    /// The tracepoint of this name.
    Tracepoint(String),
    /// A timer.
    Timer,
}

impl fmt::Display for HandlerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandlerKind::Tc => f.write_str("tc"),
            HandlerKind::Xdp => f.write_str("xdp"),
            HandlerKind::Tracepoint(name) => write!(f, "tracepoint:{name}"),
            HandlerKind::Timer => f.write_str("timer"),
        }
    }
}

/// A direction of packets at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Packets that the interface has received.
    Ingress,
    /// Packets that the interface is to send.
    Egress,
}

/// An event that a handler can be attached to. As text: `tc:INTERFACE/ingress`, `tc:INTERFACE/egress`, `xdp:INTERFACE`,
/// `tracepoint:NAME`, `timer:100ms`, `timer:5s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerTarget {
    /// Packets at an interface of this process's network namespace.
    Tc(String, Direction),
    /// Received packets at an interface of this process's network namespace.
    Xdp(String),
    /// A tracepoint of the kernel. It must be the one that the handler was written for.
    Tracepoint(String),
    /// A timer with this time between the end of a run and the next one, in [`TIMER_INTERVAL`].
    Timer(Duration),
}

impl fmt::Display for HandlerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandlerTarget::Tc(interface, Direction::Ingress) => write!(f, "tc:{interface}/ingress"),
            HandlerTarget::Tc(interface, Direction::Egress) => write!(f, "tc:{interface}/egress"),
            HandlerTarget::Xdp(interface) => write!(f, "xdp:{interface}"),
            HandlerTarget::Tracepoint(name) => write!(f, "tracepoint:{name}"),
            HandlerTarget::Timer(interval) => write!(f, "timer:{}ms", interval.as_millis()),
        }
    }
}

impl HandlerTarget {
    /// Checks the interval of a timer.
    fn check(&self) -> std::result::Result<(), String> {
        match self {
            HandlerTarget::Timer(interval) if !TIMER_INTERVAL.contains(interval) => {
                Err(format!("timer:{interval:?}: a timer has an interval of 1 ms to 1 day"))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for HandlerTarget {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known =
            "write tc:INTERFACE/ingress, tc:INTERFACE/egress, xdp:INTERFACE, tracepoint:NAME or timer:100ms";
        let unknown = || format!("{text} is not an event: {known}");
        let (kind, rest) = text.split_once(':').filter(|(_, rest)| !rest.is_empty()).ok_or_else(unknown)?;
        match kind {
            "tc" => match rest.rsplit_once('/') {
                Some((interface, "ingress")) => Ok(HandlerTarget::Tc(interface.into(), Direction::Ingress)),
                Some((interface, "egress")) => Ok(HandlerTarget::Tc(interface.into(), Direction::Egress)),
                _ => Err(unknown()),
            },
            "xdp" => Ok(HandlerTarget::Xdp(rest.into())),
            "tracepoint" => Ok(HandlerTarget::Tracepoint(rest.into())),
            "timer" => {
                let (number, unit) = match (rest.strip_suffix("ms"), rest.strip_suffix('s')) {
                    (Some(number), _) => (number, 1),
                    (None, Some(number)) => (number, 1000),
                    (None, None) => return Err(unknown()),
                };
                let ms = number.parse::<u32>().map_err(|_| unknown())?;
                let target = HandlerTarget::Timer(Duration::from_millis(u64::from(ms) * unit));
                target.check().map(|()| target)
            }
            _ => Err(unknown()),
        }
    }
}

/// Keeps a handler attached.
enum Attached {
    Link(Link),
    KernelTimer,
    Timer(Timer),
}

/// The clock that runs the handler of a timer.
pub(crate) enum TimerKind {
    /// The handler is for other events.
    None,
    /// A timer of the kernel, in this map. The kernel stops it when the map's last descriptor is closed.
    OfKernel(#[expect(dead_code, reason = "it is kept open")] MapHandle),
    /// A thread of this process.
    OfProcess,
}

/// The program of a handler.
pub(crate) struct HandlerProgram {
    program: Program,
    /// With several partitions: the map with its visitors, which the kernel empties when the map's last descriptor is closed.
    #[expect(dead_code, reason = "it is kept open")]
    visitors: Option<MapHandle>,
}

impl HandlerProgram {
    pub fn new(program: Program, visitors: Option<MapHandle>) -> Self {
        HandlerProgram { program, visitors }
    }
}

impl Deref for HandlerProgram {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

/// A handler of a library.
pub(crate) struct RegisteredHandler {
    pub library: Arc<str>,
    pub kind: HandlerKind,
    program: Arc<HandlerProgram>,
    /// Its counts, a map with one `struct kdb_handler`.
    counts: MapHandle,
    timer: TimerKind,
    attached: Vec<(HandlerTarget, Attached)>,
}

impl RegisteredHandler {
    pub fn new(
        library: &str,
        kind: HandlerKind,
        program: HandlerProgram,
        counts: MapHandle,
        timer: TimerKind,
    ) -> Self {
        let (library, program) = (library.into(), Arc::new(program));
        RegisteredHandler { library, kind, program, counts, timer, attached: Vec::new() }
    }

    /// The events that it is attached to.
    pub fn targets(&self) -> Vec<HandlerTarget> {
        self.attached.iter().map(|(target, _)| target.clone()).collect()
    }

    /// The counts of all processors.
    pub fn counts(&self) -> Result<kdb_handler> {
        let read = self.counts.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let bytes = read.map_err(|error| kernel_error("cannot read the counts of a handler", error))?;
        let bytes = bytes.filter(|bytes| bytes.len() == size_of::<kdb_handler>());
        let bytes =
            bytes.ok_or_else(|| Error::Library("the counts of a handler have another size".into()))?;
        // SAFETY: the bytes are a whole `kdb_handler`, which is plain integers, so that every content is valid.
        Ok(unsafe { bytes.as_ptr().cast::<kdb_handler>().read_unaligned() })
    }

    fn attach(&mut self, target: &HandlerTarget) -> Result<()> {
        target.check().map_err(Error::Library)?;
        let link = |interface: u32, kind| Link::create(&self.program, interface, kind).map(Attached::Link);
        let attached = match (&self.kind, target) {
            (HandlerKind::Tc, HandlerTarget::Tc(interface, Direction::Ingress)) => {
                link(interface_index(interface)?, libbpf_sys::BPF_TCX_INGRESS)?
            }
            (HandlerKind::Tc, HandlerTarget::Tc(interface, Direction::Egress)) => {
                link(interface_index(interface)?, libbpf_sys::BPF_TCX_EGRESS)?
            }
            (HandlerKind::Xdp, HandlerTarget::Xdp(interface)) => {
                link(interface_index(interface)?, libbpf_sys::BPF_XDP)?
            }
            (HandlerKind::Tracepoint(name), HandlerTarget::Tracepoint(wanted)) if name == wanted => {
                link(0, libbpf_sys::BPF_TRACE_RAW_TP)?
            }
            (HandlerKind::Timer, HandlerTarget::Timer(interval)) => {
                if !self.attached.is_empty() {
                    return Err(Error::Library("a handler has one timer".into()));
                }
                self.start_timer(*interval)?
            }
            (kind, target) => {
                return Err(Error::Library(format!("a handler of {kind} cannot be attached to {target}")));
            }
        };
        self.attached.push((target.clone(), attached));
        Ok(())
    }

    fn start_timer(&self, interval: Duration) -> Result<Attached> {
        match self.timer {
            TimerKind::OfProcess => {
                let program = Arc::clone(&self.program);
                Timer::start(interval, move || program.run(&mut [0]).map(drop)).map(Attached::Timer)
            }
            TimerKind::OfKernel(_) | TimerKind::None => {
                self.set_timer(interval).map(|()| Attached::KernelTimer)
            }
        }
    }

    /// Starts the kernel's timer; an interval of 0 stops it, and returns when its handler does not run any more.
    fn set_timer(&self, interval: Duration) -> Result<()> {
        let mut arguments = kdb_timer_arguments { interval_ns: interval.as_nanos() as u64 };
        match self.program.run_syscall(&mut arguments)? {
            0 => Ok(()),
            _ => Err(Error::Library("the kernel does not start the timer".into())),
        }
    }

    /// Attaches this handler to the events of the handler of the same name in the library's previous version, which is detached.
    fn take_over(&mut self, name: &str, old: &mut RegisteredHandler) {
        if self.kind != old.kind {
            for target in old.targets() {
                let reason = "the new handler is for other events";
                tracing::error!(handler = name, %target, kind = %self.kind, reason, "the new handler is not attached");
            }
            return;
        }
        for (target, attached) in std::mem::take(&mut old.attached) {
            let done = match (attached, &self.kind) {
                (Attached::Link(link), HandlerKind::Tc | HandlerKind::Xdp) => link
                    .update(&self.program)
                    .map(|()| self.attached.push((target.clone(), Attached::Link(link)))),
                (Attached::Link(link), _) => {
                    drop(link);
                    self.attach(&target)
                }
                (Attached::KernelTimer, _) => {
                    old.stop_timer();
                    self.attach(&target)
                }
                (Attached::Timer(timer), _) => {
                    drop(timer);
                    self.attach(&target)
                }
            };
            if let Err(error) = done {
                tracing::error!(handler = name, %target, %error, "the new handler is not attached");
            }
        }
    }

    /// Detaches the handler from all of its events.
    fn detach_all(&mut self) {
        for (_, attached) in std::mem::take(&mut self.attached) {
            match attached {
                Attached::Link(link) => drop(link),
                Attached::Timer(timer) => drop(timer),
                Attached::KernelTimer => self.stop_timer(),
            }
        }
    }

    fn stop_timer(&self) {
        if let Err(error) = self.set_timer(Duration::ZERO) {
            tracing::error!(%error, "the timer of a handler goes on until the kernel removes it");
        }
    }
}

impl Drop for RegisteredHandler {
    fn drop(&mut self) {
        self.detach_all();
    }
}

fn interface_index(name: &str) -> Result<u32> {
    let missing = || Error::Library(format!("there is no network interface {name}"));
    let text = CString::new(name).map_err(|_| missing())?;
    // SAFETY: `text` is a string that ends with a zero byte.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(missing()),
        index => Ok(index),
    }
}

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
            HandlerKind::Tc | HandlerKind::Xdp => Ok(Arc::clone(&handler.program)),
            _ => Err(Error::Library(format!("{name} is not a handler of packets"))),
        }
    }

    /// Attaches a handler to an event.
    pub fn attach(&self, name: &str, target: &HandlerTarget) -> Result<()> {
        let mut handlers = self.lock();
        let handler = handlers.get_mut(name).ok_or_else(|| missing(name))?;
        if handler.attached.iter().any(|(other, _)| other == target) {
            return Err(Error::Library(format!("{name} is attached to {target} already")));
        }
        check_room(handler.attached.len())?;
        handler.attach(target)
    }

    /// Detaches a handler from an event. Runs that have begun may go on for a moment.
    pub fn detach(&self, name: &str, target: &HandlerTarget) -> Result<()> {
        let mut handlers = self.lock();
        let handler = handlers.get_mut(name).ok_or_else(|| missing(name))?;
        let at = handler.attached.iter().position(|(other, _)| other == target);
        let at = at.ok_or_else(|| Error::Library(format!("{name} is not attached to {target}")))?;
        if matches!(handler.attached.swap_remove(at), (_, Attached::KernelTimer)) {
            handler.set_timer(Duration::ZERO)?;
        }
        Ok(())
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

    #[test]
    fn a_timer_has_an_interval_of_a_millisecond_to_a_day() {
        let (shortest, longest) = (*TIMER_INTERVAL.start(), *TIMER_INTERVAL.end());
        for interval in [shortest, longest] {
            HandlerTarget::Timer(interval).check().unwrap();
        }
        let step = Duration::from_nanos(1);
        for interval in [Duration::ZERO, shortest - step, longest + step] {
            HandlerTarget::Timer(interval).check().unwrap_err();
        }
    }

    #[test]
    fn the_text_of_an_event_is_parsed_and_printed() {
        for text in [
            "tc:eth0/ingress",
            "tc:a/b/egress",
            "xdp:eth0",
            "tracepoint:sched_process_exec",
            "timer:1ms",
            "timer:86400000ms",
        ] {
            assert_eq!(text.parse::<HandlerTarget>().unwrap().to_string(), text);
        }
        assert_eq!("timer:5s".parse(), Ok(HandlerTarget::Timer(Duration::from_secs(5))));
        for text in [
            "",
            "tc",
            "tc:",
            "tc:eth0",
            "tc:eth0/up",
            "xdp:",
            "tracepoint:",
            "timer:",
            "timer:5",
            "timer:0ms",
            "timer:86401s",
            "timer:-1s",
            "kprobe:x",
        ] {
            let error = text.parse::<HandlerTarget>().unwrap_err();
            assert!(error.contains("is not an event") || error.contains("1 ms to 1 day"), "{text}: {error}");
        }
    }
}
