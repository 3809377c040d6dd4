//! The program that runs traces, and the traces in its memory.

use crate::{
    Result,
    attach::{self, Attachment},
    bpf::{ArrayMapping, LoadedObject, MapFds, Program},
    config::EngineKind,
    engine::{Engine, possible_cpus},
    layout::kdb_trace,
};

const TRACE_ARENA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace_arena.bpf.o"));
const TRACE_HASHMAP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace_hashmap.bpf.o"));

/// Traces of one database, and the program that runs them.
pub(crate) struct TraceProgram {
    pub traces: ArrayMapping<kdb_trace>,
    pub program: Program,
    _object: LoadedObject,
}

impl TraceProgram {
    /// Loads the program for a database with one partition, and memory for as many traces as there are processors, and two
    /// more.
    pub(crate) fn load(engine: &Engine) -> Result<TraceProgram> {
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
                leave_out: None,
            },
        )?;
        Ok(TraceProgram {
            traces: ArrayMapping::new(object.map_fd("kdb_traces")?, traces)?,
            program: object.program("kdb_trace_run")?,
            _object: object,
        })
    }
}
