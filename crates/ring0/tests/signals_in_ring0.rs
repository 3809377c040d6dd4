//! Tests of signals whose handlers run in ring 0.

mod common;

use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bedplate_ring0::{Cpu, Error, InterruptsOff, Process, handlers, is_ring0};

static TAKEN: AtomicU32 = AtomicU32::new(0);
static IN_RING0: AtomicU32 = AtomicU32::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn take(signal: i32, info: &libc::siginfo_t) {
    assert_eq!(signal, info.si_signo);
    // Use vector registers, which a handler may do.
    std::hint::black_box((f64::from(signal) * 1.5).sqrt());
    IN_RING0.fetch_add(u32::from(Cpu::current().is_some()), Ordering::SeqCst);
    TAKEN.fetch_add(1, Ordering::SeqCst);
}

fn take_and_leave(signal: i32, info: &libc::siginfo_t) {
    take(signal, info);
    if let Some(process) = Process::current() {
        process.leave();
    }
}

fn taken() -> (u32, u32) {
    (TAKEN.load(Ordering::SeqCst), IN_RING0.load(Ordering::SeqCst))
}

macro_rules! exclusive {
    ($handler:expr, $restart:expr) => {{
        let process = ring0_or_skip!();
        let guard = ONE_AT_A_TIME.lock();
        TAKEN.store(0, Ordering::SeqCst);
        IN_RING0.store(0, Ordering::SeqCst);
        handlers::set_signal_handler(libc::SIGUSR2, Some($handler), $restart).unwrap();
        (process, guard)
    }};
}

fn raise() {
    // SAFETY: sends a signal to this thread.
    unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
}

#[test]
fn a_handler_runs_where_the_thread_was() {
    let (process, _guard) = exclusive!(take, false);
    raise();
    assert_eq!(taken(), (1, 0), "natively");
    let inside = process.run(|_| {
        raise();
        is_ring0()
    });
    assert!(inside.unwrap());
    assert_eq!(taken(), (2, 1), "in ring 0");
    assert!(process.statistics().signals_in_ring0 >= 1);
}

fn take_with_a_system_call(signal: i32, info: &libc::siginfo_t) {
    take(signal, info);
    // SAFETY: has no arguments and no effect.
    assert!(unsafe { libc::syscall(libc::SYS_getpid) } > 0);
}

fn take_with_a_system_call_and_leave(signal: i32, info: &libc::siginfo_t) {
    take_with_a_system_call(signal, info);
    take_and_leave(signal, info);
}

/// A signal that a system call sends interrupts that call before the call has its result, which is 0 here.
#[test]
fn a_call_keeps_its_result_though_a_handler_makes_calls() {
    for (handler, stays) in [
        (take_with_a_system_call as fn(i32, &libc::siginfo_t), true),
        (take_with_a_system_call_and_leave, false),
    ] {
        let (process, _guard) = exclusive!(handler, false);
        let result = process.run(|_| {
            // SAFETY: sends a signal to this thread.
            let result = unsafe {
                let (pid, tid) = (libc::getpid(), libc::gettid());
                libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR2)
            };
            (result, is_ring0())
        });
        assert_eq!(result.unwrap(), (0, stays));
        assert!(taken().1 >= 1, "in ring 0");
    }
}

/// Whether the thread that receives the signals is in ring 0.
static READY: AtomicBool = AtomicBool::new(false);

/// Sends signals one after the other, each after the previous one was handled and after a varying delay. Then
/// writes a byte.
fn send_many(this: libc::pthread_t, count: u32, pipe: &impl AsRawFd) {
    while !READY.swap(false, Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    for number in 0..count {
        while TAKEN.load(Ordering::SeqCst) != number {
            std::hint::spin_loop();
        }
        for _ in 0..number.wrapping_mul(7919) % 5000 {
            std::hint::spin_loop();
        }
        // SAFETY: the thread waits for the byte.
        unsafe { libc::pthread_kill(this, libc::SIGUSR2) };
    }
    while TAKEN.load(Ordering::SeqCst) != count {
        std::hint::spin_loop();
    }
    // SAFETY: writes one byte of a string.
    assert_eq!(unsafe { libc::write(pipe.as_raw_fd(), c"z".as_ptr().cast(), 1) }, 1);
}

fn no_signal_waits_for_a_blocking_call(process: &'static Process, count: u32) -> u32 {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: identifies this thread, which waits for the other.
    let this = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(|| send_many(this, count, &writer));
        process
            .run(|_| {
                let mut interrupted = 0;
                READY.store(true, Ordering::SeqCst);
                loop {
                    let mut byte = 0u8;
                    // SAFETY: reads into the variable.
                    let got = unsafe { libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) };
                    match got {
                        1 => break,
                        _ => {
                            let error = std::io::Error::last_os_error();
                            assert_eq!(error.raw_os_error(), Some(libc::EINTR));
                            interrupted += 1;
                        }
                    }
                }
                assert!(is_ring0());
                interrupted
            })
            .unwrap()
    })
}

