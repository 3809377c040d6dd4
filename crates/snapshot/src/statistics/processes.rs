//! Reading the statistics pages of other processes.
//!
//! A reader finds a page by the name of a descriptor in `/proc/PID/fd`. The kernel shows these names to processes
//! of the same user, and to processes with CAP_SYS_PTRACE. Reading neither attaches to the process nor stops it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, fcntl_get_seals, fstat, open};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::page::{Damage, NAME, Reading, SEALS, WORDS, printable};
use crate::PAGE;
use crate::region::backing::memory_file;

/// A process whose statistics can be read.
#[derive(Clone, Debug)]
pub struct Process {
    /// The process ID.
    pub pid: u32,
    /// The name of its program, without control characters.
    pub name: String,
    /// Resident memory that belongs to the process alone, in bytes: copies of pages, and all memory outside of the
    /// region.
    pub anonymous_bytes: u64,
    /// Resident shared memory in bytes: the region and other memory files.
    pub shared_bytes: u64,
    /// The content of the process's page.
    pub page: Reading,
}

/// The reason why a process's statistics cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// There is no such process, or it has ended.
    #[error("there is no process {pid}, or it may not be seen")]
    NoProcess {
        /// Its process ID.
        pid: u32,
    },
    /// The process belongs to another user.
    #[error("process {pid} belongs to user {user}")]
    OtherUser {
        /// Its process ID.
        pid: u32,
        /// Its user.
        user: u32,
    },
    /// The process does not allow its own user to inspect it.
    #[error("process {pid} does not let processes of its own user look at it (it is not dumpable)")]
    NotDumpable {
        /// Its process ID.
        pid: u32,
    },
    /// The process does not use the library.
    #[error("process {pid} does not run under bedplate snapshot run")]
    WithoutLibrary {
        /// Its process ID.
        pid: u32,
    },
    /// The process has mapped a page, but has closed its descriptor.
    #[error("process {pid} has closed the descriptor of its statistics")]
    Closed {
        /// Its process ID.
        pid: u32,
    },
    /// The process is a child that another process forked for a snapshot.
    #[error("process {pid} is a snapshot of {owner}")]
    SnapshotOf {
        /// Its process ID.
        pid: u32,
        /// The owner of the memory, as a process ID in the owner's PID namespace.
        owner: u64,
    },
    /// The page is invalid.
    #[error("the statistics of process {pid} cannot be read: {damage}")]
    Damaged {
        /// Its process ID.
        pid: u32,
        /// The reason.
        damage: Damage,
    },
    /// A system call failed.
    #[error("process {pid}: {what}: {source}")]
    System {
        /// Its process ID.
        pid: u32,
        /// The operation that failed.
        what: &'static str,
        /// The reason of the failure.
        source: io::Error,
    },
}

impl Unreadable {
    /// Whether another user could read the statistics.
    pub fn is_a_matter_of_permission(&self) -> bool {
        matches!(self, Self::OtherUser { .. } | Self::NotDumpable { .. })
    }

    /// Advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::OtherUser { .. } => Some("run as root or as the same user".into()),
            Self::NotDumpable { .. } => Some("run as root".into()),
            Self::SnapshotOf { owner, .. } => Some(format!("bedplate snapshot stats {owner}")),
            Self::WithoutLibrary { .. } => {
                Some("bedplate snapshot stats, without a process ID, lists the processes that do".into())
            }
            Self::Damaged { damage: Damage::Version { .. }, .. } => {
                Some("use the bedplate command of the version that the process was started with".into())
            }
            _ => None,
        }
    }
}

