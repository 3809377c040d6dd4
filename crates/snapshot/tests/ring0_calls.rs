//! System calls with buffers in a memory of the `ring0` engine: Linux sees what the caller sees.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod ring0_common;

use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use bedplate_ring0::{Process, is_ring0};
use bedplate_snapshot::Memory;
use ring0_common::{PAGE, memory, word};

/// A part of a memory, for calls that write to it.
fn slice(memory: &Memory, from: usize, bytes: usize) -> &'static mut [u8] {
    assert!(from + bytes <= memory.len());
    // SAFETY: inside the memory, which the tests keep. They use each part in one place at a time.
    unsafe { std::slice::from_raw_parts_mut(memory.base().as_ptr().add(from), bytes) }
}

fn file() -> std::fs::File {
    let path = std::env::temp_dir().join(format!(
        "bedplate-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let file =
        std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn a_thread_that_touches_the_memory_natively_goes_on_in_ring_0() {
    ring0_or_skip!();
    let memory = memory(8, 2);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let memory = &memory;
            scope.spawn(move || {
                assert!(!is_ring0());
                let float = std::hint::black_box(1.5f64) * thread as f64;
                word(memory, thread).store(7 + thread as u64, Relaxed);
                assert!(is_ring0());
                assert_eq!(float, 1.5 * thread as f64, "registers are lost");
                Process::current().unwrap().leave();
                assert!(!is_ring0());
                assert_eq!(word(memory, thread).load(Relaxed), 7 + thread as u64);
                assert!(is_ring0());
            });
        }
    });
}

/// If signals have no stack of their own, the kernel saves a thread's state directly below the code's red zone.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_thread_that_touches_the_memory_natively_keeps_its_vector_registers() {
    ring0_or_skip!();
    if !std::is_x86_feature_detected!("avx") {
        println!("skipped: the processor has no AVX");
        return;
    }
    let memory = memory(8, 2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: the thread's own signal stack; no code here overflows its stack.
            unsafe { assert_eq!(libc::sigaltstack(&raw const none, std::ptr::null_mut()), 0) };
            let before = [0x0123_4567_89ab_cdefu64, 2, 3, u64::MAX];
            for shift in (0..128usize).step_by(8) {
                Process::current().unwrap().leave();
                assert!(!is_ring0());
                let mut after = [0u64; 4];
                // SAFETY: the stack is restored at the end; the byte is in the memory.
                unsafe {
                    std::arch::asm!(
                        "mov r12, rsp", "sub rsp, {shift}",
                        "vmovdqu ymm15, [{before}]", "mov byte ptr [{at}], 7", "vmovdqu [{after}], ymm15",
                        "mov rsp, r12",
                        shift = in(reg) 256 + shift,
                        before = in(reg) before.as_ptr(),
                        after = in(reg) after.as_mut_ptr(),
                        at = in(reg) memory.base().as_ptr(),
                        out("r12") _, out("ymm15") _,
                    );
                }
                assert!(is_ring0());
                assert_eq!(after, before, "the stack is {shift} bytes lower");
            }
        });
    });
}

#[test]
fn a_task_that_has_lost_ring_0_still_sees_its_snapshot() {
    ring0_or_skip!();
    let memory = memory(8, 2);
    word(&memory, 1).store(1, Relaxed);
    let (go, wait) = mpsc::channel::<()>();
    let snapshot = memory
        .spawn(move |view| {
            wait.recv().unwrap();
            Process::current().unwrap().leave();
            assert!(!is_ring0());
            let seen = view.words()[PAGE / 8] as u8;
            vec![seen, u8::from(is_ring0())]
        })
        .unwrap();
    word(&memory, 1).store(2, Relaxed);
    go.send(()).unwrap();
    assert_eq!(snapshot.join().unwrap(), [1, 1]);
}

#[test]
fn what_a_task_writes_to_a_file_is_the_snapshot() {
    ring0_or_skip!();
    // This is more than the staging buffer holds.
    const PAGES: usize = 700;
    let memory = memory(PAGES, 2);
    for page in 0..PAGES {
        word(&memory, page).store(page as u64, Relaxed);
    }
    let mut written = file();
    let mut other = written.try_clone().unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let snapshot = memory
        .spawn(move |view| {
            wait.recv().unwrap();
            // This is one call, so a short write would fail here.
            assert_eq!(other.write(view.bytes()).unwrap(), PAGES * PAGE);
            let (head, tail) = (&view.bytes()[..8], &view.bytes()[PAGE..PAGE + 8]);
            let parts = [IoSlice::new(head), IoSlice::new(b"outside"), IoSlice::new(tail)];
            assert_eq!(other.write_vectored(&parts).unwrap(), 23);
            vec![]
        })
        .unwrap();
    for page in 0..PAGES {
        word(&memory, page).store(1 << 40, Relaxed);
    }
    go.send(()).unwrap();
    snapshot.join().unwrap();
    let mut contents = Vec::new();
    written.seek(SeekFrom::Start(0)).unwrap();
    written.read_to_end(&mut contents).unwrap();
    for page in 0..PAGES {
        assert_eq!(contents[page * PAGE..][..8], (page as u64).to_le_bytes());
    }
    assert_eq!(contents[PAGES * PAGE..], [&0u64.to_le_bytes()[..], b"outside", &1u64.to_le_bytes()].concat());
}

