//! The processors of the model, its tasks, and the rules by which each may run.
//!
//! All tasks of an execution run on one thread of the test process, one at a time, so the state here needs no
//! lock. It is never borrowed while another task can run.

use std::cell::{Cell, RefCell};

use shuttle::{current, thread};

use crate::layout::{kdb_arena, kdb_config, kdb_ctx, kdb_io, kdb_state};
use crate::limits::CPUS;
use crate::memory::Memory;
use crate::random;
use crate::store_buffer::StoreBuffer;

/// The time at which a store becomes visible to other processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// At once: sequential consistency.
    Sequential,
    /// As late as possible: with the processor's next locked instruction, when its buffer is full, or when others
    /// wait. For exhaustive search, which allows no random choices.
    Latest,
    /// After a random time.
    Random,
}

/// The configuration of a model.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Processors, at most [`CPUS`].
    pub cpus: u32,
    /// Versions of a key, as the database's option.
    pub versions: u32,
    /// Whether writes are logged.
    pub wal: bool,
    /// Words of the hash index, a power of two.
    pub buckets: u32,
    /// Slabs of memory.
    pub slabs: u32,
    /// The store buffers.
    pub stores: Stores,
    /// Whether the reaper may run; if so, all accesses to contexts are interleaved.
    pub reaper: bool,
    /// Whether a snapshot gives way to writers as soon as the coarse clock has advanced.
    pub revoke: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            cpus: 2,
            versions: 4,
            wal: false,
            buckets: 1,
            slabs: 8,
            stores: Stores::Sequential,
            reaper: false,
            revoke: false,
        }
    }
}

/// The kind of a task on its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A thread, which other threads of its processor preempt.
    Thread,
    /// An interrupt: begins while its processor has interrupts on, and runs to its end.
    Interrupt,
}

#[derive(Clone, Copy)]
struct Task {
    cpu: usize,
}

#[derive(Default)]
struct Cpu {
    /// The task that has turned interrupts off, and the number of times.
    irqs_off: Option<(usize, u32)>,
    /// The interrupt that runs.
    interrupt: Option<usize>,
    buffer: StoreBuffer,
}

struct World {
    memory: Memory,
    cpus: [Cpu; CPUS],
    tasks: Vec<Option<Task>>,
    /// The task that runs in the engine.
    current: Option<usize>,
    stores: Stores,
    /// Stores::Random: one of this many steps drains a buffer.
    drain_one_in: u64,
    events: u64,
    steps: u64,
}

thread_local! {
    /// Whether only one task is left; its accesses are then not scheduled.
    static SETTLED: Cell<bool> = const { Cell::new(false) };
    static WORLD: RefCell<World> = RefCell::new(World {
        memory: Memory::new(),
        cpus: Default::default(),
        tasks: Vec::new(),
        current: None,
        stores: Stores::Sequential,
        drain_one_in: 1,
        events: 0,
        steps: 0,
    });
}

fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with(|world| f(&mut world.borrow_mut()))
}

fn me() -> usize {
    usize::from(current::me())
}

impl World {
    fn task(&self, id: usize) -> Option<Task> {
        self.tasks.get(id).copied().flatten()
    }

    fn register(&mut self, id: usize, task: Task) {
        if self.tasks.len() <= id {
            self.tasks.resize(id + 1, None);
        }
        self.tasks[id] = Some(task);
    }

    /// Drains full buffers, and others at random.
    fn drain_some(&mut self, cpus: usize) {
        for cpu in 0..cpus {
            let buffer = &mut self.cpus[cpu].buffer;
            if buffer.is_full() {
                buffer.drain(1);
            }
            if self.stores != Stores::Random || buffer.is_empty() {
                continue;
            }
            if random::below(self.drain_one_in) == 0 {
                buffer.drain(1 + random::below(3) as usize);
            }
        }
    }
}

/// Starts an execution: memory as after a start of the database. The calling task is a thread of processor 0.
pub fn start(setup: &Setup) {
    let drain_one_in = match setup.stores {
        Stores::Random => [1, 4, 32][random::below(3) as usize],
        _ => 1,
    };
    let id = me();
    SETTLED.set(false);
    with(|world| {
        world.memory.reset(setup);
        for cpu in &mut world.cpus {
            cpu.irqs_off = None;
            cpu.interrupt = None;
            cpu.buffer.reset();
        }
        world.tasks.clear();
        world.register(id, Task { cpu: 0 });
        world.current = None;
        world.stores = setup.stores;
        world.drain_one_in = drain_one_in;
        world.events = 0;
        world.steps = 0;
    });
}

/// Starts a task on a processor.
pub fn spawn(cpu: usize, kind: Kind, f: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let id = me();
        with(|world| world.register(id, Task { cpu }));
        // From here on the scheduler knows the kind of this task.
        switch();
        if kind == Kind::Interrupt {
            with(|world| world.cpus[cpu].interrupt = Some(id));
        }
        f();
        with(|world| {
            if kind == Kind::Interrupt {
                world.cpus[cpu].interrupt = None;
            }
            world.tasks[id] = None;
        });
    })
}

/// Whether a task may run now.
pub(crate) fn may_run(id: usize) -> bool {
    with(|world| {
        let Some(task) = world.task(id) else { return true };
        let cpu = &world.cpus[task.cpu];
        match (cpu.interrupt, cpu.irqs_off) {
            (Some(interrupt), _) => interrupt == id,
            (None, Some((owner, _))) => owner == id,
            (None, None) => true,
        }
    })
}

/// Commit and snapshot timestamp of a session that the current task owns, as its processor sees them.
pub fn own_context(session: usize) -> (u64, u64) {
    let context = context(session);
    // SAFETY: the session runs no operator.
    engine_call(|| unsafe { ((*context).commit_ts, (*context).snapshot_ts) })
}

