//! A task on a snapshot: a thread in ring 0 that uses the snapshot's tables.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;

use bedplate_ring0::{Cpu, InterruptsOff};

use super::frames::unavailable;
use super::registry;
use super::space::{NO_CPU, Space};
use crate::engine::Work;
use crate::task::Completion;
use crate::{Error, View};

thread_local! {
    /// The number of the memory on whose snapshot this thread runs a task.
    static ON_SNAPSHOT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of the memory on whose snapshot this thread runs a task. Signal handlers may call this.
pub fn running_on() -> Option<usize> {
    ON_SNAPSHOT.try_with(Cell::get).unwrap_or_default()
}

/// A thread with a task.
pub struct Running {
    thread: JoinHandle<Result<Vec<u8>, Error>>,
    incomplete: Arc<AtomicBool>,
}

/// Starts the task of the snapshot in this slot, which was just taken.
pub fn start(space: &Arc<Space>, slot: usize, work: Work) -> Result<Running, Error> {
    let incomplete = Arc::new(AtomicBool::new(false));
    let (its_space, its_incomplete) = (space.clone(), incomplete.clone());
    let run = move || run(&its_space, slot, work, &its_incomplete);
    match std::thread::Builder::new().name("bedplate-snapshot".into()).spawn(run) {
        Ok(thread) => Ok(Running { thread, incomplete }),
        Err(error) => {
            end(space, slot);
            Err(Error::thread(error))
        }
    }
}

fn run(space: &Arc<Space>, slot: usize, work: Work, incomplete: &AtomicBool) -> Result<Vec<u8>, Error> {
    ON_SNAPSHOT.set(Some(space.number()));
    let done = space.process.run(|cpu| {
        let here = &space.slots[slot];
        registry::set_snapshot(cpu.number(), Some((space.number(), slot)));
        here.cpu.store(cpu.number(), Ordering::SeqCst);
        // A handler that has changed an entry either saw this processor, or changed the entry before this
        // processor uses it.
        fence(Ordering::SeqCst);
        let root = space.snapshot(slot).map_or(0, super::tables::TableSet::root);
        // SAFETY: the tables share everything but the memory with the process's, and exist until this
        // processor has left them.
        let result = unsafe { cpu.set_root(root) }.map_err(unavailable).and_then(|()| {
            // SAFETY: the memory as this processor sees it does not change until `end`.
            let view =
                unsafe { View::new(space.base() as *const u8, space.bytes(), space.base() as *const u8) };
            catch_unwind(AssertUnwindSafe(|| work(&view))).map_err(|_| Error::Task("it panicked".into()))
        });
        // The task may have lost ring 0.
        let cpu = space.process.enter().map_err(unavailable)?;
        // SAFETY: the process's own tables.
        unsafe { cpu.set_root(space.process.root()) }.map_err(unavailable)?;
        registry::set_snapshot(cpu.number(), None);
        incomplete.store(here.incomplete.load(Ordering::Acquire), Ordering::Release);
        end(space, slot);
        result
    });
    ON_SNAPSHOT.set(None);
    match done {
        Ok(result) => result,
        Err(error) => {
            // The thread could not enter ring 0, so no processor has used the tables.
            end(space, slot);
            Err(unavailable(error))
        }
    }
}

/// Ends a snapshot. No processor may use its tables any more.
pub fn end(space: &Space, slot: usize) {
    let here = &space.slots[slot];
    let table = {
        // SAFETY: in ring 0, and dropped there.
        let _off = Cpu::current().map(|_| unsafe { InterruptsOff::new() });
        let _writing = space.latch.write(|| match Cpu::current() {
            Some(cpu) => cpu.relax(),
            None => std::thread::yield_now(),
        });
        space.epochs.end(slot);
        here.cpu.store(NO_CPU, Ordering::Relaxed);
        here.table.swap(std::ptr::null_mut(), Ordering::AcqRel)
    };
    space.epochs.give_slot(slot);
    space.counters.ended.fetch_add(1, Ordering::Relaxed);
    let mut pooled = space.table_pool.lock();
    if !table.is_null() {
        // SAFETY: the pointer was made of a box when the snapshot was taken, and no other code knows it any
        // more.
        pooled.used.push(unsafe { Box::from_raw(table) });
    }
    pooled.ended = true;
    pooled.short = false;
    drop(pooled);
    space.table_pool.notify();
}

impl Completion for Running {
    fn join(self: Box<Self>) -> Result<Vec<u8>, Error> {
        let result = self.thread.join().map_err(|_| Error::Task("its thread panicked".into()))?;
        if self.incomplete.load(Ordering::Acquire) { Err(Error::Incomplete) } else { result }
    }

    fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}
