//! The protocol itself: places, generations, acknowledgements.
//!
//! Owns one [`Cpu`] record per vCPU. Who writes what:
//! * `place`: the vCPU itself (its guest part, or the thread that runs it while it is in a host call);
//! * `generation` and `ring`: initiators;
//! * `acknowledged`: the vCPU itself, upwards only: a handler may have interrupted the same work.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::word::{Atomic, Atomics};

use super::entry::{RING, decode, encode, encode_full};
use super::set::MOST_CPUS;
use super::{Batch, CpuSet};

/// What the protocol needs from the processor and the virtual machine.
///
/// All of it is called on the vCPU that calls the protocol, possibly in a handler.
pub trait Platform {
    /// Interrupts a vCPU such that it calls [`Protocol::serve`]. When this returns, the interrupt is recorded with the
    /// target: it is taken before the target's next instruction in the guest with interrupts on. (KVM does so
    /// whether the target runs, is halted, or is in its host part.) A target that runs with interrupts off calls
    /// `serve` after every host call it makes.
    fn interrupt(&self, target: usize);
    /// Has a vCPU drop all that it has cached before its next instruction, without an interrupt, if its thread does not run
    /// now. Says whether it will. It need not know.
    fn flush_when_resumed(&self, _target: usize) -> bool {
        false
    }
    /// Drops what this vCPU has cached of a page.
    fn flush_page(&self, address: u64);
    /// Drops all that this vCPU has cached, global translations too.
    fn flush_all(&self);
}

/// Where a vCPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Place {
    /// Not in the guest. It flushes everything when it comes in.
    Absent = 0,
    /// In the guest, with its host part at work: a host call, a signal, an exit of any kind that user space sees.
    Host = 1,
    /// In the guest: computing, or halted.
    Guest = 2,
}

/// What was done for, and by, all vCPUs together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShootdownStatistics {
    /// Calls of `shoot` that had something to do.
    pub shootdowns: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Targets that were not waited for, because their host part was at work.
    pub not_waited_for: u64,
    /// Targets that were not waited for, because their threads did not run.
    pub descheduled: u64,
    /// Pages flushed on request.
    pub pages: u64,
    /// Full flushes on request.
    pub full_flushes: u64,
}

/// One vCPU, as a target and as an initiator.
#[repr(align(128))]
struct Cpu<A: Atomics> {
    place: A::U32,
    generation: A::U64,
    acknowledged: A::U64,
    ring: [A::U64; RING as usize],
    // Statistics, added to by this vCPU only.
    shootdowns: A::U64,
    interrupts: A::U64,
    not_waited_for: A::U64,
    descheduled: A::U64,
    pages: A::U64,
    full_flushes: A::U64,
}

impl<A: Atomics> Cpu<A> {
    fn new() -> Self {
        let zero = || A::U64::new(0);
        Cpu {
            place: A::U32::new(Place::Absent as u32),
            generation: zero(),
            acknowledged: zero(),
            ring: std::array::from_fn(|_| zero()),
            shootdowns: zero(),
            interrupts: zero(),
            not_waited_for: zero(),
            descheduled: zero(),
            pages: zero(),
            full_flushes: zero(),
        }
    }

    fn entry(&self, generation: u64) -> &A::U64 {
        &self.ring[(generation % RING) as usize]
    }
}

/// Shootdowns between the vCPUs of one virtual machine; see the module.
pub struct Protocol<A: Atomics> {
    cpus: Box<[Cpu<A>]>,
}

impl<A: Atomics> Protocol<A> {
    /// For the vCPUs 0 up to `cpus`, at most [`MOST_CPUS`]; all absent.
    pub fn new(cpus: usize) -> Self {
        Protocol { cpus: (0..cpus.min(MOST_CPUS)).map(|_| Cpu::new()).collect() }
    }

    /// How many vCPUs there are.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Where a vCPU is; with the generations, for whoever debugs a hang.
    pub fn place(&self, cpu: usize) -> Place {
        match self.cpus.get(cpu).map_or(0, |cpu| cpu.place.load(Relaxed)) {
            1 => Place::Host,
            2 => Place::Guest,
            _ => Place::Absent,
        }
    }

