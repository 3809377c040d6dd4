//! The compiled variants of the engine, and calls of their functions.
//!
//! Every function of [`Engine`] must be called by a task of the model (see [`crate::world::spawn`]) or before the
//! first of them starts.

use crate::layout::{kdb_ctx, kdb_io};
use crate::world;

/// `struct kdb_model_engine` in shim/table.h.
#[repr(C)]
struct Table {
    run: unsafe extern "C-unwind" fn(u32, *mut kdb_ctx, *mut kdb_io) -> i32,
    collect: unsafe extern "C-unwind" fn(u32) -> i32,
    alloc: unsafe extern "C-unwind" fn(u32) -> u32,
    free: unsafe extern "C-unwind" fn(u32, u32),
    block_bytes: unsafe extern "C-unwind" fn(u32) -> u32,
    alloc_entry: unsafe extern "C-unwind" fn(u32) -> u32,
    entry_key: unsafe extern "C-unwind" fn(u32) -> u32,
    lock: unsafe extern "C-unwind" fn(*mut kdb_ctx, *mut kdb_io, u32) -> i32,
}

mod variants {
    use super::Table;
    include!(concat!(env!("OUT_DIR"), "/variants.rs"));

    pub(super) fn table(mutant: Option<&str>) -> Option<*const Table> {
        match mutant {
            None => Some(&raw const kdb_model_engine),
            Some(name) => mutant_table(name),
        }
    }
}

/// One variant of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    table: &'static Table,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Table")
    }
}

impl Engine {
    /// The engine as it is.
    pub fn real() -> Engine {
        Engine::variant(None).expect("the engine itself is always compiled")
    }

    /// The engine with a defect of [`crate::mutants::MUTANTS`]; `None` when the defect no longer applies.
    pub fn mutant(name: &str) -> Option<Engine> {
        Engine::variant(Some(name))
    }

    fn variant(mutant: Option<&str>) -> Option<Engine> {
        // SAFETY: the tables are constants of the compiled C code.
        variants::table(mutant).map(|table| Engine { table: unsafe { &*table } })
    }

    /// Runs an operator (`KDB_OP_*`) for the session, with its I/O buffer; returns the operator's status.
    pub fn run(&self, op: u32, session: usize) -> u32 {
        let (ctx, io) = (world::context(session), world::io(session));
        // SAFETY: the pointers are valid as long as the model, and one session runs one operator at a time.
        world::engine_call(|| unsafe { (self.table.run)(op, ctx, io) as u32 })
    }

    /// Runs the collector for up to `budget` entries; returns how many it visited.
    pub fn collect(&self, budget: u32) -> u32 {
        // SAFETY: the model's memory is set up.
        world::engine_call(|| unsafe { (self.table.collect)(budget) as u32 })
    }

    /// Allocates a block for a value of `vlen` bytes; 0 when there is none.
    pub fn alloc(&self, vlen: u32) -> u32 {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.alloc)(vlen) })
    }

    /// Frees a block that was allocated for a value of `vlen` bytes.
    pub fn free(&self, block: u32, vlen: u32) {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.free)(block, vlen) })
    }

    /// Bytes of the block of a value of `vlen` bytes.
    pub fn block_bytes(&self, vlen: u32) -> u32 {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.block_bytes)(vlen) })
    }

    /// Allocates the memory of an index entry of a size class; 0 when there is none.
    pub fn alloc_entry(&self, class: u32) -> u32 {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.alloc_entry)(class) })
    }

    /// The arena offset of an entry's key.
    pub fn entry_key(&self, entry: u32) -> u32 {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.entry_key)(entry) })
    }

    /// Locks the key in the session's I/O buffer for the session's transaction; returns the status.
    pub fn lock(&self, session: usize, exclusive: bool) -> u32 {
        let (ctx, io) = (world::context(session), world::io(session));
        // SAFETY: as in `run`.
        world::engine_call(|| unsafe { (self.table.lock)(ctx, io, 1 + u32::from(exclusive)) as u32 })
    }
}
