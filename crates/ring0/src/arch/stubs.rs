//! The transitions between ring 3 and ring 0.
//!
//! * **enter** pushes the callee-saved registers, switches to the processor's host stack, and runs the host loop
//!   there. The guest starts at a label that pops these registers and returns. The thread thus continues in ring 0
//!   in the same stack frame.
//! * **leave** is one `out`. The host part loads the callee-saved registers and continues behind the `out`.
//! * **system calls**: LSTAR points to `out; mov result, %rax; jmp *%rcx`, which needs no stack and changes no
//!   flags. The host part stores the result in the processor's data, because KVM takes about 500 instructions to
//!   change a register. Code that interrupts the guest before that `mov` may make system calls itself. It must
//!   therefore first perform the `mov` for the interrupted code ([`finish_call`]).
//! * **system calls with a handler**: LSTAR points to a second entry, which first calls the handler on a stack of
//!   its own.
//! * **clone** lets the child continue in ring 3 where the guest made the call. The child finds three values below
//!   the red zone of its own stack: the address where it continues, and the two registers that the host part
//!   changes for the call.

use std::arch::global_asm;
use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

use kvm_bindings::kvm_regs;

use super::ports;
use super::xstate::{XsaveArea, zero_xsave_header};
use crate::arch::frame::TrapFrame;
use crate::handlers::signal::{RED_ZONE, SignalFrame};
use crate::handlers::syscall::SyscallFrame;
use crate::process::local::CpuLocal;

/// Distance below the child's stack pointer of the address where the child continues. `CHILD_RDI` and `CHILD_RSI`
/// are the distances of two register values.
pub const CHILD_RIP: u64 = 136;
/// See [`CHILD_RIP`].
pub const CHILD_RDI: u64 = 144;
/// See [`CHILD_RIP`].
pub const CHILD_RSI: u64 = 152;

/// The result of [`bedplate_ring0_interruptible`] if the call was not made. No system call returns this value.
pub const GIVEN_UP: i64 = -5000;

