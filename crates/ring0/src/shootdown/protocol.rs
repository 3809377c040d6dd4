//! The protocol itself: places, generations and acknowledgements.
//!
//! It owns one [`Cpu`] record per vCPU. Each field has its writers:
//! * `place`: the vCPU itself, in its guest part or in the thread that runs it during a host call;
//! * `generation` and `ring`: initiators;
//! * `acknowledged`: the vCPU itself. The value only grows, because a handler may have interrupted the code that
//!   sets it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::word::{Atomic, Atomics};

use super::entry::{RING, decode, encode, encode_full};
use super::set::MOST_CPUS;
use super::{Batch, CpuSet};

/// The operations of the processor and the virtual machine that the protocol needs.
///
/// All are called on the vCPU that calls the protocol, possibly in a handler.
pub trait Platform {
    /// Interrupts a vCPU so that it calls [`Protocol::serve`]. When this returns, the interrupt is recorded with
    /// the target. The target takes it before its next instruction in the guest with interrupts on. KVM guarantees
    /// this whether the target runs, is halted, or is in its host part. A target that runs with interrupts off must
    /// call `serve` after every host call it makes.
    fn interrupt(&self, target: usize);
    /// Makes a vCPU drop all cached translations before its next instruction, without an interrupt, if its thread
    /// does not run now. Returns whether it will. The default implementation never does.
    fn flush_when_resumed(&self, _target: usize) -> bool {
        false
    }
    /// Drops this vCPU's cached translation of a page.
    fn flush_page(&self, address: u64);
    /// Drops all cached translations of this vCPU, including global ones.
    fn flush_all(&self);
}

/// The place of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Place {
    /// The vCPU is not in the guest. It flushes everything when it comes in.
    Absent = 0,
    /// The vCPU is in the guest, and its host part is at work: a host call, a signal, or any other exit to user space.
    Host = 1,
    /// The vCPU is in the guest, and computes or is halted.
    Guest = 2,
}

/// Statistics of shootdowns, summed over all vCPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShootdownStatistics {
    /// Calls of `shoot` with a batch that was not empty.
    pub shootdowns: u64,
    /// Interrupts sent.
    pub interrupts: u64,
    /// Targets that the initiator did not wait for because they had left the guest, or their host part was at work.
    pub not_waited_for: u64,
    /// Targets that the initiator did not wait for because their threads did not run.
    pub descheduled: u64,
    /// Pages flushed on request of other vCPUs.
    pub pages: u64,
    /// Full flushes on request of other vCPUs.
    pub full_flushes: u64,
}

/// The record of one vCPU, as target and as initiator.
#[repr(align(128))]
struct Cpu<A: Atomics> {
    place: A::U32,
    generation: A::U64,
    acknowledged: A::U64,
    ring: [A::U64; RING as usize],
    // Statistics. Only this vCPU adds to them.
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

/// Shootdowns between the vCPUs of one virtual machine. See the module.
pub struct Protocol<A: Atomics> {
    cpus: Box<[Cpu<A>]>,
}

impl<A: Atomics> Protocol<A> {
    /// Creates the records of the vCPUs from 0 up to, but not including, `cpus`, and at most [`MOST_CPUS`]. All are
    /// absent.
    pub fn new(cpus: usize) -> Self {
        Protocol { cpus: (0..cpus.min(MOST_CPUS)).map(|_| Cpu::new()).collect() }
    }

    /// Number of vCPUs.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The place of a vCPU. The debug output has it together with the generations.
    pub fn place(&self, cpu: usize) -> Place {
        match self.cpus.get(cpu).map_or(0, |cpu| cpu.place.load(Relaxed)) {
            1 => Place::Host,
            2 => Place::Guest,
            _ => Place::Absent,
        }
    }

