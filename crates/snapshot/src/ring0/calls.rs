//! System calls of threads in ring 0 with buffers in a memory (sections 4.3 and 4.4).
//!
//! Linux has nothing mapped at a memory's addresses. For main, the handler passes the address at which Linux has
//! the same frames. This needs no copy, because main's frames never change. If Linux is to write there, the pages
//! are made writable before, as a store would. Linux's writes to these pages cause no faults. A snapshot that is
//! taken meanwhile therefore gets copies of these pages ([`copy_pages_being_written`]).
//!
//! For a task on a snapshot, buffers are copied to and from a staging buffer of its processor. A longer buffer is
//! used in parts if the call may process less than was requested; `write` and `pwrite64` are repeated until they
//! are complete.
//!
//! `shapes` says which arguments are buffers. Calls that it does not list fail with `EFAULT`, because Linux finds
//! no memory at the address.

use bedplate_ring0::{Answer, Cpu, SyscallFrame, handlers};

use super::fault::{self, Page};
use super::frames::unavailable;
use super::shapes::{self, Access, Buffer, Length};
use super::space::Space;
use super::staging::{self, MOST_PIECES, Piece, STAGING, Scratch};
use super::{child, registry};
use crate::{Error, PAGE};

/// Limit of buffers of one call that are copied back.
const MOST_BACK: usize = 64;
/// Length limit of a path in bytes, with its terminating zero.
const PATH: u64 = 4096;

/// Installs the layer of system calls.
pub fn install(process: &bedplate_ring0::Process) -> Result<(), Error> {
    staging::prepare(process)?;
    handlers::add_syscall_layer(system_call).map_err(unavailable)
}

/// Copies the pages that Linux is writing to for main, for all snapshots that share them. The caller must hold the
/// latch for writing.
pub fn copy_pages_being_written(space: &Space, cpu: Cpu) {
    for number in 0..space.process.cpus() as u32 {
        let Some(scratch) = staging::of(number) else { continue };
        for (address, bytes) in scratch.writing.ranges() {
            for address in pages(address, bytes).filter(|address| space.contains(*address)) {
                Page { space, cpu, address }.write_by_main();
            }
        }
    }
}

fn pages(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let first = address & !(PAGE as u64 - 1);
    (first..address + bytes).step_by(PAGE)
}

/// The layer of system calls between the program and Linux.
fn system_call(cpu: Cpu, frame: &mut SyscallFrame) -> Answer {
    let task = child::is_on_snapshot(cpu);
    // In a child, all threads see the snapshot.
    if task && !child::is_child() && starts_thread(frame) {
        // The new thread would see main's memory.
        return Answer::Return(-i64::from(libc::EAGAIN));
    }
    let asked = frame.arguments;
    let masks = frame.number as i64 == libc::SYS_rt_sigprocmask && leave_segv_unblocked(cpu, frame);
    let near = frame.arguments.iter().any(|argument| registry::is_near(*argument));
    if !near && !shapes::is_indirect(frame.number) {
        if !masks {
            return Answer::Proxy;
        }
        let result = frame.proxy();
        frame.arguments = asked;
        return Answer::Return(result);
    }
    if shapes::changes_mappings(frame.number) {
        let inside = registry::at(frame.arguments[0]).is_some();
        return if inside { Answer::Return(-i64::from(libc::EINVAL)) } else { Answer::Proxy };
    }
    let buffers = shapes::of(frame.number);
    let Some(scratch) = staging::of(cpu.number()).filter(|_| !buffers.is_empty()) else {
        return Answer::Proxy;
    };
    if !near && !points_into_a_memory(frame, buffers) {
        return Answer::Proxy;
    }
    let result = if task && matches!(frame.number as i64, libc::SYS_write | libc::SYS_pwrite64) {
        write_in_parts(cpu, scratch, frame)
    } else {
        call(cpu, scratch, frame, buffers, task)
    };
    // The call does not change these registers.
    frame.arguments = asked;
    Answer::Return(result)
}

