//! System calls of threads in ring 0 with buffers in a memory (4.3, 4.4).
//!
//! Linux has nothing at a memory's addresses. For main, the handler passes on where the same frames are for Linux, which
//! costs no copy, because main's frames are always the same. If Linux is to write there, the pages are made writable
//! before, as a store would; and a snapshot that is taken while Linux writes gets copies of those pages
//! ([`copy_pages_being_written`]), because what Linux does there is noticed by nobody.
//!
//! For a task on a snapshot, buffers are copied to and from a staging buffer of its processor's. Longer ones are used in
//! parts where the call may do less than was asked; `write` and `pwrite64` go on until they are done.
//!
//! Which arguments are buffers is in `shapes`. What is not known there fails with `EFAULT`, because
//! Linux finds nothing at the address.

use bedplate_ring0::{Answer, Cpu, SyscallFrame, handlers};

use super::fault::{self, Page};
use super::frames::unavailable;
use super::shapes::{self, Access, Buffer, Length};
use super::space::Space;
use super::staging::{self, MOST_PIECES, Piece, STAGING, Scratch};
use super::{child, registry};
use crate::{Error, PAGE};

/// Buffers of one call that are copied back.
const MOST_BACK: usize = 64;
/// The longest path, with its end.
const PATH: u64 = 4096;

/// Sets the handler.
pub fn install(process: &bedplate_ring0::Process) -> Result<(), Error> {
    staging::prepare(process)?;
    handlers::add_syscall_layer(system_call).map_err(unavailable)
}

/// With the latch held for writing: snapshots get the pages that Linux is writing to for main.
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
    // A child's threads all see its snapshot.
    if task && !child::is_child() && starts_thread(frame) {
        // It would see main's memory.
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
    // System calls leave these registers alone.
    frame.arguments = asked;
    Answer::Return(result)
}

/// A call that blocks signals does not block SIGSEGV, by which threads that touch a memory natively come to ring 0: this
/// one, if it loses ring 0, and those that it starts. Whether the call was changed.
fn leave_segv_unblocked(cpu: Cpu, frame: &mut SyscallFrame) -> bool {
    const SEGV: u64 = 1 << (libc::SIGSEGV - 1);
    let [how, set, ..] = frame.arguments;
    let Some(scratch) = staging::of(cpu.number()).filter(|_| set != 0 && how != libc::SIG_UNBLOCK as u64)
    else {
        return false;
    };
    // SAFETY: that it can be read is the caller's promise to Linux; see `pieces`.
    let signals = unsafe { (set as *const u64).read_unaligned() };
    if signals & SEGV == 0 {
        return false;
    }
    // SAFETY: this handler's.
    unsafe { *scratch.signals.get() = signals & !SEGV };
    frame.arguments[1] = scratch.signals.get() as u64;
    true
}

/// Whether a call starts a thread of this process (and not another process).
fn starts_thread(frame: &SyscallFrame) -> bool {
    let flags = match frame.number as i64 {
        libc::SYS_clone => frame.arguments[0],
        // SAFETY: the structure that the caller passes begins with the flags; an address that cannot be read is the
        // caller's fault, as in every code of its own.
        libc::SYS_clone3 if frame.arguments[0] != 0 => unsafe { *(frame.arguments[0] as *const u64) },
        _ => return false,
    };
    flags & libc::CLONE_THREAD as u64 != 0
}

/// Whether a list of buffers has one in a memory.
fn points_into_a_memory(frame: &SyscallFrame, buffers: &[Buffer]) -> bool {
    let list = |address: u64, count: u64| {
        // SAFETY: `pieces` says why.
        unsafe { pieces(address, count) }.iter().any(|piece| registry::is_near(piece.address))
    };
    buffers.iter().any(|buffer| match buffer.length {
        Length::Pieces(count) => list(frame.arguments[buffer.argument], frame.arguments[count]),
        Length::Message if frame.arguments[buffer.argument] != 0 => {
            // SAFETY: a `msghdr`, as the caller says; see `pieces`.
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
/// It is used during the call only. That it can be read is the caller's promise to Linux; a caller that breaks it gets
/// SIGSEGV here, where Linux would return `EFAULT`.
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
            // What others have asked of this processor meanwhile, before it touches the memory again.
            cpu.relax();
            call.copy_back(result);
            result
        }
        Err(errno) => -i64::from(errno),
    };
    scratch.writing.clear();
    result
}

/// `write` and `pwrite64` of a task: as many times as it takes.
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

/// What is copied from the staging buffer to a memory after a call.
#[derive(Debug, Clone, Copy)]
struct Back {
    from: usize,
    to: u64,
    bytes: u64,
    /// Where it begins in what the result counts; all of it is copied if the result counts something else.
    counted_from: Option<u64>,
}

impl Back {
    const NONE: Back = Back { from: 0, to: 0, bytes: 0, counted_from: None };
}

/// A call on its way.
struct Call<'a> {
    cpu: Cpu,
    scratch: &'a Scratch,
    task: bool,
    /// Bytes of the staging buffer in use.
    used: usize,
    /// Bytes of buffers that the result counts.
    counted: u64,
    back: [Back; MOST_BACK],
    backs: usize,
    /// Where a message is that Linux completes, or 0.
    received: u64,
}

