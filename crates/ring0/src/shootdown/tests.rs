//! Tests of what each request flushes, step by step on one thread, and one test with real threads.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::*;
use crate::paging::PageSize;

/// Records all calls.
#[derive(Debug, Default)]
struct Log(RefCell<Vec<String>>);

impl Log {
    fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

impl Platform for Log {
    fn interrupt(&self, target: usize) {
        self.0.borrow_mut().push(format!("interrupt {target}"));
    }

    fn flush_page(&self, address: u64) {
        self.0.borrow_mut().push(format!("page {address:#x}"));
    }

    fn flush_all(&self) {
        self.0.borrow_mut().push("all".into());
    }
}

const SMALL: PageSize = PageSize::Size4K;

/// Sets up vCPU 0 in the guest and vCPU 1 in a host call.
fn started() -> (Shootdown, Log) {
    let (shootdown, log) = (Shootdown::new(2), Log::default());
    for cpu in 0..2 {
        shootdown.come_in(cpu, &log);
    }
    shootdown.host_begins(1);
    assert_eq!(log.take(), ["all", "all"]);
    (shootdown, log)
}

#[test]
fn a_target_in_its_host_part_flushes_exactly_the_requested_pages() {
    let (shootdown, log) = started();
    let mut batch = Batch::new();
    for address in [0x1000, 0x2000, 0x3000, 0x9000] {
        batch.add(address, SMALL);
    }
    batch.add(0x20_1234, PageSize::Size2M);
    shootdown.shoot(0, &CpuSet::first(2), &batch, &log);
    let pages = ["page 0x1000", "page 0x2000", "page 0x3000", "page 0x9000", "page 0x200000"];
    assert_eq!(log.take(), pages, "its host part is at work, and interrupts it itself");

    shootdown.shoot(0, &CpuSet::first(2), &Batch::page(0x7000, SMALL), &log);
    log.take();
    assert!(shootdown.host_ends(1));
    assert!(shootdown.serve(1, &log));
    assert_eq!(log.take(), [&pages[..], &["page 0x7000"]].concat());
    assert!(!shootdown.serve(1, &log), "asked once, served once");
    shootdown.host_begins(1);
    assert!(!shootdown.host_ends(1));
    let statistics = shootdown.statistics();
    assert_eq!((statistics.shootdowns, statistics.interrupts, statistics.not_waited_for), (2, 0, 2));
    assert_eq!((statistics.pages, statistics.full_flushes), (6, 0));
}

#[test]
fn an_absent_vcpu_is_not_interrupted_and_flushes_everything_later() {
    let (shootdown, log) = started();
    shootdown.go_out(1);
    shootdown.shoot(0, &CpuSet::first(2), &Batch::page(0x1000, SMALL), &log);
    assert_eq!(log.take(), ["page 0x1000"]);
    shootdown.come_in(1, &log);
    assert_eq!(log.take(), ["all"]);
    assert!(!shootdown.serve(1, &log));
}

#[test]
fn a_vcpu_that_is_too_far_behind_flushes_everything() {
    let (shootdown, log) = started();
    for page in 0..33 {
        shootdown.shoot(0, &CpuSet::first(2), &Batch::page(page << 12, SMALL), &log);
    }
    log.take();
    assert!(shootdown.serve(1, &log));
    assert_eq!(log.take(), ["all"]);
    for page in 0..32 {
        shootdown.shoot(0, &CpuSet::first(2), &Batch::page(page << 12, SMALL), &log);
    }
    log.take();
    assert!(shootdown.serve(1, &log));
    assert_eq!(log.take().len(), 32);
}

/// A handler that interrupts `serve` serves newer requests. The interrupted call must not take its acknowledgement
/// back.
#[test]
fn serving_can_be_interrupted_by_serving() {
    struct Interrupted<'s>(&'s Shootdown, Log);
    impl Platform for Interrupted<'_> {
        fn interrupt(&self, target: usize) {
            self.1.interrupt(target);
        }
        fn flush_page(&self, address: u64) {
            self.1.flush_page(address);
            if address == 0x1000 && self.1.0.borrow().len() == 1 {
                let other = Log::default();
                self.0.shoot(0, &CpuSet::first(2), &Batch::page(0x2000, SMALL), &other);
                self.0.serve(1, &self.1);
            }
        }
        fn flush_all(&self) {
            self.1.flush_all();
        }
    }
    let (shootdown, log) = started();
    shootdown.shoot(0, &CpuSet::first(2), &Batch::page(0x1000, SMALL), &log);
    let vcpu = Interrupted(&shootdown, Log::default());
    assert!(shootdown.serve(1, &vcpu));
    assert_eq!(vcpu.1.take(), ["page 0x1000", "page 0x1000", "page 0x2000"]);
    assert!(!shootdown.serve(1, &log), "an acknowledgement was taken back");
}

