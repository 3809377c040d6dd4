//! Calling functions in ring 3 from ring 0.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::arch::instructions::is_ring0;
use crate::arch::ports;

type Panic = Box<dyn Any + Send + 'static>;

/// Runs `function` in ring 3, on the processor's host stack, and returns to ring 0 with its result. In ring 3, this
/// is an ordinary call. If the function panics, the panic continues in the caller.
///
/// It is meant for code that cannot or should not run in ring 0: code that uses AMX, or takes locks that the host
/// part takes. The function cannot enter ring 0 again.
pub fn natively<R>(function: impl FnOnce() -> R) -> R {
    if !is_ring0() {
        return function();
    }
    type Call<F, R> = (Option<F>, Option<Result<R, Panic>>);
    extern "C" fn run<F: FnOnce() -> R, R>(call: *mut ()) {
        // SAFETY: `natively` passes a pointer to its own variable, and does not touch that variable meanwhile.
        let call = unsafe { &mut *call.cast::<Call<F, R>>() };
        if let Some(function) = call.0.take() {
            call.1 = Some(catch_unwind(AssertUnwindSafe(function)));
        }
    }
    fn entry<F: FnOnce() -> R, R>(_: &Call<F, R>) -> extern "C" fn(*mut ()) {
        run::<F, R>
    }
    let mut call = (Some(function), None);
    let entry = entry(&call);
    // SAFETY: in ring 0, this asks the host part to call `entry` with `call`. All registers are unchanged
    // afterwards.
    unsafe {
        std::arch::asm!("out {port}, al", port = const ports::CALL, in("rdi") entry, in("rsi") &raw mut call);
    }
    match call.1 {
        Some(Ok(result)) => result,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("the host part calls what it is asked to call"),
    }
}