/// Removes SIGSEGV from the signals that a call blocks. Threads that touch a memory in ring 3 enter ring 0 by this
/// signal. This concerns the present thread, if it loses ring 0, and the threads it starts. Returns whether the
/// call was changed.
fn leave_segv_unblocked(cpu: Cpu, frame: &mut SyscallFrame) -> bool {
    const SEGV: u64 = 1 << (libc::SIGSEGV - 1);
    let [how, set, ..] = frame.arguments;
    let Some(scratch) = staging::of(cpu.number()).filter(|_| set != 0 && how != libc::SIG_UNBLOCK as u64)
    else {
        return false;
    };
    // SAFETY: the caller promises Linux that it can be read; see `pieces`.
    let signals = unsafe { (set as *const u64).read_unaligned() };
    if signals & SEGV == 0 {
        return false;
    }
    // SAFETY: only this handler uses the word.
    unsafe { *scratch.signals.get() = signals & !SEGV };
    frame.arguments[1] = scratch.signals.get() as u64;
    true
}

/// Whether a call starts a thread of this process, and not another process.
fn starts_thread(frame: &SyscallFrame) -> bool {
    let flags = match frame.number as i64 {
        libc::SYS_clone => frame.arguments[0],
        // SAFETY: the structure that the caller passes begins with the flags. If the address cannot be read, the
        // fault is the caller's error, as in its own code.
        libc::SYS_clone3 if frame.arguments[0] != 0 => unsafe { *(frame.arguments[0] as *const u64) },
        _ => return false,
    };
    flags & libc::CLONE_THREAD as u64 != 0
}

/// Whether a list of buffers contains one in a memory.
fn points_into_a_memory(frame: &SyscallFrame, buffers: &[Buffer]) -> bool {
    let list = |address: u64, count: u64| {
        // SAFETY: as explained at `pieces`.
        unsafe { pieces(address, count) }.iter().any(|piece| registry::is_near(piece.address))
    };
    buffers.iter().any(|buffer| match buffer.length {
        Length::Pieces(count) => list(frame.arguments[buffer.argument], frame.arguments[count]),
        Length::Message if frame.arguments[buffer.argument] != 0 => {
            // SAFETY: a `msghdr`, by the caller's promise to Linux; see `pieces`.
            let message = unsafe { &*(frame.arguments[buffer.argument] as *const [u64; 7]) };
            [message[0], message[2], message[4]].into_iter().any(registry::is_near)
                || list(message[2], message[3])
        }
        _ => false,
    })
}

/// The list of buffers that a caller passes.
///
/// # Safety
/// The result may be used only during the call. The caller promises Linux that the list can be read. A caller that
/// breaks the promise gets SIGSEGV here, where Linux would return `EFAULT`.
unsafe fn pieces<'a>(address: u64, count: u64) -> &'a [Piece] {
    if address == 0 || !address.is_multiple_of(8) || count > MOST_PIECES as u64 {
        return &[];
    }
    // SAFETY: by the caller's promise.
    unsafe { std::slice::from_raw_parts(address as *const Piece, count as usize) }
}

fn call(cpu: Cpu, scratch: &Scratch, frame: &mut SyscallFrame, buffers: &[Buffer], task: bool) -> i64 {
    let mut call = Call {
        cpu,
        scratch,
        task,
        used: 0,
        counted: 0,
        back: [Back::NONE; MOST_BACK],
        backs: 0,
        received: 0,
    };
    let result = match buffers.iter().try_for_each(|buffer| call.argument(frame, buffer)) {
        Ok(()) => {
            let result = frame.proxy();
            // Serve the requests that other processors made meanwhile, before this processor touches the memory
            // again.
            cpu.relax();
            call.copy_back(result);
            result
        }
        Err(errno) => -i64::from(errno),
    };
    scratch.writing.clear();
    result
}

/// `write` and `pwrite64` of a task, repeated until all bytes are written.
fn write_in_parts(cpu: Cpu, scratch: &Scratch, frame: &mut SyscallFrame) -> i64 {
    let [_, address, bytes, offset, ..] = frame.arguments;
    let mut done = 0;
    loop {
        frame.arguments[1] = address + done;
        frame.arguments[2] = (bytes - done).min(STAGING as u64);
        frame.arguments[3] = offset.wrapping_add(done);
        let asked = frame.arguments[2];
        let result = call(cpu, scratch, frame, shapes::of(frame.number), true);
        if result < 0 && done == 0 {
            return result;
        }
        done += result.max(0) as u64;
        if done == bytes || result < asked as i64 {
            return done as i64;
        }
    }
}

/// A copy from the staging buffer to a memory after a call.
#[derive(Debug, Clone, Copy)]
struct Back {
    from: usize,
    to: u64,
    bytes: u64,
    /// The offset of the buffer among the bytes that the result counts. `None` if the result counts something else;
    /// then the whole buffer is copied.
    counted_from: Option<u64>,
}

