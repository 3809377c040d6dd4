//! The layout of a board in its memfd.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::content::UNITS;
use super::entry::{Entry, FaultWord, SegmentWords};
use super::metrics::{ServiceWords, WorkerWords};
use crate::clock::Clock;
use crate::memory::{Access, Mapping};
use crate::{Error, Result};

/// Maximum number of segments in a page.
pub const SEGMENTS: usize = 128;
/// Maximum number of entries in a board.
const SLOTS: usize = 1024;

const MAGIC: u64 = u64::from_le_bytes(*b"bp-memsb");
const VERSION: u32 = 3;

/// The first part of a board. The service writes the fields before `worker` once, before it passes the board on. Each process
/// that maps the board reads them once. They are atomic because nothing prevents a worker from writing to them.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
    /// The clock's multiplier; 0: the kernel's monotonic clock.
    clock: AtomicU64,
    worker: WorkerWords,
    service: ServiceWords,
}

/// A mapped board; each side has one. It keeps its own copy of the head's constants, because the other side could change those in
/// memory.
#[derive(Debug)]
pub struct Board {
    /// The memfd, which another process can map.
    file: OwnedFd,
    mapping: Mapping,
    slots: usize,
    clock: Clock,
    /// Service side: the other end of the worker's descriptor, if the worker requested one.
    notifier: OnceLock<OwnedFd>,
}

/// The reason why no more pages come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Closed {
    /// The service has ended.
    Gone = 1,
    /// The worker broke the board's rules.
    Broken = 2,
}

