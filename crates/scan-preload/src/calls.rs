//! The functions that the program calls instead of the C library's.
//!
//! Each asks the library first, and calls the C library's function when nothing of the library's is left to be dropped: a thread
//! that is cancelled there unwinds through these functions.

use std::ffi::{c_int, c_void};

use libc::{iovec, off_t, size_t, ssize_t};
use rustix::fs::SeekFrom;

use crate::inside::Inside;
use crate::real::real;
use crate::statistics::{BYTES_SERVED, READS_PASSED, READS_SERVED};
use crate::streams::Target;
use crate::{descriptors, files};

/// The kernel reads at most so many bytes at a time.
const MOST: u64 = 0x7fff_f000;
/// The kernel takes at most so many parts.
const MOST_PARTS: c_int = 1024;

/// Serves a read into parts, at an offset or at the descriptor's position. `None`: it is the kernel's.
///
/// # Safety
/// The parts are the program's buffers.
unsafe fn serve(descriptor: c_int, parts: &[iovec], offset: Option<off_t>) -> Option<ssize_t> {
    let _inside = Inside::enter()?;
    let served = descriptors::file(descriptor)?;
    // SAFETY: the program's descriptor.
    let file = unsafe { files::borrow(descriptor) };
    let is_served = || {
        if !files::is_readable(file) {
            return None;
        }
        let start = match offset {
            Some(offset) => u64::try_from(offset).ok()?,
            None => rustix::fs::seek(file, SeekFrom::Current(0)).ok()?,
        };
        let wanted = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.iov_len as u64))?;
        let len = wanted.min(MOST).min(served.size().checked_sub(start)?);
        if len == 0 {
            return None;
        }
        // SAFETY: the caller's buffers.
        let mut target = unsafe { Target::new(parts) };
        if !served.copy(file, start..start + len, &mut target) {
            return None;
        }
        // After everything has arrived: it is what a read returns at this moment.
        if !served.is_current(file) {
            served.end();
            return None;
        }
        if offset.is_none() {
            return claim(descriptor, parts, start, len);
        }
        Some(len)
    };
    let Some(len) = is_served() else {
        READS_PASSED.add(1);
        if !served.is_current(file) {
            descriptors::forget(descriptor);
        }
        return None;
    };
    READS_SERVED.add(1);
    BYTES_SERVED.add(len);
    Some(len as ssize_t)
}

/// Moves the position of a descriptor over what was copied from `start` on. Others that share the position may have moved it
/// since it was asked for: then what was skipped by moving it is read.
fn claim(descriptor: c_int, parts: &[iovec], start: u64, len: u64) -> Option<u64> {
    // SAFETY: the program's descriptor.
    let file = unsafe { files::borrow(descriptor) };
    let end = rustix::fs::seek(file, SeekFrom::Current(len as i64)).ok()?;
    if end == start + len {
        return Some(len);
    }
    let at = end.checked_sub(len)?;
    // No more than what the position was moved over.
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
    // At the end of the file nothing is read, and the position stays: the kernel says so.
    (read > 0).then_some(read)
}

/// Remembers what the kernel read.
fn note(descriptor: c_int, offset: Option<off_t>, read: ssize_t) {
    let (Ok(bytes @ 1..), Some(_inside)) = (usize::try_from(read), Inside::enter()) else { return };
    descriptors::note_read(descriptor, offset.map(|offset| offset as u64), bytes);
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

/// Serves a read into parts, if they are such as the kernel takes.
unsafe fn serve_parts(
    descriptor: c_int,
    parts: *const iovec,
    count: c_int,
    offset: Option<off_t>,
) -> Option<ssize_t> {
    if parts.is_null() || !(1..=MOST_PARTS).contains(&count) {
        return None;
    }
    // SAFETY: the program's parts.
    unsafe { serve(descriptor, std::slice::from_raw_parts(parts, count as usize), offset) }
}

/// Defines functions that read by what serves them, the C library's function, and its arguments.
macro_rules! reads {
    ($($name:ident($($argument:ident: $type:ty),*) = $serve:expr, $real:ident, $offset:expr, $descriptor:ident, if $condition:expr;)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> ssize_t {
            // SAFETY: the caller's arguments.
            if $condition && let Some(served) = unsafe { $serve } {
                return served;
            }
            // SAFETY: likewise.
            let read = unsafe { (real().$real)($($argument),*) };
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
    // What the compiler calls where it knows the size of the buffer. The C library ends a program that wants to read more.
    __read_chk(fd: c_int, at: *mut c_void, size: size_t, room: size_t) =
        serve_buffer(fd, at, size, None), read_chk, None, fd, if size <= room;
    __pread_chk(fd: c_int, at: *mut c_void, size: size_t, offset: off_t, room: size_t) =
        serve_buffer(fd, at, size, Some(offset)), pread_chk, Some(offset), fd, if size <= room;
    __pread64_chk(fd: c_int, at: *mut c_void, size: size_t, offset: off_t, room: size_t) =
        serve_buffer(fd, at, size, Some(offset)), pread_chk, Some(offset), fd, if size <= room;
}

fn forget(descriptor: c_int) {
    if let Some(_inside) = Inside::enter() {
        descriptors::forget(descriptor);
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    forget(fd);
    // SAFETY: the caller's argument.
    unsafe { (real().close)(fd) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    forget(new);
    // SAFETY: the caller's arguments.
    unsafe { (real().dup2)(old, new) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    forget(new);
    // SAFETY: the caller's arguments.
    unsafe { (real().dup3)(old, new, flags) }
}

/// Whether a file is served, so that the page cache needs none of it.
fn is_served(descriptor: c_int) -> bool {
    Inside::enter().is_some_and(|_inside| descriptors::file(descriptor).is_some())
}

/// Defines functions by which programs have the page cache read ahead. Of files that are served it is told nothing.
macro_rules! advices {
    ($($name:ident = $real:ident;)*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
            if advice == libc::POSIX_FADV_WILLNEED && is_served(fd) {
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
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readahead(fd: c_int, offset: off_t, count: size_t) -> ssize_t {
    if is_served(fd) {
        return 0;
    }
    // SAFETY: the caller's arguments.
    unsafe { (real().readahead)(fd, offset, count) }
}