impl Back {
    const NONE: Back = Back { from: 0, to: 0, bytes: 0, counted_from: None };
}

/// A call in progress.
struct Call<'a> {
    cpu: Cpu,
    scratch: &'a Scratch,
    task: bool,
    /// Number of bytes of the staging buffer in use.
    used: usize,
    /// Number of bytes of buffers that the result counts.
    counted: u64,
    back: [Back; MOST_BACK],
    backs: usize,
    /// The address of a message that Linux completes, or 0.
    received: u64,
}

type Errno = i32;

impl Call<'_> {
    /// Replaces the buffer of an argument, if it is in a memory.
    fn argument(&mut self, frame: &mut SyscallFrame, buffer: &Buffer) -> Result<(), Errno> {
        let address = frame.arguments[buffer.argument];
        if address == 0 || shapes::is_ignored(frame.number, &frame.arguments, buffer.argument) {
            return Ok(());
        }
        let bytes = match buffer.length {
            Length::Pieces(count) => {
                frame.arguments[buffer.argument] =
                    self.list(address, frame.arguments[count], buffer.access)?;
                return Ok(());
            }
            Length::Message => {
                frame.arguments[buffer.argument] = self.message(address, buffer.access)?;
                return Ok(());
            }
            _ if !registry::is_near(address) => return Ok(()),
            Length::Fixed(bytes) => bytes,
            Length::Argument(of, each) => frame.arguments[of].saturating_mul(each),
            Length::Partial(of) => {
                let (at, bytes) = self.counted(address, frame.arguments[of], buffer.access)?;
                (frame.arguments[buffer.argument], frame.arguments[of]) = (at, bytes);
                return Ok(());
            }
            // SAFETY: the caller promises this to Linux; see `pieces`.
            Length::PointedTo(of) if frame.arguments[of] != 0 => unsafe {
                u64::from((frame.arguments[of] as *const u32).read_unaligned())
            },
            Length::PointedTo(_) => 0,
            Length::Text => self.text(address)?,
        };
        if bytes == 0 {
            // Linux does not access an empty buffer, so its address may be any value.
            return Ok(());
        }
        frame.arguments[buffer.argument] = self.whole(address, bytes, buffer.access)?;
        Ok(())
    }

    /// Prepares a buffer that the call uses as a whole. Returns its address for Linux.
    fn whole(&mut self, address: u64, bytes: u64, access: Access) -> Result<u64, Errno> {
        if !self.task {
            return self.for_main(address, bytes, access);
        }
        let from = self.stage(address, bytes, true)?;
        if access == Access::Write {
            self.remember(Back { from, to: address, bytes, counted_from: None })?;
        }
        Ok(self.staged(from))
    }

    /// Prepares a buffer whose used part the result counts. Returns its address and usable length for Linux.
    fn counted(&mut self, address: u64, bytes: u64, access: Access) -> Result<(u64, u64), Errno> {
        if bytes == 0 {
            return Ok((address, 0));
        }
        let at = self.counted;
        if !self.task {
            self.counted += bytes;
            return Ok((self.for_main(address, bytes, access)?, bytes));
        }
        let bytes = bytes.min((STAGING - self.used) as u64);
        self.counted += bytes;
        let from = self.stage(address, bytes, access == Access::Read)?;
        if access == Access::Write {
            self.remember(Back { from, to: address, bytes, counted_from: Some(at) })?;
        }
        Ok((self.staged(from), bytes))
    }

    /// The address at which Linux has main's frames of a buffer. Makes its pages writable if Linux writes to them.
    fn for_main(&mut self, address: u64, bytes: u64, access: Access) -> Result<u64, Errno> {
        let space = inside(address, bytes)?;
        if access == Access::Write {
            if !self.scratch.writing.add(address, bytes) {
                return Err(libc::EFAULT);
            }
            for page in pages(address, bytes) {
                fault::write(space, self.cpu, page).ok_or(libc::EFAULT)?;
            }
        }
        Ok(space.home.address((address - space.base()) as usize) as u64)
    }

    /// Reserves a part of the staging buffer for a buffer. Copies the contents if they are needed.
    fn stage(&mut self, address: u64, bytes: u64, contents: bool) -> Result<usize, Errno> {
        inside(address, bytes)?;
        let from = self.used;
        if bytes > (STAGING - from) as u64 {
            return Err(libc::EFAULT);
        }
        self.used = (from + bytes as usize).next_multiple_of(64).min(STAGING);
        if contents {
            // SAFETY: this processor sees the memory, and only this handler uses the staging buffer.
            unsafe {
                let to = self.staged(from) as *mut u8;
                std::ptr::copy_nonoverlapping(address as *const u8, to, bytes as usize);
            }
        }
        Ok(from)
    }

    fn staged(&self, from: usize) -> u64 {
        self.scratch.staging.get() as u64 + from as u64
    }

    fn remember(&mut self, back: Back) -> Result<(), Errno> {
        *self.back.get_mut(self.backs).ok_or(libc::EFAULT)? = back;
        self.backs += 1;
        Ok(())
    }

    /// The length of a text in bytes, with its terminating zero.
    fn text(&self, address: u64) -> Result<u64, Errno> {
        let space = registry::at(address).ok_or(libc::EFAULT)?;
        let most = PATH.min(space.base() + space.bytes() as u64 - address);
        // SAFETY: this processor sees the memory.
        let found = (0..most).find(|byte| unsafe { *((address + byte) as *const u8) } == 0);
        found.map(|end| end + 1).ok_or(libc::ENAMETOOLONG)
    }

    /// Copies a list of buffers so that Linux can use it. Returns the address of the copy.
    fn list(&mut self, address: u64, count: u64, access: Access) -> Result<u64, Errno> {
        if count > MOST_PIECES as u64 {
            return Err(libc::EINVAL);
        }
        let copies = self.scratch.pieces.get();
        // SAFETY: as explained at `pieces`.
        for (number, piece) in unsafe { pieces(address, count) }.iter().enumerate() {
            let (at, bytes) = if piece.address != 0 && registry::is_near(piece.address) {
                self.counted(piece.address, piece.bytes, access)?
            } else {
                self.counted += piece.bytes;
                (piece.address, piece.bytes)
            };
            // SAFETY: the index is below the length, and only this handler uses the copies.
            unsafe { (*copies)[number] = Piece { address: at, bytes } };
            if bytes < piece.bytes {
                // No more bytes fit, so the rest of the list is empty.
                for rest in number + 1..count as usize {
                    // SAFETY: as above.
                    unsafe { (*copies)[rest] = Piece { address: 0, bytes: 0 } };
                }
                break;
            }
        }
        Ok(copies as u64)
    }

    /// Copies a message so that Linux can use it. Returns the address of the copy.
    fn message(&mut self, address: u64, access: Access) -> Result<u64, Errno> {
        let copy = self.scratch.message.get();
        // SAFETY: a `msghdr`, by the caller's promise to Linux. Only this handler uses the copy.
        let message = unsafe {
            *copy = *(address as *const [u64; 7]);
            &mut *copy
        };
        message[2] = self.list(message[2], message[3], access)?;
        let name_bytes = message[1] & 0xffff_ffff;
        for (at, bytes) in [(0, name_bytes), (4, message[5])] {
            if registry::is_near(message[at]) {
                message[at] = self.whole(message[at], bytes, access)?;
            }
        }
        if access == Access::Write {
            self.received = address;
        }
        Ok(copy as u64)
    }

    /// Copies everything that Linux has written to the addresses that the task sees.
    fn copy_back(&self, result: i64) {
        if result < 0 {
            return;
        }
        if self.received != 0 {
            // SAFETY: the caller's `msghdr`, whose lengths and flags Linux would have set.
            unsafe {
                let (message, copy) = (&mut *(self.received as *mut [u64; 7]), &*self.scratch.message.get());
                for word in [1, 5, 6] {
                    message[word] = copy[word];
                }
            }
        }
        for back in &self.back[..self.backs] {
            let bytes = match back.counted_from {
                Some(at) => (result as u64).saturating_sub(at).min(back.bytes),
                None => back.bytes,
            };
            // SAFETY: both are mapped. If this faults, the page becomes the task's own.
            unsafe {
                let from = self.staged(back.from) as *const u8;
                std::ptr::copy_nonoverlapping(from, back.to as *mut u8, bytes as usize);
            }
        }
    }
}

/// The memory that contains a whole buffer.
fn inside<'a>(address: u64, bytes: u64) -> Result<&'a Space, Errno> {
    let space = registry::at(address).ok_or(libc::EFAULT)?;
    let last = address.checked_add(bytes.saturating_sub(1)).ok_or(libc::EFAULT)?;
    if space.contains(last) { Ok(space) } else { Err(libc::EFAULT) }
}