global_asm!(
    zero_xsave_header!(),
    r#"
    .text
    .balign 16
    .globl bedplate_ring0_enter
bedplate_ring0_enter:               # (local) -> 0 in ring 0, or an errno in ring 3
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    sub $8, %rsp
    stmxcsr (%rsp)
    fnstcw 4(%rsp)
    mov %rsp, {guest_rsp}(%rdi)
    rdfsbase %rax
    mov %rax, {fs_base}(%rdi)
    mov {host_stack}(%rdi), %rsp
    mov %rdi, %rbx
    xor %ebp, %ebp
    call bedplate_ring0_host_loop   # returns only if the guest could not be started
    mov {guest_rsp}(%rbx), %rsp
    jmp 1f

    .balign 16
    .globl bedplate_ring0_guest_start
bedplate_ring0_guest_start:         # rsp as saved, rdi = local, rax = 0
    mov {fs_base}(%rdi), %rcx
    wrfsbase %rcx
1:  ldmxcsr (%rsp)
    fldcw 4(%rsp)
    add $8, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret

    .balign 16
    .globl bedplate_ring0_leave
bedplate_ring0_leave:
    sub $8, %rsp
    stmxcsr (%rsp)
    fnstcw 4(%rsp)
    out %al, ${port_leave}
    ldmxcsr (%rsp)
    fldcw 4(%rsp)
    add $8, %rsp
    ret

    .balign 16
    .globl bedplate_ring0_resume_call
bedplate_ring0_resume_call:         # (regs) goes on natively behind the `out` of leave
    mov 48(%rdi), %rsp
    mov 8(%rdi), %rbx
    mov 56(%rdi), %rbp
    mov 96(%rdi), %r12
    mov 104(%rdi), %r13
    mov 112(%rdi), %r14
    mov 120(%rdi), %r15
    jmp *128(%rdi)

    .balign 16
    .globl bedplate_ring0_sigreturn
bedplate_ring0_sigreturn:           # (stack pointer, which points to a ucontext)
    mov %rdi, %rsp
    mov $15, %eax
    syscall
    ud2

    .balign 16
    .globl bedplate_ring0_exit_thread
bedplate_ring0_exit_thread:         # (status, owner): gives the vCPU back, stack and all, then ends the thread
    movl $0, (%rsi)
    mov $60, %eax
    syscall
    ud2

    .balign 64
    .globl bedplate_ring0_syscall
bedplate_ring0_syscall:
    out %al, ${port_syscall}
    .globl bedplate_ring0_syscall_result
bedplate_ring0_syscall_result:
    mov %gs:{syscall_result}, %rax
    jmp *%rcx

    .balign 64
    .globl bedplate_ring0_syscall_handled
bedplate_ring0_syscall_handled:
    cmpl $0, %gs:{syscall_busy}     # the flags are the caller's to lose: r11 has them
    jne 3f
    movl $1, %gs:{syscall_busy}
    mov %rsp, %gs:{syscall_rsp}
    mov %gs:{syscall_stack}, %rsp
    pushq %gs:{syscall_rsp}
    push %rcx
    push %r11
    push %r9
    push %r8
    push %r10
    push %rdx
    push %rsi
    push %rdi
    push %rax
    push %rbx
    mov %rsp, %rdi
    mov %rsp, %rbx
    sub ${xsave}, %rsp
    and $-64, %rsp
    ZERO_XSAVE_HEADER
    mov $-1, %eax
    mov $-1, %edx
    xsave64 (%rsp)
    cld
    call bedplate_ring0_handle_syscall
    mov %eax, %ecx
    mov $-1, %eax
    mov $-1, %edx
    xrstor64 (%rsp)
    mov %rbx, %rsp
    test %ecx, %ecx
    pop %rbx
    pop %rax
    pop %rdi
    pop %rsi
    pop %rdx
    pop %r10
    pop %r8
    pop %r9
    pop %r11
    pop %rcx
    pop %rsp
    movl $0, %gs:{syscall_busy}
    jnz 4f
3:  jmp bedplate_ring0_syscall
4:  jmp *%rcx

    .balign 16
    .globl bedplate_ring0_proxy_syscall
bedplate_ring0_proxy_syscall:       # (frame): the call in the frame, from a handler, and its result
    mov {frame_number}(%rdi), %rax
    mov {frame_arguments}+8(%rdi), %rsi
    mov {frame_arguments}+16(%rdi), %rdx
    mov {frame_arguments}+24(%rdi), %r10
    mov {frame_arguments}+32(%rdi), %r8
    mov {frame_arguments}+40(%rdi), %r9
    mov {frame_arguments}(%rdi), %rdi
    syscall
    ret

    .balign 16
    .globl bedplate_ring0_clone
bedplate_ring0_clone:               # (regs, xsave area, features): clone with the guest's registers
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rdi, %rcx
    mov %edx, %eax
    shr $32, %rdx
    xrstor64 (%rsi)                 # the child inherits the vector registers
    mov 0(%rcx), %rax
    mov 8(%rcx), %rbx
    mov 24(%rcx), %rdx
    mov 32(%rcx), %rsi
    mov 40(%rcx), %rdi
    mov 56(%rcx), %rbp
    mov 64(%rcx), %r8
    mov 72(%rcx), %r9
    mov 80(%rcx), %r10
    mov 96(%rcx), %r12
    mov 104(%rcx), %r13
    mov 112(%rcx), %r14
    mov 120(%rcx), %r15
    syscall
    test %rax, %rax
    jz 2f
    cld
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
2:  mov -{child_rdi}(%rsp), %rdi
    mov -{child_rsi}(%rsp), %rsi
    jmp *-{child_rip}(%rsp)

    .balign 16
    .globl bedplate_ring0_interruptible
bedplate_ring0_interruptible:       # (number, arguments, noted) -> result
    mov %rdi, %rax
    mov %rdx, %rcx
    mov (%rsi), %rdi
    mov 16(%rsi), %rdx
    mov 24(%rsi), %r10
    mov 32(%rsi), %r8
    mov 40(%rsi), %r9
    mov 8(%rsi), %rsi
    .globl bedplate_ring0_call_begins
bedplate_ring0_call_begins:         # from here on, a signal moves this to the end
    cmpq $0, (%rcx)
    jne bedplate_ring0_call_given_up
    .globl bedplate_ring0_call
bedplate_ring0_call:
    syscall                         # also where the kernel puts a call that it restarts
    ret
    .globl bedplate_ring0_call_given_up
bedplate_ring0_call_given_up:
    mov ${given_up}, %rax
    ret

    .balign 16
    .globl bedplate_ring0_signal_entry
bedplate_ring0_signal_entry:        # rdi and rsp = SignalFrame; in whatever ring the thread is, and it may change
    mov %rdi, %rbx
    sub $4224, %rsp
    ZERO_XSAVE_HEADER
    mov {signal_features}(%rbx), %eax
    mov {signal_features}+4(%rbx), %edx
    xsave64 (%rsp)
    call bedplate_ring0_run_signal_handler
    mov {signal_features}(%rbx), %eax
    mov {signal_features}+4(%rbx), %edx
    xrstor64 (%rsp)
    mov {interrupted_rsp}(%rbx), %rax
    sub ${red_zone}+16, %rax        # where the frame ends, of which no more than the registers is needed now
    mov {interrupted_flags}(%rbx), %rcx
    mov %rcx, (%rax)
    mov {interrupted_rip}(%rbx), %rcx
    mov %rcx, 8(%rax)
    mov %rax, {interrupted_rsp}(%rbx)
    mov %rbx, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rdi
    pop %rsi
    pop %rdx
    pop %rcx
    pop %rax
    mov {interrupted_rsp}-{popped}(%rsp), %rsp
    popfq
    ret ${red_zone}
    "#,
    guest_rsp = const offset_of!(CpuLocal, guest_rsp),
    fs_base = const offset_of!(CpuLocal, fs_base),
    host_stack = const offset_of!(CpuLocal, host_stack),
    syscall_busy = const offset_of!(CpuLocal, syscall_busy),
    syscall_rsp = const offset_of!(CpuLocal, syscall_rsp),
    syscall_result = const offset_of!(CpuLocal, syscall_result),
    syscall_stack = const offset_of!(CpuLocal, syscall_stack),
    frame_number = const offset_of!(SyscallFrame, number),
    frame_arguments = const offset_of!(SyscallFrame, arguments),
    xsave = const 3 << 10,
    child_rip = const CHILD_RIP,
    child_rdi = const CHILD_RDI,
    child_rsi = const CHILD_RSI,
    port_leave = const ports::LEAVE,
    port_syscall = const ports::SYSCALL,
    given_up = const GIVEN_UP,
    signal_features = const SignalFrame::FEATURES,
    interrupted_rip = const offset_of!(TrapFrame, rip),
    interrupted_flags = const offset_of!(TrapFrame, rflags),
    interrupted_rsp = const offset_of!(TrapFrame, rsp),
    popped = const offset_of!(TrapFrame, vector),
    red_zone = const RED_ZONE,
    options(att_syntax)
);

