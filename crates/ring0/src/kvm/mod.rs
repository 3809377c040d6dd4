//! KVM, as far as it is not the run loop: the virtual machine, and processors in the state ring 0 starts in.

pub mod machine;
pub mod statistics;
pub mod steal_time;
pub mod vcpu;