#[test]
fn no_signal_is_left_behind_by_a_call_that_blocks() {
    let (process, _guard) = exclusive!(take, false);
    let interrupted = no_signal_waits_for_a_blocking_call(process, 150);
    assert_eq!(taken(), (150, 150));
    assert!(interrupted > 0, "some calls were interrupted");
}

#[test]
fn restarted_calls_do_not_show_the_signal() {
    let (process, _guard) = exclusive!(take, true);
    assert_eq!(no_signal_waits_for_a_blocking_call(process, 150), 0);
    assert_eq!(taken(), (150, 150));
}

#[test]
fn interrupted_computations_go_on_unchanged() {
    let (process, _guard) = exclusive!(take, true);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: identifies this thread, which waits for the other.
    let this = unsafe { libc::pthread_self() };
    let wrong = std::thread::scope(|scope| {
        scope.spawn(|| send_many(this, 100, &writer));
        process
            .run(|_| {
                let mut wrong = 0;
                READY.store(true, Ordering::SeqCst);
                let mut index = 0u64;
                while TAKEN.load(Ordering::SeqCst) < 100 {
                    let block: [f64; 16] =
                        std::array::from_fn(|part| std::hint::black_box(index as f64) * part as f64);
                    wrong += u32::from((block.iter().sum::<f64>() - index as f64 * 120.0).abs() > 1e-3);
                    let whole: u64 = (0..16).map(|part| std::hint::black_box(index) * part).sum();
                    wrong += u32::from(whole != index * 120);
                    index += 1;
                    std::hint::spin_loop();
                }
                wrong
            })
            .unwrap()
    });
    assert_eq!((wrong, taken()), (0, (100, 100)));
    drop(reader);
}

#[test]
fn with_interrupts_off_a_signal_waits() {
    let (process, _guard) = exclusive!(take, true);
    let (off, on) = process
        .run(|_| {
            // SAFETY: in ring 0 until it is dropped.
            let off = unsafe { InterruptsOff::new() };
            raise();
            std::hint::black_box(rustix::process::getppid());
            let before = taken();
            drop(off);
            (before, taken())
        })
        .unwrap();
    assert_eq!((off, on), ((0, 0), (1, 1)));
}

#[test]
fn a_signal_that_was_noted_is_not_lost_by_leaving() {
    let (process, _guard) = exclusive!(take, true);
    process.enter().unwrap();
    // SAFETY: in ring 0; it is dropped in ring 3, where it does nothing.
    let off = unsafe { InterruptsOff::new() };
    raise();
    let before = taken();
    process.leave();
    drop(off);
    assert_eq!((before, taken()), ((0, 0), (1, 0)));
}

#[test]
fn a_handler_that_loses_ring_0_returns_natively() {
    let (process, _guard) = exclusive!(take_and_leave, true);
    for _ in 0..20 {
        TAKEN.store(0, Ordering::SeqCst);
        let sum: u64;
        process.enter().unwrap();
        // SAFETY: makes a system call that sends a signal to this thread; uses only the named registers.
        unsafe {
            let ids = (libc::getpid(), libc::gettid());
            std::arch::asm!(
                "mov r12, 100", "mov r13, 20", "mov qword ptr [rsp - 16], 3",
                "syscall",
                "mov rax, r12", "add rax, r13", "add rax, [rsp - 16]",
                inlateout("rax") libc::SYS_tgkill => sum, in("rdi") ids.0, in("rsi") ids.1, in("rdx") libc::SIGUSR2,
                out("rcx") _, out("r11") _, out("r12") _, out("r13") _,
            );
        }
        assert_eq!((sum, is_ring0(), TAKEN.load(Ordering::SeqCst)), (123, false, 1));
    }
}

#[test]
fn signals_of_instructions_are_refused() {
    for signal in [libc::SIGSEGV, libc::SIGKILL, libc::SIGTRAP, 0, 65, -1] {
        let refused = handlers::set_signal_handler(signal, Some(take), false);
        assert!(matches!(refused, Err(Error::BadSignal { .. })), "{signal}");
    }
}
