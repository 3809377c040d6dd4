//! New threads and processes. They start in ring 3, where the guest made the call, with the guest's registers.
//!
//! A child without a stack of its own would start on the host stack, so this code passes it the guest's stack
//! explicitly. Below the red zone of that stack are the values that the child needs: where it continues, and the
//! arguments that this code changes for the call.

use kvm_bindings::kvm_regs;

use crate::arch::instructions::syscall;
use crate::arch::stubs::{CHILD_RDI, CHILD_RIP, CHILD_RSI, bedplate_ring0_clone};
use crate::process::local::CpuLocal;

const KVM_GET_XSAVE: u64 = 0x9000_aea4;
/// Number of words of the largest known `struct clone_args`. In longer structures, the rest must be zero.
const CLONE_ARGS_WORDS: usize = 16;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;

/// Makes a clone, clone3, fork or vfork call and returns its result in the parent.
pub fn start_child(local: &CpuLocal, guest: &kvm_regs) -> i64 {
    local.counters.clones.increment();
    let area = local.vectors.get();
    let arguments = [local.fd as u64, KVM_GET_XSAVE, area as u64, 0, 0, 0];
    // SAFETY: KVM writes 4096 bytes to the area, which is the owner's.
    let result = unsafe { syscall(libc::SYS_ioctl as u64, arguments) };
    if result != 0 {
        return result;
    }
    let mut call = *guest;
    let mut arguments = [0u64; CLONE_ARGS_WORDS];
    let stack = match guest.rax as i64 {
        libc::SYS_clone3 => match clone3_arguments(guest, &mut arguments) {
            Ok(stack) => {
                call.rdi = arguments.as_ptr() as u64;
                stack
            }
            Err(result) => return result,
        },
        number => {
            if number != libc::SYS_clone {
                let sharing = if number == libc::SYS_vfork { libc::CLONE_VM | libc::CLONE_VFORK } else { 0 };
                call.rax = libc::SYS_clone as u64;
                call.rdi = (sharing | libc::SIGCHLD) as u64;
                call.rsi = 0;
            }
            if call.rsi == 0 {
                call.rsi = guest.rsp;
            }
            call.rsi
        }
    };
    // SAFETY: the child will use this stack from its top down. The words written are below everything that the
    // present user of the stack, or its signal handlers, keeps. If the stack is not writable, the child cannot use
    // it either.
    unsafe {
        put(stack - CHILD_RIP, guest.rcx);
        put(stack - CHILD_RDI, guest.rdi);
        put(stack - CHILD_RSI, guest.rsi);
    }
    // SAFETY: the guest asked for the call. The child continues in the guest's code, on the stack prepared for it.
    unsafe { bedplate_ring0_clone(&raw const call, area, local.process().features()) }
}

unsafe fn put(address: u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { (address as *mut u64).write_unaligned(value) };
}

/// Copies the arguments of clone3, adds a stack if there is none, and returns the top of the stack.
fn clone3_arguments(guest: &kvm_regs, arguments: &mut [u64; CLONE_ARGS_WORDS]) -> Result<u64, i64> {
    const SMALLEST: u64 = 64;
    if guest.rsi < SMALLEST {
        return Err(-i64::from(libc::EINVAL));
    }
    if guest.rsi > size_of_val(arguments) as u64 {
        return Err(-i64::from(libc::E2BIG));
    }
    // SAFETY: the guest passed this structure, as in every system call. If it is not readable, the result is a
    // SIGSEGV here, where Linux would return EFAULT.
    unsafe {
        let bytes = arguments.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(guest.rdi as *const u8, bytes, guest.rsi as usize);
    }
    if arguments[STACK] == 0 {
        const SOME: u64 = 4096;
        arguments[STACK] = guest.rsp - SOME;
        arguments[STACK_SIZE] = SOME;
    }
    Ok(arguments[STACK].wrapping_add(arguments[STACK_SIZE]))
}
