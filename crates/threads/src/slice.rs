//! The time slice of a thread, after which it leaves its processor to threads that wait.

use std::io;

/// `struct sched_attr` of Linux, as far as it is older than the limits of utilisation.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice of a thread of the normal policy, in nanoseconds. Linux before 6.12 ignores it.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The shortest slice that Linux gives, in nanoseconds.
const SHORTEST: u64 = 100_000;

/// Asks for the shortest slices for the calling thread, and for those that it starts from now on. Such a thread soon gets its
/// processor from threads that compute, and gives it back soon. It is for threads that do little each time they are woken, and
/// on which others wait. It needs no privilege, and gives no more of the processor in total.
///
/// # Errors
/// The kernel refuses, or the thread's policy is not the normal one. Then nothing has changed.
pub fn shorten() -> io::Result<()> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>() as u32;
    // SAFETY: the kernel writes at most `size` bytes of the structure.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let attributes = Attributes { size, nice: attributes.nice, runtime: SHORTEST, ..Attributes::default() };
    // SAFETY: the kernel reads at most `size` bytes of the structure.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_is_short_and_the_rest_stays() {
        // The test has its own thread, because a thread keeps its slice.
        std::thread::spawn(|| {
            // SAFETY: it sets a number of this thread alone. A higher one is always allowed.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as u32, 3) };
            shorten().unwrap();
            let mut found = Attributes::default();
            // SAFETY: as in `shorten`.
            let got = unsafe {
                libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, size_of::<Attributes>() as u32, 0)
            };
            assert_eq!((got, found.nice, found.policy), (0, 3, libc::SCHED_OTHER as u32));
            // Linux before 6.12 returns 0.
            assert!([0, SHORTEST].contains(&found.runtime), "{}", found.runtime);
        })
        .join()
        .unwrap();
    }
}
