//! Tests of handlers of exceptions and system calls.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bedplate_ring0::paging::VirtRange;
use bedplate_ring0::{
    Answer, Cpu, Error, Outcome, SyscallFrame, SyscallHandler, TrapFrame, handlers, is_ring0,
};

/// The handlers belong to the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static SEEN: AtomicU64 = AtomicU64::new(0);
static OTHER: AtomicI64 = AtomicI64::new(0);

/// Removes the handlers, even if a test fails.
struct Reset;

impl Drop for Reset {
    fn drop(&mut self) {
        for vector in [3, 6] {
            handlers::set_handler(vector, None).unwrap();
        }
        handlers::set_page_fault_handler(None);
        handlers::set_syscall_handler(None);
    }
}

macro_rules! exclusive {
    () => {{
        let process = ring0_or_skip!();
        let lock = ONE_AT_A_TIME.lock();
        let guard = (Reset, lock); // dropped in this order
        SEEN.store(0, Ordering::SeqCst);
        OTHER.store(0, Ordering::SeqCst);
        (process, guard)
    }};
}

#[test]
fn an_exception_handler_sees_and_changes_registers() {
    let (process, _guard) = exclusive!();
    fn breakpoint(cpu: Cpu, frame: &mut TrapFrame, _: u64) -> Outcome {
        assert_eq!(cpu.number(), Cpu::current().unwrap().number());
        SEEN.store(frame.rbx_like(), Ordering::SeqCst);
        frame.rax = 77;
        Outcome::Handled
    }
    fn skip(_: Cpu, frame: &mut TrapFrame, _: u64) -> Outcome {
        frame.rip += 2;
        frame.rax += 1;
        Outcome::Handled
    }
    handlers::set_handler(3, Some(breakpoint)).unwrap();
    handlers::set_handler(6, Some(skip)).unwrap();
    let vector = [0x1234_5678_9abc_def0u64, 42];
    let (value, kept, inside) = process
        .run(|_| {
            let value: u64;
            let mut kept = [0u64; 2];
            // SAFETY: the handlers make the code continue.
            unsafe {
                std::arch::asm!(
                    "movdqu xmm7, [rsi]", "mov rcx, 55", "int3", "ud2", "movdqu [rdi], xmm7",
                    out("rax") value, out("rcx") _, in("rsi") vector.as_ptr(), in("rdi") kept.as_mut_ptr(),
                    out("xmm7") _,
                );
            }
            (value, kept, is_ring0())
        })
        .unwrap();
    assert_eq!((value, SEEN.load(Ordering::SeqCst), inside), (78, 55, true));
    assert_eq!(kept, vector);
}

/// Returns the value that the code above has put into RCX.
trait RbxLike {
    fn rbx_like(&self) -> u64;
}

impl RbxLike for TrapFrame {
    fn rbx_like(&self) -> u64 {
        // Use vector registers, which a handler may do.
        std::hint::black_box((self.rcx as f64).sqrt());
        self.rcx
    }
}

#[test]
fn a_page_fault_handler_gets_the_address_and_can_pass_it_on() {
    let (process, _guard) = exclusive!();
    static PLACE: AtomicU64 = AtomicU64::new(0x1200_0000_0000);
    fn look(_: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
        if address >> 30 == PLACE.load(Ordering::SeqCst) >> 30 {
            SEEN.store(address, Ordering::SeqCst);
            OTHER.store(i64::from(frame.is_write()), Ordering::SeqCst);
        }
        Outcome::Pass
    }
    handlers::set_page_fault_handler(Some(look));
    let place = PLACE.load(Ordering::SeqCst);
    let value = process
        .run(|_| {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a new mapping that only this test uses.
            unsafe {
                let at = libc::mmap(place as *mut libc::c_void, 8192, protection, flags, -1, 0);
                assert_eq!(at as u64, place);
                at.cast::<u64>().add(515).write_volatile(9);
                let value = at.cast::<u64>().add(515).read_volatile();
                libc::munmap(at, 8192);
                value
            }
        })
        .unwrap();
    assert_eq!(value, 9, "the default handler added the window");
    assert_eq!((SEEN.load(Ordering::SeqCst), OTHER.load(Ordering::SeqCst)), (place + 515 * 8, 1));
}