/// Reads the statistics of a process. A thread ID selects the thread's process.
///
/// # Errors
/// See [`Unreadable`].
pub fn read(pid: u32) -> Result<Process, Unreadable> {
    let status = Status::of(pid).filter(|status| !status.has_ended);
    let status = status.ok_or(Unreadable::NoProcess { pid })?;
    let pid = status.process;
    let mut found = Found::default();
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    let entries = fs::read_dir(&folder).map_err(|error| status.refused(error, "reading its descriptors"))?;
    for number in entries.filter_map(|entry| Some(entry.ok()?.file_name())) {
        let path = folder.join(number);
        // A failure means that the process has just closed the descriptor.
        if !fs::read_link(&path).is_ok_and(|target| target.as_os_str() == link().as_str()) {
            continue;
        }
        match words_of(&path) {
            Ok(Some(words)) => found.add(Reading::of(&words), &status),
            // A file with a lease cannot be opened now.
            Ok(None) | Err(Errno::AGAIN) => found.add(Err(Damage::Size), &status),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(status.refused(error.into(), "opening its statistics")),
        }
    }
    match found {
        Found { own: Some(page), .. } => Ok(Process {
            pid,
            name: status.name,
            anonymous_bytes: status.anonymous_bytes,
            shared_bytes: status.shared_bytes,
            page,
        }),
        Found { damage: Some(damage), .. } => Err(Unreadable::Damaged { pid, damage }),
        Found { owner: Some(owner), .. } => Err(Unreadable::SnapshotOf { pid, owner }),
        // The process may have ended meanwhile.
        _ if Status::of(pid).is_none_or(|now| now.has_ended) => Err(Unreadable::NoProcess { pid }),
        _ if maps_a_page(pid) => Err(Unreadable::Closed { pid }),
        _ => Err(Unreadable::WithoutLibrary { pid }),
    }
}

/// The processes whose statistics can be read, in the order of their IDs, and the number of processes that may not
/// be inspected.
///
/// # Errors
/// `/proc` cannot be read.
pub fn all() -> io::Result<(Vec<Process>, usize)> {
    let (mut processes, mut hidden) = (Vec::new(), 0);
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match read(pid) {
            Ok(process) => processes.push(process),
            Err(error) => hidden += usize::from(error.is_a_matter_of_permission()),
        }
    }
    processes.sort_by_key(|process| process.pid);
    Ok((processes, hidden))
}

/// The pages of which a process has descriptors.
#[derive(Default)]
struct Found {
    own: Option<Reading>,
    /// The owner of a page that the process inherited.
    owner: Option<u64>,
    damage: Option<Damage>,
}

impl Found {
    fn add(&mut self, page: Result<Reading, Damage>, status: &Status) {
        match page {
            Ok(page) if page.pid == status.pid_in_namespace => {
                // A process whose engine could not be started has two pages, and the one without an engine is
                // right.
                if self.own.is_none() || page.engine.is_none() {
                    self.own = Some(page);
                }
            }
            // A daemon's child has inherited two pages: the daemon's own, and the one that the daemon inherited.
            // The daemon's own counts.
            Ok(page) if self.owner.is_none() || page.pid == status.parent => self.owner = Some(page.pid),
            Ok(_) => {}
            Err(damage) => self.damage = Some(damage),
        }
    }
}

/// The target of links to pages in `/proc/PID/fd`.
fn link() -> String {
    format!("/memfd:{} (deleted)", NAME.to_string_lossy())
}

/// Whether a process has mapped a page.
fn maps_a_page(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| String::from_utf8_lossy(&maps).lines().any(|line| line.ends_with(&link())))
}

/// The words of the page behind a descriptor of a process. Returns `None` if the file cannot be a page.
fn words_of(path: &std::path::Path) -> Result<Option<[u64; WORDS]>, Errno> {
    // The file is not opened yet, because opening a file of another kind might block forever.
    let place = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if mount_of(&place)? != mount_of(&memory_file(c"bedplate-probe", MemfdFlags::empty())?)? {
        return Ok(None);
    }
    let file = open(
        format!("/proc/self/fd/{}", place.as_raw_fd()),
        // The process may hold a lease, and an open would then wait.
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
    )?;
    let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
    if !is_sealed || fstat(&file)?.st_size != PAGE as i64 {
        return Ok(None);
    }
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::SHARED, &file, 0) }?;
    // SAFETY: the mapping made above. The file cannot become shorter, and its words are read only atomically.
    let shared = unsafe { &*at.cast::<[AtomicU64; WORDS]>() };
    // Words written before the page's mark are visible after reading the mark.
    let words = std::array::from_fn(|index| shared[index].load(Ordering::Acquire));
    // SAFETY: as above; nothing uses it any more.
    let _ = unsafe { munmap(at, PAGE) };
    Ok(Some(words))
}