#[test]
fn large_batches_are_full_flushes() {
    let mut batch = Batch::new();
    assert!(batch.is_empty());
    (0..33).for_each(|page| batch.add(page << 12, SMALL));
    assert_eq!(batch.ranges(), [Pages { start: 0, count: 33, size: SMALL }]);
    batch.add(33 << 12, SMALL);
    assert!(batch.is_full() && batch.ranges().is_empty() && !batch.is_empty());

    let mut scattered = Batch::new();
    (0..8).for_each(|page| scattered.add(page << 20, SMALL));
    assert_eq!(scattered.ranges().len(), 8);
    scattered.add(9 << 20, SMALL);
    assert!(scattered.is_full());

    let (shootdown, log) = started();
    shootdown.shoot(0, &CpuSet::first(2), &scattered, &log);
    assert_eq!(log.take(), ["all"]);
    assert!(shootdown.serve(1, &log));
    assert_eq!(log.take(), ["all"]);
    shootdown.shoot(0, &CpuSet::first(2), &Batch::new(), &log);
    assert_eq!(log.take(), [""; 0]);
}

/// Threads act as vCPUs. Their cached translations are words in memory that only flushes clear. Each thread checks
/// all the time that it does not use a version of a page that is already gone.
#[test]
fn threads_never_use_stale_translations() {
    const CPUS: usize = 3;
    const ROUNDS: u64 = 3000;
    struct Machine {
        shootdown: Shootdown,
        pending: [AtomicBool; CPUS],
        /// The version that each page's entry maps. `oldest` is the oldest version that may still be used.
        entry: [AtomicU64; 2],
        oldest: [AtomicU64; 2],
        running: AtomicU64,
    }
    struct Vcpu<'m>(&'m Machine, [AtomicU64; 2]);
    impl Platform for Vcpu<'_> {
        fn interrupt(&self, target: usize) {
            self.0.pending[target].store(true, SeqCst);
        }
        fn flush_page(&self, address: u64) {
            self.1[(address >> 12) as usize].store(0, SeqCst);
        }
        fn flush_all(&self) {
            self.1.iter().for_each(|cached| cached.store(0, SeqCst));
        }
    }
    let machine = Machine {
        shootdown: Shootdown::new(CPUS),
        pending: Default::default(),
        entry: [const { AtomicU64::new(1) }; 2],
        oldest: [const { AtomicU64::new(1) }; 2],
        running: AtomicU64::new(2),
    };
    std::thread::scope(|scope| {
        for number in 0..CPUS {
            let machine = &machine;
            scope.spawn(move || {
                let vcpu = Vcpu(machine, Default::default());
                let shootdown = &machine.shootdown;
                shootdown.come_in(number, &vcpu);
                let mut turn = 0u64;
                while machine.running.load(SeqCst) > 0 {
                    turn += 1;
                    for page in 0..2 {
                        if machine.pending[number].swap(false, SeqCst) {
                            shootdown.serve(number, &vcpu);
                        }
                        if vcpu.1[page].load(SeqCst) == 0 {
                            vcpu.1[page].store(machine.entry[page].load(SeqCst), SeqCst);
                        }
                        let oldest = machine.oldest[page].load(SeqCst);
                        // If an interrupt is pending, it would flush before the use, which is this comparison.
                        if !machine.pending[number].load(SeqCst) {
                            assert!(vcpu.1[page].load(SeqCst) >= oldest, "vCPU {number} uses what is gone");
                        }
                    }
                    match turn % 16 {
                        3 => {
                            shootdown.host_begins(number);
                            std::thread::yield_now();
                            if shootdown.host_ends(number) {
                                vcpu.interrupt(number);
                            }
                        }
                        7 => {
                            shootdown.go_out(number);
                            shootdown.come_in(number, &vcpu);
                        }
                        _ => {}
                    }
                    // Two of the vCPUs replace one page each; the third one only uses the pages.
                    if number < 2 && turn <= ROUNDS {
                        let version = machine.entry[number].fetch_add(1, SeqCst) + 1;
                        let batch = Batch::page((number as u64) << 12, SMALL);
                        shootdown.shoot(number, &CpuSet::first(CPUS), &batch, &vcpu);
                        machine.oldest[number].store(version, SeqCst);
                        if turn == ROUNDS {
                            machine.running.fetch_sub(1, SeqCst);
                        }
                    }
                }
                shootdown.go_out(number);
            });
        }
    });
    assert_eq!(machine.entry.map(AtomicU64::into_inner), [ROUNDS + 1; 2]);
}
