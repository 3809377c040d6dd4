//! The functions that the program calls instead of the C library's.
//!
//! Each function asks the library first. It calls the C library's function with nothing left to drop, because a thread that is cancelled
//! there unwinds through the caller.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{FILE, iovec, off_t, size_t, ssize_t};
use rustix::fs::SeekFrom;

use crate::files::Source;
use crate::inside::{self, Inside};
use crate::limits::{MOST, MOST_PARTS, SHORT_READ};
use crate::real::real;
use crate::statistics::{BYTES_SERVED, READS_PASSED, READS_SERVED};
use crate::streams::Target;
use crate::{buffers, connections, descriptors, files, process, timing};

/// Whether reads by a descriptor may be served. Most reads of most programs end here, so this is a few loads of memory.
fn may_serve(descriptor: c_int) -> bool {
    process::is_active() && descriptors::is_served(descriptor)
}

/// Serves a read into parts, at an offset or at the descriptor's position. `None`: the read is left to the kernel.
///
/// # Safety
/// The parts are the program's buffers.
unsafe fn serve(descriptor: c_int, parts: &[iovec], offset: Option<off_t>) -> Option<ssize_t> {
    let _inside = Inside::enter()?;
    let wanted = buffers::length(parts)?;
    if wanted < SHORT_READ {
        descriptors::note_short(descriptor);
        return None;
    }
    let served = descriptors::served(descriptor)?;
    // SAFETY: the program's descriptor.
    let file = unsafe { files::borrow(descriptor) };
    let start = match offset {
        Some(offset) => u64::try_from(offset).ok()?,
        None => served.position(file, wanted)?,
    };
    let len = wanted.min(MOST).min(served.file.size().saturating_sub(start));
    let Some(source) = served.file.find(descriptor, start..start + len) else {
        served.note_passed();
        return None;
    };
    let read = || {
        if !served.is_readable(file, start) || !buffers::are_writable(parts, len) {
            return None;
        }
        // SAFETY: the caller's buffers.
        let mut target = unsafe { Target::new(parts) };
        if !served.file.copy(&source, file, start..start + len, &mut target) {
            return None;
        }
        // A signal handler may have forked meanwhile, and this may be the child. The child does not hold the ranges that it has copied
        // from.
        if !process::is_active() {
            return None;
        }
        // The check comes after all bytes have arrived, so they are what a read returns at this moment.
        if !served.file.is_current(file) {
            served.file.end();
            return None;
        }
        if offset.is_none() {
            return claim(descriptor, parts, start, len);
        }
        Some((start, len))
    };
    let read = read();
    if !process::is_active() {
        // In the child, the locks that other threads held at the fork stay locked.
        std::mem::forget((served, source));
        return None;
    }
    let Some((start, read)) = read else {
        READS_PASSED.add(1);
        served.note_passed();
        if !served.file.is_current(file) {
            descriptors::forget(descriptor);
        }
        return None;
    };
    served.note_served(start, read);
    if matches!(source, Source::Large) {
        served.note_large(file, start, read);
    }
    READS_SERVED.add(1);
    BYTES_SERVED.add(read);
    Some(read as ssize_t)
}

/// Moves the position of a descriptor over the `len` bytes that were copied from `start` on. Another thread or process that shares the
/// position may have moved it before. Then this reads again, from the position that this call found. Returns the offset and the length of
/// the bytes that are in the parts.
fn claim(descriptor: c_int, parts: &[iovec], start: u64, len: u64) -> Option<(u64, u64)> {
    // SAFETY: the program's descriptor.
    let file = unsafe { files::borrow(descriptor) };
    let end = rustix::fs::seek(file, SeekFrom::Current(len as i64)).ok()?;
    if end == start + len {
        return Some((start, len));
    }
    let at = end.checked_sub(len)?;
    // The read must not be longer than the part that the position was moved over.
    let mut left = len as usize;
    let mut rest = Vec::new();
    for part in parts {
        let taken = part.iov_len.min(left);
        rest.push(iovec { iov_base: part.iov_base, iov_len: taken });
        left -= taken;
    }
    // SAFETY: the program's buffers. A bare system call, because the C library's function may unwind.
    let read =
        unsafe { libc::syscall(libc::SYS_preadv, descriptor, rest.as_ptr(), rest.len(), at as i64, 0) };
    let read = u64::try_from(read).unwrap_or(0);
    if read < len {
        let _ = rustix::fs::seek(file, SeekFrom::Current(read as i64 - len as i64));
    }
    // At the end of the file this has read nothing, so the kernel answers the read.
    (read > 0).then_some((at, read))
}

