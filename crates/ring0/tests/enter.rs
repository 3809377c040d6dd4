//! Tests of entering and leaving: by many threads, nested, and through panics. Also tests of operations that must
//! work in ring 0 as in ring 3.

mod common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_ring0::{Cpu, Error, Process, is_ring0, natively};

#[test]
fn a_thread_enters_and_leaves() {
    let process = ring0_or_skip!();
    let local = 42;
    let heap = String::from("from before");
    assert!(!is_ring0());
    let cpu = process.enter().unwrap();
    assert!(is_ring0());
    assert_eq!((local, heap.as_str()), (42, "from before"));
    assert_eq!(Cpu::current().unwrap().number(), cpu.number());
    process.leave();
    assert!(!is_ring0());
    assert!(Cpu::current().is_none());
    process.leave();
}

#[test]
fn run_returns_what_the_function_returns_and_nests() {
    let process = ring0_or_skip!();
    let outer = process
        .run(|_| {
            let inner = process.run(|_| is_ring0()).unwrap();
            (inner, is_ring0())
        })
        .unwrap();
    assert_eq!(outer, (true, true));
    assert!(!is_ring0());
}

#[test]
fn a_panic_leaves_ring_0_on_its_way() {
    let process = ring0_or_skip!();
    let panic = std::panic::catch_unwind(|| process.run(|_| std::panic::panic_any(7))).unwrap_err();
    assert_eq!(panic.downcast_ref::<i32>(), Some(&7));
    assert!(!is_ring0());
    // A panic that is caught inside does not leave ring 0.
    let inside =
        process.run(|_| std::panic::catch_unwind(|| std::panic::panic_any(8)).is_err() && is_ring0());
    assert!(inside.unwrap());
}

#[test]
fn there_is_one_process() {
    let process = ring0_or_skip!();
    assert!(matches!(Process::builder().build(), Err(Error::AlreadyBuilt)));
    assert!(std::ptr::eq(Process::current().unwrap(), process));
}

#[test]
fn system_calls_are_made_by_the_same_thread() {
    let process = ring0_or_skip!();
    let ids = || (std::process::id(), rustix::thread::gettid());
    let before = ids();
    let calls = process.statistics().system_calls;
    let (inside, failed) =
        process.run(|_| (ids(), std::fs::File::open("/nonexistent").unwrap_err())).unwrap();
    assert_eq!(before, inside);
    assert_eq!(failed.kind(), std::io::ErrorKind::NotFound);
    assert!(process.statistics().system_calls > calls);
}

#[test]
fn files_and_formatting_work() {
    let process = ring0_or_skip!();
    let path = std::env::temp_dir().join(format!("ring0-{}", std::process::id()));
    let text = process
        .run(|_| {
            std::fs::File::create(&path)?.write_all(format!("hello {:.3}\n", 3.25).as_bytes())?;
            let mut text = String::new();
            std::fs::File::open(&path)?.read_to_string(&mut text)?;
            std::fs::remove_file(&path)?;
            std::io::Result::Ok(text)
        })
        .unwrap();
    assert_eq!(text.unwrap(), "hello 3.250\n");
}

#[test]
fn memory_that_is_allocated_in_ring_0_is_memory() {
    let process = ring0_or_skip!();
    let data = process
        .run(|_| {
            let data: Vec<u64> = (0..4 << 20).collect();
            data.iter().enumerate().all(|(index, value)| index as u64 == *value).then_some(data)
        })
        .unwrap()
        .unwrap();
    assert_eq!(data[12345], 12345);
}

#[test]
fn time_passes_as_outside() {
    let process = ring0_or_skip!();
    let before = Instant::now();
    let inside = process.run(|_| Instant::now()).unwrap();
    let after = Instant::now();
    assert!(before <= inside && inside <= after);
    let slept = process
        .run(|_| {
            let start = Instant::now();
            std::thread::sleep(Duration::from_millis(20));
            start.elapsed()
        })
        .unwrap();
    assert!(slept >= Duration::from_millis(20));
}

