//! A handler of a library: its programs, its counts, and the events that it is attached to.

use std::ffi::CString;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::{MapHandle, libbpf_sys};

use super::super::timer::Timer;
use super::{CountsMap, Direction, HandlerCounts, HandlerKind, HandlerTarget, SuspendedHandler};
use crate::{
    Error, Result,
    bpf::{Link, Program},
    layout::kdb_timer_arguments,
};

/// Keeps a handler attached.
enum Attached {
    Link(Link),
    KernelTimer,
    Timer(Timer),
}

/// The mechanism that runs a handler at its events.
pub(crate) enum Trigger {
    /// Events that a link of the kernel leads to.
    Links {
        /// The program that has the handler's place while there is no database.
        stand_in: Program,
    },
    /// A timer of the kernel, in this map. The kernel stops it when the map's last descriptor is closed.
    KernelTimer(#[expect(dead_code, reason = "it is kept open")] MapHandle),
    /// A timer that is a thread of this process.
    Thread,
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
    trigger: Trigger,
    /// The counts since this database has the handler.
    counts: CountsMap,
    /// The counts before.
    earlier: HandlerCounts,
    attached: Vec<(HandlerTarget, Attached)>,
    /// Whether its events were suspended, and not resumed here.
    is_suspended: bool,
}

impl RegisteredHandler {
    pub fn new(
        library: &str,
        kind: HandlerKind,
        program: HandlerProgram,
        counts: OwnedFd,
        trigger: Trigger,
    ) -> Self {
        RegisteredHandler {
            library: library.into(),
            kind,
            program: Arc::new(program),
            trigger,
            counts: CountsMap::new(counts),
            earlier: HandlerCounts::default(),
            attached: Vec::new(),
            is_suspended: false,
        }
    }

    pub fn program(&self) -> Arc<HandlerProgram> {
        Arc::clone(&self.program)
    }

    /// Whether it is attached to an event.
    pub fn is_attached_to(&self, target: &HandlerTarget) -> bool {
        self.attached.iter().any(|(other, _)| other == target)
    }

    /// The events that it is attached to.
    pub fn targets(&self) -> Vec<HandlerTarget> {
        self.attached.iter().map(|(target, _)| target.clone()).collect()
    }

    /// The counts of all events so far.
    pub fn counts(&self) -> Result<HandlerCounts> {
        let mut counts = self.earlier.clone();
        counts.add(self.counts.read()?);
        Ok(counts)
    }

    /// Attaches it to an event.
    pub fn attach(&mut self, target: &HandlerTarget) -> Result<()> {
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

    /// Detaches it from an event; false if it is not attached to it.
    pub fn detach(&mut self, target: &HandlerTarget) -> Result<bool> {
        let Some(at) = self.attached.iter().position(|(other, _)| other == target) else { return Ok(false) };
        if matches!(self.attached.swap_remove(at), (_, Attached::KernelTimer)) {
            self.set_timer(Duration::ZERO)?;
        }
        Ok(true)
    }

    fn start_timer(&self, interval: Duration) -> Result<Attached> {
        match self.trigger {
            Trigger::Thread => {
                let program = Arc::clone(&self.program);
                Timer::start(interval, move || program.run(&mut [0]).map(drop)).map(Attached::Timer)
            }
            Trigger::KernelTimer(_) | Trigger::Links { .. } => {
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
    pub fn take_over(&mut self, name: &str, old: &mut RegisteredHandler) {
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

    /// Leaves the events to the stand-in, and adds the handler to `suspended`. Runs that have begun may go on for a moment. After an error
    /// some of the events may still be this handler's.
    pub fn suspend(&mut self, name: &str, suspended: &mut Vec<SuspendedHandler>) -> Result<()> {
        let counts_map = self.counts.duplicate()?;
        let mut events = Vec::new();
        let mut result = Ok(());
        let mut attached = std::mem::take(&mut self.attached).into_iter();
        for (target, attached) in attached.by_ref() {
            match self.leave_to_stand_in(attached) {
                Ok(link) => events.push((target, link)),
                Err((attached, error)) => {
                    self.attached.push((target, attached));
                    result = Err(error);
                    break;
                }
            }
        }
        self.attached.extend(attached);
        self.is_suspended = true;
        let (name, counts) = (name.into(), self.earlier.clone());
        suspended.push(SuspendedHandler { name, events, counts, counts_map });
        result
    }

    /// Leaves an event to the stand-in. Returns the link that keeps it attached. A timer has none, and is stopped. An interface that was removed
    /// has none either.
    fn leave_to_stand_in(
        &self,
        attached: Attached,
    ) -> std::result::Result<Option<OwnedFd>, (Attached, Error)> {
        match (attached, &self.trigger) {
            (Attached::Link(link), Trigger::Links { stand_in }) => {
                let left = match &self.kind {
                    // The kernel cannot exchange the program. In between, both run at an event.
                    HandlerKind::Tracepoint(_) => {
                        Link::create(stand_in, 0, libbpf_sys::BPF_TRACE_RAW_TP).map(Some)
                    }
                    _ => link.update(stand_in).map(|()| None),
                };
                match left {
                    Ok(new) => Ok(Some(new.unwrap_or(link).into())),
                    // It may be there again when the handler is attached again, under the same name.
                    Err(error) if Link::is_cut(&error) => Ok(None),
                    Err(error) => Err((Attached::Link(link), error)),
                }
            }
            (Attached::Timer(timer), _) => {
                drop(timer);
                Ok(None)
            }
            (attached @ (Attached::Link(_) | Attached::KernelTimer), _) => {
                match self.set_timer(Duration::ZERO) {
                    Ok(()) => Ok(None),
                    Err(error) => Err((attached, error)),
                }
            }
        }
    }

    /// Takes the events back from the stand-in of this handler, or of the handler of this name in another database. Returns whether it is
    /// another database's, whose counts are not those of this handler.
    pub fn resume(&mut self, name: &str, events: Vec<(HandlerTarget, Option<OwnedFd>)>) -> bool {
        for (target, link) in events {
            let done = match (&self.kind, link) {
                (HandlerKind::Tc | HandlerKind::Xdp, Some(link)) => {
                    let link = Link::from(link);
                    let updated = link.update(&self.program);
                    updated.map(|()| self.attached.push((target.clone(), Attached::Link(link))))
                }
                // The stand-in goes when the handler is attached: no event is without both.
                (_, _link) => self.attach(&target),
            };
            if let Err(error) = done {
                tracing::error!(handler = name, %target, %error, "the handler is not attached any more");
            }
        }
        !std::mem::take(&mut self.is_suspended)
    }

    /// Sets the counts before this database.
    pub fn set_earlier_counts(&mut self, counts: HandlerCounts) {
        self.earlier = counts;
    }

    /// Detaches the handler from all of its events.
    pub fn detach_all(&mut self) {
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
