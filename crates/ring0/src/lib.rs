//! A privileged process on stock KVM (LIBDBOS; "Practical DB-OS Co-Design with Privileged Kernel Bypass", sections 3 and 6).

pub mod frames;
pub mod paging;
pub mod shootdown;
pub mod word;
