//! Tests of interrupts between processors, function calls on other processors, and the timer.

mod common;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use bedplate_ring0::{Cpu, Error, InterruptsOff, Outcome, Process, TrapFrame, handlers, is_ring0};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static COUNT: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);
const VECTOR: u8 = 0x50;

fn count(cpu: Cpu, _: &mut TrapFrame, _: u64) -> Outcome {
    LAST.store(u64::from(cpu.number()) + 1, Ordering::SeqCst);
    COUNT.fetch_add(1, Ordering::SeqCst);
    Outcome::Handled
}

fn add(cpu: Cpu, value: u64) {
    LAST.store(u64::from(cpu.number()) + 1, Ordering::SeqCst);
    COUNT.fetch_add(value, Ordering::SeqCst);
}

/// Another thread in ring 0. It computes until it is told to block or to stop.
struct Other {
    number: u32,
    id: i32,
    stop: &'static AtomicBool,
    block: &'static AtomicBool,
    blocked: &'static AtomicU32,
    pipe: OwnedFd,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Other {
    fn start(process: &'static Process) -> Other {
        let flag = || &*Box::leak(Box::new(AtomicBool::new(false)));
        let (stop, block, blocked) = (flag(), flag(), &*Box::leak(Box::new(AtomicU32::new(0))));
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            process
                .run(|cpu| {
                    tell.send((cpu.number(), common::this_thread())).unwrap();
                    while !stop.load(Ordering::SeqCst) {
                        if block.swap(false, Ordering::SeqCst) {
                            let mut byte = 0u8;
                            blocked.store(1, Ordering::SeqCst);
                            // SAFETY: reads into the variable.
                            unsafe { libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) };
                            blocked.store(2, Ordering::SeqCst);
                        }
                        std::hint::spin_loop();
                    }
                })
                .unwrap();
        });
        let (number, id) = told.recv().unwrap();
        Other { number, id, stop, block, blocked, pipe: writer, thread: Some(thread) }
    }

    /// Makes the thread wait in a system call.
    fn block(&self) {
        self.block.store(true, Ordering::SeqCst);
        while self.blocked.load(Ordering::SeqCst) != 1 {
            std::thread::yield_now();
        }
        common::wait_until_blocked(self.id, libc::SYS_read);
    }

    fn unblock(&self) {
        rustix::io::write(&self.pipe, b"x").unwrap();
        while self.blocked.load(Ordering::SeqCst) != 2 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn wait_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > common::PATIENCE {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

macro_rules! exclusive {
    () => {{
        let process = ring0_or_skip!();
        let guard = ONE_AT_A_TIME.lock();
        handlers::set_handler(VECTOR, Some(count)).unwrap();
        COUNT.store(0, Ordering::SeqCst);
        LAST.store(0, Ordering::SeqCst);
        (process, guard)
    }};
}

#[test]
fn an_interrupt_reaches_a_processor_that_computes() {
    let (process, _guard) = exclusive!();
    let other = Other::start(process);
    process
        .run(|cpu| {
            for number in 1..=100 {
                cpu.send(other.number, VECTOR).unwrap();
                assert!(wait_until(|| COUNT.load(Ordering::SeqCst) == number), "interrupt {number}");
            }
            assert!(is_ring0());
        })
        .unwrap();
    assert_eq!(LAST.load(Ordering::SeqCst), u64::from(other.number) + 1);
}

#[test]
fn an_interrupt_to_a_blocked_processor_is_taken_when_it_goes_on() {
    let (process, _guard) = exclusive!();
    let other = Other::start(process);
    other.block();
    process.run(|cpu| cpu.send(other.number, VECTOR).unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(COUNT.load(Ordering::SeqCst), 0);
    other.unblock();
    assert_eq!(COUNT.load(Ordering::SeqCst), 1);
}

#[test]
fn a_processor_interrupts_itself_and_only_with_interrupts_on() {
    let (process, _guard) = exclusive!();
    let (off, on) = process
        .run(|cpu| {
            // SAFETY: in ring 0 until it is dropped, because nothing in between faults.
            let off = unsafe { InterruptsOff::new() };
            cpu.send_self(VECTOR).unwrap();
            let before = COUNT.load(Ordering::SeqCst);
            drop(off);
            (before, COUNT.load(Ordering::SeqCst))
        })
        .unwrap();
    assert_eq!((off, on), (0, 1));
}

#[test]
fn functions_are_called_on_other_processors() {
    let (process, _guard) = exclusive!();
    let other = Other::start(process);
    process
        .run(|cpu| {
            for _ in 0..50 {
                cpu.call(other.number, add, 3).unwrap().wait();
            }
        })
        .unwrap();
    assert_eq!(COUNT.load(Ordering::SeqCst), 150);
    assert_eq!(LAST.load(Ordering::SeqCst), u64::from(other.number) + 1);
    // A processor can also call a function on itself.
    process.run(|cpu| cpu.call(cpu.number(), add, 1).unwrap().wait()).unwrap();
    assert_eq!(COUNT.load(Ordering::SeqCst), 151);
}

#[test]
fn a_call_to_a_blocked_processor_waits_for_it() {
    let (process, _guard) = exclusive!();
    let other = Other::start(process);
    other.block();
    let call = process.run(|cpu| cpu.call(other.number, add, 5).unwrap().is_done()).unwrap();
    assert!(!call);
    other.unblock();
    assert_eq!(COUNT.load(Ordering::SeqCst), 5);
}

#[test]
fn processors_that_call_each_other_do_not_wait_for_ever() {
    let (process, _guard) = exclusive!();
    let barrier = std::sync::Barrier::new(2);
    let numbers: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    let ready = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let number = process.enter().unwrap().number();
                numbers.lock().unwrap().push(number);
                barrier.wait();
                let to = *numbers.lock().unwrap().iter().find(|other| **other != number).unwrap();
                process
                    .run(|cpu| {
                        for _ in 0..200 {
                            // SAFETY: in ring 0 until it is dropped.
                            let off = unsafe { InterruptsOff::new() };
                            cpu.call(to, add, 1).unwrap().wait();
                            drop(off);
                        }
                        // The thread that is done first continues to serve the other one, which a thread in a
                        // system call would not do.
                        ready.fetch_add(1, Ordering::SeqCst);
                        while ready.load(Ordering::SeqCst) < 2 {
                            cpu.relax();
                        }
                    })
                    .unwrap();
            });
        }
    });
    assert_eq!(COUNT.load(Ordering::SeqCst), 400);
}

