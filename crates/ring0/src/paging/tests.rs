//! Tests of the page tables against a map of their leaves.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::frames::{Backing, CpuFrames, Frame, FramePool, HostMemory};

type Tables<'g> = PageTables<'g, LinearMemory>;

const MIB_2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
/// An address in the middle of the span of a topmost entry that these tests use.
const BASE: u64 = 5 * (512 << 30) + 7 * GIB;

/// The frames for the tables of one test. A test can count its frames in use.
struct Ground {
    pool: FramePool,
    memory: LinearMemory,
}

impl Ground {
    fn new() -> Ground {
        let memory = HostMemory::map(8 << 20, Backing::Small).unwrap();
        // Frames are not zeroed, so the old contents of new tables must not matter. This pattern would map
        // pages.
        // SAFETY: the memory has this size, and nothing uses it yet.
        unsafe { memory.base().write_bytes(0x67, memory.bytes()) };
        let pool = FramePool::new(Frame::new(0x8_0000), memory, 4).unwrap();
        // SAFETY: the pool is stored together with it. In these tests all its frames are tables.
        let memory = unsafe { pool.table_memory() };
        Ground { pool, memory }
    }

    fn frames(&self) -> CpuFrames<'_> {
        self.pool.cpu(0)
    }

    fn create(&self) -> Tables<'_> {
        // SAFETY: no processor uses the tables of these tests.
        unsafe { PageTables::create(&self.memory, &mut self.frames()).unwrap() }
    }

    fn in_use(&self) -> u64 {
        let statistics = self.pool.statistics();
        statistics.taken - statistics.given
    }

    fn destroy(&self, tables: Tables<'_>) {
        // SAFETY: as for `create`.
        unsafe {
            tables.free_range(VirtRange::new(0, ADDRESS_LIMIT).unwrap(), Which::All, &mut self.frames());
            tables.free_root(&mut self.frames());
        }
    }
}

fn range(start: u64, bytes: u64) -> VirtRange {
    VirtRange::at(start, bytes).unwrap()
}

fn all() -> VirtRange {
    VirtRange::top_level_slot(5).unwrap()
}

/// The mapped pages: address to size, frame and flags.
type Leaves = BTreeMap<u64, (PageSize, Frame, PteFlags)>;

fn leaves(tables: &Tables<'_>, range: VirtRange) -> Leaves {
    let mut found = Leaves::new();
    let own = PteFlags::PRESENT | PteFlags::HUGE;
    tables.for_each(range, |address, leaf| {
        let before = found.insert(address, (leaf.size, leaf.pte.frame(), leaf.pte.flags() - own));
        assert_eq!(before, None);
    });
    found
}

/// A model of the tables' behaviour: a map of leaves.
#[derive(Debug, Clone, Default)]
struct Model(Leaves);

impl Model {
    fn covering(&self, address: u64) -> Option<(u64, PageSize)> {
        let (start, (size, ..)) = self.0.range(..=address).next_back()?;
        (address - start < size.bytes()).then_some((*start, *size))
    }

    fn map(
        &mut self,
        address: u64,
        size: PageSize,
        frame: Frame,
        flags: PteFlags,
    ) -> Result<(), PagingError> {
        match self.covering(address) {
            Some((_, found)) if found > size => return Err(PagingError::HugePage { address }),
            Some(_) => return Err(PagingError::AlreadyMapped { address }),
            None if self.0.range(address..address + size.bytes()).next().is_some() => {
                return Err(PagingError::AlreadyMapped { address });
            }
            None => {}
        }
        self.0.insert(address, (size, frame, flags));
        Ok(())
    }

    fn split(&mut self, address: u64, to: PageSize) {
        while let Some((start, size)) = self.covering(address)
            && size > to
        {
            let (_, frame, flags) = self.0.remove(&start).unwrap();
            let part = if size == PageSize::Size1G { PageSize::Size2M } else { PageSize::Size4K };
            for number in 0..512 {
                let at = start + number * part.bytes();
                self.0.insert(at, (part, frame.offset(number * part.frames()), flags));
            }
        }
    }