/// Called when all tasks but the current one have ended. All stores are visible from here on, and the scheduler
/// is not asked any more.
pub fn settle() {
    SETTLED.set(true);
    with(|world| {
        for cpu in &mut world.cpus {
            cpu.buffer.take_back();
            cpu.buffer.drain_all();
        }
    });
}

/// A number that grows with every call: the order of events in an execution.
pub fn event() -> u64 {
    with(|world| {
        world.events += 1;
        world.events
    })
}

/// Accesses to shared memory since the start of the execution.
pub fn steps() -> u64 {
    with(|world| world.steps)
}

/// Calls the engine in the current task.
pub(crate) fn engine_call<R>(f: impl FnOnce() -> R) -> R {
    let id = me();
    with(|world| {
        let task = world.task(id).expect("only tasks of the model call the engine");
        world.current = Some(id);
        world.cpus[task.cpu].buffer.apply();
    });
    let result = f();
    with(|world| {
        let cpu = &mut world.cpus[world.task(id).expect("the task goes on").cpu];
        cpu.buffer.stored();
        cpu.buffer.take_back();
        assert!(cpu.irqs_off.is_none(), "an operator returned with interrupts off");
        world.current = None;
    });
    result
}

fn switch() {
    thread::sleep(std::time::Duration::ZERO);
}

/// Lets another task run, if the scheduler wants it. Called in the engine.
fn schedule(waiting: bool) {
    let Some((id, cpu)) = with(|world| {
        let id = world.current?;
        let cpu = world.task(id)?.cpu;
        world.steps += 1;
        world.cpus[cpu].buffer.stored();
        world.cpus[cpu].buffer.take_back();
        let cpus = world.cpus.len();
        if waiting {
            for cpu in &mut world.cpus {
                cpu.buffer.drain_all();
            }
        } else {
            world.drain_some(cpus);
        }
        Some((id, cpu))
    }) else {
        return;
    };
    if waiting {
        thread::yield_now();
    } else {
        switch();
    }
    with(|world| {
        world.current = Some(id);
        world.cpus[cpu].buffer.apply();
    });
}

/// Called before a plain access.
pub(crate) fn access(address: u64, bytes: u32, store: bool) {
    if SETTLED.get() {
        return;
    }
    let shared = with(|world| {
        if let Some(task) = world.current.and_then(|id| world.task(id)) {
            world.cpus[task.cpu].buffer.stored();
        }
        world.memory.is_shared(address)
    });
    if !shared {
        return;
    }
    schedule(false);
    with(|world| {
        let Some(task) = world.current.and_then(|id| world.task(id)) else { return };
        if store && world.stores != Stores::Sequential {
            world.cpus[task.cpu].buffer.about_to_store(address, bytes);
        }
    });
}

/// Called before a locked instruction: waits until the processor's stores are visible.
pub(crate) fn locked_access(address: u64) {
    access(address, 0, false);
    if SETTLED.get() {
        return;
    }
    with(|world| {
        if let Some(task) = world.current.and_then(|id| world.task(id)) {
            world.cpus[task.cpu].buffer.drain_all();
        }
    });
}

/// Called when the engine waits for another processor.
pub(crate) fn retry() {
    if SETTLED.get() {
        return;
    }
    schedule(true);
}

pub(crate) fn irq_save() {
    with(|world| {
        let Some(id) = world.current else { return };
        let Some(task) = world.task(id) else { return };
        let off = &mut world.cpus[task.cpu].irqs_off;
        let depth = match *off {
            None => 0,
            Some((owner, depth)) => {
                assert_eq!(owner, id, "two tasks of a processor have interrupts off");
                depth
            }
        };
        *off = Some((id, depth + 1));
    });
}

pub(crate) fn irq_restore() {
    with(|world| {
        let Some(id) = world.current else { return };
        let Some(task) = world.task(id) else { return };
        let off = &mut world.cpus[task.cpu].irqs_off;
        let (_, depth) = off.expect("interrupts are restored that were not saved");
        *off = (depth > 1).then_some((id, depth - 1));
    });
}

/// The processor of the current task.
pub(crate) fn cpu() -> usize {
    with(|world| world.current.and_then(|id| world.task(id)).map_or(0, |task| task.cpu))
}

pub(crate) fn arena_address() -> u64 {
    with(|world| world.memory.arena)
}

pub(crate) fn config() -> *const kdb_config {
    with(|world| &raw const *world.memory.config)
}

/// The database's state.
pub fn state() -> *mut kdb_state {
    with(|world| world.memory.state)
}

/// A session's context.
pub fn context(session: usize) -> *mut kdb_ctx {
    assert!(session < crate::limits::SESSIONS);
    // SAFETY: within the array.
    with(|world| unsafe { world.memory.contexts.add(session) })
}

/// A session's I/O buffer.
pub fn io(session: usize) -> *mut kdb_io {
    assert!(session < crate::limits::SESSIONS);
    // SAFETY: within the array.
    with(|world| unsafe { world.memory.ios.add(session) })
}

/// The arena's superblock.
pub fn superblock() -> *mut kdb_arena {
    with(|world| (world.memory.arena + u64::from(crate::layout::KDB_SUPER_OFF)) as *mut kdb_arena)
}

/// The address of an arena offset.
pub fn at<T>(offset: u64) -> *mut T {
    with(|world| (world.memory.arena + offset) as *mut T)
}

pub(crate) fn geometry() -> crate::memory::Geometry {
    with(|world| world.memory.geometry)
}

pub(crate) fn configuration() -> kdb_config {
    with(|world| *world.memory.config)
}
