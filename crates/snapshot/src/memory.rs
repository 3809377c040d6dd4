//! Memory that supports snapshots.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::child::{Child, forking, last_error, pipe, run_and_exit};
use crate::engine::{ChildWork, Engine, Options, Service, Statistics, Work, open};
use crate::region::counts_promises;
use crate::task::{Task, Thread};
use crate::{Choice, Error, Heap, Kind, PAGE, Snapshot, View};

/// Size limit of a memory in bytes.
const LARGEST: usize = 1 << 46;

/// The options of a [`Memory`].
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    options: Options,
    choice: Choice,
}

impl Builder {
    /// Sets the engine. The default is the best one that works on this machine.
    ///
    /// The best one is `remap`, which has the shortest pause, even for snapshots that threads of this process read. It is `uffd`
    /// if [several](Self::snapshots_at_once) snapshots of the latter kind are requested. If neither works, it is `fork`. `remap`
    /// is not chosen if `vm.overcommit_memory` is 2. `docs/snapshot.md` says which programs must request `uffd`, for instance
    /// programs that have devices write into the memory (`O_DIRECT`, registered buffers).
    pub fn engine(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Sets the size in bytes to which the memory can [grow](Memory::grow). By default it cannot grow. Only
    /// addresses are reserved, and no memory; `uffd` reserves them once more for each snapshot. `ring0` does not
    /// support growing.
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.options.reserve = bytes;
        self
    }

    /// Sets whether the kernel may back the memory with transparent huge pages. The default is no. For `uffd`,
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` must be `advise` or a stronger setting.
    pub fn huge_pages(mut self, allowed: bool) -> Self {
        self.options.huge_pages = allowed;
        self
    }

    /// Sets whether [tasks](Memory::spawn) run in a child process, where they see the memory at its own address.
    /// With `fork` they always do.
    pub fn in_child(mut self, in_child: bool) -> Self {
        self.options.in_child = in_child;
        self
    }

    /// Sets the number of snapshots that may be active at once; the default is one. In this process, `remap` supports one and
    /// `uffd` 16. In children, `remap` supports any number. `ring0` reserves room for the pages of this many
    /// snapshots, and abandons snapshots that need more ([`Error::Incomplete`]). An engine that supports fewer is
    /// not chosen. If it is requested, [`build`](Self::build) fails.
    pub fn snapshots_at_once(mut self, snapshots: usize) -> Self {
        self.options.at_once = snapshots;
        self
    }

    /// Sets whether the memory tracks which pages change, for [`Snapshot::changed_since`]. Only `uffd` supports
    /// this, and is then chosen. With tracking, sequential writes cause more faults, because every page has its
    /// own.
    pub fn track_changes(mut self, track: bool) -> Self {
        self.options.track_changes = track;
        self
    }

    /// For `ring0`: sets the number of snapshots that can be taken in a row without copying page tables (section 4.2 of the
    /// paper). The default is two. Each takes 1/256 of the memory's size. With 0, tables are copied at each
    /// snapshot.
    pub fn ahead(mut self, snapshots: usize) -> Self {
        self.options.ahead = snapshots;
        self
    }

    /// For `ring0`: sets the number of threads that prepare such tables. The default is one.
    pub fn copiers(mut self, threads: usize) -> Self {
        self.options.copiers = threads;
        self
    }

    /// Creates the memory, filled with zeros.
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::Unavailable`] if the requested engine does not work here; [`Error::System`].
    pub fn build(self) -> Result<Memory, Error> {
        let reserve = self.options.reserve.max(self.options.bytes);
        if self.options.bytes == 0 || reserve > LARGEST {
            return Err(Error::Size { bytes: reserve });
        }
        let bytes = self.options.bytes.next_multiple_of(PAGE);
        let options = Options { bytes, reserve: reserve.next_multiple_of(PAGE), ..self.options };
        match self.choice {
            Choice::Only(kind) => Memory::new(kind, options),
            Choice::Auto => Self::best(options),
        }
    }

    /// Creates a memory with the best engine that works here, and records why better engines do not work.
    fn best(options: Options) -> Result<Memory, Error> {
        if options.track_changes {
            return Memory::new(Kind::Uffd, options);
        }
        let mut reasons = Vec::new();
        for kind in [Kind::Remap, Kind::Uffd] {
            if kind == Kind::Remap && counts_promises() {
                reasons.push("remap: vm.overcommit_memory is 2".to_owned());
                continue;
            }
            match Memory::new(kind, options) {
                Err(Error::Unavailable { engine, reason }) => reasons.push(format!("{engine}: {reason}")),
                memory => return memory.map(|memory| memory.because(&reasons)),
            }
        }
        Memory::new(Kind::Fork, options).map(|memory| memory.because(&reasons))
    }
}