#[test]
fn a_fault_in_a_handler_is_handled() {
    let (process, _guard) = exclusive!();
    static FAR: AtomicU64 = AtomicU64::new(0);
    fn touch(_: Cpu, _: &mut TrapFrame, _: u64) -> Outcome {
        // SAFETY: memory that only this test uses; it has no window yet.
        let seen = unsafe { (FAR.load(Ordering::SeqCst) as *const u64).read_volatile() };
        SEEN.store(seen, Ordering::SeqCst);
        Outcome::Handled
    }
    let place = 0x1300_0000_0000u64;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping that only this test uses.
    let at = unsafe { libc::mmap(place as *mut libc::c_void, 4096, protection, flags, -1, 0) };
    assert_eq!(at as u64, place);
    // SAFETY: as above.
    unsafe { at.cast::<u64>().write(4711) };
    FAR.store(place, Ordering::SeqCst);
    handlers::set_handler(3, Some(touch)).unwrap();
    let inside = process.run(|_| {
        // SAFETY: the handler makes the code continue.
        unsafe { std::arch::asm!("int3") };
        is_ring0()
    });
    assert!(inside.unwrap());
    assert_eq!(SEEN.load(Ordering::SeqCst), 4711);
    // SAFETY: no code uses it any more.
    unsafe { libc::munmap(at, 4096) };
}

#[test]
fn vectors_that_are_not_the_programs_are_refused() {
    fn ignore(_: Cpu, _: &mut TrapFrame, _: u64) -> Outcome {
        Outcome::Handled
    }
    for vector in [8, 18, 0xf0, 0xf1, 0xf2, 0xff] {
        let refused = handlers::set_handler(vector, Some(ignore));
        assert!(matches!(refused, Err(Error::BadVector { .. })), "{vector}");
    }
}

#[test]
fn a_system_call_handler_observes_changes_answers_and_refuses() {
    let (process, _guard) = exclusive!();
    fn handle(_: Cpu, frame: &mut SyscallFrame) -> Answer {
        match frame.number as i64 {
            libc::SYS_getppid => Answer::Return(4242),
            libc::SYS_getpgid => {
                frame.number = libc::SYS_getpid as u64;
                Answer::Proxy
            }
            libc::SYS_rmdir => Answer::Return(-i64::from(libc::EACCES)),
            libc::SYS_getuid => {
                // The handler's own calls bypass the handler. Otherwise this call would return 4242.
                // SAFETY: no conditions.
                let own = unsafe { libc::syscall(libc::SYS_getppid) };
                OTHER.store(own, Ordering::SeqCst);
                let result = frame.proxy();
                SEEN.store(result as u64 + 1, Ordering::SeqCst);
                Answer::Return(result)
            }
            _ => Answer::Proxy,
        }
    }
    handlers::set_syscall_handler(Some(handle));
    // SAFETY: these calls change nothing.
    let (parent, changed, refused, errno, user, child) = process
        .run(|_| unsafe {
            let parent = libc::syscall(libc::SYS_getppid);
            let changed = libc::syscall(libc::SYS_getpgid, 0);
            let refused = libc::rmdir(c"/nonexistent".as_ptr());
            let errno = std::io::Error::last_os_error().raw_os_error();
            let user = libc::syscall(libc::SYS_getuid);
            let child = std::thread::spawn(is_ring0).join().unwrap();
            (parent, changed, refused, errno, user, child)
        })
        .unwrap();
    assert_eq!(parent, 4242);
    assert_eq!(changed, i64::from(std::process::id()));
    assert_eq!((refused, errno), (-1, Some(libc::EACCES)));
    assert_eq!(SEEN.load(Ordering::SeqCst), user as u64 + 1);
    assert_ne!(OTHER.load(Ordering::SeqCst), 4242);
    assert!(!child, "threads start natively with a handler, too");
    let answered = process.statistics().system_calls_answered;
    assert!(answered >= 3, "{answered}");
}

#[test]
fn answered_system_calls_cost_no_exit() {
    let (process, _guard) = exclusive!();
    fn answer(_: Cpu, frame: &mut SyscallFrame) -> Answer {
        if frame.number == libc::SYS_getppid as u64 { Answer::Return(1) } else { Answer::Proxy }
    }
    handlers::set_syscall_handler(Some(answer));
    let exits = process
        .run(|cpu| {
            let before = cpu.statistics().exits;
            for _ in 0..1000 {
                // SAFETY: no conditions.
                assert_eq!(unsafe { libc::syscall(libc::SYS_getppid) }, 1);
            }
            cpu.statistics().exits - before
        })
        .unwrap();
    assert!(exits < 100, "{exits} exits for 1000 answered calls");
}

#[test]
fn large_mappings_are_aligned_and_advised() {
    let (process, _guard) = exclusive!();
    handlers::set_syscall_handler(Some(handlers::map_huge));
    let map = |bytes: usize| {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory that only this test uses.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, both, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>()
    };
    const LARGE: usize = (17 << 20) + 4096 * 3;
    let places = process
        .run(|_| {
            [0; 4].map(|_| {
                let at = map(LARGE);
                for page in (0..LARGE).step_by(4096) {
                    // SAFETY: inside of the mapping.
                    unsafe { at.add(page).write_volatile(page as u8) };
                }
                at as u64
            })
        })
        .unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    for place in places {
        assert!(place.is_multiple_of(2 << 20), "{place:#x}");
    }
    // "hg" marks an area that was advised to use huge pages. Neighbouring areas may have been merged.
    let advised: usize = smaps
        .split("VmFlags:")
        .zip(smaps.split("VmFlags:").skip(1))
        .filter(|(_, flags)| flags.lines().next().unwrap_or_default().split(' ').any(|flag| flag == "hg"))
        .filter_map(|(area, _)| area.lines().find_map(|line| line.strip_prefix("Size:")))
        .filter_map(|size| size.trim().trim_end_matches(" kB").parse::<usize>().ok())
        .sum();
    assert_eq!(advised, 4 * LARGE / 1024, "kB advised");
    for place in places {
        // SAFETY: no code uses it any more.
        assert_eq!(unsafe { libc::munmap(place as *mut libc::c_void, LARGE) }, 0);
    }
}