type Errno = i32;

impl Call<'_> {
    /// Replaces what an argument points to, if it points into a memory.
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
            // SAFETY: as the caller promises Linux; see `pieces`.
            Length::PointedTo(of) if frame.arguments[of] != 0 => unsafe {
                u64::from((frame.arguments[of] as *const u32).read_unaligned())
            },
            Length::PointedTo(_) => 0,
            Length::Text => self.text(address)?,
        };
        if bytes == 0 {
            // Linux does not look there, so the address may be any.
            return Ok(());
        }
        frame.arguments[buffer.argument] = self.whole(address, bytes, buffer.access)?;
        Ok(())
    }

    /// A buffer that is used as a whole: where Linux finds it.
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

    /// A buffer of which the result says how much was used: where Linux finds it, and how much of it.
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

    /// Where Linux finds main's frames of a buffer.
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

    /// Takes a part of the staging buffer for a buffer, with its contents if they matter.
    fn stage(&mut self, address: u64, bytes: u64, contents: bool) -> Result<usize, Errno> {
        inside(address, bytes)?;
        let from = self.used;
        if bytes > (STAGING - from) as u64 {
            return Err(libc::EFAULT);
        }
        self.used = (from + bytes as usize).next_multiple_of(64).min(STAGING);
        if contents {
            // SAFETY: the memory is there, as this processor sees it, and the staging buffer is this handler's.
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

    /// The length of a text, with its end.
    fn text(&self, address: u64) -> Result<u64, Errno> {
        let space = registry::at(address).ok_or(libc::EFAULT)?;
        let most = PATH.min(space.base() + space.bytes() as u64 - address);
        // SAFETY: the memory is there, as this processor sees it.
        let found = (0..most).find(|byte| unsafe { *((address + byte) as *const u8) } == 0);
        found.map(|end| end + 1).ok_or(libc::ENAMETOOLONG)
    }

    /// A list of buffers: a copy of it that Linux can use.
    fn list(&mut self, address: u64, count: u64, access: Access) -> Result<u64, Errno> {
        if count > MOST_PIECES as u64 {
            return Err(libc::EINVAL);
        }
        let copies = self.scratch.pieces.get();
        // SAFETY: `pieces` says why.
        for (number, piece) in unsafe { pieces(address, count) }.iter().enumerate() {
            let (at, bytes) = if piece.address != 0 && registry::is_near(piece.address) {
                self.counted(piece.address, piece.bytes, access)?
            } else {
                self.counted += piece.bytes;
                (piece.address, piece.bytes)
            };
            // SAFETY: below the number there are; this handler's.
            unsafe { (*copies)[number] = Piece { address: at, bytes } };
            if bytes < piece.bytes {
                // No more fits: the rest of the list has no bytes.
                for rest in number + 1..count as usize {
                    // SAFETY: as above.
                    unsafe { (*copies)[rest] = Piece { address: 0, bytes: 0 } };
                }
                break;
            }
        }
        Ok(copies as u64)
    }

    /// A message: a copy of it that Linux can use.
    fn message(&mut self, address: u64, access: Access) -> Result<u64, Errno> {
        let copy = self.scratch.message.get();
        // SAFETY: a `msghdr`, as the caller promises Linux; the copy is this handler's.
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

    /// After the call: what Linux has written goes where the task sees it.
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
            // SAFETY: both are there; the task's page becomes its own by the fault that this may be.
            unsafe {
                let from = self.staged(back.from) as *const u8;
                std::ptr::copy_nonoverlapping(from, back.to as *mut u8, bytes as usize);
            }
        }
    }
}

/// The memory that a buffer is in, as a whole.
fn inside<'a>(address: u64, bytes: u64) -> Result<&'a Space, Errno> {
    let space = registry::at(address).ok_or(libc::EFAULT)?;
    let last = address.checked_add(bytes.saturating_sub(1)).ok_or(libc::EFAULT)?;
    if space.contains(last) { Ok(space) } else { Err(libc::EFAULT) }
}
