//! Taking a snapshot.
//!
//! With the latch held, so that no write to a protected page is completed meanwhile: main's tables are replaced by
//! write-protected ones, or write-protected while they are copied; then main's processors forget what they had cached.
//! Writes they make before they have done so are in the snapshot; those they make later wait for the latch. So the
//! snapshot is of one moment, whatever main's threads tell each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bedplate_ring0::shootdown::Batch;
use bedplate_ring0::word::Native;
use bedplate_ring0::{Cpu, InterruptsOff};

use super::frames::unavailable;
use super::protocol::{MOST, Writing};
use super::space::{NO_CPU, Space};
use super::tables::TableSet;
use super::{calls, task};
use crate::engine::Work;
use crate::task::Task;
use crate::{Error, PAGE};

/// Tables for a snapshot.
pub enum Tables {
    /// Both are ready.
    Ready { snapshot: Box<TableSet>, main: Box<TableSet> },
    /// To be copied.
    Empty(Box<TableSet>),
}

/// Takes a snapshot and runs `work` on it.
pub fn spawn(space: &Arc<Space>, work: Work) -> Result<Task, Error> {
    if task::running_on().is_some() {
        return Err(Error::OfASnapshot);
    }
    let slot = space.epochs.take_slot().ok_or(Error::TooManySnapshots { limit: MOST })?;
    let taken = take_tables(space).and_then(|tables| {
        let taken = space.process.run(|cpu| take(space, cpu, slot, tables, drop));
        taken.map_err(unavailable).flatten()
    });
    let (epoch, pause) = match taken {
        Ok((epoch, pause, ())) => (epoch, pause),
        Err(error) => {
            space.epochs.give_slot(slot);
            return Err(error);
        }
    };
    let task = task::start(space, slot, work)?;
    Ok(Task::new(Box::new(task), epoch, pause))
}

/// Tables for the next snapshot. Waits for the frames that ended snapshots leave behind, if there may be too few without
/// them.
pub fn take_tables(space: &Space) -> Result<Tables, Error> {
    let mut pooled = space.table_pool.lock();
    while pooled.is_reclaimed_soon() && space.pool.free() < space.bytes() / PAGE {
        pooled = space.table_pool.wait(pooled);
    }
    if pooled.ready.len() >= 2
        && let (Some(snapshot), Some(main)) = (pooled.ready.pop(), pooled.ready.pop())
    {
        space.table_pool.notify();
        return Ok(Tables::Ready { snapshot, main });
    }
    let some = pooled.ready.pop().or_else(|| pooled.used.pop());
    drop(pooled);
    match some {
        Some(table) => Ok(Tables::Empty(table)),
        None => space.new_table().map(Tables::Empty),
    }
}

/// Takes a snapshot, in ring 0. `then` gets the latch, which keeps writes to protected pages waiting until it is dropped;
/// then signals may be handled again in ring 0.
pub fn take<'s, R>(
    space: &'s Space,
    cpu: Cpu,
    slot: usize,
    tables: Tables,
    then: impl FnOnce(Writing<'s, Native>) -> R,
) -> Result<(u64, Duration, R), Error> {
    let begin = Instant::now();
    // Signals that are handled in ring 0 must not write to the memory while this has the latch.
    // SAFETY: in ring 0, and dropped there.
    let off = unsafe { InterruptsOff::new() };
    let writing = space.latch.write(|| cpu.relax());
    let (snapshot, main) = match tables {
        Tables::Ready { snapshot, main } => (snapshot, Some(main)),
        Tables::Empty(snapshot) => (snapshot, None),
    };
    let copied = main.is_none();
    let mut old_main = None;
    match main {
        Some(main) => old_main = Some(space.replace_main(main)),
        None => {
            let frames = &mut space.pool.frames.cpu(cpu.number());
            let made = snapshot.copy(space.main(), frames, || cpu.relax());
            if made.is_err() {
                // Some of main's pages are write-protected without need, which the next write to them undoes.
                flush_main(space, cpu)?;
                drop((writing, off));
                space.table_pool.lock().used.push(snapshot);
                return Err(Error::System {
                    what: "frames for page tables",
                    source: rustix::io::Errno::NOMEM,
                });
            }
        }
    }
    let here = &space.slots[slot];
    here.cpu.store(NO_CPU, Ordering::Relaxed);
    here.incomplete.store(false, Ordering::Relaxed);
    here.table.store(Box::into_raw(snapshot), Ordering::Release);
    let epoch = space.epochs.begin(slot);
    let flushed = flush_main(space, cpu);
    calls::copy_pages_being_written(space, cpu);
    let result = then(writing);
    drop(off);
    let pause = begin.elapsed();
    flushed?;
    if copied {
        let pages = (space.bytes() / PAGE) as u64;
        space.counters.protected_at_snapshots.fetch_add(pages, Ordering::Relaxed);
    } else {
        space.counters.without_copying.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(old) = old_main {
        space.table_pool.lock().used.push(old);
        space.table_pool.notify();
    }
    Ok((epoch, pause, result))
}

/// Main's processors use no entry any more that has lost the right to write.
fn flush_main(space: &Space, cpu: Cpu) -> Result<(), Error> {
    cpu.shoot_down(&space.processors_of_main(), &Batch::full()).map_err(unavailable)
}