    /// A vCPU comes into the guest: the first thing it does there, before it touches memory whose translations are
    /// shot down.
    pub fn come_in(&self, cpu: usize, platform: &impl Platform) {
        let Some(me) = self.cpus.get(cpu) else { return };
        me.place.store(Place::Guest as u32, Relaxed);
        A::fence();
        // Initiators that saw it absent have changed their entries before; those that did not are served later.
        let asked = me.generation.load(Acquire);
        platform.flush_all();
        me.acknowledged.fetch_max(asked, Release);
    }

    /// A vCPU leaves the guest, or its thread ends: the last thing it does there, after it has touched such memory.
    /// It may also be called for it by the host part, when the guest part will not go on.
    pub fn go_out(&self, cpu: usize) {
        if let Some(me) = self.cpus.get(cpu) {
            me.place.store(Place::Absent as u32, Release);
        }
    }

    /// The host part of a vCPU begins to work: right after the guest was left for it.
    #[inline]
    pub fn host_begins(&self, cpu: usize) {
        if let Some(me) = self.cpus.get(cpu) {
            me.place.store(Place::Host as u32, Release);
        }
    }

    /// The host part of a vCPU is done: right before the guest is entered again. Says whether requests are waiting: then
    /// the host part interrupts its vCPU, because initiators do not interrupt one whose host part is at work.
    #[inline]
    #[must_use]
    pub fn host_ends(&self, cpu: usize) -> bool {
        let Some(me) = self.cpus.get(cpu) else { return false };
        me.place.store(Place::Guest as u32, Relaxed);
        A::fence();
        me.generation.load(Relaxed) != me.acknowledged.load(Relaxed)
    }

    /// Does what others have asked of this vCPU: in the handler of the interrupt, and in every loop that waits for
    /// another vCPU with interrupts off. Says whether there was something to do.
    #[inline]
    pub fn serve(&self, cpu: usize, platform: &impl Platform) -> bool {
        let Some(me) = self.cpus.get(cpu) else { return false };
        let mut done = me.acknowledged.load(Relaxed);
        let asked = me.generation.load(Acquire);
        if done == asked {
            return false;
        }
        let mut full = asked.wrapping_sub(done) > RING;
        while !full && done != asked {
            match decode(me.entry(done).load(Acquire), done) {
                Some(pages) => {
                    pages.addresses().for_each(|address| platform.flush_page(address));
                    count(&me.pages, u64::from(pages.count));
                }
                None => full = true,
            }
            done = done.wrapping_add(1);
        }
        if full {
            platform.flush_all();
            count(&me.full_flushes, 1);
        }
        me.acknowledged.fetch_max(asked, Release);
        true
    }

    /// Has `targets` flush a batch, and this vCPU, `me`, too. Returns when no other of them can use what it has cached
    /// of those pages any more, and serves requests to `me` meanwhile.
    ///
    /// The entries are changed before. Interrupts may be on or off; nothing may be held that a target could be waiting
    /// for without serving requests.
    pub fn shoot(&self, me: usize, targets: &CpuSet, batch: &Batch, platform: &impl Platform) {
        if batch.is_empty() {
            return;
        }
        let (mut asked, mut descheduled) = (CpuSet::new(), 0);
        // The changed entries come before the places: a target that is seen absent has yet to flush.
        A::fence();
        for target in targets.iter().filter(|target| *target != me) {
            let Some(cpu) = self.cpus.get(target) else { continue };
            let place = cpu.place.load(Relaxed);
            if place == Place::Absent as u32 {
                continue;
            }
            // A target in its host part does not run in the guest, either. The ring has it flush less.
            if place == Place::Guest as u32 && platform.flush_when_resumed(target) {
                descheduled += 1;
                continue;
            }
            Self::ask(cpu, batch);
            asked.insert(target);
        }
        // The requests come before another look at the places: a host part that is seen at work here sees the request
        // when it is done, and interrupts its vCPU itself.
        A::fence();
        let mut interrupts = 0;
        for target in asked.iter() {
            if self.cpus[target].place.load(Relaxed) != Place::Host as u32 {
                platform.interrupt(target);
                interrupts += 1;
            }
        }
        if targets.contains(me) {
            Self::flush(batch, platform);
        }
        // The requests, and the interrupts, come before the second look at the places.
        A::fence();
        let mut not_waited_for = 0;
        for target in asked.iter() {
            match self.wait(me, target, platform) {
                Waited::Acknowledged => {}
                Waited::AtHost => not_waited_for += 1,
                Waited::Descheduled => descheduled += 1,
            }
        }
        if let Some(me) = self.cpus.get(me) {
            count(&me.shootdowns, 1);
            count(&me.interrupts, interrupts);
            count(&me.not_waited_for, not_waited_for);
            count(&me.descheduled, descheduled);
        }
    }