    /// Splits the pages that extend over an end of the range, as deep as necessary.
    fn split_at(&mut self, range: VirtRange) {
        for end in [range.start(), range.end()] {
            while let Some((start, size)) = self.covering(end)
                && start != end
            {
                let below = if size == PageSize::Size1G { PageSize::Size2M } else { PageSize::Size4K };
                self.split(end, below);
            }
        }
    }

    fn unmap_range(&mut self, range: VirtRange) -> Leaves {
        self.split_at(range);
        let taken: Leaves = self.0.range(range.start()..range.end()).map(|(at, leaf)| (*at, *leaf)).collect();
        self.0.retain(|address, _| !range.contains(*address));
        taken
    }

    fn protect_range(&mut self, range: VirtRange, set: PteFlags, clear: PteFlags) -> u64 {
        self.split_at(range);
        let mut changed = 0;
        for (_, (_, _, flags)) in self.0.range_mut(range.start()..range.end()) {
            let new = (*flags - clear) | set;
            changed += u64::from(new != *flags);
            *flags = new;
        }
        changed
    }

    fn without(&self, lost: PteFlags) -> Model {
        Model(self.0.iter().map(|(at, (size, frame, flags))| (*at, (*size, *frame, *flags - lost))).collect())
    }
}

#[derive(Debug, Clone)]
enum Step {
    Map(u64, PageSize, u64, PteFlags),
    MapRange(u64, u64, PageSize, u64, PteFlags),
    Unmap(u64),
    UnmapRange(u64, u64),
    Protect(u64, u64, PteFlags, PteFlags),
    Split(u64, PageSize),
    Touch(u64),
    Harvest,
    FreeEmpty,
    Translate(u64),
}

fn size() -> impl Strategy<Value = PageSize> {
    prop_oneof![3 => Just(PageSize::Size4K), 3 => Just(PageSize::Size2M), 1 => Just(PageSize::Size1G)]
}

/// Addresses of pages at and around boundaries, so that steps collide.
fn address() -> impl Strategy<Value = u64> {
    let end = || prop_oneof![Just(0u64), Just(1), Just(511)];
    (0u64..2, end(), end()).prop_map(|(g, m, k)| BASE + g * GIB + m * MIB_2 + k * 4096)
}

fn flags() -> impl Strategy<Value = PteFlags> {
    let known = PteFlags::WRITABLE | PteFlags::USER | PteFlags::NO_EXECUTE | PteFlags::SOFTWARE_9;
    any::<u64>().prop_map(move |bits| PteFlags::from_bits_truncate(bits) & (known | PteFlags::SOFTWARE_57))
}

fn bytes() -> impl Strategy<Value = u64> {
    (size(), 1u64..4).prop_map(|(size, count)| size.bytes() * count)
}

fn step() -> impl Strategy<Value = Step> {
    let page = (address(), size(), 0u64..1 << 28, flags());
    let pages = (address(), 1u64..4, size(), 0u64..1 << 28, flags());
    prop_oneof![
        6 => page.prop_map(|(at, size, frame, flags)| {
            Step::Map(at & !(size.bytes() - 1), size, frame & !(size.frames() - 1), flags)
        }),
        3 => pages.prop_map(|(at, count, size, frame, flags)| {
            Step::MapRange(at, count * size.bytes(), size, frame & !(size.frames() - 1), flags)
        }),
        2 => address().prop_map(Step::Unmap),
        3 => (address(), bytes()).prop_map(|(at, bytes)| Step::UnmapRange(at, bytes)),
        3 => (address(), bytes(), flags(), flags()).prop_map(|(at, bytes, set, clear)| {
            Step::Protect(at, bytes, set - clear, clear)
        }),
        1 => (address(), size()).prop_map(|(at, size)| Step::Split(at, size)),
        2 => address().prop_map(Step::Touch),
        1 => Just(Step::Harvest),
        1 => Just(Step::FreeEmpty),
        3 => (address(), 0u64..4096).prop_map(|(at, offset)| Step::Translate(at + offset)),
    ]
}

const USED: PteFlags = PteFlags::ACCESSED.union(PteFlags::DIRTY);

