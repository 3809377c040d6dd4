//! Tests that faults without a handler become the signals they would be in ring 3.

mod common;

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use bedplate_ring0::is_ring0;

static RECOVER: AtomicU64 = AtomicU64::new(0);
static REPAIR: AtomicU64 = AtomicU64::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicU64 = AtomicU64::new(0);
static IN_RING0: AtomicI32 = AtomicI32::new(-1);
/// The signal handlers belong to the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Records the signal. Then it repairs the page's rights, or continues at the address that the code has stored.
extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    SIGNAL.store(signal, Ordering::SeqCst);
    // SAFETY: the kernel passes both.
    unsafe {
        ADDRESS.store((*info).si_addr() as u64, Ordering::SeqCst);
        IN_RING0.store(i32::from(is_ring0()), Ordering::SeqCst);
        let repair = REPAIR.swap(0, Ordering::SeqCst);
        if repair != 0 {
            libc::mprotect(repair as *mut c_void, 4096, libc::PROT_READ | libc::PROT_WRITE);
        } else {
            let context = &mut *context.cast::<libc::ucontext_t>();
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = RECOVER.load(Ordering::SeqCst) as i64;
        }
    }
}

fn catch_signals() {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: the handler is a function of the form that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
    }
}

/// Runs an instruction that faults, with RAX as given. Returns the signal and the address.
macro_rules! faulting {
    ($process:expr, $instruction:literal, $rax:expr) => {{
        SIGNAL.store(0, Ordering::SeqCst);
        let rax: u64 = $rax;
        let before = $process.enter().map(|_| is_ring0()).unwrap();
        // SAFETY: the handler makes the code continue behind the instruction.
        unsafe {
            std::arch::asm!(
                "lea rcx, [rip + 2f]", "mov [rdi], rcx", $instruction, "2:",
                in("rdi") RECOVER.as_ptr(), inout("rax") rax => _, out("rcx") _, inout("rdx") 0u64 => _,
            );
        }
        let after = is_ring0();
        $process.leave();
        assert!(before && !after, "before {before}, after {after}");
        assert_eq!(IN_RING0.load(Ordering::SeqCst), 0, "the handler runs natively");
        (SIGNAL.load(Ordering::SeqCst), ADDRESS.load(Ordering::SeqCst))
    }};
}

struct Page(*mut u8);

impl Page {
    fn new(protection: i32) -> Page {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new pages.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Page(at.cast())
    }

