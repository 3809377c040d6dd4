//! The background threads. They prepare tables ahead of snapshots (section 4.2), and give back pages that no
//! snapshot needs any more (section 4.1). They stay in ring 3, because neither task needs page tables of ring 0.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use super::protocol::Waiting;
use super::space::Space;
use super::tables::PooledTables;
use crate::{Error, PAGE};

/// The background threads of a memory.
#[derive(Debug)]
pub struct Background {
    space: Arc<Space>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Starts one thread that reclaims pages, and `copiers` threads that copy tables. No copiers are started if
    /// nothing is to be copied ahead.
    pub fn start(space: &Arc<Space>, copiers: usize) -> Result<Self, Error> {
        let mut background = Self { space: space.clone(), threads: Vec::new() };
        background.add("bedplate-reclaim", reclaim)?;
        let copiers = if space.ahead == 0 { 0 } else { copiers.max(1) };
        for _ in 0..copiers {
            background.add("bedplate-copy", copy)?;
        }
        Ok(background)
    }

    fn add(&mut self, name: &str, work: fn(&Space)) -> Result<(), Error> {
        let space = self.space.clone();
        let thread =
            bedplate_threads::spawn(std::thread::Builder::new().name(name.into()), move || work(&space));
        self.threads.push(thread.map_err(Error::thread)?);
        Ok(())
    }

    /// Waits until the threads have nothing to do.
    pub fn settle(&self) {
        let space = &self.space;
        let mut pooled = space.table_pool.lock();
        while pooled.is_reclaimed_soon()
            || pooled.copying > 0
            || (wants(space, pooled.ready.len()) && !pooled.short)
        {
            pooled = space.table_pool.wait(pooled);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.space.table_pool.lock().closing = true;
        self.space.table_pool.notify();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether more tables should be prepared. Each snapshot takes two.
fn wants(space: &Space, ready: usize) -> bool {
    ready < 2 * space.ahead
}

fn reclaim(space: &Space) {
    let mut waiting = Waiting::default();
    let mut pooled = space.table_pool.lock();
    while !pooled.closing {
        if !pooled.ended {
            pooled = space.table_pool.wait(pooled);
            continue;
        }
        pooled.ended = false;
        pooled.looking = true;
        drop(pooled);
        let first = space.pool.frames.first();
        space.limbo.reclaim(&mut waiting, &space.epochs, |number| {
            // A frame of this pool that is handed out is never refused.
            let _ = space.pool.frames.give(0, first.offset(u64::from(number)));
        });
        pooled = space.table_pool.lock();
        pooled.looking = false;
        pooled.waiting = waiting.pages();
        trim(space, &mut pooled);
        space.table_pool.notify();
    }
}

/// Frees surplus tables after a burst of snapshots.
fn trim(space: &Space, pooled: &mut PooledTables) {
    let missing = (2 * space.ahead).saturating_sub(pooled.ready.len() + pooled.copying);
    // Without tables made ahead, one old table is kept for the next snapshot's copy.
    let most = if space.ahead == 0 { 1 } else { missing };
    while pooled.used.len() > most
        && let Some(table) = pooled.used.pop()
    {
        // SAFETY: the table was in the pool, so no processor uses it.
        unsafe { table.free(space.all(), &mut space.pool.frames.cpu(0)) };
    }
}

fn copy(space: &Space) {
    let mut pooled = space.table_pool.lock();
    while !pooled.closing {
        if !wants(space, pooled.ready.len() + pooled.copying) || pooled.short {
            pooled = space.table_pool.wait(pooled);
            continue;
        }
        pooled.copying += 1;
        let used = pooled.used.pop();
        drop(pooled);
        let made = used.map_or_else(|| space.new_table(), Ok);
        if let Ok(table) = &made {
            table.protect(|page| space.home.frame(page));
        }
        pooled = space.table_pool.lock();
        pooled.copying -= 1;
        match made {
            Ok(table) => {
                let pages = (space.bytes() / PAGE) as u64;
                space.counters.protected_ahead.fetch_add(pages, Ordering::Relaxed);
                pooled.ready.push(table);
            }
            Err(_) => pooled.short = true,
        }
        space.table_pool.notify();
    }
}
