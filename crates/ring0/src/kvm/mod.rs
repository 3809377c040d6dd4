//! KVM except for the run loop: the virtual machine, and processors in the initial state of ring 0.

pub mod machine;
pub mod statistics;
pub mod steal_time;
pub mod vcpu;
