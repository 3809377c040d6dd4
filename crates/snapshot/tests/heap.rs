//! Data structures in a memory with snapshots.

mod common;

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as VecIn;
use bedplate_snapshot::{Heap, Kind, Memory, PAGE};
use common::{EndOnDrop, Random, Setting, build, settings};
use hashbrown::{DefaultHashBuilder, HashMap};

/// Tests fork, so no other thread may hold a lock that a child needs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;

/// Heaps with at most this number of bytes. Memories of the engine for ring 0 cannot grow.
fn heaps(reserve: usize) -> impl Iterator<Item = (Setting, Heap)> {
    let settings = settings().filter(|setting| setting.kind != Kind::Ring0 && setting.in_child);
    settings.filter_map(move |setting| {
        let memory = build(Memory::builder(PAGE).reserve(reserve), setting)?;
        Some((setting, memory.into_heap()))
    })
}

#[test]
fn a_child_reads_structures_with_pointers_as_they_were() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (setting, heap) in heaps(64 * MIB) {
        let mut map = HashMap::with_hasher_in(DefaultHashBuilder::default(), heap.clone());
        let mut model = std::collections::HashMap::new();
        let mut random = Random(11);
        for round in 0..6 {
            for _ in 0..3000 {
                let key = random.below(5000);
                if random.below(3) == 0 {
                    assert_eq!(map.remove(&key).is_some(), model.remove(&key).is_some());
                } else {
                    let mut value = VecIn::new_in(heap.clone());
                    value.resize(random.below(200) as usize, round as u8);
                    model.insert(key, value.len());
                    map.insert(key, value);
                }
            }
            let task = heap.spawn_in_child(|view| {
                // The child waits, so that it probably runs after the parent's next changes.
                std::thread::sleep(Duration::from_millis(20));
                let is_same =
                    |(key, len): (&u64, &usize)| map.get(key).is_some_and(|value| value.len() == *len);
                let same = map.len() == model.len() && model.iter().all(is_same);
                let later = map.values().flat_map(|value| value.iter()).any(|&byte| byte > round as u8);
                vec![u8::from(same && !later && view.is_at_home())]
            });
            for value in map.values_mut() {
                value.fill(99);
            }
            map.retain(|key, _| key % 2 == 0);
            model.retain(|key, _| key % 2 == 0);
            assert_eq!(task.unwrap().join().unwrap(), [1], "{setting:?}");
            assert!(map.values().all(|value| value.iter().all(|&byte| byte == 99)), "{setting:?}");
            map.values_mut().for_each(|value| value.fill(0));
        }
        assert!(heap.len() > MIB / 4, "{setting:?}: nothing was in the heap");
    }
}

#[test]
fn a_thread_reads_flat_data_by_the_owners_address() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (setting, heap) in heaps(16 * MIB).filter(|(setting, _)| setting.kind != Kind::Fork) {
        let mut numbers: VecIn<u32, Heap> = VecIn::new_in(heap.clone());
        numbers.extend(0..100_000);
        let (at, bytes) = (numbers.as_ptr().cast::<u8>(), size_of_val(&numbers[..]));
        let snapshot = heap.snapshot().unwrap();
        numbers.fill(7);
        let read = snapshot.read(|view| {
            let bytes = view.bytes_at(at, bytes).unwrap();
            let numbers = bytes.as_chunks().0.iter().map(|number| u32::from_ne_bytes(*number));
            numbers.eq(0..100_000)
        });
        assert!(read.unwrap(), "{setting:?}");
        // Addresses before or after the memory, and ranges that would wrap around, are refused.
        let base = heap.base().as_ptr().cast_const();
        let len = snapshot.bytes().len();
        assert_eq!(snapshot.bytes_at(base, len).map(<[u8]>::len), Some(len));
        assert_eq!(snapshot.bytes_at(base, len + 1), None);
        assert_eq!(snapshot.bytes_at(base.wrapping_sub(1), 1), None);
        assert_eq!(snapshot.bytes_at(base.wrapping_add(1), usize::MAX), None);
    }
}

/// A block, its layout and its fill byte.
struct Block(NonNull<u8>, Layout, u8);

impl Block {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a block of this test, whose bytes were all written.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.1.size()) }
    }

    fn check(&mut self, heap: &Heap) {
        let (at, base) = (self.0.as_ptr() as usize, heap.base().as_ptr() as usize);
        assert!(at.is_multiple_of(self.1.align()));
        assert!(self.1.size() == 0 || (base..=base + heap.len() - self.1.size()).contains(&at));
        let value = self.2;
        assert!(self.bytes().iter().all(|&byte| byte == value), "another block is in its place");
    }
}