impl Board {
    /// Creates a board with `slots` entries.
    pub fn new(slots: usize, clock: Clock) -> Result<Self> {
        let file = memfd_create("bedplate-board", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(Error::system("creating a board"))?;
        let bytes = bytes(slots);
        ftruncate(&file, bytes as u64).map_err(Error::system("sizing a board"))?;
        // A process that has the board mapped would get SIGBUS if the other side shrank the file.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(Error::system("sealing a board"))?;
        let mapping = Mapping::of(&file, 0, bytes, Access::ReadWrite)?;
        let head = Head {
            magic: AtomicU64::new(MAGIC),
            version: AtomicU32::new(VERSION),
            slots: AtomicU32::new(slots as u32),
            clock: AtomicU64::new(clock.multiplier()),
            worker: WorkerWords::default(),
            service: ServiceWords::default(),
        };
        // SAFETY: no other process has the mapping yet. It is large enough, writable and aligned to a page.
        unsafe { mapping.start().cast::<Head>().write(head) };
        for slot in 0..slots {
            // SAFETY: as above; the table is in the mapping (`bytes`). Segments and faults need no initialization, because they
            // are words of zeroes and a new file is zeroed.
            unsafe { mapping.start().add(table()).cast::<Entry>().add(slot).write(Entry::new()) };
        }
        Ok(Self { file, mapping, slots, clock, notifier: OnceLock::new() })
    }

    /// Maps a board that the other side created.
    ///
    /// # Errors
    /// The file is not a board of this version, or the kernel cannot map it.
    pub fn open(file: OwnedFd) -> Result<Self> {
        let size = rustix::fs::fstat(&file).map_err(Error::system("looking at a board"))?.st_size as usize;
        let wrong = || Error::Protocol("this is not a board of this version".into());
        if size < bytes(1) || size > bytes(SLOTS) {
            return Err(wrong());
        }
        let mapping = Mapping::of(&file, 0, size, Access::ReadWrite)?;
        // SAFETY: the mapping is large enough and aligned, and all its fields are atomic.
        let head = unsafe { &*mapping.start().cast::<Head>() };
        let slots = head.slots.load(Ordering::Relaxed) as usize;
        let (magic, version) = (head.magic.load(Ordering::Relaxed), head.version.load(Ordering::Relaxed));
        if magic != MAGIC || version != VERSION || !(1..=SLOTS).contains(&slots) || bytes(slots) != size {
            return Err(wrong());
        }
        let clock = Clock::from_multiplier(head.clock.load(Ordering::Relaxed));
        Ok(Self { file, mapping, slots, clock, notifier: OnceLock::new() })
    }

    fn head(&self) -> &Head {
        // SAFETY: the constructors have checked the mapping, and every field that changes is atomic.
        unsafe { &*self.mapping.start().cast::<Head>() }
    }

    /// The clock that both sides use to measure time.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The words that the worker writes.
    pub fn worker(&self) -> &WorkerWords {
        &self.head().worker
    }

    /// The words that the service writes.
    pub fn service(&self) -> &ServiceWords {
        &self.head().service
    }

    /// The buffer status table.
    pub fn entries(&self) -> &[Entry] {
        // SAFETY: within the mapping (`bytes`), aligned (`table`), atomics only.
        unsafe { std::slice::from_raw_parts(self.mapping.start().add(table()).cast(), self.slots) }
    }

    /// The segments of an entry.
    pub fn segments(&self, slot: usize) -> &[SegmentWords] {
        assert!(slot < self.slots);
        let at = segments(self.slots) + slot * SEGMENTS * size_of::<SegmentWords>();
        // SAFETY: within the mapping (`bytes`), aligned (`segments`), atomics only.
        unsafe { std::slice::from_raw_parts(self.mapping.start().add(at).cast(), SEGMENTS) }
    }

    /// The faults of the units of an entry's frame. They are valid only if the entry is faulty.
    pub fn faults(&self, slot: usize) -> &[FaultWord] {
        assert!(slot < self.slots);
        let at = faults(self.slots) + slot * UNITS * size_of::<FaultWord>();
        // SAFETY: within the mapping (`bytes`), aligned (`faults`), atomics only.
        unsafe { std::slice::from_raw_parts(self.mapping.start().add(at).cast(), UNITS) }
    }

    /// Service side: announces that no more pages come. The first reason stays.
    pub fn close(&self, why: Closed) {
        let closed = &self.service().closed;
        let _ = closed.compare_exchange(0, why as u32, Ordering::Release, Ordering::Relaxed);
    }

    /// The reason why no more pages come, if the service has announced one.
    pub fn closed(&self) -> Option<Closed> {
        match self.service().closed.load(Ordering::Acquire) {
            0 => None,
            2 => Some(Closed::Broken),
            _ => Some(Closed::Gone),
        }
    }

    /// Service side: creates the descriptor that the worker waits for. A board has at most one. It contains one packet and so is
    /// readable from the beginning.
    ///
    /// It is a socket and not an eventfd, because another process may have it. Sending to the socket never blocks, whatever the
    /// other process does with it. The socket also stays readable after this process ends.
    ///
    /// # Errors
    /// The board has a descriptor already, or the kernel cannot create one.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        let failed = "making a descriptor for a channel";
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (mine, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(Error::system(failed))?;
        self.notifier
            .set(mine)
            .map_err(|_| Error::Invalid("the channel has its descriptor already".into()))?;
        self.notify();
        Ok(other)
    }

    /// Service side: makes the worker's descriptor readable.
    pub fn notify(&self) {
        if let Some(notifier) = self.notifier.get() {
            // If the send fails because the socket is full, the descriptor is readable already.
            let _ = send(notifier, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// The memfd that a worker in another process maps.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }
}

fn table() -> usize {
    size_of::<Head>().next_multiple_of(align_of::<Entry>())
}

fn segments(slots: usize) -> usize {
    table() + slots * size_of::<Entry>()
}

fn faults(slots: usize) -> usize {
    segments(slots) + slots * SEGMENTS * size_of::<SegmentWords>()
}

fn bytes(slots: usize) -> usize {
    (faults(slots) + slots * UNITS * size_of::<FaultWord>()).next_multiple_of(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{Content, Fault, Judgment, Segment, State};

    /// The layout is a protocol between processes, so a change of it must change the version.
    #[test]
    fn the_layout_is_that_of_version_3() {
        assert_eq!((size_of::<Head>(), align_of::<Head>()), (384, 128));
        assert_eq!((size_of::<Entry>(), align_of::<Entry>()), (64, 64));
        assert_eq!((size_of::<SegmentWords>(), align_of::<SegmentWords>()), (64, 8));
        assert_eq!((size_of::<FaultWord>(), align_of::<FaultWord>()), (4, 4));
        assert_eq!((table(), segments(16), faults(16), bytes(16)), (384, 1408, 132_480, 167_936));
    }

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let service = Board::new(16, Clock::monotonic()).unwrap();
        let worker = Board::open(service.file.try_clone().unwrap()).unwrap();
        let segment = Segment { file: 3, len: 4096, offset: 1 << 40, at: 8192 };
        let judgment = Judgment { stamp: Some([1, 2, 3, 4, u64::MAX]), is_stable: true };
        service.segments(15)[127].set(segment, judgment);
        service.segments(15)[126].set(segment, Judgment::default());
        let content = Content { frame: 7, segments: 128, faulty: true, read_began_ns: u64::MAX };
        service.entries()[3].set_turn(19, 15);
        service.entries()[15].describe(content);
        let fault = Fault { code: 255, detail: (1 << 24) - 1 };
        service.faults(15)[UNITS - 1].set(Some(fault));
        service.entries()[15].word.publish();
        assert!(worker.entries()[15].word.take());
        assert_eq!(worker.entries()[15].content(), content);
        assert_eq!((worker.faults(15)[UNITS - 1].get(), worker.faults(15)[0].get()), (Some(fault), None));
        assert_eq!(worker.segments(15)[127].get(), segment);
        assert_eq!(worker.segments(15)[127].judgment(), judgment);
        assert_eq!(worker.segments(15)[126].judgment(), Judgment::default());
        assert_eq!((worker.entries()[3].turn(19), worker.entries()[3].turn(35)), (Some(15), None));
        assert_eq!(worker.entries()[4].turn(0), None);
        worker.entries()[15].word.finish();
        assert_eq!(service.entries()[15].word.state(), State::Done);
        assert!(service.entries()[15].word.recycle());
    }

    #[test]
    fn what_is_no_board_is_refused() {
        let file = memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        assert!(Board::open(file.try_clone().unwrap()).is_err());
        ftruncate(&file, bytes(4) as u64).unwrap();
        assert!(Board::open(file).is_err());
    }
}
