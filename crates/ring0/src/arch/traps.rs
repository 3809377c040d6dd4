//! The 256 trap entries, sixteen bytes apart, and their common code.
//!
//! An entry pushes the vector, and a zero where the processor pushes no error code. It saves all registers and
//! calls `bedplate_ring0_trap` on the vector's stack. The vector registers are saved too, because the handlers are
//! ordinary Rust. The memory below the interrupted stack pointer is never touched, because the interrupted code may
//! use its red zone.
//!
//! While an exception handler runs, the top of its stack in the task state segment is lower by [`NEST`] bytes. A
//! fault inside a fault handler thus has its own part of the stack. [`Stack::BYTES`](super::segments::Stack::BYTES)
//! allows three of them.

use std::arch::global_asm;
use std::mem::offset_of;

use super::segments::TaskState;
use super::xstate::zero_xsave_header;
use crate::process::local::CpuLocal;

/// Number of bytes by which an exception moves the top of its stack down.
pub const NEST: u64 = 16 << 10;
/// Bytes for the vector registers. The largest XSAVE area without AMX has 2696 bytes.
pub const XSAVE_BYTES: u64 = 3 << 10;

const FIRST_IST: usize = offset_of!(CpuLocal, task) + offset_of!(TaskState, ist);

global_asm!(
    zero_xsave_header!(),
    r#"
    .text
    .balign 16
    .globl bedplate_ring0_trap_entries
bedplate_ring0_trap_entries:
    .set vector, 0
    .rept 256
    .balign 16
    # vectors with an error code of the processor's: 8, 10 to 14, 17, 21, 29, 30
    .if (vector != 8) && ((vector < 10) || (vector > 14)) && (vector != 17) && (vector != 21) && (vector != 29) && (vector != 30)
    push $0
    .endif
    push $vector
    .if (vector == 2) || (vector == 8) || (vector == 18) || (vector > 31)
    jmp bedplate_ring0_trap_flat
    .else
    jmp bedplate_ring0_trap_nesting
    .endif
    .set vector, vector + 1
    .endr

    .macro TRAP_BODY
    push %rax
    push %rcx
    push %rdx
    push %rsi
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    cld
    mov %rsp, %rdi
    mov %rsp, %rbp
    mov %cr2, %rsi
    sub ${xsave}, %rsp
    and $-64, %rsp
    ZERO_XSAVE_HEADER
    mov $-1, %eax
    mov $-1, %edx
    xsave64 (%rsp)
    call bedplate_ring0_trap
    mov $-1, %eax
    mov $-1, %edx
    xrstor64 (%rsp)
    mov %rbp, %rsp
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
    .endm

    .balign 16
bedplate_ring0_trap_nesting:
    subq ${nest}, %gs:{ist}
    TRAP_BODY
    addq ${nest}, %gs:{ist}
    add $16, %rsp
    iretq

    .balign 16
bedplate_ring0_trap_flat:
    TRAP_BODY
    add $16, %rsp
    iretq
    "#,
    nest = const NEST,
    ist = const FIRST_IST,
    xsave = const XSAVE_BYTES,
    options(att_syntax)
);

unsafe extern "C" {
    static bedplate_ring0_trap_entries: [u8; 256 * 16];
}

/// The address of a vector's entry.
pub fn entry(vector: usize) -> u64 {
    assert!(vector < 256);
    (&raw const bedplate_ring0_trap_entries) as u64 + 16 * vector as u64
}
