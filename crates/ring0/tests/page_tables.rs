//! Tests of page tables that the program changes: mapping on demand, protection, remapping, and shootdowns.

mod common;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Instant;

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
use bedplate_ring0::paging::{NoTables, PageSize, PageTables, PagingError, PteFlags};
use bedplate_ring0::shootdown::Batch;
use bedplate_ring0::{Cpu, Outcome, Process, TrapFrame, Windows, handlers, is_ring0};

const PAGES: u64 = 512;
const FRAMES: u64 = 2048;
const BASE: u64 = 0x3000_0000_0000;

/// A private range of ring 0, and a pool of frames for it. The frames are also memory of this process.
struct Region {
    process: &'static Process,
    pool: FramePool,
    /// Contiguous frames for the pages.
    run: Frame,
}

static REGION: OnceLock<Region> = OnceLock::new();
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static MAPPED: AtomicU64 = AtomicU64::new(0);
static UNPROTECTED: AtomicU64 = AtomicU64::new(0);

impl Region {
    fn get(process: &'static Process) -> &'static Region {
        let region = REGION.get_or_init(|| {
            let bytes = (FRAMES * 4096) as usize;
            let memory = HostMemory::map(bytes, Backing::Small).unwrap();
            memory.prefault().unwrap();
            let address = memory.base() as u64;
            // SAFETY: the memory stays mapped as long as the pool, which is never dropped.
            let attached = unsafe { process.attach(address, bytes as u64) }.unwrap();
            let first = Frame::containing(attached.physical);
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a new reservation.
            let at = unsafe { libc::mmap(BASE as *mut libc::c_void, 1 << 30, libc::PROT_NONE, flags, -1, 0) };
            assert_eq!(at as u64, BASE);
            process.keep_private(BASE, 1 << 30).unwrap();
            let pool = FramePool::new(first, memory, 1).unwrap();
            let run = pool.take_run().unwrap();
            Region { process, pool, run }
        });
        // Add the tables down to the last level, so that handlers need none.
        let mut frames = region.pool.cpu(0);
        for page in (0..PAGES).step_by(512) {
            region.tables().slot_or_add(BASE + page * 4096, PageSize::Size4K, &mut frames).unwrap();
        }
        region
    }

    fn tables(&self) -> PageTables<'_, Windows> {
        // SAFETY: only the private range is changed.
        unsafe { self.process.page_tables() }
    }

    /// The frame of a page.
    fn frame(&self, page: u64) -> Frame {
        self.run.offset(page)
    }

    /// The address of the page's frame in the process.
    fn alias(&self, page: u64) -> *mut u64 {
        self.pool.address(self.frame(page)).unwrap().cast()
    }

    fn clear(&self) {
        for page in 0..PAGES {
            let _ = self.tables().unmap(BASE + page * 4096);
            // SAFETY: memory of this region.
            unsafe { self.alias(page).write_volatile(1000 + page) };
        }
        MAPPED.store(0, Ordering::SeqCst);
        UNPROTECTED.store(0, Ordering::SeqCst);
        handlers::set_page_fault_handler(Some(fault));
        // Flush the translations that processors have cached in the previous test.
        let all = |cpu: Cpu| cpu.shoot_down_everywhere(&Batch::full());
        self.process.run(all).unwrap().unwrap();
    }
}

fn at(page: u64) -> *mut u64 {
    (BASE + page * 4096) as *mut u64
}

/// Maps missing pages, and makes protected pages writable.
fn fault(cpu: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
    let Some(region) = REGION.get() else { return Outcome::Pass };
    if !(BASE..BASE + PAGES * 4096).contains(&address) {
        return Outcome::Pass;
    }
    let page = (address - BASE) / 4096;
    let tables = region.tables();
    if !frame.is_present() {
        let flags = PteFlags::WRITABLE;
        let mapped = tables.map(address & !4095, region.frame(page), PageSize::Size4K, flags, &mut NoTables);
        MAPPED.fetch_add(1, Ordering::SeqCst);
        // Another processor may have mapped the page first.
        let there = matches!(mapped, Ok(()) | Err(PagingError::AlreadyMapped { .. }));
        return if there { Outcome::Handled } else { Outcome::Pass };
    }
    let Some(slot) = tables.slot(address & !4095, PageSize::Size4K) else { return Outcome::Pass };
    let _ = slot.update(|pte| Some(pte.with(PteFlags::WRITABLE)));
    cpu.flush_page(address);
    UNPROTECTED.fetch_add(1, Ordering::SeqCst);
    Outcome::Handled
}

