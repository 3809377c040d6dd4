//! Waiting until every eBPF program that is running at the moment has ended.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use super::kernel_error;
use crate::Result;

/// Waits for the programs that are running at the moment.
///
/// The kernel has a documented side effect for this: replacing a map in an array of maps returns only after an
/// RCU grace period. No program uses the replaced map any more then. Unlike `membarrier`, that also works on a
/// machine with one processor and with `nohz_full`.
pub(crate) struct GracePeriod {
    outer: MapHandle,
    inner: MapHandle,
}

impl GracePeriod {
    /// Creates the two maps that the wait needs.
    pub(crate) fn new() -> Result<Self> {
        let create = |kind, name, inner: u32| {
            let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
                inner_map_fd: inner,
                ..Default::default()
            };
            MapHandle::create(kind, Some(name), 4, 4, 1, &opts)
                .map_err(|e| kernel_error("cannot create a map for grace periods", e))
        };
        let inner = create(MapType::Array, "kdb_grace_in", 0)?;
        let outer = create(MapType::ArrayOfMaps, "kdb_grace_out", inner.as_fd().as_raw_fd() as u32)?;
        Ok(GracePeriod { outer, inner })
    }

    /// Returns when every program that was running at the call has ended.
    pub(crate) fn wait(&self) -> Result<()> {
        let inner = self.inner.as_fd().as_raw_fd().to_ne_bytes();
        self.outer
            .update(&0u32.to_ne_bytes(), &inner, MapFlags::ANY)
            .map_err(|e| kernel_error("cannot wait for running programs", e))
    }
}