#[test]
fn vector_registers_survive_system_calls_and_rounding_modes_survive_entering() {
    let process = ring0_or_skip!();
    let pattern = [0x1111u64, 0x2222];
    let same = process
        .run(|_| {
            let mut out = [0u64; 2];
            // SAFETY: getppid changes nothing.
            unsafe {
                std::arch::asm!(
                    "movdqu xmm9, [{p}]", "syscall", "movdqu [{o}], xmm9",
                    p = in(reg) pattern.as_ptr(), o = in(reg) out.as_mut_ptr(), inlateout("rax") 110i64 => _,
                    out("rcx") _, out("r11") _, out("xmm9") _
                );
            }
            out == pattern
        })
        .unwrap();
    assert!(same);
    let mut control = [0u32; 3];
    let set = |value: &u32| {
        // SAFETY: a rounding mode.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) value) }
    };
    let get = |value: &mut u32| {
        // SAFETY: stores a word.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) value) }
    };
    get(&mut control[0]);
    set(&(control[0] | 0x6000));
    let entered = process.enter();
    get(&mut control[1]);
    set(&(control[0] | 0x2000));
    process.leave();
    get(&mut control[2]);
    set(&control[0]);
    entered.unwrap();
    let modes = control.map(|word| word & 0x6000);
    assert_eq!(modes[1..], [0x6000, 0x2000]);
}

#[test]
fn many_threads_enter_and_their_processors_are_used_again() {
    let process = ring0_or_skip!();
    let sum = AtomicU64::new(0);
    let round = || {
        std::thread::scope(|scope| {
            let threads = [(); 8].map(|()| {
                scope.spawn(|| {
                    for index in 0..20 {
                        process.run(|_| sum.fetch_add(index, Ordering::Relaxed)).unwrap();
                    }
                })
            });
            // A scope ends when the functions of its threads have returned. After `join`, the threads have ended
            // too.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    };
    round();
    let after_one = process.cpus();
    for _ in 0..5 {
        round();
    }
    assert_eq!(sum.load(Ordering::Relaxed), 6 * 8 * 190);
    // The threads of the first round may have run one after the other. Other tests of this program have threads
    // too.
    assert!(process.cpus() <= after_one + 16, "{} processors after {after_one}", process.cpus());
}

#[test]
fn threads_that_end_in_ring_0_give_their_processor_back() {
    let process = ring0_or_skip!();
    for _ in 0..50 {
        std::thread::spawn(|| process.enter().map(|_| is_ring0())).join().unwrap().unwrap();
    }
    assert!(process.cpus() < 40, "{} processors", process.cpus());
}

#[test]
fn native_code_can_be_called_from_ring_0() {
    let process = ring0_or_skip!();
    let seen = process
        .run(|_| {
            let inside = natively(is_ring0);
            let nested = natively(|| process.enter().map(|_| ()).map_err(|error| error.to_string()));
            let panic = std::panic::catch_unwind(|| natively(|| std::panic::panic_any(9))).unwrap_err();
            (inside, nested, *panic.downcast::<i32>().unwrap(), is_ring0())
        })
        .unwrap();
    assert!(!seen.0);
    assert!(seen.1.unwrap_err().contains("interrupted"));
    assert_eq!((seen.2, seen.3), (9, true));
}

#[test]
fn memory_far_away_gets_its_window_when_it_is_touched() {
    let process = ring0_or_skip!();
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let before = process.statistics().windows_added;
    let place = 0x1000_0000_0000 as *mut std::ffi::c_void;
    let bytes = 1 << 20;
    let seen = process
        .run(|_| {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            // SAFETY: a new mapping, at an address where there is none.
            let far =
                unsafe { mmap_anonymous(place, bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap();
            let far = far.cast::<u8>();
            // SAFETY: inside of the mapping, which is unmapped after its last use.
            unsafe {
                far.add(5).write_volatile(7);
                let seen = far.add(5).read_volatile();
                munmap(far.cast(), bytes).unwrap();
                seen
            }
        })
        .unwrap();
    assert_eq!(seen, 7);
    assert!(process.statistics().windows_added > before);
}
