//! Platform code: loading the eBPF objects, mapping their maps, running their programs.
//!
//! Only this module calls the kernel's BPF interface; the rest of the crate uses mapped memory and program handles.

mod grace;
mod link;
mod map;
mod mapping;
mod object;
mod program;

pub(crate) use grace::GracePeriod;
pub(crate) use link::Link;
pub(crate) use map::{create_map, duplicate_map, read_element};
pub use mapping::ArrayMapping;
pub(crate) use mapping::{ArenaMapping, Reservation};
#[cfg(any(test, feature = "testing"))]
pub use object::with_objects;
pub use object::{LoadedObject, MapFds};
pub(crate) use object::{ObjectSpec, load};
pub use program::Program;

use libbpf_rs::btf::{Btf, types::Func};

use crate::{Error, Result};

/// Whether the running kernel has each of the functions, as its type information says. Reading that takes some milliseconds.
pub(crate) fn kernel_has<const N: usize>(functions: [&str; N]) -> Result<[bool; N]> {
    let btf = Btf::from_vmlinux().map_err(|e| kernel_error("cannot read the kernel's types", e))?;
    Ok(functions.map(|function| btf.type_by_name::<Func<'_>>(function).is_some()))
}

/// Wraps an error of libbpf; `what` is the operation that failed.
pub fn kernel_error(what: impl Into<String>, source: libbpf_rs::Error) -> Error {
    Error::Kernel { what: what.into(), source: Box::new(source) }
}