fn free_empty(ground: &Ground, tables: &Tables<'_>) {
    // SAFETY: no processor uses these tables.
    unsafe { tables.free_range(all(), Which::Empty, &mut ground.frames()) };
}

/// Applies one step to the tables and to the model, and compares the results.
fn apply(ground: &Ground, tables: &Tables<'_>, model: &mut Model, step: &Step) -> Result<(), TestCaseError> {
    let frames = &mut ground.frames();
    match *step {
        Step::Map(at, size, frame, flags) => {
            let frame = Frame::new(frame);
            let mut result = tables.map(at, frame, size, flags, frames);
            let expected = model.map(at, size, frame, flags);
            if result == Err(PagingError::AlreadyMapped { address: at }) && expected.is_ok() {
                // Empty tables are in the way of a huge page.
                prop_assert!(size.is_huge());
                free_empty(ground, tables);
                result = tables.map(at, frame, size, flags, frames);
            }
            prop_assert_eq!(result, expected);
        }
        Step::MapRange(at, bytes, largest, frame, flags) => {
            // Skip ranges that would need hundreds of thousands of small pages.
            let fits = (at | frame << 12).is_multiple_of(largest.bytes());
            if !fits && bytes > 4 * MIB_2 {
                return Ok(());
            }
            free_empty(ground, tables);
            let result = tables.map_range(range(at, bytes), Frame::new(frame), largest, flags, frames);
            let mut expected = Ok(());
            let mut done = 0;
            while done < bytes && expected.is_ok() {
                let (address, frame) = (at + done, Frame::new(frame + done / 4096));
                let sizes = [PageSize::Size1G, PageSize::Size2M, PageSize::Size4K];
                let size = sizes.into_iter().filter(|size| *size <= largest).find(|size| {
                    (address | frame.address()).is_multiple_of(size.bytes()) && size.bytes() <= bytes - done
                });
                expected = model.map(address, size.unwrap(), frame, flags);
                done += size.unwrap().bytes();
            }
            prop_assert_eq!(result, expected);
        }
        Step::Unmap(at) => {
            let result = tables.unmap(at);
            match model.covering(at) {
                None => prop_assert_eq!(result, Err(PagingError::NotMapped { address: at })),
                Some((start, _)) if start != at => {
                    prop_assert_eq!(result, Err(PagingError::HugePage { address: at }));
                }
                Some(_) => {
                    let (size, frame, flags) = model.0.remove(&at).unwrap();
                    prop_assert_eq!(result, Ok((Pte::leaf(frame, size, flags), size)));
                }
            }
        }
        Step::UnmapRange(at, bytes) => {
            let mut taken = Leaves::new();
            let own = PteFlags::PRESENT | PteFlags::HUGE;
            let each = |at, pte: Pte, size| {
                taken.insert(at, (size, pte.frame(), pte.flags() - own));
            };
            prop_assert_eq!(tables.unmap_range(range(at, bytes), frames, each), Ok(()));
            prop_assert_eq!(taken, model.unmap_range(range(at, bytes)));
        }
        Step::Protect(at, bytes, set, clear) => {
            let result = tables.protect_range(range(at, bytes), set, clear, frames);
            prop_assert_eq!(result, Ok(model.protect_range(range(at, bytes), set, clear)));
        }
        Step::Split(at, size) => match model.covering(at) {
            None => {
                prop_assert_eq!(tables.split(at, size, frames), Err(PagingError::NotMapped { address: at }))
            }
            Some(_) => {
                prop_assert_eq!(tables.split(at, size, frames), Ok(()));
                model.split(at, size);
            }
        },
        Step::Touch(at) => {
            if let Some((start, _)) = model.covering(at) {
                let changed = tables.leaf(at).unwrap().slot.update(|pte| Some(pte.with(USED)));
                prop_assert!(changed.unwrap().is_present());
                model.0.get_mut(&start).unwrap().2 |= USED;
            }
        }
        Step::Harvest => {
            let mut seen = Vec::new();
            tables.harvest(all(), PteFlags::DIRTY, |at, pte, _| seen.push((at, pte.is_dirty())));
            let dirty = model.0.iter().filter(|(_, (_, _, flags))| flags.contains(PteFlags::DIRTY));
            prop_assert_eq!(seen, dirty.map(|(at, _)| (*at, true)).collect::<Vec<_>>());
            *model = model.without(PteFlags::DIRTY);
        }
        Step::FreeEmpty => free_empty(ground, tables),
        Step::Translate(at) => {
            let found = tables.translate(at).map(|found| (found.physical_address(), found.size));
            let expected = model.covering(at).map(|(start, size)| {
                let (_, frame, _) = model.0[&start];
                (frame.address() + (at - start), size)
            });
            prop_assert_eq!(found, expected);
        }
    }
    Ok(())
}

