//! The maps that the server's programs and the event loop share (`bpf/maps.h`).
//!
//! The event loop works with the maps alone as well: where the kernel cannot run the programs, no connection is in `srv_socks`, and
//! the event loop has every turn.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use bedplate_kerneldb::Result;
use bedplate_kerneldb::attach::{ArrayMapping, LoadedObject, kernel_error};
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use super::gate::Gate;
use super::layout::{SRV_BELL_BYTES, srv_conn, srv_gate, srv_output, srv_queue, srv_stats};
use super::signals::{self, Signals};
use super::table::Table;

/// Maps by their names.
pub(super) struct Maps(BTreeMap<&'static str, MapHandle>);

impl Maps {
    /// The maps of an object.
    pub(super) fn of(object: &LoadedObject, names: &[&'static str]) -> Result<Maps> {
        names.iter().map(|name| Ok((*name, object.map(name)?))).collect::<Result<_>>().map(Maps)
    }

    /// New maps for a server without programs, with room for `max_clients` connections: those that the event loop uses. Only programs
    /// claim reply buffers and queues, so one of each is enough.
    pub(super) fn without_programs(max_clients: u32) -> Result<Maps> {
        let mapped = libbpf_sys::BPF_F_MMAPABLE;
        let maps = [
            ("srv_conns", MapType::Array, size_of::<srv_conn>(), max_clients, mapped),
            ("srv_outputs", MapType::Array, size_of::<srv_output>(), 1, mapped),
            ("srv_queues", MapType::Array, size_of::<srv_queue>(), 1, mapped),
            ("srv_signals", MapType::Array, size_of::<u64>(), signals::words(max_clients), mapped),
            ("srv_gates", MapType::Array, size_of::<srv_gate>(), 1, mapped),
            ("srv_counters", MapType::PercpuArray, size_of::<srv_stats>(), 1, 0),
            ("srv_bell", MapType::RingBuf, 0, SRV_BELL_BYTES, 0),
        ];
        let create = |(name, kind, value_bytes, entries, map_flags)| {
            let options = bpf_map_create_opts {
                sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
                map_flags,
                ..bpf_map_create_opts::default()
            };
            let key_bytes = if kind == MapType::RingBuf { 0 } else { 4 };
            let map = MapHandle::create(kind, Some(name), key_bytes, value_bytes as u32, entries, &options);
            map.map(|map| (name, map)).map_err(|e| kernel_error("cannot create the server's maps", e))
        };
        maps.into_iter().map(create).collect::<Result<_>>().map(Maps)
    }

    /// A map. Panics if there is none of this name.
    pub(super) fn get(&self, name: &str) -> &MapHandle {
        self.0.get(name).unwrap_or_else(|| panic!("the server has no map {name}"))
    }

    /// All maps with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &MapHandle)> {
        self.0.iter().map(|(name, map)| (*name, map))
    }

    /// Maps the connection table.
    pub(super) fn table(&self) -> Result<Table> {
        let outputs = self.get("srv_outputs");
        let queues = self.get("srv_queues");
        Ok(Table::new(
            self.connections()?,
            ArrayMapping::<srv_output>::new(outputs.as_fd(), outputs.max_entries())?,
            ArrayMapping::<srv_queue>::new(queues.as_fd(), queues.max_entries())?,
        ))
    }

    /// Maps the word by which clients are paused.
    pub(super) fn gate(&self) -> Result<Gate> {
        Ok(Gate::new(ArrayMapping::new(self.get("srv_gates").as_fd(), 1)?))
    }

    /// Maps the signals.
    pub(super) fn signals(&self) -> Result<Signals> {
        let words = self.get("srv_signals");
        Signals::new(self.get("srv_bell"), ArrayMapping::new(words.as_fd(), words.max_entries())?)
    }

    /// Maps the connection table's connections alone.
    pub(super) fn connections(&self) -> Result<ArrayMapping<srv_conn>> {
        let conns = self.get("srv_conns");
        ArrayMapping::new(conns.as_fd(), conns.max_entries())
    }

    /// The kernel's counters, summed over CPUs.
    pub(super) fn stats(&self) -> Result<srv_stats> {
        let per_cpu = self
            .get("srv_counters")
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| kernel_error("cannot read the server's counters", e))?
            .unwrap_or_default();
        let mut sum = [0u64; size_of::<srv_stats>() / 8];
        for cpu in &per_cpu {
            for (at, word) in sum.iter_mut().zip(cpu.chunks_exact(8)) {
                *at = at.wrapping_add(u64::from_ne_bytes(word.try_into().expect("8 bytes")));
            }
        }
        // SAFETY: `srv_stats` is u64 fields only, so the array has its size, alignment and meaning.
        Ok(unsafe { std::mem::transmute::<[u64; size_of::<srv_stats>() / 8], srv_stats>(sum) })
    }
}