macro_rules! region {
    () => {{
        let process = ring0_or_skip!();
        let guard = ONE_AT_A_TIME.lock();
        let region = Region::get(process);
        region.clear();
        (process, region, guard)
    }};
}

#[test]
fn pages_are_mapped_on_demand_without_leaving_ring_0() {
    let (process, region, _guard) = region!();
    let (sum, exits, faults) = process
        .run(|cpu| {
            cpu.flush();
            // The read faults in everything else that the loop touches.
            // SAFETY: memory of the region, mapped by the handler.
            std::hint::black_box(unsafe { at(0).read_volatile() });
            let before = cpu.statistics();
            // SAFETY: as above.
            let sum: u64 = (0..PAGES).map(|page| unsafe { at(page).read_volatile() }).sum();
            let difference = cpu.statistics() - before;
            (sum, difference.exits, difference.page_faults_handled)
        })
        .unwrap();
    assert_eq!(sum, (0..PAGES).map(|page| 1000 + page).sum::<u64>());
    assert_eq!((exits, faults), (0, PAGES - 1));
    let pte = region.tables().translate(BASE + 5 * 4096).unwrap().pte;
    assert!(pte.is_accessed() && !pte.is_dirty());
}

#[test]
fn writes_make_pages_dirty_and_protected_ones_fault() {
    let (process, region, _guard) = region!();
    process
        .run(|cpu| {
            // SAFETY: memory of the region.
            unsafe {
                at(3).write_volatile(33);
                assert_eq!(region.alias(3).read_volatile(), 33);
                assert!(region.tables().translate(BASE + 3 * 4096).unwrap().pte.is_dirty());
                let slot = region.tables().slot(BASE + 3 * 4096, PageSize::Size4K).unwrap();
                slot.update(|pte| Some(pte.without(PteFlags::WRITABLE))).unwrap();
                cpu.flush_page(BASE + 3 * 4096);
                assert_eq!(at(3).read_volatile(), 33);
                assert_eq!(UNPROTECTED.load(Ordering::SeqCst), 0);
                at(3).write_volatile(34);
            }
            assert_eq!(UNPROTECTED.load(Ordering::SeqCst), 1, "ring 0 respects read-only pages");
            assert!(is_ring0());
        })
        .unwrap();
}

#[test]
fn the_kernel_cannot_access_pages_that_only_ring_0_maps() {
    let (process, region, _guard) = region!();
    let results = process
        .run(|_| {
            // SAFETY: memory of the region; a file that only this test uses.
            unsafe {
                std::hint::black_box(at(1).read_volatile());
                let file = libc::memfd_create(c"private".as_ptr(), 0);
                let hidden = libc::write(file, at(1).cast(), 100);
                let errno = std::io::Error::last_os_error().raw_os_error();
                let known = libc::write(file, region.alias(1).cast(), 100);
                libc::close(file);
                (hidden, errno, known)
            }
        })
        .unwrap();
    assert_eq!(results, (-1, Some(libc::EFAULT), 100));
}

