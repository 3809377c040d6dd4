//! Functions called on other processors.
//!
//! Each processor has a few places for calls. A caller takes a free one, writes the call, and interrupts; the
//! processor's handler runs what it finds, in no particular order, and frees the places. Nothing is allocated or
//! locked, and whoever waits for a call runs the calls that others have for it.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::arch::apic;
use crate::arch::instructions::is_ring0;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::process::local::CpuLocal;

/// A function for another processor. It runs there like an interrupt handler.
pub type RemoteFunction = fn(Cpu, u64);

const PLACES: usize = 16;
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const READY: u32 = 2;
const RUNNING: u32 = 3;

/// The calls for one processor.
#[derive(Debug, Default)]
pub struct Inbox([Place; PLACES]);

#[derive(Debug, Default)]
struct Place {
    state: AtomicU32,
    /// How many calls have been made here.
    done: AtomicU64,
    function: AtomicPtr<()>,
    argument: AtomicU64,
}

/// A call that was asked for.
#[derive(Debug, Clone, Copy)]
#[must_use = "the call may not have been made yet"]
pub struct RemoteCall {
    place: &'static Place,
    number: u64,
    cpu: Cpu,
}

impl Cpu {
    /// Has `function` called on another processor, or on this one: at once if it is in the guest with interrupts on,
    /// otherwise before its next instruction there with interrupts on.
    pub fn call(&self, to: u32, function: RemoteFunction, argument: u64) -> Result<RemoteCall> {
        let target = self.processor(to)?;
        let place = loop {
            let free = |place: &&Place| {
                place.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            match target.inbox.0.iter().find(free) {
                Some(place) => break place,
                None => self.relax(),
            }
        };
        let number = place.done.load(Ordering::Relaxed);
        place.function.store(function as *mut (), Ordering::Relaxed);
        place.argument.store(argument, Ordering::Relaxed);
        place.state.store(READY, Ordering::Release);
        self.local().counters.ipis_sent.increment();
        // SAFETY: `processor` has found this thread in ring 0, or it has lost it since, natively: then the target
        // finds the call at its next interrupt, and this instruction is this thread's SIGSEGV.
        unsafe { apic::send(target.number, super::CALL) };
        Ok(RemoteCall { place, number, cpu: *self })
    }

    /// One turn of a loop that waits for another processor: what others wait for here is done meanwhile.
    pub fn relax(&self) {
        if is_ring0() {
            super::shoot::serve(self.local());
            serve(*self);
        }
        std::hint::spin_loop();
    }
}

impl RemoteCall {
    /// Whether the function has returned.
    pub fn is_done(&self) -> bool {
        self.place.done.load(Ordering::Acquire) != self.number
    }

    /// Waits until the function has returned. That can take as long as the other processor's thread is in a system
    /// call, or natively.
    pub fn wait(self) {
        while !self.is_done() {
            self.cpu.relax();
        }
    }
}

/// Makes the calls that others want from this processor.
pub(super) fn serve(cpu: Cpu) {
    let local: &CpuLocal = cpu.local();
    for place in &local.inbox.0 {
        let ready = place.state.compare_exchange(READY, RUNNING, Ordering::Acquire, Ordering::Relaxed);
        if ready.is_err() {
            continue;
        }
        let function = place.function.load(Ordering::Relaxed);
        // SAFETY: `call` stores such functions.
        let function = unsafe { std::mem::transmute::<*mut (), RemoteFunction>(function) };
        function(cpu, place.argument.load(Ordering::Relaxed));
        local.counters.remote_calls.increment();
        place.done.fetch_add(1, Ordering::Release);
        place.state.store(FREE, Ordering::Release);
    }
}
