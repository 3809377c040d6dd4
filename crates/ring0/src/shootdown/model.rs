//! Loom models of shootdowns in small configurations: when a shootdown has returned, no vCPU uses the removed
//! translation. They cover every interleaving, within a bound of preemptions where one is given.
//!
//! The models contain the properties of the machine on which the protocol relies. A vCPU caches translations
//! ([`Vcpu::cached`]) and uses them until it flushes. Between instructions it takes a pending interrupt, if
//! interrupts are on. The old frame of a page is reused as soon as the shootdown has returned; a later access to it
//! is an error.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::{Batch, CpuSet, Platform, Protocol};
use crate::paging::PageSize;
use crate::word::Loom;

const OLD: u32 = 1;
const NEW: u32 = 2;

const PREEMPTED: u32 = 1;
const FLUSH: u32 = 2;

/// A page: its entry, whether its old frame is reused, and a lock bit.
struct Page {
    entry: AtomicU32,
    reused: AtomicU32,
    lock: AtomicU32,
}

struct World {
    protocol: Protocol<Loom>,
    pending: Vec<AtomicU32>,
    /// KVM's records of preempted threads. Only the marks are modelled.
    records: Option<Vec<AtomicU32>>,
    pages: [Page; 2],
}

/// A vCPU, as its thread sees it.
struct Vcpu {
    world: Arc<World>,
    number: usize,
    cached: [Cell<Option<u32>>; 2],
}

impl Platform for Vcpu {
    fn interrupt(&self, target: usize) {
        // The model assumes only that earlier writes are visible when the interrupt is taken. The operation is
        // atomic because loom does not order plain stores of several threads, and would lose interrupts.
        self.world.pending[target].swap(1, Release);
    }

    fn flush_when_resumed(&self, target: usize) -> bool {
        let Some(records) = &self.world.records else { return false };
        records[target].compare_exchange(PREEMPTED, PREEMPTED | FLUSH, AcqRel, Relaxed).is_ok()
    }

    fn flush_page(&self, address: u64) {
        self.cached[(address >> 12) as usize].set(None);
    }

    fn flush_all(&self) {
        self.cached.iter().for_each(|cached| cached.set(None));
    }
}

impl World {
    fn new(cpus: usize) -> Arc<World> {
        World::with_records(cpus, false)
    }

    fn with_records(cpus: usize, records: bool) -> Arc<World> {
        let page = || Page { entry: AtomicU32::new(OLD), reused: AtomicU32::new(0), lock: AtomicU32::new(0) };
        let pending = (0..cpus).map(|_| AtomicU32::new(0)).collect();
        let records = records.then(|| (0..cpus).map(|_| AtomicU32::new(0)).collect());
        Arc::new(World { protocol: Protocol::new(cpus), pending, records, pages: [page(), page()] })
    }
}

impl Vcpu {
    /// Creates a vCPU that has the old translations of both pages cached. It is in the guest if `present` is set.
    fn new(world: &Arc<World>, number: usize, present: bool) -> Vcpu {
        let vcpu = Vcpu { world: world.clone(), number, cached: [Cell::new(None), Cell::new(None)] };
        if present {
            vcpu.come_in();
        }
        vcpu.cached.iter().for_each(|cached| cached.set(Some(OLD)));
        vcpu
    }

    fn come_in(&self) {
        self.world.protocol.come_in(self.number, self);
    }

    fn go_out(&self) {
        self.world.protocol.go_out(self.number);
    }

    fn host_call(&self) {
        self.world.protocol.host_begins(self.number);
        self.host_ends();
    }

    fn host_ends(&self) {
        if self.world.protocol.host_ends(self.number) {
            self.interrupt(self.number);
        }
    }

    /// Models that Linux preempts the thread and runs it again later.
    fn preempted(&self) {
        let record = &self.world.records.as_ref().unwrap()[self.number];
        record.swap(PREEMPTED, AcqRel);
        if record.swap(0, AcqRel) & FLUSH != 0 {
            self.flush_all();
        }
    }

    /// Takes the pending interrupt. Returns whether there was one.
    fn between_instructions(&self) -> bool {
        let pending = self.world.pending[self.number].load(Acquire) == 1;
        if pending {
            self.world.pending[self.number].swap(0, Relaxed);
            self.world.protocol.serve(self.number, self);
        }
        pending
    }

    /// Models an instruction that accesses a page.
    fn access(&self, page: usize) {
        self.between_instructions();
        self.access_with_interrupts_off(page);
    }

    fn access_with_interrupts_off(&self, page: usize) {
        let cached = &self.cached[page];
        let translation = cached.get().unwrap_or_else(|| self.world.pages[page].entry.load(Relaxed));
        cached.set(Some(translation));
        if translation == OLD {
            let reused = self.world.pages[page].reused.load(Relaxed);
            assert_eq!(reused, 0, "vCPU {} uses a frame that is another's", self.number);
        }
    }

    fn halt(&self) {
        while !self.between_instructions() {
            thread::yield_now();
        }
    }

    /// Maps a page to a new frame, runs a shootdown and reuses the old frame, all with interrupts off.
    fn replace(&self, page: usize) {
        let Page { entry, reused, .. } = &self.world.pages[page];
        entry.store(NEW, Relaxed);
        let batch = Batch::page((page as u64) << 12, PageSize::Size4K);
        self.world.protocol.shoot(self.number, &CpuSet::first(8), &batch, self);
        reused.store(1, Relaxed);
    }

