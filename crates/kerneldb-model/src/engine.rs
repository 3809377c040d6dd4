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
    reap: unsafe extern "C-unwind" fn(*mut kdb_ctx) -> i32,
    alloc: unsafe extern "C-unwind" fn(u32) -> u32,
    free: unsafe extern "C-unwind" fn(u32),
    kind_bytes: unsafe extern "C-unwind" fn(u32) -> u32,
    kind_of: unsafe extern "C-unwind" fn(u32) -> u32,
    block_of: unsafe extern "C-unwind" fn(u32, u32) -> u32,
    evacuate: unsafe extern "C-unwind" fn(u32),
    drain: unsafe extern "C-unwind" fn(),
    tick: unsafe extern "C-unwind" fn(),
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
    /// The unchanged engine.
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

    /// Rolls back the transaction that the session has now, as if it had exceeded a limit; returns the status.
    pub fn reap(&self, session: usize) -> u32 {
        let ctx = world::context(session);
        // SAFETY: the pointer is valid as long as the model.
        world::engine_call(|| unsafe { (self.table.reap)(ctx) as u32 })
    }

    /// Allocates a block of at least `bytes` bytes; 0 when there is none.
    pub fn alloc(&self, bytes: u32) -> u32 {
        // SAFETY: the model's memory is set up.
        world::engine_call(|| unsafe { (self.table.alloc)(bytes) })
    }

    /// Frees a block that was allocated.
    pub fn free(&self, block: u32) {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.free)(block) })
    }

    /// Bytes of a block, or of an entry, of a kind.
    pub fn kind_bytes(&self, kind: u32) -> u32 {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.kind_bytes)(kind) })
    }

    /// The kind of a block of at least `bytes` bytes.
    pub fn kind_of(&self, bytes: u32) -> u32 {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.kind_of)(bytes) })
    }

    /// Offset of the block whose value is at `block` and has the length word `len`.
    pub fn block_of(&self, block: u32, len: u32) -> u32 {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.block_of)(block, len) })
    }

    /// Moves values and arrays of versions out of a slab of blocks.
    pub fn evacuate(&self, slab: u32) {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.evacuate)(slab) })
    }

    /// Lets the log's reader take all commits.
    pub fn drain(&self) {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.drain)() })
    }

    /// Advances the coarse clock.
    pub fn tick(&self) {
        // SAFETY: as above.
        world::engine_call(|| unsafe { (self.table.tick)() })
    }

    /// Locks the key in the session's I/O buffer for the session's transaction; returns the status.
    pub fn lock(&self, session: usize, exclusive: bool) -> u32 {
        let (ctx, io) = (world::context(session), world::io(session));
        // SAFETY: as in `run`.
        world::engine_call(|| unsafe { (self.table.lock)(ctx, io, 1 + u32::from(exclusive)) as u32 })
    }
}
