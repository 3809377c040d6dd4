//! Taking a snapshot.
//!
//! The latch is held, so no write to a protected page completes meanwhile. Main's tables are replaced by
//! write-protected ones, or are write-protected while they are copied. Then main's processors flush their cached
//! translations. Writes before a processor's flush are in the snapshot; later writes wait for the latch. The
//! snapshot is therefore of one moment, even if main's threads communicate meanwhile.

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

/// The tables for a snapshot.
pub enum Tables {
    /// Two prepared sets: one for the snapshot and one for main.
    Ready { snapshot: Box<TableSet>, main: Box<TableSet> },
    /// One set, to which main's tables must be copied.
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

/// Takes tables for the next snapshot. If there may be too few frames, waits for the frames of ended snapshots.
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

/// Takes a snapshot, in ring 0. `then` gets the latch. Writes to protected pages wait until the latch is dropped;
/// afterwards signals may be handled in ring 0 again.
pub fn take<'s, R>(
    space: &'s Space,
    cpu: Cpu,
    slot: usize,
    tables: Tables,
    then: impl FnOnce(Writing<'s, Native>) -> R,
) -> Result<(u64, Duration, R), Error> {
    let begin = Instant::now();
    // Signals that are handled in ring 0 must not write to the memory while this code holds the latch.
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
                // Some of main's pages are write-protected without need. The next write to each of them undoes
                // this.
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

/// Makes main's processors drop all translations that may still allow writes.
fn flush_main(space: &Space, cpu: Cpu) -> Result<(), Error> {
    cpu.shoot_down(&space.processors_of_main(), &Batch::full()).map_err(unavailable)
}