#[test]
fn a_claimed_range_keeps_its_handler_beside_the_programs() {
    let (process, _guard) = exclusive!();
    const PLACE: u64 = 0x1400_0000_0000;
    fn of_the_range(_: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
        SEEN.store(address, Ordering::SeqCst);
        if address == PLACE {
            frame.rip += 3; // `mov (%rsi), %rax`
            frame.rax = 5;
            return Outcome::Handled;
        }
        Outcome::Pass
    }
    fn of_the_program(_: Cpu, frame: &mut TrapFrame, address: u64) -> Outcome {
        OTHER.store(address as i64, Ordering::SeqCst);
        frame.rip += 3;
        frame.rax = 6;
        Outcome::Handled
    }
    let range = VirtRange::at(PLACE, 0x2000).unwrap();
    handlers::claim_page_faults(range, of_the_range).unwrap();
    handlers::set_page_fault_handler(Some(of_the_program));
    let read = |address: u64| {
        process
            .run(|_| {
                let value: u64;
                // SAFETY: a handler sets the value and continues behind the instruction.
                unsafe { std::arch::asm!("mov rax, [rsi]", in("rsi") address, out("rax") value) };
                value
            })
            .unwrap()
    };
    let seen = || (SEEN.swap(0, Ordering::SeqCst), OTHER.swap(0, Ordering::SeqCst) as u64);
    assert_eq!((read(PLACE), seen()), (5, (PLACE, 0)));
    assert_eq!((read(PLACE + 8), seen()), (6, (PLACE + 8, PLACE + 8)), "what the range's handler passes on");
    assert_eq!((read(PLACE + 0x2000), seen()), (6, (0, PLACE + 0x2000)), "behind the range");
    handlers::release_page_faults(range);
    assert_eq!((read(PLACE), seen()), (6, (0, PLACE)));
}

#[test]
fn a_layer_gets_the_calls_that_the_programs_handler_passes() {
    let (process, _guard) = exclusive!();
    const FIRST: i64 = 7001;
    const SECOND: i64 = 7002;
    fn layer(_: Cpu, frame: &mut SyscallFrame) -> Answer {
        match frame.number as i64 {
            FIRST => Answer::Return(1),
            SECOND => Answer::Return(frame.arguments[0] as i64 + 2),
            _ => Answer::Proxy,
        }
    }
    fn program(_: Cpu, frame: &mut SyscallFrame) -> Answer {
        match frame.number as i64 {
            FIRST => Answer::Return(10),
            SECOND => {
                frame.arguments[0] += 40;
                Answer::Proxy
            }
            _ => Answer::Proxy,
        }
    }
    fn another<const N: i64>(_: Cpu, frame: &mut SyscallFrame) -> Answer {
        if frame.number as i64 == FIRST + N { Answer::Return(N) } else { Answer::Proxy }
    }
    handlers::add_syscall_layer(layer).unwrap();
    let call = |number: i64, argument: u64| {
        // SAFETY: system call numbers that Linux does not know, and one without arguments.
        process.run(|_| unsafe { libc::syscall(number, argument) }).unwrap()
    };
    assert_eq!((call(FIRST, 0), call(SECOND, 5)), (1, 7));
    handlers::set_syscall_handler(Some(program));
    assert_eq!((call(FIRST, 0), call(SECOND, 5)), (10, 47));
    assert!(call(libc::SYS_getpid, 0) > 1, "Linux is asked in the end");
    // Adding the same layer again does not use another entry.
    for _ in 0..2 * handlers::MOST_LAYERS {
        handlers::add_syscall_layer(layer).unwrap();
    }
    let others: [SyscallHandler; 3] = [another::<100>, another::<101>, another::<102>];
    assert_eq!(others.len() + 1, handlers::MOST_LAYERS);
    others.into_iter().for_each(|other| handlers::add_syscall_layer(other).unwrap());
    let refused = handlers::add_syscall_layer(another::<103>);
    assert!(matches!(refused, Err(Error::TooManyLayers { limit: handlers::MOST_LAYERS })), "{refused:?}");
    handlers::set_syscall_handler(None);
    assert_eq!((call(FIRST, 0), call(FIRST + 102, 0)), (1, 102));
}