    /// Announces that a vCPU comes into the guest. This must be its first action there, before it touches memory
    /// whose translations are shot down.
    pub fn come_in(&self, cpu: usize, platform: &impl Platform) {
        let Some(me) = self.cpus.get(cpu) else { return };
        me.place.store(Place::Guest as u32, Relaxed);
        A::fence();
        // Initiators that saw this vCPU absent changed their entries before the flush below. Requests of the others
        // are served later.
        let asked = me.generation.load(Acquire);
        platform.flush_all();
        me.acknowledged.fetch_max(asked, Release);
    }

    /// Announces that a vCPU leaves the guest, or that its thread ends. This must be its last action there, after
    /// its last access to such memory. The host part may call it instead if the guest part will not continue.
    pub fn go_out(&self, cpu: usize) {
        if let Some(me) = self.cpus.get(cpu) {
            me.place.store(Place::Absent as u32, Release);
        }
    }

    /// Announces that the host part of a vCPU begins to work. Called right after the guest was left.
    #[inline]
    pub fn host_begins(&self, cpu: usize) {
        if let Some(me) = self.cpus.get(cpu) {
            me.place.store(Place::Host as u32, Release);
        }
    }

    /// Announces that the host part of a vCPU is done. Called right before the guest is entered again. Returns
    /// whether requests are waiting. If so, the host part must interrupt its vCPU, because initiators do not
    /// interrupt a vCPU whose host part is at work.
    #[inline]
    #[must_use]
    pub fn host_ends(&self, cpu: usize) -> bool {
        let Some(me) = self.cpus.get(cpu) else { return false };
        me.place.store(Place::Guest as u32, Relaxed);
        A::fence();
        me.generation.load(Relaxed) != me.acknowledged.load(Relaxed)
    }

    /// Performs the requests of other vCPUs to this one. It must be called in the handler of the interrupt, and in
    /// every loop that waits for another vCPU with interrupts off. Returns whether there was a request.
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

    /// Makes `targets` flush a batch. This vCPU, `me`, flushes too if it is one of them. Returns when no other
    /// target can use its cached translations of these pages any more. Serves requests to `me` meanwhile.
    ///
    /// The caller must change the entries before. Interrupts may be on or off. The caller must not hold anything
    /// for which a target could wait without serving requests.
    pub fn shoot(&self, me: usize, targets: &CpuSet, batch: &Batch, platform: &impl Platform) {
        if batch.is_empty() {
            return;
        }
        let (mut asked, mut descheduled) = (CpuSet::new(), 0);
        // The changed entries must be visible before the places are read: a target that is absent here has yet to
        // flush.
        A::fence();
        for target in targets.iter().filter(|target| *target != me) {
            let Some(cpu) = self.cpus.get(target) else { continue };
            let place = cpu.place.load(Relaxed);
            if place == Place::Absent as u32 {
                continue;
            }
            // A target in its host part does not run in the guest either, but its ring lets it flush less than
            // everything.
            if place == Place::Guest as u32 && platform.flush_when_resumed(target) {
                descheduled += 1;
                continue;
            }
            Self::ask(cpu, batch);
            asked.insert(target);
        }
        // The requests must be visible before the places are read again. A host part that is seen at work here sees
        // the request when it is done, and interrupts its vCPU itself.
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
        // The requests and the interrupts must be visible before the places are read by `wait`.
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

    /// Writes a batch into a target's ring.
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

    /// Waits until a target has acknowledged all requests made so far, or need not be waited for.
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
            // The target's thread may be preempted with interrupts off, or before it has taken the interrupt.
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

    /// The statistics so far.
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

    /// Address and length of the memory that handlers touch, except for this value itself.
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

/// The result of waiting for a target.
enum Waited {
    Acknowledged,
    /// The target's host part is at work, or the target has left the guest.
    AtHost,
    /// The target's thread does not run, and the target flushes before its next instruction.
    Descheduled,
}

/// Adds to a counter that only this vCPU updates. If a handler interrupts the addition, the handler's addition may
/// be lost.
#[inline]
fn count<W: Atomic<u64>>(counter: &W, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}
