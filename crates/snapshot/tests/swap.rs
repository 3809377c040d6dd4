//! Pages that were written after a snapshot and then swapped out are also merged.

mod common;

use std::sync::atomic::Ordering;
use std::sync::mpsc;

use bedplate_snapshot::Kind;
use common::{memory, settings};

const MIB: usize = 1 << 20;

/// Bytes of this process's memory that are swapped out.
fn swapped() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:")).unwrap_or("0");
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn pages_that_are_swapped_out_are_folded() {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 {
        println!("skipped: there is no swap space");
        return;
    }
    for setting in settings().filter(|setting| setting.kind == Kind::Remap && !setting.in_child) {
        let Some(memory) = memory(8 * MIB, setting) else { continue };
        let words = memory.words();
        // Half of the pages are written after the snapshot.
        let is_written = |index: usize| (index / 512).is_multiple_of(2);
        words.iter().for_each(|word| word.store(1, Ordering::Relaxed));
        let (go, gone) = mpsc::channel::<()>();
        let snapshot = memory
            .spawn(move |view| {
                gone.recv().unwrap();
                vec![u8::from(view.words().iter().all(|&word| word == 1))]
            })
            .unwrap();
        for (_, word) in words.iter().enumerate().filter(|(index, _)| is_written(*index)) {
            word.store(2, Ordering::Relaxed);
        }
        // SAFETY: the memory; its content stays.
        unsafe { libc::madvise(memory.base().as_ptr().cast(), memory.len(), libc::MADV_PAGEOUT) };
        assert!(swapped() > MIB as u64, "{setting:?}: nothing is swapped out");
        go.send(()).unwrap();
        assert_eq!(snapshot.join().unwrap(), [1], "{setting:?}");
        memory.settle();
        let copied = memory.statistics().pages_copied;
        assert_eq!(copied, words.len() as u64 / 1024, "{setting:?}");
        let expected = |index| if is_written(index) { 2 } else { 1 };
        assert!((0..words.len()).all(|index| words[index].load(Ordering::Relaxed) == expected(index)));
    }
}
