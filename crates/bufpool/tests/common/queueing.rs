//! A disk whose write queue a test can stop.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

use bedplate_bufpool::PAGE;
use bedplate_bufpool::storage::{Read, Storage, Write, WriteBatch, WriteQueue};

use super::faulty::Faulty;

/// A disk with a queue, which ends batches on command, the last one first.
#[derive(Clone)]
pub struct Queueing {
    pub disk: Faulty,
    state: Arc<(Mutex<Held>, Condvar)>,
}

#[derive(Default)]
struct Held {
    /// While this is set, no batch ends.
    holds: bool,
    in_flight: usize,
    most_in_flight: usize,
}

impl Queueing {
    pub fn new(disk: Faulty) -> Self {
        Self { disk, state: Arc::default() }
    }

    /// Stops the ends of batches, or lets them continue.
    pub fn hold(&self, holds: bool) {
        self.state.0.lock().unwrap().holds = holds;
        self.state.1.notify_all();
    }

    /// The largest number of batches that were in flight at the same time.
    pub fn most_in_flight(&self) -> usize {
        self.state.0.lock().unwrap().most_in_flight
    }
}

struct HeldQueue {
    disk: Queueing,
    batches: VecDeque<WriteBatch>,
}

impl WriteQueue for HeldQueue {
    fn begin(&mut self, batch: WriteBatch) {
        self.batches.push_back(batch);
        let mut state = self.disk.state.0.lock().unwrap();
        state.in_flight += 1;
        state.most_in_flight = state.most_in_flight.max(state.in_flight);
        self.disk.state.1.notify_all();
    }

    fn ended(&mut self, wait: bool) -> Vec<WriteBatch> {
        let mut state = self.disk.state.0.lock().unwrap();
        if wait {
            state = self.disk.state.1.wait_while(state, |state| state.holds).unwrap();
        }
        if state.holds {
            return Vec::new();
        }
        let Some(mut batch) = self.batches.pop_back() else { return Vec::new() };
        state.in_flight -= 1;
        drop(state);
        for index in 0..batch.count() {
            let images = batch.bytes(index).as_chunks::<PAGE>().0.to_vec();
            let mut write = [Write::new(batch.page(index), &images)];
            self.disk.disk.write(&mut write);
            let [write] = write;
            batch.end(index, write.result);
        }
        vec![batch]
    }
}

impl Storage for Queueing {
    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }

    fn write(&self, writes: &mut [Write<'_>]) {
        self.disk.write(writes);
    }

    fn write_queue(&self, _: usize) -> Option<Box<dyn WriteQueue + '_>> {
        Some(Box::new(HeldQueue { disk: self.clone(), batches: VecDeque::new() }))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn grow(&self, pages: Range<u64>) -> io::Result<()> {
        self.disk.grow(pages)
    }
}