unsafe extern "C" {
    /// Enters ring 0 on the processor whose data are at `local`. Returns 0 in ring 0, or an errno in ring 3.
    pub fn bedplate_ring0_enter(local: *mut ()) -> u64;
    /// The first instruction of the guest.
    pub fn bedplate_ring0_guest_start();
    /// Leaves ring 0.
    pub fn bedplate_ring0_leave();
    /// Continues in ring 3 with the callee-saved registers, the stack pointer and the instruction pointer in
    /// `regs`.
    pub fn bedplate_ring0_resume_call(regs: *const kvm_regs) -> !;
    /// Makes the system call `rt_sigreturn` with the stack pointer that the caller had in the guest.
    pub fn bedplate_ring0_sigreturn(rsp: u64) -> !;
    /// Frees the virtual processor by clearing `owner`, then ends the thread. This code runs on the stack of that
    /// processor and therefore uses no stack.
    pub fn bedplate_ring0_exit_thread(status: u64, owner: *const u32) -> !;
    /// The system-call entry that passes all calls to Linux.
    pub fn bedplate_ring0_syscall();
    /// The instruction behind the `out` of a system call: it loads the result.
    pub fn bedplate_ring0_syscall_result();
    /// The system-call entry that calls the handlers first.
    pub fn bedplate_ring0_syscall_handled();
    /// Passes the call in the frame to Linux.
    pub fn bedplate_ring0_proxy_syscall(frame: *const SyscallFrame) -> i64;
    /// Makes a system call, unless a bit of `noted` is set or a signal arrives before the kernel has begun the
    /// call.
    pub fn bedplate_ring0_interruptible(
        number: u64,
        arguments: *const [u64; 6],
        noted: *const AtomicU64,
    ) -> i64;
    /// The first instruction at which a signal can still prevent the call.
    pub fn bedplate_ring0_call_begins();
    /// The last such instruction: the system call itself.
    pub fn bedplate_ring0_call();
    /// The address at which the code continues if the call is not made.
    pub fn bedplate_ring0_call_given_up();
    /// The address at which the interrupted code continues, to run the handler of a signal in ring 0.
    pub fn bedplate_ring0_signal_entry();
    /// Makes a clone system call with the given registers. The child continues in ring 3, as [`CHILD_RIP`] says.
    pub fn bedplate_ring0_clone(regs: *const kvm_regs, vectors: *const XsaveArea, features: u64) -> i64;
}

/// Whether code interrupted at `rip` has not yet loaded the result of its system call from the processor's data. If
/// so, it must continue at its RCX with the result in RAX.
#[inline]
pub fn finish_call(rip: u64) -> bool {
    rip == bedplate_ring0_syscall_result as *const () as u64
}