fn protect() -> impl Strategy<Value = Protect> {
    use Protect::*;
    prop_oneof![Just(Nothing), Just(Copy), Just(Both), Just(BothQuiesced)]
}

proptest! {
    #[test]
    fn tables_agree_with_a_map(steps in prop::collection::vec(step(), 1..40)) {
        let ground = &Ground::new();
        let before = ground.in_use();
        let tables = ground.create();
        let mut model = Model::default();
        for step in &steps {
            apply(ground, &tables, &mut model, step)?;
        }
        prop_assert_eq!(leaves(&tables, all()), model.0);
        ground.destroy(tables);
        prop_assert_eq!(ground.in_use(), before, "tables are lost");
    }

    #[test]
    fn copies_and_originals_do_not_see_each_other(
        before in prop::collection::vec(step(), 1..15),
        after in prop::collection::vec((any::<bool>(), step()), 1..15),
        protect in protect(),
        parts in 1usize..4,
    ) {
        let ground = &Ground::new();
        let in_use = ground.in_use();
        let tables = ground.create();
        // Map something outside of the private range. The copy shares it now and later.
        tables.fill_top_level(&mut ground.frames()).unwrap();
        tables.map(0x1000, Frame::new(1), PageSize::Size4K, PteFlags::USER, &mut ground.frames()).unwrap();
        let mut model = Model::default();
        for step in &before {
            apply(ground, &tables, &mut model, step)?;
        }

        let copy = tables.create_sharing(all(), &mut ground.frames()).unwrap();
        prop_assert_eq!(leaves(&copy, all()), Leaves::new());
        for part in range(BASE - GIB, 8 * GIB).split(parts) {
            tables.clone_range(&copy, part, protect, &mut ground.frames()).unwrap();
        }
        let protected = model.without(PteFlags::WRITABLE);
        let unused = protected.without(PteFlags::ACCESSED | PteFlags::DIRTY);
        let (mut copied, original) = match protect {
            Protect::Nothing => (model.clone(), model),
            Protect::Copy => (unused, model),
            Protect::Both | Protect::BothQuiesced => (unused, protected),
        };
        let mut model = original;
        for (of_copy, step) in &after {
            let (tables, model) = if *of_copy { (&copy, &mut copied) } else { (&tables, &mut model) };
            apply(ground, tables, model, step)?;
        }
        prop_assert_eq!(leaves(&tables, all()), model.0);
        prop_assert_eq!(leaves(&copy, all()), copied.0);
        prop_assert_eq!(copy.translate(0x1234).unwrap().physical_address(), 0x1234);
        tables.map(0x2000, Frame::new(2), PageSize::Size4K, PteFlags::USER, &mut ground.frames()).unwrap();
        prop_assert_eq!(copy.translate(0x2001).unwrap().physical_address(), 0x2001);

        // SAFETY: no processor uses these tables, and only the copy's own tables are freed.
        unsafe {
            copy.free_range(all(), Which::All, &mut ground.frames());
            copy.free_root(&mut ground.frames());
        }
        ground.destroy(tables);
        prop_assert_eq!(ground.in_use(), in_use, "tables are lost");
    }
}

