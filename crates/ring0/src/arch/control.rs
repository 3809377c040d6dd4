//! The control registers of ring 0, and the features it needs.

use std::arch::x86_64::{__cpuid, __cpuid_count};

use super::xstate::native_features;

/// CR0: paging, protected mode, and write protection in ring 0 too. Without write protection, copy-on-write would
/// fail silently.
pub const CR0: u64 = 0x8005_0033;
/// EFER: system calls, long mode, no-execute.
pub const EFER: u64 = 0xd01;
/// RFLAGS: interrupts are taken.
pub const INTERRUPTS: u64 = 0x200;
/// RFLAGS in ring 0: interrupts on.
pub const RFLAGS: u64 = 0x202;

/// Model-specific registers of the system-call entry.
pub const MSR_STAR: u32 = 0xc000_0081;
/// See [`MSR_STAR`].
pub const MSR_LSTAR: u32 = 0xc000_0082;
/// See [`MSR_STAR`].
pub const MSR_FMASK: u32 = 0xc000_0084;

const PAE: u64 = 1 << 5;
const FXSR: u64 = 1 << 9;
const XMM_EXCEPTIONS: u64 = 1 << 10;
const FSGSBASE: u64 = 1 << 16;
const OSXSAVE: u64 = 1 << 18;

/// CR4. SMEP and SMAP are off because user pages are ring 0's own memory. PCID and global pages are off, so loading
/// CR3 drops every translation.
pub const CR4: u64 = PAE | FXSR | XMM_EXCEPTIONS | FSGSBASE | OSXSAVE;

/// x87, SSE, AVX and AVX-512. With AMX, the state would exceed the size of KVM's plain interface. Code that uses
/// AMX gets an exception in ring 0 and continues in ring 3. Protection keys remain a feature of ring 3.
const VECTOR_FEATURES: u64 = 0xe7;

/// The features in ring 0's XCR0: those that Linux has enabled and KVM offers.
pub fn xcr0(offered: u64) -> u64 {
    native_features() & offered & VECTOR_FEATURES
}

/// The first required feature that this processor, or Linux on it, lacks; `None` if there is none.
pub fn missing_feature() -> Option<&'static str> {
    let basic = __cpuid(1).ecx;
    if basic & 1 << 26 == 0 || basic & 1 << 27 == 0 {
        return Some("XSAVE");
    }
    if __cpuid_count(7, 0).ebx & 1 == 0 || !linux_allows_fsgsbase() {
        return Some("FSGSBASE");
    }
    let extended = __cpuid(0x8000_0001).edx;
    if extended & 1 << 20 == 0 {
        return Some("no-execute pages");
    }
    None
}

/// Linux reports this in bit 1 of AT_HWCAP2.
fn linux_allows_fsgsbase() -> bool {
    // SAFETY: no conditions.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & 2 != 0 }
}