#[test]
fn a_task_may_read_into_its_snapshot() {
    ring0_or_skip!();
    let memory = memory(16, 2);
    word(&memory, 2).store(3, Relaxed);
    let mut from = file();
    from.write_all(&[0xab; 3 * PAGE]).unwrap();
    from.seek(SeekFrom::Start(0)).unwrap();
    let task = move |view: &bedplate_snapshot::View<'_>| {
        let at = view.bytes()[PAGE..][..3 * PAGE].as_ptr().cast_mut();
        // SAFETY: the pages become the task's own when they are written to; no reference is used meanwhile.
        unsafe {
            assert_eq!(
                libc::read(std::os::fd::AsRawFd::as_raw_fd(&from), at.cast(), 3 * PAGE),
                3 * PAGE as isize
            );
            let after = at.add(3 * PAGE).read_volatile();
            vec![at.read_volatile(), at.add(3 * PAGE - 1).read_volatile(), after]
        }
    };
    let snapshot = memory.spawn(task).unwrap();
    assert_eq!(snapshot.join().unwrap(), [0xab, 0xab, 0]);
    assert_eq!(word(&memory, 2).load(Relaxed), 3);
}

#[test]
fn what_linux_writes_for_main_is_not_in_the_snapshot() {
    ring0_or_skip!();
    let memory = memory(16, 2);
    for page in 0..16 {
        word(&memory, page).store(5, Relaxed);
    }
    let mut from = file();
    from.write_all(&[0xcd; 8 * PAGE]).unwrap();
    from.seek(SeekFrom::Start(0)).unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let snapshot = memory
        .spawn(move |view| {
            wait.recv().unwrap();
            view.bytes().iter().map(|byte| u8::from(*byte == 0xcd)).collect()
        })
        .unwrap();
    from.read_exact(slice(&memory, PAGE, 4 * PAGE)).unwrap();
    let (one, other) = (slice(&memory, 8 * PAGE, PAGE), slice(&memory, 10 * PAGE, PAGE));
    let mut parts = [std::io::IoSliceMut::new(one), std::io::IoSliceMut::new(other)];
    assert_eq!(from.read_vectored(&mut parts).unwrap(), 2 * PAGE);
    go.send(()).unwrap();
    assert!(snapshot.join().unwrap().iter().all(|changed| *changed == 0), "the snapshot has changed");
    for page in 0..16 {
        let expected = if [1, 2, 3, 4, 8, 10].contains(&page) { 0xcdcd_cdcd_cdcd_cdcd } else { 5 };
        assert_eq!(word(&memory, page).load(Relaxed), expected, "page {page}");
    }
}

/// Linux writes to a page after the snapshot was taken, in a call that began earlier.
#[test]
fn a_call_that_is_under_way_does_not_change_a_snapshot() {
    ring0_or_skip!();
    let memory = memory(4, 2);
    word(&memory, 1).store(5, Relaxed);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        let buffer = slice(&memory, PAGE, 8);
        scope.spawn(move || {
            // SAFETY: the address is in the memory.
            assert_eq!(unsafe { buffer.as_ptr().read_volatile() }, 5);
            assert!(is_ring0());
            assert_eq!(reader.read(buffer).unwrap(), 8);
        });
        std::thread::sleep(Duration::from_millis(300));
        let (go, wait) = mpsc::channel::<()>();
        let snapshot = memory
            .spawn(move |view| {
                wait.recv().unwrap();
                vec![view.words()[PAGE / 8] as u8]
            })
            .unwrap();
        writer.write_all(&[9; 8]).unwrap();
        while word(&memory, 1).load(Relaxed) == 5 {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        assert_eq!(snapshot.join().unwrap(), [5]);
    });
}

#[test]
fn messages_and_paths_work_from_both_sides() {
    ring0_or_skip!();
    let memory = memory(4, 2);
    let name = format!("{}/bedplate-path-{}\0", std::env::temp_dir().display(), std::process::id());
    slice(&memory, 100, name.len()).copy_from_slice(name.as_bytes());
    std::fs::write(&name[..name.len() - 1], "x").unwrap();
    let exists = |at: *const u8| {
        // SAFETY: a path that ends with a zero byte.
        unsafe { libc::access(at.cast(), libc::F_OK) == 0 }
    };
    // SAFETY: inside the memory.
    assert!(exists(unsafe { memory.base().as_ptr().add(100) }));
    let (sender, receiver) = std::os::unix::net::UnixDatagram::pair().unwrap();
    slice(&memory, PAGE, 5).copy_from_slice(b"hello");
    let snapshot = memory
        .spawn(move |view| {
            let found = exists(view.bytes()[100..].as_ptr());
            let mut piece =
                libc::iovec { iov_base: view.bytes()[PAGE..].as_ptr().cast_mut().cast(), iov_len: 5 };
            // SAFETY: all zeros is a message.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
            // SAFETY: the message is complete.
            let sent =
                unsafe { libc::sendmsg(std::os::fd::AsRawFd::as_raw_fd(&sender), &raw const message, 0) };
            vec![u8::from(found), sent as u8]
        })
        .unwrap();
    slice(&memory, PAGE, 5).copy_from_slice(b"wrong");
    assert_eq!(snapshot.join().unwrap(), [1, 5]);
    let into = slice(&memory, 2 * PAGE, 16);
    assert_eq!(receiver.recv(into).unwrap(), 5);
    assert_eq!(&into[..5], b"hello");
    std::fs::remove_file(&name[..name.len() - 1]).unwrap();
}