#[test]
fn a_shootdown_reaches_a_processor_that_reads_all_the_time() {
    let (process, region, _guard) = region!();
    static TURN: AtomicU32 = AtomicU32::new(0);
    static SEEN: AtomicU64 = AtomicU64::new(0);
    TURN.store(0, Ordering::SeqCst);
    const ROUNDS: u32 = 300;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            process
                .run(|_| {
                    for round in 1..=ROUNDS {
                        // Reads until its turn, so that it has the translation cached.
                        while TURN.load(Ordering::SeqCst) != 2 * round - 1 {
                            // SAFETY: memory of the region.
                            std::hint::black_box(unsafe { at(7).read_volatile() });
                            std::hint::spin_loop();
                        }
                        // SAFETY: as above.
                        SEEN.store(unsafe { at(7).read_volatile() }, Ordering::SeqCst);
                        TURN.store(2 * round, Ordering::SeqCst);
                    }
                })
                .unwrap();
        });
        process
            .run(|cpu| {
                for round in 1..=ROUNDS {
                    // SAFETY: memory of the region.
                    unsafe { region.alias(u64::from(round)).write_volatile(u64::from(round)) };
                    let other = region.frame(u64::from(round));
                    let tables = region.tables();
                    let _ = tables.unmap(BASE + 7 * 4096);
                    let _ = tables.map(
                        BASE + 7 * 4096,
                        other,
                        PageSize::Size4K,
                        PteFlags::WRITABLE,
                        &mut NoTables,
                    );
                    cpu.shoot_down_everywhere(&Batch::page(BASE + 7 * 4096, PageSize::Size4K)).unwrap();
                    TURN.store(2 * round - 1, Ordering::SeqCst);
                    while TURN.load(Ordering::SeqCst) != 2 * round {
                        cpu.relax();
                    }
                    let (seen, mapped) =
                        (SEEN.load(Ordering::SeqCst), tables.translate(BASE + 7 * 4096).unwrap());
                    // Meanwhile the reader's fault handler may have mapped the page's own frame.
                    let frame = if mapped.pte.frame() == other { u64::from(round) } else { 7 };
                    // SAFETY: memory of the region.
                    assert_eq!(seen, unsafe { region.alias(frame).read_volatile() }, "round {round}");
                }
            })
            .unwrap();
    });
    let statistics = process.shootdown_statistics();
    assert!(statistics.shootdowns >= u64::from(ROUNDS) && statistics.interrupts > 0, "{statistics:?}");
}

#[test]
fn a_shootdown_does_not_wait_for_a_processor_in_a_system_call() {
    let (process, _region, _guard) = region!();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let (tell, number) = mpsc::channel();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            process
                .run(|_| {
                    tell.send(common::this_thread()).unwrap();
                    // The timeout makes a shootdown that waits fail instead of hang.
                    let mut file = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                    // SAFETY: writes to the variable.
                    unsafe { libc::poll(&raw mut file, 1, common::PATIENCE.as_millis() as i32) }
                })
                .unwrap()
        });
        common::wait_until_blocked(number.recv().unwrap(), libc::SYS_poll);
        process
            .run(|cpu| {
                let before = process.shootdown_statistics().not_waited_for;
                cpu.shoot_down_everywhere(&Batch::full()).unwrap();
                assert!(process.shootdown_statistics().not_waited_for > before);
                rustix::io::write(&writer, b"x").unwrap();
            })
            .unwrap();
        assert_eq!(other.join().unwrap(), 1, "the other one slept until it was woken");
    });
}