    fn address(&self) -> u64 {
        self.0 as u64
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page made in `new`.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

#[test]
fn each_fault_is_its_signal_at_its_address() {
    let process = ring0_or_skip!();
    let _one = ONE_AT_A_TIME.lock();
    catch_signals();
    let read_only = Page::new(libc::PROT_READ);
    let nothing = Page::new(libc::PROT_NONE);
    assert_eq!(
        faulting!(process, "mov [rax], rcx", read_only.address()),
        (libc::SIGSEGV, read_only.address())
    );
    assert_eq!(faulting!(process, "mov rcx, [rax]", nothing.address()), (libc::SIGSEGV, nothing.address()));
    assert_eq!(faulting!(process, "mov rcx, [rax]", 16), (libc::SIGSEGV, 16));
    let hole = 0x2000_0000_0000;
    assert_eq!(faulting!(process, "mov rcx, [rax]", hole), (libc::SIGSEGV, hole));
    assert_eq!(faulting!(process, "mov [rax + 8], rcx", hole), (libc::SIGSEGV, hole + 8));
    // An address in an existing window at which no other code maps anything.
    let gone = {
        let place = 0x1400_0000_0000u64;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: new pages, unmapped after their last use.
        unsafe {
            let at = libc::mmap(place as *mut c_void, 4096, libc::PROT_READ, flags, -1, 0);
            assert_eq!(at as u64, place);
            process.run(|_| at.cast::<u8>().read_volatile()).unwrap();
            libc::munmap(at, 4096);
        }
        place
    };
    assert_eq!(faulting!(process, "mov rcx, [rax]", gone), (libc::SIGSEGV, gone));
    assert_eq!(faulting!(process, "mov rcx, [rax]", 1 << 60).0, libc::SIGSEGV, "an address that cannot be");
    assert_eq!(faulting!(process, "div rdx", 5).0, libc::SIGFPE);
    assert_eq!(faulting!(process, "ud2", 0).0, libc::SIGILL);
    assert_eq!(faulting!(process, "int3", 0).0, libc::SIGTRAP);
    assert_eq!(faulting!(process, "int 0x77", 0).0, libc::SIGSEGV, "a software interrupt");
    assert_eq!(faulting!(process, "jmp rax", nothing.address()), (libc::SIGSEGV, nothing.address()));
    assert_eq!(faulting!(process, "out 0x70, al", 0).0, libc::SIGSEGV, "a port that nobody has");
}

#[test]
fn a_file_that_became_shorter_is_sigbus() {
    let process = ring0_or_skip!();
    let _one = ONE_AT_A_TIME.lock();
    catch_signals();
    // SAFETY: a file that only this test uses.
    let (file, at) = unsafe {
        let file = libc::memfd_create(c"short".as_ptr(), 0);
        assert_eq!(libc::ftruncate(file, 8192), 0);
        let at = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ, libc::MAP_SHARED, file, 0);
        assert_eq!(libc::ftruncate(file, 4096), 0);
        (file, at)
    };
    let address = at as u64 + 4096;
    assert_eq!(faulting!(process, "mov rcx, [rax]", address), (libc::SIGBUS, address));
    // SAFETY: no code uses them any more.
    unsafe {
        libc::munmap(at, 8192);
        libc::close(file);
    }
}

#[test]
fn all_registers_and_the_red_zone_survive_going_native() {
    let process = ring0_or_skip!();
    let _one = ONE_AT_A_TIME.lock();
    catch_signals();
    for _ in 0..20 {
        let page = Page::new(libc::PROT_NONE);
        REPAIR.store(page.address(), Ordering::SeqCst);
        process.enter().unwrap();
        let mut sum: u64 = page.address();
        let vector = [0x0123_4567_89ab_cdefu64, 0xfedc_ba98_7654_3210];
        let mut out = [0u64; 2];
        // SAFETY: uses only the named registers, and the red zone, which no other code uses here.
        unsafe {
            std::arch::asm!(
                "movdqu xmm15, [r14]",
                "mov qword ptr [rsp - 128], 1000", "mov qword ptr [rsp - 8], 2000",
                "mov rcx, 1", "mov rdx, 2", "mov rsi, 3", "mov rdi, 4", "mov r8, 5", "mov r9, 6", "mov r10, 7",
                "mov r11, 8", "mov r12, 9", "mov r13, 10",
                "mov qword ptr [rax], 11",
                "mov rax, [rax]", "add rax, rcx", "add rax, rdx", "add rax, rsi", "add rax, rdi", "add rax, r8",
                "add rax, r9", "add rax, r10", "add rax, r11", "add rax, r12", "add rax, r13",
                "add rax, [rsp - 128]", "add rax, [rsp - 8]",
                "movdqu [r15], xmm15",
                inout("rax") sum, in("r14") vector.as_ptr(), in("r15") out.as_mut_ptr(),
                out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _, out("r10") _,
                out("r11") _, out("r12") _, out("r13") _, out("xmm15") _,
            );
        }
        let native = !is_ring0();
        process.leave();
        assert_eq!(sum, (1..=11).sum::<u64>() + 3000);
        assert_eq!(out, vector);
        assert!(native);
        assert_eq!(SIGNAL.load(Ordering::SeqCst), libc::SIGSEGV);
    }
}

#[test]
fn changed_mappings_are_seen_at_once() {
    let process = ring0_or_skip!();
    let page = Page::new(libc::PROT_READ | libc::PROT_WRITE);
    let seen = process
        .run(|_| {
            // SAFETY: only this test uses the page.
            unsafe {
                page.0.write_volatile(5);
                assert_eq!(libc::madvise(page.0.cast(), 4096, libc::MADV_DONTNEED), 0);
                let empty = page.0.read_volatile();
                page.0.write_volatile(6);
                assert_eq!(libc::mprotect(page.0.cast(), 4096, libc::PROT_READ), 0);
                let kept = page.0.read_volatile();
                assert_eq!(libc::mprotect(page.0.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE), 0);
                page.0.write_volatile(7);
                (empty, kept, page.0.read_volatile(), is_ring0())
            }
        })
        .unwrap();
    assert_eq!(seen, (0, 6, 7, true));
}

#[test]
fn private_and_shared_file_mappings_keep_apart() {
    let process = ring0_or_skip!();
    let seen = process
        .run(|_| {
            // SAFETY: a file and mappings that only this test uses.
            unsafe {
                let file = libc::memfd_create(c"maps".as_ptr(), 0);
                assert_eq!(libc::ftruncate(file, 4096), 0);
                let map = |protection, flags| {
                    libc::mmap(std::ptr::null_mut(), 4096, protection, flags, file, 0).cast::<u8>()
                };
                let both = libc::PROT_READ | libc::PROT_WRITE;
                let shared = map(both, libc::MAP_SHARED);
                let private = map(both, libc::MAP_PRIVATE);
                shared.write_volatile(1);
                let first = private.read_volatile();
                private.write_volatile(2);
                let mut byte = 0u8;
                assert_eq!(libc::pread(file, (&raw mut byte).cast(), 1, 0), 1);
                let seen = (first, shared.read_volatile(), private.read_volatile(), byte);
                libc::munmap(shared.cast(), 4096);
                libc::munmap(private.cast(), 4096);
                libc::close(file);
                seen
            }
        })
        .unwrap();
    assert_eq!(seen, (1, 1, 2, 1));
}

#[test]
fn the_stack_grows_in_ring_0() {
    let process = ring0_or_skip!();
    fn deep(depth: u32) -> u32 {
        let block = std::hint::black_box([depth as u8; 4096]);
        if depth == 0 { 0 } else { deep(depth - 1) + u32::from(block[depth as usize] == depth as u8) }
    }
    assert_eq!(process.run(|_| (deep(250), is_ring0())).unwrap(), (250, true));
}
