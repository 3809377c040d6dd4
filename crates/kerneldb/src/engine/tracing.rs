//! The program that runs traces, and the traces in its memory.

use super::{Engine, possible_cpus};
use crate::{
    Result,
    attach::{self, Attachment},
    bpf::{ArrayMapping, LoadedObject, MapFds, Program},
    config::EngineKind,
    layout::kdb_trace,
};

const TRACE_ARENA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace_arena.bpf.o"));
const TRACE_HASHMAP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace_hashmap.bpf.o"));

/// Traces of one database, and the program that runs them.
pub(crate) struct Tracing {
    pub traces: ArrayMapping<kdb_trace>,
    pub program: Program,
    _object: LoadedObject,
}

impl Tracing {
    /// Loads the program for a database with one partition, and memory for as many traces as there are processors, and two
    /// more.
    pub(super) fn load(engine: &Engine) -> Result<Tracing> {
        let traces = possible_cpus()? + 2;
        let elf = match engine.config().engine {
            EngineKind::Arena => TRACE_ARENA,
            EngineKind::HashMap => TRACE_HASHMAP,
        };
        let object = attach::load(
            engine,
            Attachment {
                name: "kdb_trace",
                elf,
                partition: 0,
                constants: &[],
                maps: MapFds::new(),
                entries: &[("kdb_traces", traces)],
            },
        )?;
        Ok(Tracing {
            traces: ArrayMapping::new(object.map_fd("kdb_traces")?, traces)?,
            program: object.program("kdb_trace_run")?,
            _object: object,
        })
    }
}