#[test]
fn bad_requests_are_refused() {
    let ground = &Ground::new();
    let tables = ground.create();
    let frames = &mut ground.frames();
    let flags = PteFlags::WRITABLE;
    let map = |at, frame, size| tables.map(at, Frame::new(frame), size, flags, &mut ground.frames());
    assert_eq!(map(1 << 47, 1, PageSize::Size4K), Err(PagingError::OutOfRange { address: 1 << 47 }));
    let unaligned = |value, size| Err(PagingError::Unaligned { value, size });
    assert_eq!(map(0x1001, 1, PageSize::Size4K), unaligned(0x1001, PageSize::Size4K));
    assert_eq!(map(0x1000, 512, PageSize::Size2M), unaligned(0x1000, PageSize::Size2M));
    assert_eq!(map(MIB_2, 1, PageSize::Size2M), unaligned(0x1000, PageSize::Size2M));
    let out = tables.map(0x1000, Frame::new(1), PageSize::Size4K, flags, &mut NoTables);
    assert_eq!(out, Err(PagingError::OutOfTables));
    assert!(tables.slot(0x1000, PageSize::Size4K).is_none());
    assert!(tables.translate(u64::MAX).is_none());
    map(GIB, 0, PageSize::Size1G).unwrap();
    assert_eq!(tables.split(GIB + 5, PageSize::Size4K, &mut NoTables), Err(PagingError::OutOfTables));
    assert_eq!(tables.translate(GIB + 5).unwrap().size, PageSize::Size1G);
    let ragged = tables.clone_range(&tables, range(4096, MIB_2), Protect::Nothing, frames);
    assert_eq!(ragged.map(|_| ()), unaligned(4096, PageSize::Size2M));
    ground.destroy(tables);
    assert_eq!(ground.in_use(), 0);
}

#[test]
fn a_locked_entry_refuses_changes() {
    let ground = &Ground::new();
    let (tables, frames) = (ground.create(), &mut ground.frames());
    let pages = range(BASE, 8 * 4096);
    tables.map_range(pages, Frame::new(0), PageSize::Size4K, PteFlags::WRITABLE, frames).unwrap();
    let at = BASE + 3 * 4096;
    let slot = tables.slot(at, PageSize::Size4K).unwrap();
    let lock = slot.try_lock().unwrap();
    assert!(slot.try_lock().is_none());

    let refused = Err(PagingError::Locked { address: at });
    assert_eq!(tables.unmap(at).map(|_| ()), refused);
    assert_eq!(tables.map(at, Frame::new(1), PageSize::Size4K, PteFlags::empty(), frames), refused);
    assert_eq!(tables.protect_range(pages, PteFlags::empty(), PteFlags::USER, frames).map(|_| ()), refused);
    let copy = tables.create_sharing(all(), frames).unwrap();
    for protect in [Protect::Nothing, Protect::Copy, Protect::Both, Protect::BothQuiesced] {
        assert_eq!(tables.clone_range(&copy, range(BASE, MIB_2), protect, frames).map(|_| ()), refused);
        assert!(copy.translate(BASE).is_none(), "a table that is not complete is part of the copy");
    }
    assert_eq!(tables.unmap_range(pages, frames, |_, _, _| {}), refused);
    assert!(tables.translate(BASE).is_none() && tables.translate(at).is_some());

    drop(lock);
    assert!(tables.unmap_range(pages, frames, |_, _, _| {}).is_ok());
    let huge = BASE + MIB_2;
    tables.map(huge, Frame::new(512), PageSize::Size2M, PteFlags::empty(), frames).unwrap();
    let lock = tables.slot(huge, PageSize::Size2M).unwrap().try_lock().unwrap();
    let split = tables.split(huge, PageSize::Size4K, frames);
    assert_eq!(split, Err(PagingError::Locked { address: huge }));
    drop(lock);
}

