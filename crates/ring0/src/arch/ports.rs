//! The ports by which guest code calls its host part: `out %al, $port`, always of two bytes, always of one byte
//! of data, which nobody looks at.

/// A proxied system call, from the two instructions LSTAR points to.
pub const SYSCALL: u16 = 0x10;
/// The thread leaves ring 0.
pub const LEAVE: u16 = 0x11;
/// A trap that nobody handled: RDI is the [`TrapFrame`](super::frame::TrapFrame), RSI is CR2.
pub const TRAP: u16 = 0x12;
/// Calls RDI, an `extern "C" fn(*mut ())`, with RSI in ring 3.
pub const CALL: u16 = 0x13;
