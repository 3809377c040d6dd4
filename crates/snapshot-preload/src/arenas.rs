//! The program's mappings in the arena, and their addresses.
//!
//! The arena is reserved once, larger than the machine's memory. Mappings take the lowest free addresses in it, and return them
//! with their memory.
//!
//! A forked child that becomes a daemon gets an arena of its own for later mappings. Its earlier memory stays in place, in the
//! *inherited* arena. The child sees its content from the moment of the fork.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_snapshot::engine::{Arena, Options, Service, open_arena};
use bedplate_snapshot::region::counts_promises;
#[cfg(target_arch = "x86_64")]
use bedplate_snapshot::ring0;
use bedplate_snapshot::{Error, Kind, PAGE};
#[cfg(target_arch = "x86_64")]
use bedplate_threads::BlockedSignals;

use crate::settings::{Settings, settings};
#[cfg(target_arch = "x86_64")]
use crate::signals;
use crate::{direct_io, forks, owner, say};

/// The reason for the engine, if the user requested it.
const ASKED_FOR: &str = "it was asked for";

/// Alignment of addresses in pages, so that the kernel may use huge pages. Small mappings have a smaller alignment.
const ALIGNED: usize = 512;
const SMALL_ALIGNED: usize = 16;
/// Minimum size of the arena in addresses. The size is four times the memory.
const SMALLEST: usize = 64 << 30;
const LARGEST: usize = 1 << 40;
/// The same for ring 0, where addresses need page tables: the memory's size, within these limits.
#[cfg(target_arch = "x86_64")]
const RING0: Range<usize> = 256 << 20..256 << 30;

/// Maximum number of arenas of a process: one, and one for each time that it or an ancestor became a daemon.
const MOST: usize = 4;

/// An arena.
struct Opened {
    arena: Service<dyn Arena>,
    /// The reason why the engine is not a better one, if it should be reported.
    reason: Option<Error>,
}

/// The arenas, which exist from the first mapping on. The first one has no threads until the program is about to begin.
static ARENAS: [OnceLock<Result<Opened, Error>>; MOST] = [const { OnceLock::new() }; MOST];
/// The index of the arena for new mappings. Earlier ones are inherited.
static LATEST: AtomicUsize = AtomicUsize::new(0);

/// The arena in ring 0, which replaces the others. It exists from the moment when the program is about to begin. Earlier mappings
/// are outside.
#[cfg(target_arch = "x86_64")]
static RING0_ARENA: OnceLock<&'static ring0::Region> = OnceLock::new();

/// Creates the arena. The program's allocator may be waiting for it.
fn make() -> Result<Opened, Error> {
    let bytes = memory_of_machine().saturating_mul(4).clamp(SMALLEST, LARGEST);
    let Settings { engine, huge_pages, .. } = *settings();
    let options = Options { huge_pages, ..Options::new(bytes) };
    let mut reason = None;
    if engine == Some(Kind::Remap) || engine != Some(Kind::Uffd) && !counts_promises() {
        match open_arena(Kind::Remap, options) {
            Ok(arena) => {
                let is_chosen = engine.is_none();
                let why = if is_chosen { "the best one, and it works here" } else { ASKED_FOR };
                arena.publish_statistics(why);
                direct_io::pin(&*arena);
                return Ok(Opened { arena, reason });
            }
            Err(error) if engine == Some(Kind::Remap) => return Err(error),
            Err(error) => reason = Some(error),
        }
    }
    let arena = open_arena(Kind::Uffd, options)?;
    match &reason {
        Some(error) => arena.publish_statistics(&error.to_string()),
        None if engine.is_some() => arena.publish_statistics(ASKED_FOR),
        None => arena.publish_statistics("the remap engine is not chosen where vm.overcommit_memory is 2"),
    }
    Ok(Opened { arena, reason })
}

/// Whether the engine should be the one in ring 0.
fn wants_ring0() -> bool {
    settings().engine == Some(Kind::Ring0)
}

/// The arena in ring 0, if the program's threads run there.
#[cfg(target_arch = "x86_64")]
pub fn in_ring0() -> Option<&'static ring0::Region> {
    RING0_ARENA.get().copied()
}

fn memory_of_machine() -> usize {
    let mut info = std::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: fills in the structure, for which zeros are a value.
    let info = unsafe {
        libc::sysinfo(info.as_mut_ptr());
        info.assume_init()
    };
    info.totalram as usize * info.mem_unit as usize
}

fn latest() -> usize {
    LATEST.load(Ordering::Acquire)
}

/// The arena for new mappings. Creates it if this is possible now.
fn arena_or_new() -> Option<&'static dyn Arena> {
    if wants_ring0() {
        return arena();
    }
    ARENAS[latest()].get_or_init(make).as_ref().ok().map(|opened| &*opened.arena)
}

fn existing(index: usize) -> Option<&'static dyn Arena> {
    #[cfg(target_arch = "x86_64")]
    if let Some(opened) = RING0_ARENA.get().filter(|_| index == 0) {
        return Some(opened);
    }
    ARENAS[index].get()?.as_ref().ok().map(|opened| &*opened.arena)
}