/// Number of memories created so far that track changes.
static TRACKED: AtomicU64 = AtomicU64::new(0);

/// Memory that any thread may write to. Snapshots of it can be taken at any time.
pub struct Memory {
    engine: Arc<Service<dyn Engine>>,
    /// The reason why no better engine was chosen.
    why_not: Option<String>,
    /// Whether tasks run in children.
    in_child: bool,
    /// The number that identifies the memory in bookmarks, if it tracks changes.
    number: Option<u64>,
    /// Number of accessible bytes. A thread that makes more bytes accessible holds `growth`.
    len: AtomicUsize,
    growth: Mutex<()>,
    /// Number of children with tasks that have not been reaped.
    children: Arc<AtomicU64>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("engine", &self.kind())
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl Memory {
    /// Starts building a memory of this many bytes, rounded up to whole pages.
    pub fn builder(bytes: usize) -> Builder {
        // Until the memory is built, its reserve may be smaller than its size.
        Builder { options: Options { reserve: 0, ..Options::new(bytes) }, choice: Choice::Auto }
    }

    fn new(kind: Kind, options: Options) -> Result<Self, Error> {
        Self::with(open(kind, options)?, options)
    }

    fn with(engine: Service<dyn Engine>, options: Options) -> Result<Self, Error> {
        engine.start_threads()?;
        engine.grow(0..options.bytes / PAGE)?;
        Ok(Self {
            engine: Arc::new(engine),
            why_not: None,
            in_child: options.in_child,
            number: options.track_changes.then(|| TRACKED.fetch_add(1, Ordering::Relaxed)),
            len: AtomicUsize::new(options.bytes),
            growth: Mutex::new(()),
            children: Arc::default(),
        })
    }

    fn because(self, reasons: &[String]) -> Self {
        Self { why_not: (!reasons.is_empty()).then(|| reasons.join("; ")), ..self }
    }

    /// Fails in a child. There the engine's locks have the state of the fork, and no thread unlocks them.
    fn check_owner(&self) -> Result<(), Error> {
        if self.engine.is_owner() { Ok(()) } else { Err(Error::OfASnapshot) }
    }

    /// The engine of the memory.
    pub fn kind(&self) -> Kind {
        self.engine.kind()
    }

    /// The reason why no better engine was chosen, or `None` if there is no better one.
    pub fn why_not_better(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    /// The first address of the memory, for data structures of the owner. The owner must prevent data races between
    /// its threads.
    pub fn base(&self) -> NonNull<u8> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.engine.base()))
            .expect("a mapping is not at address 0")
    }

    /// Number of accessible bytes: the initial size and all growth.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Always false: a memory has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The whole memory as bytes.
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the engine's memory lives as long as it does, and is only accessed atomically through this.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr().cast(), self.len()) }
    }

    /// The whole memory as words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: as above; a page's address is aligned.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr().cast(), self.len() / size_of::<u64>()) }
    }

    /// Makes `bytes` more bytes of the memory accessible, rounded up to whole pages, and returns their range. They
    /// are zero. Earlier snapshots do not contain them.
    ///
    /// # Errors
    /// [`Error::Full`] beyond the [reserved](Builder::reserve) size; [`Error::OfASnapshot`] in a task's process;
    /// [`Error::System`]. The memory is unchanged after an error.
    ///
    /// ```
    /// # fn main() -> Result<(), bedplate_snapshot::Error> {
    /// use bedplate_snapshot::{Error, Memory};
    ///
    /// let memory = Memory::builder(1 << 20).reserve(1 << 30).build()?;
    /// assert_eq!(memory.grow(5000)?, (1 << 20)..(1 << 20) + 8192);
    /// assert_eq!(memory.bytes().len(), (1 << 20) + 8192);
    /// assert!(matches!(memory.grow(1 << 30), Err(Error::Full { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow(&self, bytes: usize) -> Result<Range<usize>, Error> {
        self.check_owner()?;
        let _growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        let (len, reserved) = (self.len(), self.engine.pages() * PAGE);
        let grown = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| len.checked_add(bytes));
        let grown = grown
            .filter(|grown| *grown <= reserved)
            .ok_or(Error::Full { bytes: len.saturating_add(bytes), reserved })?;
        self.engine.grow(len / PAGE..grown / PAGE)?;
        self.len.store(grown, Ordering::Release);
        Ok(len..grown)
    }

    /// Makes a heap of the memory, from which data structures are allocated. The bytes are not accessible in any
    /// other way afterwards, because the heap's blocks belong to the data structures. The content of the memory is
    /// lost.
    pub fn into_heap(self) -> Heap {
        Heap::new(self)
    }

    /// Takes a snapshot that any thread of this process can hold and read, at another address than the memory's. It
    /// ends with its last handle. `remap` supports one at a time: the previous one must have ended. `uffd` supports
    /// up to 16.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`]; [`Error::Unavailable`] with `fork` and `ring0`, whose snapshots only
    /// [tasks](Self::spawn) see; [`Error::System`].
    ///
    /// ```
    /// # fn main() -> Result<(), bedplate_snapshot::Error> {
    /// use bedplate_snapshot::{Error, Memory};
    /// use std::sync::atomic::Ordering;
    ///
    /// let memory = Memory::builder(1 << 20).snapshots_at_once(2).build()?;
    /// let words = memory.words();
    /// let first = match memory.snapshot() {
    ///     Err(Error::Unavailable { .. }) => return Ok(()), // There is no userfaultfd here.
    ///     first => first?,
    /// };
    /// words[0].store(1, Ordering::Relaxed);
    /// let second = memory.snapshot()?;
    /// words[0].store(2, Ordering::Relaxed);
    /// assert_eq!(first.read(|view| view.words()[0])?, 0);
    /// assert_eq!(second.read(|view| view.words()[0])?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.check_owner()?;
        Snapshot::take(&self.engine, self.number).map_err(|error| match (error, &self.why_not) {
            (Error::Unavailable { engine, reason }, Some(why_not)) => {
                Error::Unavailable { engine, reason: format!("{reason}; {why_not}") }
            }
            (error, _) => error,
        })
    }

    /// Takes a snapshot and runs `task` on it, concurrently with the owner. The result is bytes, because the task
    /// may run in another process ([`Kind`]). There it must not rely on threads or locks of the owner.
    ///
    /// # Errors
    /// [`Error::TooManySnapshots`]; [`Error::OfASnapshot`] in a task's process; [`Error::System`].
    pub fn spawn(&self, task: impl FnOnce(&View<'_>) -> Vec<u8> + Send + 'static) -> Result<Task, Error> {
        self.check_owner()?;
        let work: Work = Box::new(task);
        match self.kind() {
            Kind::Ring0 => self.engine.spawn(work),
            Kind::Fork => self.spawn_child(work),
            Kind::Remap | Kind::Uffd if self.in_child => self.spawn_child(work),
            Kind::Remap | Kind::Uffd => self.spawn_thread(work),
        }
    }

    fn spawn_thread(&self, work: Work) -> Result<Task, Error> {
        let snapshot = Snapshot::take(&self.engine, self.number)?;
        let (epoch, pause) = (snapshot.epoch(), snapshot.pause());
        let run = move || -> Result<Vec<u8>, Error> {
            let result = catch_unwind(AssertUnwindSafe(|| work(&snapshot)));
            let bytes = result.map_err(|_| Error::Task("it panicked".into()))?;
            snapshot.check()?;
            Ok(bytes)
        };
        let thread = std::thread::Builder::new().name("bedplate-view".into()).spawn(run);
        Ok(Task::new(Box::new(Thread(thread.map_err(Error::thread)?)), epoch, pause))
    }

    fn spawn_child(&self, work: ChildWork<'_>) -> Result<Task, Error> {
        self.check_owner()?;
        let forking = forking();
        let (read, write) = pipe()?;
        let begin = Instant::now();
        let frozen = self.engine.freeze()?;
        // SAFETY: no code in between touches the memory; the child runs the work and exits without returning.
        match unsafe { libc::fork() } {
            -1 => {
                let source = last_error();
                frozen.thaw();
                Err(Error::System { what: "fork", source })
            }
            0 => {
                // SAFETY: the child of the fork above.
                let mapped = unsafe { frozen.map_in_child() };
                drop((read, forking));
                let work = match mapped {
                    Ok(()) => work,
                    Err(error) => {
                        Box::new(move |_: &View<'_>| -> Vec<u8> { panic!("{error}") }) as ChildWork<'_>
                    }
                };
                let base = self.base().as_ptr().cast_const();
                // SAFETY: the child's mapping. Only this thread, the child's only one, could change it.
                let view = unsafe { View::new(base, self.len(), base) };
                run_and_exit(work, &view, &write)
            }
            pid => {
                let epoch = frozen.thaw();
                let pause = begin.elapsed();
                Ok(Task::new(Box::new(Child::new(pid, read, self.children.clone())), epoch, pause))
            }
        }
    }

    /// Takes a snapshot and runs `task` on it in a child process, independently of [`Builder::in_child`]. The child
    /// has a copy of everything that the task borrows. It sees the memory at its own address, so it can read data
    /// with pointers. The child has one thread. It must not wait for a lock that another thread may have held at
    /// the fork. It holds the locks that the caller holds.
    ///
    /// # Errors
    /// The same as for [`spawn`](Self::spawn); [`Error::Unavailable`] with `ring0`.
    ///
    /// ```
    /// # fn main() -> Result<(), bedplate_snapshot::Error> {
    /// use bedplate_snapshot::Memory;
    ///
    /// let memory = Memory::builder(1 << 20).build()?;
    /// let mut names = vec!["a", "b"];
    /// let task = memory.spawn_in_child(|_| names.concat().into_bytes())?;
    /// names.clear();
    /// assert_eq!(task.join()?, b"ab");
    /// # Ok(())
    /// # }
    /// ```
    pub fn spawn_in_child(&self, task: impl FnOnce(&View<'_>) -> Vec<u8>) -> Result<Task, Error> {
        self.spawn_child(Box::new(task))
    }

    /// Does all work that can be done ahead of the next snapshot, or waits until it is done. With `uffd` this
    /// write-protects all pages that were written since the last snapshot. This shortens the next pause, but the
    /// next write to each of these pages is slower. The other engines do such work by themselves.
    pub fn settle(&self) {
        if self.engine.is_owner() {
            self.engine.settle();
        }
    }

    /// The statistics so far.
    pub fn statistics(&self) -> Statistics {
        if !self.engine.is_owner() {
            return Statistics::default();
        }
        let statistics = self.engine.statistics();
        match self.kind() {
            // The kernel does not notify the engine when a child ends.
            Kind::Fork => Statistics { active: self.children.load(Ordering::Relaxed), ..statistics },
            _ => statistics,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bookmark, uffd};

    #[test]
    fn numbers_that_begin_anew_make_everything_changed_and_stay_ascending() {
        let options = Options { track_changes: true, ..Options::new(4 * PAGE) };
        let region = match uffd::Region::new(options) {
            Err(Error::Unavailable { engine, reason }) => {
                println!("skipped: the {engine} engine does not work here: {reason}");
                return;
            }
            region => region.unwrap(),
        };
        region.set_epoch(u32::MAX - 2);
        let memory = Memory::with(Service::new(region.into_engine()), options).unwrap();
        let mut epochs = Vec::new();
        let mut bookmarks: Vec<Bookmark> = Vec::new();
        for number in 0..4 {
            let snapshot = memory.snapshot().unwrap();
            epochs.push(snapshot.epoch());
            // No page was written, so nothing has changed since a snapshot of the same era.
            let changed = bookmarks.iter().map(|earlier| {
                snapshot.changed_since(earlier).unwrap().map(|run| run.len() / PAGE).sum::<usize>()
            });
            let expected: &[usize] = [&[][..], &[0], &[4, 4], &[4, 4, 0]][number];
            assert_eq!(changed.collect::<Vec<_>>(), expected);
            bookmarks.push(snapshot.bookmark().unwrap());
        }
        assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    }
}