    /// Takes the lock of a page's entry, with interrupts off.
    fn lock(&self, page: usize) {
        while self.world.pages[page].lock.compare_exchange(0, 1, AcqRel, Relaxed).is_err() {
            if !self.world.protocol.serve(self.number, self) {
                thread::yield_now();
            }
        }
    }

    fn unlock(&self, page: usize) {
        self.world.pages[page].lock.swap(0, AcqRel);
    }
}

/// Runs one script per vCPU. The vCPUs in `present` start in the guest. All have the old translations of both pages
/// cached.
fn check<const N: usize>(preemptions: Option<usize>, present: [bool; N], scripts: [fn(&Vcpu); N]) {
    check_in(preemptions, || World::new(N), present, scripts);
}

fn check_in<const N: usize>(
    preemptions: Option<usize>,
    world: fn() -> Arc<World>,
    present: [bool; N],
    scripts: [fn(&Vcpu); N],
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let world = world();
        let vcpus: Vec<_> = (0..N).map(|number| Vcpu::new(&world, number, present[number])).collect();
        let mut work = vcpus.into_iter().zip(scripts);
        let (first, script) = work.next().unwrap();
        let others: Vec<_> = work.map(|(vcpu, script)| thread::spawn(move || script(&vcpu))).collect();
        script(&first);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

fn replaces(vcpu: &Vcpu) {
    vcpu.replace(0);
    vcpu.access(0);
    vcpu.go_out();
}

#[test]
fn a_target_that_computes() {
    check(
        None,
        [true, true],
        [replaces, |target| {
            target.access(0);
            target.access(0);
            target.access(0);
            target.go_out();
        }],
    );
}

#[test]
fn a_target_in_a_host_call() {
    check(
        None,
        [true, true],
        [replaces, |target| {
            target.access(0);
            target.host_call();
            target.access(0);
            target.go_out();
        }],
    );
}

#[test]
fn a_target_that_is_halted() {
    check(
        None,
        [true, true],
        [replaces, |target| {
            target.halt();
            target.access(0);
            target.go_out();
        }],
    );
}

/// The target also has interrupts off, so only KVM can flush for it.
#[test]
fn a_target_that_does_not_run() {
    check_in(
        None,
        || World::with_records(2, true),
        [true, true],
        [replaces, |target| {
            target.access_with_interrupts_off(0);
            target.preempted();
            target.access_with_interrupts_off(0);
            target.access(0);
            target.go_out();
        }],
    );
}

/// The target is preempted in the guest, and continues there. Its ring still contains requests made meanwhile.
#[test]
fn a_target_that_does_not_run_and_is_asked_again() {
    check_in(
        Some(3),
        || World::with_records(2, true),
        [true, true],
        [
            |initiator| {
                initiator.replace(0);
                initiator.replace(1);
                initiator.go_out();
            },
            |target| {
                target.access(1);
                target.preempted();
                target.access(0);
                target.access(1);
                target.go_out();
            },
        ],
    );
}

#[test]
fn a_target_that_comes_in_with_old_translations() {
    check(
        None,
        [true, false],
        [replaces, |target| {
            target.come_in();
            target.access(0);
            target.access(0);
            target.go_out();
        }],
    );
}

#[test]
fn a_target_that_leaves_and_comes_again() {
    check(
        Some(4),
        [true, true],
        [replaces, |target| {
            target.access(0);
            target.go_out();
            target.come_in();
            target.access(0);
            target.go_out();
        }],
    );
}

#[test]
fn a_target_that_exits() {
    check(
        None,
        [true, true],
        [replaces, |target| {
            target.access(0);
            target.go_out();
        }],
    );
}

#[test]
fn two_that_shoot_at_each_other_with_interrupts_off() {
    check(
        Some(3),
        [true, true],
        [
            |one| {
                one.replace(0);
                one.access(1);
                one.go_out();
            },
            |other| {
                other.replace(1);
                other.access(0);
                other.go_out();
            },
        ],
    );
}

/// Two vCPUs write to the ring of a third at the same time, while the third is in a host call. Loom cannot run
/// three threads of which two wait, because it lets those two alternate forever. The tests in `tests.rs` do that
/// with real threads.
#[test]
fn two_that_shoot_at_a_third() {
    loom::model(|| {
        let world = World::new(3);
        let target = Vcpu::new(&world, 0, true);
        world.protocol.host_begins(0);
        let initiators = [1, 2].map(|number| {
            let initiator = Vcpu::new(&world, number, false);
            thread::spawn(move || initiator.replace(number - 1))
        });
        initiators.into_iter().for_each(|initiator| initiator.join().unwrap());
        target.host_ends();
        target.access(0);
        target.access(1);
        assert_eq!(target.cached.each_ref().map(Cell::get), [Some(NEW); 2]);
    });
}

#[test]
fn two_requests_in_a_row() {
    check(
        Some(3),
        [true, true],
        [
            |initiator| {
                initiator.replace(0);
                initiator.replace(1);
                initiator.go_out();
            },
            |target| {
                target.access(0);
                target.host_call();
                target.access(1);
                target.access(0);
                target.go_out();
            },
        ],
    );
}

/// One vCPU holds the lock of an entry during its shootdown. The other waits for that lock with interrupts off.
#[test]
fn a_target_that_waits_for_a_lock_of_the_initiator() {
    check(
        Some(3),
        [true, true],
        [
            |one| {
                one.lock(0);
                one.replace(0);
                one.unlock(0);
                one.go_out();
            },
            |other| {
                other.access(0);
                other.lock(0);
                other.access_with_interrupts_off(0);
                other.unlock(0);
                other.access(0);
                other.go_out();
            },
        ],
    );
}
