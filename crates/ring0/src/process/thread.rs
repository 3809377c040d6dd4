//! Entering and leaving ring 0, the processor of each thread, and its release at the thread's end.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::Process;
use super::local::CpuLocal;
use crate::arch::instructions::is_ring0;
use crate::arch::stubs;
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::host::signals::on_alternate_stack;
use crate::ipi::shoot;

thread_local! {
    /// The thread's processor. The variable has no destructor, because registering one allocates memory. A thread
    /// may enter for the first time where it must not allocate, for example in the middle of its allocator.
    static OWNED: Cell<*const CpuLocal> = const { Cell::new(ptr::null()) };
}

/// The key that makes the C library call [`ended`] at a thread's end. Setting it does not allocate if it is one of
/// the first 32 keys.
static AT_END: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// Creates the key. Must be called before the process is built.
pub fn prepare() -> Result<()> {
    if AT_END.get().is_none() {
        let mut key = 0;
        // SAFETY: writes to the variable; the function exists as long as the program.
        let errno = unsafe { libc::pthread_key_create(&raw mut key, Some(ended)) };
        if errno != 0 {
            return Err(Error::kvm_errno("making a key for threads", errno));
        }
        // If another thread has set the key meanwhile, this one stays unused.
        let _ = AT_END.set(key);
    }
    Ok(())
}

/// Releases the processor of a thread that ends.
///
/// The value of the key is not used, because it may be stale. A thread that ends by a bare `exit` system call
/// leaves it behind, and the C library passes it to the next thread on the same stack. The variables of that thread
/// are new.
unsafe extern "C" fn ended(_: *mut c_void) {
    leave();
    let Some(local) = own_cpu() else { return };
    OWNED.set(ptr::null());
    if !local.process().born.is_forked() {
        release(local);
    }
}

fn release(local: &CpuLocal) {
    let process = local.process();
    let root = process.windows.root();
    let changed =
        local.root.load(Ordering::Relaxed) != root || !local.tick_handler.load(Ordering::Relaxed).is_null();
    if changed && process.cpus.reset(local, root).is_err() {
        return; // Its tables may be gone, so the processor is never reused.
    }
    local.end_session();
    local.owner.store(0, Ordering::Release);
}

/// The processor that this thread owns, in ring 0 or in ring 3. Signal handlers may call this.
pub(crate) fn own_cpu() -> Option<&'static CpuLocal> {
    // SAFETY: a processor's data are never dropped.
    unsafe { OWNED.get().as_ref() }
}

/// See [`Process::enter`].
pub fn enter(process: &'static Process) -> Result<Cpu> {
    if let Some(local) = CpuLocal::current() {
        return Ok(Cpu::new(local));
    }
    process.check_not_forked()?;
    let local = own(process)?;
    let here = 0u8;
    let on_top = |local: &CpuLocal| local.is_on_host_stack((&raw const here) as u64) || on_alternate_stack();
    if local.session.load(Ordering::Relaxed) && on_top(local) {
        return Err(Error::Interrupted);
    }
    local.prepare();
    process.cpus.update(local)?;
    // SAFETY: this thread owns the processor, which is not running. It starts where this call returns.
    let errno = unsafe { stubs::bedplate_ring0_enter(ptr::from_ref(local).cast_mut().cast()) };
    if errno != 0 {
        return Err(Error::kvm_errno("running ring 0", errno as i32));
    }
    match CpuLocal::current() {
        Some(local) => {
            shoot::come_in(local);
            Ok(Cpu::new(local))
        }
        // The first instructions faulted, and the thread continued in ring 3.
        None => Err(Error::kvm_errno("running ring 0", libc::EFAULT)),
    }
}

/// This thread's processor: the one it owns, or a new one.
fn own(process: &'static Process) -> Result<&'static CpuLocal> {
    // SAFETY: a processor's data are never dropped.
    match unsafe { OWNED.get().as_ref() } {
        Some(local) if ptr::eq(local.process, process) => return Ok(local),
        // The thread owns none, or only one of the process that this one was forked from.
        _ => {}
    }
    let local = process.cpus.claim(process)?;
    OWNED.set(local);
    if let Some(key) = AT_END.get() {
        // SAFETY: the key of this program. If this fails, a thread that ends in ring 3 does not release its
        // processor.
        unsafe { libc::pthread_setspecific(*key, ptr::from_ref(local).cast()) };
    }
    Ok(local)
}

/// See [`Process::leave`].
pub fn leave() {
    if is_ring0() {
        // SAFETY: in ring 0; the thread continues in ring 3 behind the call.
        unsafe { stubs::bedplate_ring0_leave() };
    }
}