/// The arena for new mappings, if there is one already.
pub fn arena() -> Option<&'static dyn Arena> {
    existing(latest())
}

/// The arenas that this process inherited before it had its own, the oldest first.
pub fn inherited() -> impl Iterator<Item = &'static dyn Arena> {
    (0..latest()).filter_map(existing)
}

/// The arena that an address is in, and whether this process is its owner.
pub fn arena_of(address: usize) -> Option<(&'static dyn Arena, bool)> {
    let latest = latest();
    let index = (0..=latest).find(|&index| existing(index).is_some_and(|arena| arena.contains(address)))?;
    Some((existing(index)?, index == latest && is_owner()))
}

/// Whether the latest arena is this process's. A child that was created without `fork`'s handlers is not the owner either.
pub fn is_owner() -> bool {
    !forks::is_snapshot() && owner::is_this_process()
}

/// Starts the arena's threads. The program is about to begin, and may allocate.
pub fn start() -> Result<(), Error> {
    start_threads(latest())
}

/// Creates another arena for later mappings, in a process that is not the owner of the latest one.
///
/// # Errors
/// Nothing has changed.
pub fn begin_again() -> Result<(), Error> {
    let next = latest() + 1;
    if next == MOST {
        return Err(Error::OfASnapshot);
    }
    start_threads(next)?;
    LATEST.store(next, Ordering::Release);
    Ok(())
}

fn start_threads(index: usize) -> Result<(), Error> {
    owner::begin()?;
    if wants_ring0() {
        return start_ring0(index);
    }
    match ARENAS[index].get_or_init(make) {
        // Its thread is started when the program forks (`before_fork`).
        Ok(opened) if opened.arena.kind() == Kind::Remap => Ok(()),
        Ok(opened) => {
            opened.arena.start_threads()?;
            if let Some(error) = &opened.reason {
                say(format_args!("the engine is uffd: {error}"));
            }
            Ok(())
        }
        Err(error) => Err(error.clone()),
    }
}

/// Must be called when the program is about to fork, and holds none of its allocator's locks. A program that never forks only has
/// its own threads, because some calls, such as changing the user namespace, require a single thread.
pub fn before_fork() {
    let index = latest();
    if let Some(Ok(opened)) = ARENAS[index].get()
        && opened.arena.kind() == Kind::Remap
        && let Err(error) = opened.arena.start_threads()
    {
        // Everything else works, but later snapshots take longer.
        say(format_args!("nothing is shared again after this snapshot: {error}"));
    }
}

#[cfg(target_arch = "x86_64")]
fn start_ring0(index: usize) -> Result<(), Error> {
    if index > 0 {
        return Err(Error::OfASnapshot);
    }
    let bytes = settings().arena.unwrap_or_else(memory_of_machine);
    let _blocked = BlockedSignals::all_but_faults();
    let arena = signals::natively(|| ring0::Region::new(bytes.clamp(RING0.start, RING0.end)))?;
    arena.publish_statistics(ASKED_FOR);
    // The main thread enters before the program begins, and others enter as soon as they touch the arena.
    arena.enter()?;
    // No other thread is here, because the program has not begun.
    let _ = RING0_ARENA.set(arena);
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn start_ring0(_index: usize) -> Result<(), Error> {
    Err(Error::Unavailable { engine: Kind::Ring0, reason: "it is for x86_64 processors".into() })
}

/// Pages of the arena that a range of addresses covers wholly, if it is in the arena.
pub fn pages(arena: &dyn Arena, address: usize, len: usize) -> Option<Range<usize>> {
    let end = address.checked_add(len)?;
    let start = address.checked_sub(arena.base())?;
    let pages = start.div_ceil(PAGE)..(end - arena.base()) / PAGE;
    (arena.contains(address) && pages.end <= arena.pages() && pages.start <= pages.end).then_some(pages)
}

/// An address for a new mapping, if it should be in the arena.
pub fn map(hint: usize, len: usize) -> Option<usize> {
    if len < settings().minimum || forks::is_snapshot() {
        return None;
    }
    let arena = arena_or_new()?;
    let count = len.div_ceil(PAGE);
    let wanted = pages(arena, hint, count * PAGE).filter(|_| hint.is_multiple_of(PAGE));
    if let Some(wanted) = wanted
        && arena.claim_exactly(wanted)
    {
        return Some(hint);
    }
    let align = if count >= ALIGNED { ALIGNED } else { SMALL_ALIGNED };
    arena.claim_anywhere(count, align).map(|pages| arena.base() + pages.start * PAGE)
}

/// Claims the pages of these addresses for a mapping, if they are free pages of the arena.
pub fn map_exactly(addresses: Range<usize>) -> bool {
    arena().is_some_and(|arena| {
        pages(arena, addresses.start, addresses.len()).is_some_and(|pages| arena.claim_exactly(pages))
    })
}
