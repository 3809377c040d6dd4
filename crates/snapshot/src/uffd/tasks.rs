//! What the kernel tells of this process's threads. Without allocating.

use std::mem::MaybeUninit;

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::thread::Pid;

use crate::region::path;

/// Fields of a thread's `stat`, counted from what follows the name in parentheses.
const PROCESSOR: usize = 39 - 3;
const STARTED: usize = 22 - 3;

/// The processor that a thread ran on last.
pub fn processor_of(thread: u32) -> Option<usize> {
    Some(stat(thread, PROCESSOR, b"")? as usize)
}

/// When a thread was started, in nanoseconds of the clock that [`now`] reads, rounded down to a tick; none for threads
/// of a name that begins so.
pub fn started(thread: Pid, but_not: &[u8]) -> Option<u64> {
    let ticks = stat(thread.as_raw_nonzero().get() as u32, STARTED, but_not)?;
    Some(ticks * tick())
}

/// The time in which threads' starts are told, rounded down likewise.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64) / tick() * tick()
}

fn tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second()
}

fn stat(thread: u32, field: usize, but_not: &[u8]) -> Option<u64> {
    let mut buffer = [0; 32];
    let path = path(&mut buffer, format_args!("/proc/self/task/{thread}/stat\0"));
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 512];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let text = &text[..len];
    let name = text.iter().position(|&byte| byte == b'(')? + 1;
    if !but_not.is_empty() && text[name..].starts_with(but_not) {
        return None;
    }
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 2;
    let field = text.get(after_name..)?.split(|&byte| byte == b' ').nth(field)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Calls `f` with every thread of this process.
pub fn each(mut f: impl FnMut(Pid)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(c"/proc/self/task", flags, Mode::empty()) else { return };
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(folder, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if let Some(thread) =
            entry.file_name().to_str().ok().and_then(|name| Pid::from_raw(name.parse().ok()?))
        {
            f(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_where_they_say() {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let agreed = (0..100).any(|_| {
            let before = rustix::thread::sched_getcpu();
            processor_of(me) == Some(before)
        });
        assert!(agreed);
        assert_eq!(processor_of(u32::MAX), None);
    }

    #[test]
    fn threads_are_found_with_the_time_of_their_start() {
        let before = now();
        let new = std::thread::Builder::new().name("a (new) one".into());
        let (send, received) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let new = new.spawn(move || {
            send.send(rustix::thread::gettid()).unwrap();
            let _ = gone.recv();
        });
        let thread = received.recv().unwrap();
        let mut found = 0;
        each(|each| found += u32::from(each == thread));
        assert_eq!(found, 1);
        let at = started(thread, b"other").unwrap();
        assert!((before..=now()).contains(&at), "{before} {at}");
        assert_eq!(started(thread, b"a (new"), None);
        drop(go);
        new.unwrap().join().unwrap();
    }
}
