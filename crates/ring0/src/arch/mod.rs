//! The parts that are specific to x86-64: instructions, the state of a virtual processor, the trap entries, and the
//! assembly that enters and leaves ring 0.
//!
//! This module contains mechanism only and makes no decisions.

pub mod apic;
pub mod control;
pub mod frame;
pub mod instructions;
pub mod ports;
pub mod segments;
pub mod stubs;
pub mod traps;
pub mod xstate;
