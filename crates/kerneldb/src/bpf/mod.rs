//! Platform code: loading the eBPF objects, mapping their maps, running their programs.
//!
//! Everything that talks to the kernel's BPF interface is here; the rest of the crate sees mapped memory
//! and program handles.

mod mapping;
mod object;
mod program;

pub use mapping::ArrayMapping;
pub(crate) use mapping::{ArenaMapping, Reservation};
pub use object::{LoadedObject, MapFds};
pub(crate) use object::{ObjectSpec, load};
pub use program::Program;

use crate::Error;

/// Wraps an error of libbpf with what was attempted.
pub fn kernel_error(what: impl Into<String>, source: libbpf_rs::Error) -> Error {
    Error::Kernel { what: what.into(), source: Box::new(source) }
}
