//! The I/O ports by which guest code calls its host part. The guest executes `out %al, $port`, an instruction of
//! two bytes. It writes one byte of data, which the host part ignores.

/// A system call to pass to Linux, from the first instruction that LSTAR points to.
pub const SYSCALL: u16 = 0x10;
/// The thread leaves ring 0.
pub const LEAVE: u16 = 0x11;
/// A trap that no handler handled: RDI is the [`TrapFrame`](super::frame::TrapFrame), RSI is CR2.
pub const TRAP: u16 = 0x12;
/// Calls the `extern "C" fn(*mut ())` in RDI in ring 3, with RSI as its argument.
pub const CALL: u16 = 0x13;
