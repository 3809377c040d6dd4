//! Tests of threads and processes started in ring 0, and of what they inherit.

mod common;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_ring0::{Process, is_ring0};

thread_local! {
    static LOCAL: std::cell::Cell<u32> = const { std::cell::Cell::new(5) };
}

/// Waits for a child. Returns its exit status, or `None` if a signal ended it.
fn wait(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: writes to the variable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// Forks. The child exits with the status that the function returns.
fn fork(child: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child runs the test's function, and ends without running any other code of the parent.
    match unsafe { libc::fork() } {
        0 => {
            let status = child();
            // SAFETY: no conditions.
            unsafe { libc::_exit(status) }
        }
        pid => {
            assert!(pid > 0);
            wait(pid)
        }
    }
}

#[test]
fn threads_start_natively_with_their_own_variables() {
    let process = ring0_or_skip!();
    let seen = process
        .run(|_| {
            LOCAL.set(6);
            let seen = std::thread::spawn(|| (is_ring0(), LOCAL.get(), Process::current().is_some()))
                .join()
                .unwrap();
            (seen, LOCAL.get(), is_ring0())
        })
        .unwrap();
    assert_eq!(seen, ((false, 5, true), 6, true));
}

#[test]
fn threads_inherit_the_rounding_mode_of_ring_0() {
    let process = ring0_or_skip!();
    fn mode() -> u32 {
        let mut word = 0u32;
        // SAFETY: stores a word.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word) };
        word & 0x6000
    }
    fn set(mode: u32) {
        let word = 0x1f80 | mode;
        // SAFETY: a rounding mode.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word) };
    }
    let seen = process.run(|_| {
        set(0x4000);
        let seen = std::thread::spawn(mode).join().unwrap();
        set(0);
        seen
    });
    assert_eq!(seen.unwrap(), 0x4000);
}

#[test]
fn many_threads_are_started_from_ring_0() {
    let process = ring0_or_skip!();
    let count = AtomicU32::new(0);
    process
        .run(|_| {
            for _ in 0..20 {
                std::thread::scope(|scope| {
                    let threads = [(); 4].map(|()| {
                        scope.spawn(|| process.run(|_| count.fetch_add(1, Ordering::Relaxed)).unwrap())
                    });
                    // Wait until the threads have ended, and not only until their functions have returned.
                    threads.into_iter().for_each(|thread| _ = thread.join().unwrap());
                });
            }
        })
        .unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 80);
}

#[test]
fn a_forked_child_goes_on_natively_and_can_build_its_own() {
    let process = ring0_or_skip!();
    let ends = process
        .run(|_| {
            let plain = fork(|| if is_ring0() { 1 } else { 33 });
            let refused =
                fork(|| if process.enter().is_err() && Process::current().is_none() { 34 } else { 1 });
            let own = fork(|| match Process::builder().build() {
                Ok(own) => own.run(|_| if is_ring0() { 35 } else { 2 }).unwrap_or(3),
                Err(_) => 4,
            });
            (plain, refused, own, is_ring0())
        })
        .unwrap();
    assert_eq!(ends, (Some(33), Some(34), Some(35), true));
    assert!(process.run(|_| is_ring0()).unwrap());
}

#[test]
fn commands_can_be_run_from_ring_0() {
    let process = ring0_or_skip!();
    let out =
        process.run(|_| Command::new("/bin/sh").args(["-c", "echo $((6 * 7))"]).output()).unwrap().unwrap();
    assert!(out.status.success());
    assert_eq!(out.stdout, b"42\n");
}

#[test]
fn vfork_and_clone_calls_return_in_both() {
    let process = ring0_or_skip!();
    let ends = process
        .run(|_| {
            let mut ends = Vec::new();
            for number in [libc::SYS_vfork, libc::SYS_fork] {
                // The child must not return from a function that called vfork, so all its code is here.
                let pid: i64;
                // SAFETY: the child ends at once.
                unsafe {
                    std::arch::asm!(
                        "syscall", "test rax, rax", "jnz 2f",
                        "mov edi, 21", "mov eax, 60", "syscall", "ud2", "2:",
                        inlateout("rax") number => pid, out("rcx") _, out("r11") _, out("rdi") _,
                    );
                }
                ends.push(wait(pid as i32));
            }
            ends
        })
        .unwrap();
    assert_eq!(ends, [Some(21), Some(21)]);
}

#[test]
fn a_thread_that_ends_by_a_bare_exit_gives_its_processor_back() {
    let process = ring0_or_skip!();
    let before = process.cpus_in_use();
    let mut most = 0;
    for _ in 0..20 {
        let mut handle = 0;
        extern "C" fn end(_: *mut libc::c_void) -> *mut libc::c_void {
            if let Some(process) = Process::current() {
                process.enter().unwrap();
            }
            // SAFETY: ends this thread, without running its destructors.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
            std::ptr::null_mut()
        }
        // SAFETY: a thread without arguments, which is joined.
        unsafe {
            assert_eq!(libc::pthread_create(&raw mut handle, std::ptr::null(), end, std::ptr::null_mut()), 0);
            assert_eq!(libc::pthread_join(handle, std::ptr::null_mut()), 0);
        }
        most = most.max(process.cpus_in_use());
    }
    // Tests that run at the same time have up to five threads in ring 0.
    assert!(most <= before + 8, "{most} after {before}");
}

/// Starts a thread and waits for its end. The C library reuses the thread's stack only for threads with equally
/// large stacks.
fn on_a_large_stack(function: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void) {
    const BYTES: usize = 16 << 20;
    // SAFETY: a thread without arguments, which is joined.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_attr_init(&raw mut attributes), 0);
        assert_eq!(libc::pthread_attr_setstacksize(&raw mut attributes, BYTES), 0);
        let mut handle = 0;
        let started =
            libc::pthread_create(&raw mut handle, &raw const attributes, function, std::ptr::null_mut());
        assert_eq!(started, 0);
        assert_eq!(libc::pthread_join(handle, std::ptr::null_mut()), 0);
        libc::pthread_attr_destroy(&raw mut attributes);
    }
}

#[test]
fn a_stale_key_after_a_bare_exit_releases_no_processor() {
    extern "C" fn end_in_ring_0(_: *mut libc::c_void) -> *mut libc::c_void {
        Process::current().unwrap().enter().unwrap();
        // SAFETY: ends this thread, without running its destructors.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        std::ptr::null_mut()
    }
    extern "C" fn end(_: *mut libc::c_void) -> *mut libc::c_void {
        std::ptr::null_mut()
    }
    const THREADS: usize = 4;
    let process = ring0_or_skip!();
    on_a_large_stack(end_in_ring_0);
    let barrier = Barrier::new(2 * THREADS + 1);
    let (first, second) = std::thread::scope(|scope| {
        // The first threads own the processor that became free. They must keep it when a thread ends on the stack
        // of the earlier one.
        let hold = || {
            process
                .run(|cpu| {
                    let number = cpu.number();
                    barrier.wait();
                    number
                })
                .unwrap()
        };
        let first = [(); THREADS].map(|()| scope.spawn(hold));
        while process.cpus_in_use() < THREADS {
            std::thread::yield_now();
        }
        on_a_large_stack(end);
        let second = [(); THREADS].map(|()| scope.spawn(hold));
        barrier.wait();
        (first.map(|thread| thread.join().unwrap()), second.map(|thread| thread.join().unwrap()))
    });
    let numbers: BTreeSet<u32> = first.into_iter().chain(second).collect();
    assert_eq!(numbers.len(), 2 * THREADS, "{first:?} {second:?}");
}