#[test]
fn blocks_are_aligned_and_apart_and_keep_their_content() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, heap) in heaps(64 * MIB).filter(|(setting, _)| !setting.huge_pages) {
        let mut random = Random(5);
        let mut blocks: Vec<Block> = Vec::new();
        for step in 0..20_000u32 {
            let size = if random.below(20) == 0 { random.below(100_000) } else { random.below(300) } as usize;
            let layout = Layout::from_size_align(size, 1 << random.below(13)).unwrap();
            let value = step as u8;
            let which = random.below(blocks.len().max(1) as u64) as usize;
            match random.below(if blocks.len() > 500 { 8 } else { 5 }) {
                0..3 => {
                    let at = if value.is_multiple_of(2) {
                        heap.allocate(layout).unwrap()
                    } else {
                        let zeroed = heap.allocate_zeroed(layout).unwrap();
                        Block(zeroed.cast(), layout, 0).check(&heap);
                        zeroed
                    };
                    assert_eq!(at.len(), size);
                    // SAFETY: a new block.
                    unsafe { at.cast::<u8>().write_bytes(value, size) };
                    blocks.push(Block(at.cast(), layout, value));
                }
                3 | 4 if !blocks.is_empty() => {
                    let block = &mut blocks[which];
                    let old = block.1;
                    // SAFETY: a block of this heap with this layout, which grows or shrinks.
                    let at = unsafe {
                        if layout.size() >= old.size() {
                            heap.grow(block.0, old, layout)
                        } else {
                            heap.shrink(block.0, old, layout)
                        }
                    };
                    block.0 = at.unwrap().cast();
                    block.1 = Layout::from_size_align(old.size().min(size), layout.align()).unwrap();
                    block.check(&heap);
                    block.1 = layout;
                    // SAFETY: the block at its present address.
                    unsafe { block.0.write_bytes(block.2, size) };
                }
                _ if !blocks.is_empty() => {
                    let mut block = blocks.swap_remove(which);
                    block.check(&heap);
                    // SAFETY: a block of this heap with this layout.
                    unsafe { heap.deallocate(block.0, block.1) };
                }
                _ => {}
            }
        }
        blocks.iter_mut().for_each(|block| block.check(&heap));
    }
}

#[test]
fn a_heap_that_is_full_says_so_and_uses_freed_blocks_again() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (setting, heap) in heaps(4 * MIB) {
        let layout = Layout::from_size_align(100_000, 8).unwrap();
        for _ in 0..3 {
            let mut blocks = Vec::new();
            while let Ok(block) = heap.allocate(layout) {
                blocks.push(block);
                assert!(blocks.len() < 42, "{setting:?}");
            }
            // The blocks use everything except a step of growth and the heap's own part.
            assert!(blocks.len() > 35, "{setting:?}: {}", blocks.len());
            for block in blocks {
                // SAFETY: a block of this heap with this layout.
                unsafe { heap.deallocate(block.cast(), layout) };
            }
        }
        assert!(heap.len() <= 4 * MIB);
        assert!(heap.allocate(Layout::from_size_align(isize::MAX as usize - 8, 8).unwrap()).is_err());
    }
}

/// A child that is forked while another thread allocates can also allocate.
#[test]
fn a_child_is_forked_with_the_heap_unlocked() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (setting, heap) in heaps(16 * MIB).filter(|(setting, _)| !setting.huge_pages) {
        let over = AtomicBool::new(false);
        let allocate = || {
            let mut numbers: VecIn<u64, Heap> = VecIn::new_in(heap.clone());
            (0..100).for_each(|number| numbers.push(number));
            numbers.iter().sum::<u64>() == 4950
        };
        // A child's heap does not grow. It uses free blocks.
        assert!(allocate());
        std::thread::scope(|scope| {
            let _end = EndOnDrop(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(allocate());
                }
            });
            for _ in 0..50 {
                let task = loop {
                    match heap.spawn_in_child(|_| vec![u8::from(allocate())]) {
                        Ok(task) => break task,
                        // Some children that have ended may still be counted.
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                };
                let limit = Instant::now() + Duration::from_secs(60);
                while !task.is_finished() && Instant::now() < limit {
                    std::thread::sleep(Duration::from_micros(200));
                }
                let is_finished = task.is_finished();
                assert!(is_finished, "{setting:?}: the child waits for a lock that nobody has");
                assert_eq!(task.join().unwrap(), [1], "{setting:?}");
            }
        });
    }
}
