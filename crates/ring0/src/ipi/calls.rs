//! Function calls on other processors.
//!
//! Each processor has `PLACES` places for calls. A caller takes a free place, writes the call there, and interrupts
//! the processor. The processor's handler runs all calls it finds, in no particular order, and frees their places.
//! Nothing is allocated or locked. A thread that waits for a call runs the calls that others have for its own
//! processor meanwhile.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::arch::apic;
use crate::arch::instructions::is_ring0;
use crate::cpu::Cpu;
use crate::error::Result;
use crate::process::local::CpuLocal;

/// A function to call on another processor. It runs there like an interrupt handler.
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
    /// Number of calls completed in this place.
    done: AtomicU64,
    function: AtomicPtr<()>,
    argument: AtomicU64,
}

/// A call in progress.
#[derive(Debug, Clone, Copy)]
#[must_use = "the call may not have been made yet"]
pub struct RemoteCall {
    place: &'static Place,
    number: u64,
    cpu: Cpu,
}

impl Cpu {
    /// Calls `function` on another processor, or on this one. The call runs at once if that processor is in the
    /// guest with interrupts on. Otherwise it runs before the processor's next guest instruction with interrupts
    /// on. Waits while all places of the target are taken.
    ///
    /// # Errors
    /// [`Error::NotInRing0`](crate::Error::NotInRing0), and [`Error::NoSuchCpu`](crate::Error::NoSuchCpu) if no
    /// thread owns the target.
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
        // SAFETY: `processor` has checked that this thread is in ring 0. If the thread has lost ring 0 since, this
        // instruction causes a SIGSEGV in ring 3, and the target finds the call at its next interrupt.
        unsafe { apic::send(target.number, super::CALL) };
        Ok(RemoteCall { place, number, cpu: *self })
    }

    /// One iteration of a loop that waits for another processor. Serves the requests that other processors have for
    /// this one.
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

    /// Waits until the function has returned. That takes at least as long as the other processor's thread stays in
    /// a system call or in ring 3.
    pub fn wait(self) {
        while !self.is_done() {
            self.cpu.relax();
        }
    }
}

/// Runs the calls that others have for this processor.
pub(super) fn serve(cpu: Cpu) {
    let local: &CpuLocal = cpu.local();
    for place in &local.inbox.0 {
        let ready = place.state.compare_exchange(READY, RUNNING, Ordering::Acquire, Ordering::Relaxed);
        if ready.is_err() {
            continue;
        }
        let function = place.function.load(Ordering::Relaxed);
        // SAFETY: `call` stores only such functions.
        let function = unsafe { std::mem::transmute::<*mut (), RemoteFunction>(function) };
        function(cpu, place.argument.load(Ordering::Relaxed));
        local.counters.remote_calls.increment();
        place.done.fetch_add(1, Ordering::Release);
        place.state.store(FREE, Ordering::Release);
    }
}
