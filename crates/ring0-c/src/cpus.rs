//! What one processor does with others, and with itself. All of it may be called in handlers, and leaves no text.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use bedplate_ring0::shootdown::{Batch, MOST_CPUS};
use bedplate_ring0::{Cpu, Error, Process, TrapFrame};

use crate::handlers::bp_ring0_trap_frame;
use crate::tables::bp_ring0_page_size;

/// Called at each tick, with the interrupted code's registers, which it may change.
pub type bp_ring0_tick_handler = Option<extern "C" fn(cpu: u32, frame: *mut bp_ring0_trap_frame)>;

static TICK_HANDLERS: [AtomicPtr<()>; MOST_CPUS] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_CPUS];

fn on_cpu(work: impl FnOnce(Cpu) -> Result<(), Error>) -> c_int {
    match Cpu::current().ok_or(Error::NotInRing0).and_then(work) {
        Ok(()) => 0,
        Err(error) => -error.errno(),
    }
}

/// Lets this thread's processor use other page tables from now on, until its thread ends; 0: the process's. -EPERM in
/// ring 3.
///
/// # Safety
/// The root is one that bp_ring0_tables_create() made, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_set_root(root: u64) -> c_int {
    on_cpu(|cpu| {
        let root = if root == 0 { cpu.process().root() } else { root };
        // SAFETY: as the caller promised: the tables share everything else with the process's.
        unsafe { cpu.set_root(root) }
    })
}

/// Has all processors drop what they have cached of `pages` pages of this size from `address` on; of everything if
/// `pages` is 0. When it returns, none of them uses it any more. The page tables are changed before. -EPERM in ring 3.
///
/// A processor with interrupts off holds this up until it has them on or calls bp_ring0_relax().
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_shoot_down(address: u64, pages: u64, size: bp_ring0_page_size) -> c_int {
    // More than that are everything, for a batch, too.
    const MOST: u64 = 64;
    let mut batch = if (1..=MOST).contains(&pages) { Batch::new() } else { Batch::full() };
    if !batch.is_full() {
        (0..pages).for_each(|page| batch.add(address.wrapping_add(page * size.size().bytes()), size.size()));
    }
    on_cpu(|cpu| cpu.shoot_down_everywhere(&batch))
}

/// Sends an interrupt (vectors 32 to 239) to a processor, whose handler of this vector runs at once if that processor is
/// in the guest, and before its next instruction there otherwise. -EPERM in ring 3, -ESRCH if no thread has that
/// processor.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_send(cpu: u32, vector: u8) -> c_int {
    on_cpu(|own| if cpu == own.number() { own.send_self(vector) } else { own.send(cpu, vector) })
}

/// What is called elsewhere.
struct Call {
    function: extern "C" fn(u32, *mut c_void),
    argument: *mut c_void,
}

/// Has `function(its processor, argument)` called on a processor, like an interrupt handler, and waits until it has
/// returned: as long as that processor's thread is in a system call, or natively. -EPERM in ring 3, -ESRCH if no thread
/// has that processor.
///
/// # Safety
/// The function may be called there with the argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_ring0_call(
    cpu: u32,
    function: Option<extern "C" fn(u32, *mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    fn make(cpu: Cpu, call: u64) {
        // SAFETY: whoever asked for the call waits, and so keeps it.
        let call = unsafe { &*(call as *const Call) };
        (call.function)(cpu.number(), call.argument);
    }
    let Some(function) = function else { return -libc::EINVAL };
    let call = Call { function, argument };
    on_cpu(|own| {
        own.call(cpu, make, ptr::from_ref(&call) as u64)?.wait();
        Ok(())
    })
}

/// One turn of a loop that waits for another processor: what others wait for here is done meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_relax() {
    match Cpu::current() {
        Some(cpu) => cpu.relax(),
        None => std::hint::spin_loop(),
    }
}

/// How many processors there are: as many as threads were in ring 0 at the same time. They are numbered from 0 on.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_cpus() -> u32 {
    Process::current().map_or(0, |process| process.cpus() as u32)
}

/// Has `handler` called about every `nanoseconds` (200 000 to 4 000 000 000) while this thread is in ring 0, until
/// bp_ring0_stop_ticks(). -EPERM in ring 3.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_start_ticks(nanoseconds: u64, handler: bp_ring0_tick_handler) -> c_int {
    let Some(handler) = handler else { return -libc::EINVAL };
    on_cpu(|cpu| {
        if let Some(place) = TICK_HANDLERS.get(cpu.number() as usize) {
            place.store(handler as *mut (), Ordering::Release);
        }
        cpu.start_ticks(Duration::from_nanos(nanoseconds), tick)
    })
}

/// Ends the ticks of this thread. -EPERM in ring 3.
#[unsafe(no_mangle)]
pub extern "C" fn bp_ring0_stop_ticks() -> c_int {
    on_cpu(|cpu| cpu.stop_ticks())
}

fn tick(cpu: Cpu, frame: &mut TrapFrame) {
    let handler = TICK_HANDLERS.get(cpu.number() as usize).map(|place| place.load(Ordering::Acquire));
    // SAFETY: only `bp_ring0_start_ticks` stores there: null, or such a function.
    let handler = unsafe { transmute::<*mut (), bp_ring0_tick_handler>(handler.unwrap_or(ptr::null_mut())) };
    if let Some(handler) = handler {
        handler(cpu.number(), ptr::from_mut(frame).cast());
    }
}