/// Both threads run on the same CPU, and the target has interrupts off. The target therefore cannot acknowledge
/// while the initiator waits. KVM must flush for it.
#[test]
fn a_shootdown_does_not_wait_for_a_thread_that_has_no_cpu() {
    let (process, region, _guard) = region!();
    const ROUNDS: u32 = 20;
    static READING: AtomicU32 = AtomicU32::new(0);
    static ASKED: AtomicU32 = AtomicU32::new(0);
    static SEEN: AtomicU64 = AtomicU64::new(0);
    READING.store(0, Ordering::SeqCst);
    ASKED.store(0, Ordering::SeqCst);
    SEEN.store(0, Ordering::SeqCst);
    // SAFETY: the handler of these tests maps the page.
    let read = || std::hint::black_box(unsafe { at(7).read_volatile() });
    std::thread::scope(|scope| {
        let target = scope.spawn(move || {
            share_cpu();
            process.run(move |_| {
                let start = Instant::now();
                read();
                // SAFETY: in ring 0 until it is dropped.
                let _off = unsafe { bedplate_ring0::InterruptsOff::new() };
                for round in 1..=ROUNDS {
                    READING.store(round, Ordering::SeqCst);
                    while ASKED.load(Ordering::SeqCst) < round {
                        read();
                        // The timeout makes a shootdown that waits fail instead of hang.
                        if start.elapsed() > common::PATIENCE {
                            return;
                        }
                    }
                    SEEN.store(read(), Ordering::SeqCst);
                }
            })
        });
        let initiator = scope.spawn(move || {
            share_cpu();
            let wait_until = |done: &dyn Fn() -> bool| {
                let start = Instant::now();
                while !done() && start.elapsed() < common::PATIENCE {
                    std::thread::yield_now();
                }
            };
            process.run(|cpu| {
                let before = process.shootdown_statistics();
                for round in 1..=ROUNDS {
                    wait_until(&|| READING.load(Ordering::SeqCst) == round);
                    let page = u64::from(round);
                    // SAFETY: memory of the region.
                    unsafe { region.alias(page).write_volatile(page) };
                    let (tables, address) = (region.tables(), BASE + 7 * 4096);
                    tables.unmap(address).unwrap();
                    let (frame, flags) = (region.frame(page), PteFlags::WRITABLE);
                    tables.map(address, frame, PageSize::Size4K, flags, &mut NoTables).unwrap();
                    cpu.shoot_down_everywhere(&Batch::page(address, PageSize::Size4K)).unwrap();
                    ASKED.store(round, Ordering::SeqCst);
                    wait_until(&|| SEEN.load(Ordering::SeqCst) == page);
                    assert_eq!(SEEN.load(Ordering::SeqCst), page);
                }
                process.shootdown_statistics().descheduled - before.descheduled
            })
        });
        let descheduled = initiator.join().unwrap().unwrap();
        target.join().unwrap().unwrap();
        assert!(descheduled > 0, "every shootdown waited");
    });
}

/// Binds this thread to one CPU, which is the same for all callers.
fn share_cpu() {
    let mut cpus = rustix::thread::CpuSet::new();
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    cpus.set((0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap());
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

#[test]
fn processors_that_shoot_at_each_other_with_interrupts_off_come_through() {
    let (process, _region, _guard) = region!();
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                process
                    .run(|cpu| {
                        for round in 0..300 {
                            // SAFETY: in ring 0 until it is dropped.
                            let off = unsafe { bedplate_ring0::InterruptsOff::new() };
                            let page = Batch::page(BASE + round % PAGES * 4096, PageSize::Size4K);
                            cpu.shoot_down_everywhere(&page).unwrap();
                            drop(off);
                        }
                        done.fetch_add(1, Ordering::SeqCst);
                    })
                    .unwrap();
            });
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), 2);
}

#[test]
fn a_processor_with_tables_of_its_own_sees_its_own() {
    let (process, region, _guard) = region!();
    let root = process.root();
    // The new tables share everything but the region's part of the address space.
    let private = bedplate_ring0::paging::VirtRange::at(BASE >> 39 << 39, 1 << 39).unwrap();
    let mut frames = region.pool.cpu(0);
    let own = region.tables().create_sharing(private, &mut frames).unwrap();
    own.map(BASE, region.frame(9), PageSize::Size4K, PteFlags::WRITABLE, &mut frames).unwrap();
    let seen = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                process
                    .run(|cpu| {
                        // SAFETY: the tables share all memory in use, and the code only reads the region's memory.
                        unsafe {
                            let before = at(0).read_volatile();
                            cpu.set_root(own.root().address()).unwrap();
                            let after = at(0).read_volatile();
                            let root = cpu.root();
                            std::thread::yield_now();
                            (before, after, at(0).read_volatile(), root)
                        }
                    })
                    .unwrap()
            })
            .join()
            .unwrap()
    });
    assert_eq!((seen.0, seen.1, seen.2), (1000, 1009, 1009));
    assert_ne!(seen.3, root);
    // Another thread gets the processor next, with the page tables of the process.
    let next = std::thread::spawn(move || process.run(|cpu| cpu.root()).unwrap()).join().unwrap();
    assert_eq!(next, root);
}