/// Notes a read that the kernel served.
fn note(descriptor: c_int, offset: Option<off_t>, read: ssize_t) {
    if read < SHORT_READ as ssize_t || !process::is_active() {
        return;
    }
    if let Ok(bytes) = usize::try_from(read)
        && !descriptors::is_unnoted(descriptor, bytes as u64)
        && let Some(_inside) = Inside::enter()
    {
        descriptors::note_read(descriptor, offset.map(|offset| offset as u64), bytes);
    }
}

/// Serves a read into one buffer.
unsafe fn serve_buffer(
    descriptor: c_int,
    buffer: *mut c_void,
    size: size_t,
    offset: Option<off_t>,
) -> Option<ssize_t> {
    // SAFETY: the program's buffer.
    unsafe { serve(descriptor, &[iovec { iov_base: buffer, iov_len: size }], offset) }
}

/// Serves a read into parts. `None`: there are too many parts, or the kernel would refuse them.
unsafe fn serve_parts(
    descriptor: c_int,
    parts: *const iovec,
    count: c_int,
    offset: Option<off_t>,
) -> Option<ssize_t> {
    let count = usize::try_from(count).ok().filter(|count| (1..=MOST_PARTS).contains(count))?;
    if !buffers::are_readable(parts, count) {
        return None;
    }
    let mut copy = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_PARTS];
    // The read may write over the array. The kernel also copies it first.
    // SAFETY: the program's parts, which the kernel can read, and an array with room for them.
    unsafe { std::ptr::copy_nonoverlapping(parts, copy.as_mut_ptr(), count) };
    // SAFETY: the program's buffers.
    unsafe { serve(descriptor, &copy[..count], offset) }
}

/// Defines functions that read: by the expression that serves them, the C library's function, and its arguments.
macro_rules! reads {
    ($($name:ident($($argument:ident: $type:ty),*) = $serve:expr, $real:ident, $offset:expr, $descriptor:ident, if $condition:expr;)*) => {$(
        /// # Safety
        /// The same as for the C library's function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> ssize_t {
            let start = timing::begin($descriptor);
            if $condition && may_serve($descriptor) {
                inside::cancellation_point();
                // SAFETY: the caller's arguments.
                if let Some(served) = unsafe { $serve } {
                    timing::end(start);
                    return served;
                }
            }
            // SAFETY: as above.
            let read = unsafe { (real().$real)($($argument),*) };
            timing::end(start);
            note($descriptor, $offset, read);
            read
        }
    )*};
}

reads! {
    read(fd: c_int, at: *mut c_void, size: size_t) =
        serve_buffer(fd, at, size, None), read, None, fd, if true;
    pread(fd: c_int, at: *mut c_void, size: size_t, offset: off_t) =
        serve_buffer(fd, at, size, Some(offset)), pread, Some(offset), fd, if true;
    pread64(fd: c_int, at: *mut c_void, size: size_t, offset: off_t) =
        serve_buffer(fd, at, size, Some(offset)), pread, Some(offset), fd, if true;
    readv(fd: c_int, parts: *const iovec, count: c_int) =
        serve_parts(fd, parts, count, None), readv, None, fd, if true;
    preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) =
        serve_parts(fd, parts, count, Some(offset)), preadv, Some(offset), fd, if true;
    preadv64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) =
        serve_parts(fd, parts, count, Some(offset)), preadv, Some(offset), fd, if true;
    // Without flags, the function is `preadv`, or `readv` if the offset is -1.
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) =
        serve_parts(fd, parts, count, (offset != -1).then_some(offset)), preadv2,
        (offset != -1).then_some(offset), fd, if flags == 0;
    preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) =
        serve_parts(fd, parts, count, (offset != -1).then_some(offset)), preadv2,
        (offset != -1).then_some(offset), fd, if flags == 0;
    // The compiler calls these functions where it knows the size of the buffer. The C library ends a program that reads more.
    __read_chk(fd: c_int, at: *mut c_void, size: size_t, room: size_t) =
        serve_buffer(fd, at, size, None), read_chk, None, fd, if size <= room;
    __pread_chk(fd: c_int, at: *mut c_void, size: size_t, offset: off_t, room: size_t) =
        serve_buffer(fd, at, size, Some(offset)), pread_chk, Some(offset), fd, if size <= room;
    __pread64_chk(fd: c_int, at: *mut c_void, size: size_t, offset: off_t, room: size_t) =
        serve_buffer(fd, at, size, Some(offset)), pread_chk, Some(offset), fd, if size <= room;
}