#[test]
fn a_directory_finds_the_same_entries_as_a_walk() {
    let ground = &Ground::new();
    let (tables, frames) = (ground.create(), &mut ground.frames());
    let region = range(BASE, 4 * MIB_2);
    tables.map(BASE + 4096, Frame::new(7), PageSize::Size4K, PteFlags::empty(), frames).unwrap();
    tables.map(BASE + MIB_2, Frame::new(512), PageSize::Size2M, PteFlags::empty(), frames).unwrap();
    let directory = tables.directory(region).unwrap();
    assert_eq!(directory.slot(BASE + 4096 + 17).unwrap().load().frame(), Frame::new(7));
    assert_eq!(directory.slot(BASE).unwrap().load(), Pte::EMPTY);
    for outside in [BASE - 1, BASE + MIB_2, BASE + 2 * MIB_2, BASE + 4 * MIB_2] {
        assert!(directory.slot(outside).is_none(), "{outside:#x}");
    }
    let rest = range(BASE + 2 * MIB_2, 2 * MIB_2);
    let rest = tables.directory_or_add(rest, frames).unwrap();
    let last = BASE + 4 * MIB_2 - 4096;
    rest.slot(last).unwrap().store_exclusive(Pte::leaf(Frame::new(9), PageSize::Size4K, PteFlags::empty()));
    assert_eq!(tables.translate(last).unwrap().pte.frame(), Frame::new(9));
    assert_eq!(
        tables.directory_or_add(region, frames).unwrap_err(),
        PagingError::HugePage { address: BASE + MIB_2 }
    );
}

/// Copies parts of a region into one copy from several threads at the same time, as a snapshot does.
#[test]
fn threads_copy_disjoint_ranges_of_one_region() {
    let ground = &Ground::new();
    let tables = ground.create();
    let region = range(BASE + GIB - 32 * MIB_2, 64 * MIB_2);
    tables
        .map_range(region, Frame::new(0), PageSize::Size4K, PteFlags::WRITABLE, &mut ground.frames())
        .unwrap();
    for round in 0..20 {
        let before = ground.in_use();
        let copy = tables.create_sharing(all(), &mut ground.frames()).unwrap();
        let parts: Vec<_> = region.split(3).collect();
        assert_eq!(parts.len(), 3);
        let added: u64 = std::thread::scope(|scope| {
            let copies = parts.into_iter().enumerate().map(|(cpu, part)| {
                scope.spawn(move || {
                    tables.clone_range(&copy, part, Protect::Copy, &mut ground.pool.cpu(cpu as u32)).unwrap()
                })
            });
            copies.collect::<Vec<_>>().into_iter().map(|copy| copy.join().unwrap()).sum()
        });
        // 64 leaf tables, one table above them on each side of the boundary of 1 GiB, and one table above
        // those.
        assert_eq!(added, 64 + 2 + 1, "round {round}");
        assert_eq!(ground.in_use() - before, added + 1);
        let expected = Model(leaves(&tables, region)).without(PteFlags::WRITABLE);
        assert_eq!(leaves(&copy, all()), expected.0);
        // SAFETY: no processor uses these tables.
        unsafe {
            assert_eq!(copy.free_range(all(), Which::All, &mut ground.frames()), added);
            copy.free_root(&mut ground.frames());
        }
        assert_eq!(ground.in_use(), before);
    }
}

/// Several threads map pages below tables that do not exist yet, and split the same huge page.
#[test]
fn threads_that_meet_in_the_same_tables_agree() {
    let ground = &Ground::new();
    for _ in 0..50 {
        let tables = ground.create();
        tables.map(BASE, Frame::new(0), PageSize::Size1G, PteFlags::WRITABLE, &mut ground.frames()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let frames = &mut ground.pool.cpu(thread as u32);
                    for number in 0..64 {
                        let at = BASE + GIB + (number * 4 + thread) * 4096;
                        tables
                            .map(at, Frame::new(thread), PageSize::Size4K, PteFlags::empty(), frames)
                            .unwrap();
                        let page = range(BASE + (number * 4 + thread) * 4096, 4096);
                        let changed =
                            tables.protect_range(page, PteFlags::empty(), PteFlags::WRITABLE, frames);
                        assert_eq!(changed, Ok(1));
                    }
                });
            }
        });
        for number in 0..256 {
            let frame = tables.translate(BASE + GIB + number * 4096).unwrap().pte.frame();
            assert_eq!(frame, Frame::new(number % 4));
            assert!(!tables.translate(BASE + number * 4096).unwrap().pte.is_writable());
        }
        assert!(tables.translate(BASE + MIB_2).unwrap().pte.is_writable());
        // The topmost table, one table below it, two below that, and one leaf table on each side.
        assert_eq!(ground.in_use(), 1 + 1 + 2 + 2);
        ground.destroy(tables);
        assert_eq!(ground.in_use(), 0, "a table that lost the race is lost");
    }
}
