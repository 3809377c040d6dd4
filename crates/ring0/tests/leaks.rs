//! Test that a thousand entries by each of eight threads leak nothing, while another thread maps and unmaps
//! memory.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_ring0::is_ring0;

const THREADS: usize = 8;
const CYCLES: usize = 1000;

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Number of resident pages of the process, as the kernel counts them.
fn resident_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_thousand_cycles_on_eight_threads_leave_nothing_behind() {
    let process = ring0_or_skip!();
    let wrong = AtomicU64::new(0);
    let round = |cycles: usize| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mapper = scope.spawn(|| {
                let mut count = 0u64;
                while count < 16 || !stop.load(Ordering::Relaxed) {
                    // Eight addresses that are far apart, in turn.
                    let place = 0x1500_0000_0000 + ((count % 8) << 30);
                    let protection = libc::PROT_READ | libc::PROT_WRITE;
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                    // SAFETY: new memory that only this thread uses, and unmaps again.
                    unsafe {
                        let at = libc::mmap(place as *mut libc::c_void, 1 << 16, protection, flags, -1, 0);
                        assert_eq!(at as u64, place);
                        at.cast::<u64>().write_volatile(count);
                        let seen = process.run(|_| at.cast::<u64>().read_volatile()).unwrap();
                        wrong.fetch_add(u64::from(seen != count), Ordering::Relaxed);
                        libc::munmap(at, 1 << 16);
                    }
                    count += 1;
                }
                count
            });
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        for cycle in 0..cycles {
                            let sum = process.run(|_| {
                                let list: Vec<usize> = (0..cycle % 64).collect();
                                usize::from(!is_ring0()) + list.iter().sum::<usize>()
                            });
                            let expected = (0..cycle % 64).sum::<usize>();
                            wrong.fetch_add(u64::from(sum.unwrap() != expected), Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            assert!(mapper.join().unwrap() > 0);
        });
    };
    // First create everything that is created only once: a processor for each of the threads, and the state
    // that a round needs.
    let barrier = std::sync::Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for _ in 0..=THREADS {
            scope.spawn(|| {
                process.enter().unwrap();
                barrier.wait();
            });
        }
    });
    round(50);
    let state = || (open_files(), process.cpus(), process.window_capacity().1);
    let (before, pages) = (state(), resident_pages());
    round(CYCLES);
    let (after, pages_after) = (state(), resident_pages());
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert_eq!(before, after, "files, processors, free windows");
    assert_eq!(process.cpus_in_use(), 0);
    assert!(pages_after < pages + 512, "{pages} pages before, {pages_after} after");
}