#[test]
fn calls_that_nobody_can_translate_are_refused() {
    ring0_or_skip!();
    let memory = memory(4, 2);
    word(&memory, 0).store(1, Relaxed);
    assert!(is_ring0());
    let at = memory.base().as_ptr();
    let errno = || std::io::Error::last_os_error().raw_os_error();
    // SAFETY: the first two are refused; the third writes to the memory's first page.
    unsafe {
        assert_eq!(libc::munmap(at.cast(), PAGE), -1);
        assert_eq!(errno(), Some(libc::EINVAL));
        assert_eq!(libc::sched_rr_get_interval(0, at.cast()), -1);
        assert_eq!(errno(), Some(libc::EFAULT));
        assert_eq!(libc::uname(at.cast()), 0);
        assert_eq!(std::ffi::CStr::from_ptr(at.cast()), c"Linux");
    }
    let no_threads = memory.spawn(|_| vec![u8::from(std::thread::Builder::new().spawn(|| ()).is_err())]);
    assert_eq!(no_threads.unwrap().join().unwrap(), [1]);
}

/// Code need not set arguments that Linux ignores, so they may have any address, even one in a memory.
#[test]
fn arguments_that_linux_ignores_may_be_anything() {
    ring0_or_skip!();
    let memory = memory(4, 2);
    word(&memory, 0).store(1, Relaxed);
    assert!(is_ring0());
    // The address is between two memories, so nothing is mapped there.
    let garbage = memory.base().as_ptr().wrapping_add(memory.len() + (1 << 30)) as usize;
    let woken = AtomicU32::new(0);
    let errno = || std::io::Error::last_os_error().raw_os_error();
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let (epoll, event) = (rustix::event::epoll::CreateFlags::CLOEXEC, rustix::event::EventfdFlags::CLOEXEC);
    let epoll = rustix::event::epoll::create(epoll).unwrap();
    let event = rustix::event::eventfd(0, event).unwrap();
    rustix::event::epoll::add(
        &epoll,
        &event,
        rustix::event::epoll::EventData::new_u64(0),
        rustix::event::epoll::EventFlags::IN,
    )
    .unwrap();
    // SAFETY: none of the calls uses the address.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_futex, woken.as_ptr(), wake, 1, garbage, garbage, garbage), 0);
        let delete = libc::EPOLL_CTL_DEL;
        let removed = libc::epoll_ctl(
            epoll.as_raw_fd(),
            delete,
            event.as_raw_fd(),
            std::ptr::without_provenance_mut(garbage),
        );
        assert_eq!(removed, 0, "{:?}", errno());
        assert_eq!(libc::write(event.as_raw_fd(), std::ptr::without_provenance(garbage), 0), -1);
        assert_eq!(errno(), Some(libc::EINVAL), "an event is eight bytes");
    }
    // A thread that waits for another thread's lock is woken, whatever the registers of the waking thread contain.
    let waiting = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            waiting.store(1, Relaxed);
            // SAFETY: waits while the word is 0.
            unsafe { libc::syscall(libc::SYS_futex, woken.as_ptr(), wait, 0, 0usize, garbage, garbage) };
        });
        // SAFETY: as above.
        while unsafe { libc::syscall(libc::SYS_futex, woken.as_ptr(), wake, 1, garbage, garbage, garbage) }
            == 0
        {
            std::thread::yield_now();
        }
    });
    assert_eq!(waiting.load(Relaxed), 1);
}

#[test]
fn a_timeout_may_be_in_the_memory() {
    ring0_or_skip!();
    let memory = memory(4, 2);
    // One millisecond, as a `timespec`.
    word(&memory, 1).store(0, Relaxed);
    memory.words()[PAGE / 8 + 1].store(1_000_000, Relaxed);
    assert!(is_ring0());
    let (waited_for, timeout) = (AtomicU32::new(0), word(&memory, 1).as_ptr());
    // SAFETY: the word is 0, so it waits until the time is over.
    let result = unsafe {
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, waited_for.as_ptr(), wait, 0, timeout)
    };
    assert_eq!((result, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ETIMEDOUT)));
}