    /// Puts a batch into a target's ring.
    fn ask(cpu: &Cpu<A>, batch: &Batch) {
        if batch.is_full() {
            let generation = cpu.generation.fetch_add(1, AcqRel);
            cpu.entry(generation).store(encode_full(), Release);
            return;
        }
        let ranges = batch.ranges();
        let first = cpu.generation.fetch_add(ranges.len() as u64, AcqRel);
        for (number, pages) in (0..).zip(ranges) {
            let generation = first.wrapping_add(number);
            cpu.entry(generation).store(encode(*pages, generation), Release);
        }
    }

    /// Waits until a target has acknowledged what it has been asked up to now, or need not be waited for.
    fn wait(&self, me: usize, target: usize, platform: &impl Platform) -> Waited {
        let Some(cpu) = self.cpus.get(target) else { return Waited::Acknowledged };
        let asked = cpu.generation.load(Relaxed);
        loop {
            if cpu.acknowledged.load(Acquire) >= asked {
                return Waited::Acknowledged;
            }
            if cpu.place.load(Acquire) != Place::Guest as u32 {
                return Waited::AtHost;
            }
            // The target's thread may lose its CPU with interrupts off, or before it has taken the interrupt.
            if platform.flush_when_resumed(target) {
                return Waited::Descheduled;
            }
            if !self.serve(me, platform) {
                A::relax();
            }
        }
    }

    /// Flushes a batch on this vCPU.
    pub fn flush(batch: &Batch, platform: &impl Platform) {
        if batch.is_full() {
            platform.flush_all();
        }
        for pages in batch.ranges() {
            pages.addresses().for_each(|address| platform.flush_page(address));
        }
    }

    /// What has been done so far.
    pub fn statistics(&self) -> ShootdownStatistics {
        let sum = |field: fn(&Cpu<A>) -> &A::U64| self.cpus.iter().map(|cpu| field(cpu).load(Relaxed)).sum();
        ShootdownStatistics {
            shootdowns: sum(|cpu| &cpu.shootdowns),
            interrupts: sum(|cpu| &cpu.interrupts),
            not_waited_for: sum(|cpu| &cpu.not_waited_for),
            descheduled: sum(|cpu| &cpu.descheduled),
            pages: sum(|cpu| &cpu.pages),
            full_flushes: sum(|cpu| &cpu.full_flushes),
        }
    }

    /// Address and length of the memory that handlers touch, besides this value itself.
    pub fn span(&self) -> (usize, usize) {
        (self.cpus.as_ptr() as usize, size_of_val(&*self.cpus))
    }
}

impl<A: Atomics> std::fmt::Debug for Protocol<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpus = self.cpus.iter().enumerate().map(|(number, cpu)| {
            (self.place(number), cpu.generation.load(Relaxed), cpu.acknowledged.load(Relaxed))
        });
        f.debug_list().entries(cpus).finish()
    }
}

/// How waiting for a target has ended.
enum Waited {
    Acknowledged,
    /// Its host part is at work, or it has left.
    AtHost,
    /// Its thread does not run, and it will flush before its next instruction.
    Descheduled,
}

/// Adds to a counter that only this vCPU adds to. (A handler that interrupts the addition may be forgotten.)
#[inline]
fn count<W: Atomic<u64>>(counter: &W, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}