#[test]
fn ticks_come_periodically_and_stop() {
    let (process, _guard) = exclusive!();
    fn tick(_: Cpu, frame: &mut TrapFrame) {
        assert_ne!(frame.rip, 0);
        COUNT.fetch_add(1, Ordering::SeqCst);
    }
    let (took, later) = process
        .run(|cpu| {
            let start = Instant::now();
            cpu.start_ticks(Duration::from_millis(5), tick).unwrap();
            assert!(wait_until(|| COUNT.load(Ordering::SeqCst) >= 20));
            cpu.stop_ticks().unwrap();
            let took = start.elapsed();
            let count = COUNT.load(Ordering::SeqCst);
            let pause = Instant::now();
            while pause.elapsed() < Duration::from_millis(50) {}
            (took, COUNT.load(Ordering::SeqCst) - count)
        })
        .unwrap();
    assert!(took >= Duration::from_millis(90), "20 ticks of 5 ms in {took:?}");
    assert!(later <= 1, "{later} ticks after the end");
}

#[test]
fn a_halted_processor_wakes() {
    let (process, _guard) = exclusive!();
    fn tick(_: Cpu, _: &mut TrapFrame) {
        COUNT.fetch_add(1, Ordering::SeqCst);
    }
    process
        .run(|cpu| {
            cpu.start_ticks(Duration::from_millis(20), tick).unwrap();
            while COUNT.load(Ordering::SeqCst) < 3 {
                cpu.wait_for_interrupt();
            }
            cpu.stop_ticks().unwrap();
        })
        .unwrap();
}

#[test]
fn invalid_interrupts_and_calls_are_refused() {
    let (process, _guard) = exclusive!();
    let cpu = process
        .run(|cpu| {
            assert!(matches!(cpu.send(cpu.number(), 14), Err(Error::BadVector { .. })));
            assert!(matches!(cpu.send(cpu.number(), 0xf2), Err(Error::BadVector { .. })));
            assert!(matches!(cpu.send(1_000_000, VECTOR), Err(Error::NoSuchCpu { number: 1_000_000 })));
            assert!(matches!(cpu.call(999, add, 0), Err(Error::NoSuchCpu { .. })));
            cpu
        })
        .unwrap();
    assert!(matches!(cpu.send(cpu.number(), VECTOR), Err(Error::NotInRing0)));
    assert!(matches!(cpu.start_ticks(Duration::from_millis(1), |_, _| ()), Err(Error::NotInRing0)));
}
