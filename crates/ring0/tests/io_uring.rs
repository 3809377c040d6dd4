//! Test of reading and writing files without leaving ring 0. The rings of io_uring are shared memory, and a kernel
//! thread polls them.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use bedplate_ring0::frames::{Backing, Frame, FramePool, HostMemory};
use bedplate_ring0::is_ring0;
use io_uring::{IoUring, cqueue, opcode, squeue, types};

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 200;

/// Submits one request, and spins until it is complete. It makes no system call, because the kernel thread does not
/// sleep as long as requests arrive.
fn complete(ring: &mut IoUring, entry: &squeue::Entry) -> i32 {
    {
        let mut submission = ring.submission();
        assert!(!submission.need_wakeup(), "the kernel's thread sleeps");
        // SAFETY: the memory of the request stays valid until the request is complete, which is awaited here.
        unsafe { submission.push(entry) }.expect("there is room");
    }
    loop {
        if let Some(done) = ring.completion().next().as_ref().map(cqueue::Entry::result) {
            return done;
        }
        std::hint::spin_loop();
    }
}

#[test]
fn a_file_is_written_and_read_without_an_exit_to_user_space() {
    let process = ring0_or_skip!();
    let path = std::env::temp_dir().join(format!("ring0-uring-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut ring =
        IoUring::builder().setup_sqpoll(common::PATIENCE.as_millis() as u32).build(8).expect("a ring");

    // Frames that belong to ring 0. The kernel uses their addresses in this process.
    let memory = HostMemory::map(2 << 20, Backing::Small).unwrap();
    memory.prefault().unwrap();
    let (base, bytes) = (memory.base(), memory.bytes());
    // SAFETY: the memory stays mapped until the pool is dropped, and is detached before.
    let attached = unsafe { process.attach(base as u64, bytes as u64) }.unwrap();
    let pool = FramePool::new(Frame::containing(attached.physical), memory, 1).unwrap();
    let frame = pool.take(0).unwrap();
    let block = pool.address(frame).unwrap();

    let buffer = libc::iovec { iov_base: block.cast(), iov_len: BLOCK as usize };
    // SAFETY: the frame stays allocated until the ring is dropped.
    unsafe { ring.submitter().register_buffers(&[buffer]) }.expect("registered");
    ring.submitter().register_files(&[file.as_raw_fd()]).expect("registered");
    let write = |at: u64| opcode::WriteFixed::new(types::Fixed(0), block, BLOCK, 0).offset(at).build();
    let read = |at: u64| opcode::ReadFixed::new(types::Fixed(0), block, BLOCK, 0).offset(at).build();
    // SAFETY: only this test uses the frame, and it waits for all requests on it.
    let put = |value: u64| unsafe { block.cast::<u64>().add(7).write_volatile(value) };
    // SAFETY: as above.
    let get = || unsafe { block.cast::<u64>().add(7).read_volatile() };

    // The kernel thread may sleep until the first request. This call wakes it.
    // SAFETY: the request refers to no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.expect("there is room");
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().as_ref().map(cqueue::Entry::result), Some(0));
    let (exits, wrong, inside) = process
        .run(|cpu| {
            put(1);
            complete(&mut ring, &write(0));
            complete(&mut ring, &read(0));
            let before = cpu.statistics().exits;
            let mut wrong = 0;
            for index in 0..BLOCKS {
                put(index * 3);
                wrong += u32::from(complete(&mut ring, &write(index * u64::from(BLOCK))) != BLOCK as i32);
            }
            for index in 0..BLOCKS {
                put(u64::MAX);
                wrong += u32::from(complete(&mut ring, &read(index * u64::from(BLOCK))) != BLOCK as i32);
                wrong += u32::from(get() != index * 3);
            }
            (cpu.statistics().exits - before, wrong, is_ring0())
        })
        .unwrap();
    assert_eq!((exits, wrong, inside), (0, 0, true));
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 150 * u64::from(BLOCK) + 56).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 450);
    drop(ring);
    pool.give(0, frame).unwrap();
    process.detach(attached).unwrap();
}