/// The mount to which a file belongs. All memory files without a name belong to one mount, and no other file does.
fn mount_of(file: &OwnedFd) -> Result<u64, Errno> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mount = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    mount.and_then(|number| number.trim().parse().ok()).ok_or(Errno::IO)
}

/// Fields of `/proc/PID/status`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    name: String,
    has_ended: bool,
    /// The process that a thread belongs to.
    process: u32,
    parent: u64,
    /// The effective user of the process.
    user: u32,
    pid_in_namespace: u64,
    anonymous_bytes: u64,
    shared_bytes: u64,
}

impl Status {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/status")).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let field = |name: &str| {
            let value = |line: &'_ str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
            text.lines().find_map(value)
        };
        let word = |name: &str, index: usize| field(name)?.split_whitespace().nth(index).map(str::to_owned);
        let kib = |name: &str| word(name, 0).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        let process = word("Tgid", 0)?.parse().ok()?;
        // The last number belongs to the innermost namespace.
        let inner = field("NSpid").and_then(|all| all.split_whitespace().last()?.parse().ok());
        let parent = word("PPid", 0)?.parse().ok()?;
        let is_dead = matches!(word("State", 0)?.as_str(), "Z" | "X");
        // The kernel takes a process's memory and descriptors before it reports the process as ended. Only kernel
        // threads, which are children of process 2, never have memory.
        let is_ending = field("VmSize").is_none() && parent != 2 && process != 2;
        Some(Self {
            name: printable(field("Name")?.as_bytes()),
            has_ended: is_dead || is_ending,
            process,
            parent,
            user: word("Uid", 1)?.parse().ok()?,
            pid_in_namespace: inner.unwrap_or(u64::from(process)),
            anonymous_bytes: kib("RssAnon").saturating_mul(1024),
            shared_bytes: kib("RssShmem").saturating_mul(1024),
        })
    }

    fn refused(&self, error: io::Error, what: &'static str) -> Unreadable {
        let pid = self.process;
        match error.kind() {
            io::ErrorKind::PermissionDenied if self.user == rustix::process::geteuid().as_raw() => {
                Unreadable::NotDumpable { pid }
            }
            io::ErrorKind::PermissionDenied => Unreadable::OtherUser { pid, user: self.user },
            io::ErrorKind::NotFound => Unreadable::NoProcess { pid },
            _ => Unreadable::System { pid, what, source: error },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{SealFlags, fcntl_add_seals, ftruncate};

    use super::super::one_test_at_a_time;
    use super::super::page::Page;
    use super::*;
    use crate::Kind;

    fn path_of(file: &impl AsRawFd) -> PathBuf {
        format!("/proc/self/fd/{}", file.as_raw_fd()).into()
    }

    /// Runs a test in its own process, because tests in one process would find each other's pages.
    fn in_child(test: impl FnOnce() + std::panic::UnwindSafe) {
        // SAFETY: the child runs the test and exits without returning.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let failed = std::panic::catch_unwind(test).is_err();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(failed)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(status, 0);
    }

    fn me() -> u32 {
        rustix::process::getpid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn a_page_is_its_owners_and_not_its_childs() {
        let _alone = one_test_at_a_time();
        in_child(|| {
            assert!(matches!(read(me()), Err(Unreadable::WithoutLibrary { .. })));
            let _page = Page::new(Some(Kind::Uffd), "why").unwrap();
            let process = read(me()).unwrap();
            assert_eq!((process.pid, process.page.engine), (me(), Some(Kind::Uffd)));
            let owner = me();
            in_child(move || {
                let snapshot = read(me()).unwrap_err();
                assert!(
                    matches!(snapshot, Unreadable::SnapshotOf { owner: of, .. } if of == u64::from(owner))
                );
                // A child that creates its own page, as a daemon does, and a child of that child.
                let _page = Page::new(Some(Kind::Remap), "").unwrap();
                assert_eq!(read(me()).unwrap().page.engine, Some(Kind::Remap));
                let daemon = me();
                in_child(move || {
                    let error = read(me()).unwrap_err();
                    assert!(
                        matches!(error, Unreadable::SnapshotOf { owner, .. } if owner == u64::from(daemon))
                    );
                });
            });
        });
    }

    #[test]
    fn a_thread_stands_for_its_process() {
        let thread = std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            (thread, Status::of(thread).unwrap().process)
        });
        let (thread, process) = thread.join().unwrap();
        assert_ne!(thread, me());
        assert_eq!(process, me());
    }

    #[test]
    fn a_page_whose_descriptor_was_closed_is_noticed() {
        let _alone = one_test_at_a_time();
        in_child(|| {
            // Dropping the page would close its descriptor a second time.
            std::mem::forget(Page::new(None, "").unwrap());
            for entry in fs::read_dir("/proc/self/fd").unwrap() {
                let path = entry.unwrap().path();
                if fs::read_link(&path).is_ok_and(|target| target.as_os_str() == link().as_str()) {
                    let number: i32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
                    // SAFETY: this process ends soon, and nothing uses the descriptor.
                    unsafe { libc::close(number) };
                }
            }
            assert!(matches!(read(me()), Err(Unreadable::Closed { .. })));
        });
    }

    #[test]
    fn files_that_only_have_the_name_are_refused() {
        let _alone = one_test_at_a_time();
        in_child(|| {
            // The size of this file may change.
            let file = memory_file(NAME, MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, PAGE as u64).unwrap();
            assert_eq!(words_of(&path_of(&file)), Ok(None));
            let damaged = read(me()).unwrap_err();
            assert!(matches!(damaged, Unreadable::Damaged { damage: Damage::Size, .. }), "{damaged}");
            // This file has the right seals, but no content.
            fcntl_add_seals(&file, SEALS).unwrap();
            assert_eq!(words_of(&path_of(&file)), Ok(Some([0; WORDS])));
            let damaged = read(me()).unwrap_err();
            assert!(matches!(damaged, Unreadable::Damaged { damage: Damage::Magic, .. }), "{damaged}");
            for bytes in [0, PAGE as u64 - 1, PAGE as u64 + 1] {
                let other = memory_file(NAME, MemfdFlags::ALLOW_SEALING).unwrap();
                ftruncate(&other, bytes).unwrap();
                fcntl_add_seals(&other, SEALS | SealFlags::SEAL).unwrap();
                assert_eq!(words_of(&path_of(&other)), Ok(None), "{bytes} bytes");
            }
            // A valid page next to these files is found.
            let _page = Page::new(None, "").unwrap();
            read(me()).unwrap();
        });
    }

    /// A process may have a lease on its page. An open would then wait for 45 seconds.
    #[test]
    fn a_page_with_a_lease_is_not_waited_for() {
        let _alone = one_test_at_a_time();
        in_child(|| {
            // The holder of a lease gets a signal when another process opens the file.
            // SAFETY: no handler is run.
            unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
            let file = memory_file(NAME, MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, PAGE as u64).unwrap();
            fcntl_add_seals(&file, SEALS).unwrap();
            let again = open(path_of(&file), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
            drop(file);
            // SAFETY: takes a lease on a file of this test's.
            let leased = unsafe { libc::fcntl(again.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
            assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
            assert_eq!(words_of(&path_of(&again)), Err(Errno::AGAIN));
            let damaged = read(me()).unwrap_err();
            assert!(matches!(damaged, Unreadable::Damaged { .. }), "{damaged}");
        });
    }

    /// Opening the other end of a named pipe would block forever.
    #[test]
    fn files_that_are_not_in_memory_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert_eq!(words_of(&pipe), Ok(None));
        fs::write(folder.path().join("file"), vec![0; PAGE]).unwrap();
        assert_eq!(words_of(&folder.path().join("file")), Ok(None));
        assert_eq!(words_of(&folder.path().join("none")), Err(Errno::NOENT));
    }

    #[test]
    fn processes_that_are_not_there_are_errors() {
        // This number is larger than any process ID.
        assert!(matches!(read(u32::MAX), Err(Unreadable::NoProcess { .. })));
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        // The process ends, and stays a zombie until it is waited for.
        while !Status::of(ended.id()).unwrap().has_ended {
            std::thread::yield_now();
        }
        assert!(matches!(read(ended.id()), Err(Unreadable::NoProcess { .. })));
        ended.wait().unwrap();
    }

    /// A process loses its memory and its descriptors before the kernel reports it as ended.
    #[test]
    fn a_process_that_is_ending_is_not_one_without_the_library() {
        let _alone = one_test_at_a_time();
        in_child(|| {
            for _ in 0..300 {
                let (seen, tell) = rustix::pipe::pipe().unwrap();
                // SAFETY: the child makes a page, waits, and ends without returning.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    drop(tell);
                    std::mem::forget(Page::new(None, "").unwrap());
                    // Freeing much memory takes some time.
                    std::mem::forget(std::hint::black_box(vec![1u8; 4 << 20]));
                    let _ = rustix::io::read(&seen, &mut [0]);
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) };
                }
                let pid = child as u32;
                while read(pid).is_err() {
                    std::thread::yield_now();
                }
                drop(tell);
                let error = loop {
                    if let Err(error) = read(pid) {
                        break error;
                    }
                };
                assert!(matches!(error, Unreadable::NoProcess { .. }), "{error}");
                let mut status = -1;
                // SAFETY: waits for the child.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
            }
        });
    }

    #[test]
    fn processes_that_may_not_be_looked_at_are_errors_of_their_own() {
        let _alone = one_test_at_a_time();
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can become another user");
            return;
        }
        in_child(|| {
            // SAFETY: this process's own user and rights, which end with it.
            unsafe {
                assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
                assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
                assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 0), 0);
            }
            let hidden = me();
            in_child(move || {
                let error = read(hidden).unwrap_err();
                assert!(matches!(error, Unreadable::NotDumpable { .. }), "{error}");
                let error = read(1).unwrap_err();
                assert!(matches!(error, Unreadable::OtherUser { pid: 1, user: 0 }), "{error}");
                assert!(error.is_a_matter_of_permission());
            });
        });
    }

    #[test]
    fn status_is_parsed() {
        let text = b"Name:\tred\x1b(s)\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t70\nPid:\t71\nPPid:\t3\n\
            Uid:\t1\t1000\t1\t1\nNSpid:\t71\t9\t5\nVmSize:\t9 kB\nRssAnon:\t\t 12 kB\nRssShmem:\t\t7 kB\n";
        let expected = Status {
            name: "red?(s)".into(),
            has_ended: false,
            process: 70,
            parent: 3,
            user: 1000,
            pid_in_namespace: 5,
            anonymous_bytes: 12 << 10,
            shared_bytes: 7 << 10,
        };
        assert_eq!(Status::parse(text), Some(expected));
        let text_of = |text: &str| Status::parse(text.as_bytes()).unwrap();
        let ending = String::from_utf8_lossy(text).replace("VmSize", "VmNone");
        assert!(text_of(&ending).has_ended);
        assert!(!text_of(&ending.replace("PPid:\t3", "PPid:\t2")).has_ended);
        assert_eq!(Status::parse(b"Name:\tx\n"), None);
        for len in 0..text.len() {
            let _ = Status::parse(&text[..len]);
        }
    }
}
