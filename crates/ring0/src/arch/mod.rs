//! What is particular to x86-64: instructions, the state of a virtual processor, the few lines of assembly through
//! which a thread enters and leaves ring 0, and the trap entries.
//!
//! Mechanism only: nothing here decides anything.

pub mod apic;
pub mod control;
pub mod frame;
pub mod instructions;
pub mod ports;
pub mod segments;
pub mod stubs;
pub mod traps;
pub mod xstate;
