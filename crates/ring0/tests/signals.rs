//! Tests of signals that arrive in ring 0: their handlers run in ring 3, and the thread stays in ring 0.

mod common;

use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bedplate_ring0::is_ring0;

static TAKEN: AtomicU32 = AtomicU32::new(0);
static TAKEN_IN_RING0: AtomicU32 = AtomicU32::new(0);
static ENTERED: AtomicU32 = AtomicU32::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

extern "C" fn take(_: i32) {
    TAKEN.fetch_add(1, Ordering::SeqCst);
    if is_ring0() {
        TAKEN_IN_RING0.fetch_add(1, Ordering::SeqCst);
    }
}

extern "C" fn take_and_enter(_: i32) {
    TAKEN.fetch_add(1, Ordering::SeqCst);
    if common::process().enter().is_ok() {
        ENTERED.fetch_add(1, Ordering::SeqCst);
    }
}

fn catch(signal: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: the handler is a function of the right form.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
    TAKEN.store(0, Ordering::SeqCst);
    TAKEN_IN_RING0.store(0, Ordering::SeqCst);
}

/// Sends a signal to the calling thread from another thread, after `ready` has returned. `ready` gets the
/// number of the calling thread.
fn send_when(signal: i32, ready: impl FnOnce(i32) + Send + 'static) -> std::thread::JoinHandle<()> {
    // SAFETY: identifies this thread, which outlives the other one.
    let (this, number) = (unsafe { libc::pthread_self() }, common::this_thread());
    std::thread::spawn(move || {
        ready(number);
        // SAFETY: as above.
        unsafe { libc::pthread_kill(this, signal) };
    })
}

/// Waits until a thread sleeps in `read`.
fn is_reading(thread: i32) {
    common::wait_until_blocked(thread, libc::SYS_read);
}

#[test]
fn a_signal_reaches_code_that_only_computes() {
    let process = ring0_or_skip!();
    let _one = ONE_AT_A_TIME.lock();
    catch(libc::SIGUSR1, take, 0);
    let inside = process
        .run(|_| {
            let sender = send_when(libc::SIGUSR1, |_| std::thread::sleep(Duration::from_millis(100)));
            let mut value = 1.0f64;
            while TAKEN.load(Ordering::SeqCst) == 0 {
                value *= 1.000_000_1;
                std::hint::spin_loop();
            }
            sender.join().unwrap();
            value > 1.0 && is_ring0()
        })
        .unwrap();
    assert!(inside);
    assert_eq!((TAKEN.load(Ordering::SeqCst), TAKEN_IN_RING0.load(Ordering::SeqCst)), (1, 0));
}

#[test]
fn blocking_calls_are_interrupted_or_restarted() {
    let process = ring0_or_skip!();
    let _one = ONE_AT_A_TIME.lock();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let read = || {
        let mut byte = 0u8;
        // SAFETY: reads into the variable.
        let count = unsafe { libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) };
        if count < 0 { Err(std::io::Error::last_os_error().raw_os_error()) } else { Ok(byte) }
    };
    catch(libc::SIGUSR1, take, 0);
    let interrupted = process
        .run(|_| {
            let sender = send_when(libc::SIGUSR1, is_reading);
            let result = read();
            sender.join().unwrap();
            (result, is_ring0())
        })
        .unwrap();
    assert_eq!(interrupted, (Err(Some(libc::EINTR)), true));
    catch(libc::SIGUSR1, take, libc::SA_RESTART);
    let restarted = process
        .run(|_| {
            let sender = send_when(libc::SIGUSR1, is_reading);
            let this = common::this_thread();
            let writer = &writer;
            let other = std::thread::scope(|scope| {
                scope.spawn(move || {
                    while TAKEN.load(Ordering::SeqCst) == 0 {
                        std::thread::yield_now();
                    }
                    is_reading(this);
                    rustix::io::write(writer, b"z").unwrap();
                });
                read()
            });
            sender.join().unwrap();
            (other, is_ring0())
        })
        .unwrap();
    assert_eq!(restarted, (Ok(b'z'), true));
    assert_eq!(TAKEN.load(Ordering::SeqCst), 1);
}

#[test]
fn frequent_timer_signals_disturb_nothing() {
    let process = ring0_or_skip!();
    let _one = ONE_AT_A_TIME.lock();
    catch(libc::SIGALRM, take, libc::SA_RESTART);
    // A timer of this thread. Signals of `setitimer` could be handled by any thread of the process.
    // SAFETY: all zeros is an event; the calls read and write the variables.
    let timer = unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = common::this_thread();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
        timer
    };
    let every = |microseconds: i64| {
        let time = libc::timespec { tv_sec: 0, tv_nsec: microseconds * 1000 };
        let time = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: reads the variable.
        unsafe { libc::timer_settime(timer, 0, &raw const time, std::ptr::null_mut()) };
    };
    let (wrong, inside) = process
        .run(|_| {
            every(3000);
            let (mut wrong, mut index) = (0, 0u64);
            while TAKEN.load(Ordering::SeqCst) < 40 {
                let block: [u64; 8] = std::array::from_fn(|part| std::hint::black_box(index) * part as u64);
                wrong += u32::from(block.iter().sum::<u64>() != index * 28);
                index += 1;
                if index.is_multiple_of(1024) {
                    std::hint::black_box(rustix::process::getppid());
                }
            }
            every(0);
            (wrong, is_ring0())
        })
        .unwrap();
    // SAFETY: made above.
    unsafe { libc::timer_delete(timer) };
    assert_eq!((wrong, inside), (0, true));
    assert_eq!(TAKEN_IN_RING0.load(Ordering::SeqCst), 0);
}

#[test]
fn handlers_cannot_enter_on_top_of_ring_0() {
    let process = ring0_or_skip!();
    let _one = ONE_AT_A_TIME.lock();
    for flags in [0, libc::SA_ONSTACK] {
        catch(libc::SIGUSR1, take_and_enter, flags);
        ENTERED.store(0, Ordering::SeqCst);
        let inside = process
            .run(|_| {
                // SAFETY: sends a signal to this thread.
                unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
                is_ring0()
            })
            .unwrap();
        assert!(inside);
        assert_eq!((TAKEN.load(Ordering::SeqCst), ENTERED.load(Ordering::SeqCst)), (1, 0));
    }
    // A handler that interrupts code in ring 3 can enter. It returns to that code in ring 3.
    catch(libc::SIGUSR1, take_and_enter, 0);
    // SAFETY: as above.
    unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
    assert_eq!((ENTERED.load(Ordering::SeqCst), is_ring0()), (1, false));
}