fn forget(descriptor: c_int) {
    if process::is_usable()
        && let Some(_inside) = Inside::enter()
    {
        descriptors::forget(descriptor);
    }
}

/// Whether a descriptor is this library's, so that the program does not close it.
fn is_own(descriptor: c_int) -> bool {
    process::is_usable() && Inside::enter().is_some_and(|_inside| connections::has(descriptor))
}

fn fail_with(error: c_int) -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_own(fd) {
        // The program closes all numbers that may be open.
        return fail_with(libc::EBADF);
    }
    forget(fd);
    // SAFETY: the caller's argument.
    unsafe { (real().close)(fd) }
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // The C library closes the descriptor with an internal function. C++ streams read with `read` and close with `fclose`.
    if !stream.is_null() {
        // SAFETY: the caller's stream.
        forget(unsafe { libc::fileno(stream) });
    }
    // SAFETY: the caller's argument.
    unsafe { (real().fclose)(stream) }
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    forget(new);
    // SAFETY: the caller's arguments.
    unsafe { (real().dup2)(old, new) }
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    forget(new);
    // SAFETY: the caller's arguments.
    unsafe { (real().dup3)(old, new, flags) }
}

/// After a process has filtered its system calls, the library makes none: the filter may end the process for a system call.
///
/// # Safety
/// The same as for the C library's function, which reads as many arguments as the option has.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    // A program gives up new privileges before it sets a filter, even if it sets the filter with another call.
    if matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS) {
        process::deactivate();
    }
    // SAFETY: the caller's arguments.
    unsafe { (real().prctl)(option, a, b, c, d) }
}

/// Closes a range of descriptors, except the library's connections. Returns the error, or 0.
fn close_all(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut error = 0;
    let close = |start: c_uint, end: c_uint| {
        // SAFETY: descriptors that the program wants to close.
        if unsafe { libc::syscall(libc::SYS_close_range, start, end, flags) } != 0 {
            // SAFETY: this thread's errno.
            error = unsafe { *libc::__errno_location() };
        }
        error == 0
    };
    let inside = Inside::enter();
    if inside.is_some() && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        descriptors::forget_range(first, last);
    }
    connections::around(first, last, close);
    error
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first > last {
        return fail_with(libc::EINVAL);
    }
    match close_all(first, last, flags) {
        0 => 0,
        error => fail_with(error),
    }
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = first.max(0);
    if close_all(first as c_uint, c_uint::MAX, 0) == 0 {
        return;
    }
    // The kernel is older than 5.9. `close` also refuses to close connections.
    let end = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    for descriptor in first..c_int::try_from(end).unwrap_or(c_int::MAX) {
        // SAFETY: the program wants it to be closed.
        unsafe { close(descriptor) };
    }
}

/// Defines functions that move a descriptor's position.
macro_rules! seeks {
    ($($name:ident;)*) => {$(
        /// # Safety
        /// The same as for the C library's function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, whence: c_int) -> off_t {
            if may_serve(fd) && let Some(_inside) = Inside::enter() {
                descriptors::forget_position(fd);
            }
            // SAFETY: the caller's arguments.
            unsafe { (real().lseek)(fd, offset, whence) }
        }
    )*};
}

seeks! {
    lseek;
    lseek64;
}

/// Defines functions by which programs make the page cache read ahead. They do nothing for files that are served, because such
/// files need not be in the page cache.
macro_rules! advices {
    ($($name:ident = $real:ident;)*) => {$(
        /// # Safety
        /// The same as for the C library's function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
            if advice == libc::POSIX_FADV_WILLNEED && may_serve(fd) {
                return 0;
            }
            // SAFETY: the caller's arguments.
            unsafe { (real().$real)(fd, offset, len, advice) }
        }
    )*};
}

advices! {
    posix_fadvise = posix_fadvise;
    posix_fadvise64 = posix_fadvise;
}

/// # Safety
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readahead(fd: c_int, offset: off_t, count: size_t) -> ssize_t {
    if may_serve(fd) {
        return 0;
    }
    // SAFETY: the caller's arguments.
    unsafe { (real().readahead)(fd, offset, count) }
}
