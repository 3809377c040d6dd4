//! Loads of a device that fails, without an engine and without time.

use super::load::SEARCH;
use super::*;
use crate::board::UNIT;
use crate::extents::Extents;
use crate::memory::FRAME;
use crate::plan::Plan;
use crate::service::fake::{Fake, Folder};
use rustix::io::Errno;

/// Loads a frame in pages of 4 KiB from a device. Each read takes `each`, and fails if it touches a bad unit. Returns the number
/// of reads, their time, and the bad units.
fn load(each: u64, is_bad: impl Fn(usize) -> bool) -> (usize, u64, Vec<usize>) {
    let folder = Folder::new(&[FRAME]);
    let (files, mut engine) = (folder.open(1), Fake::default());
    let mut plan = Plan::new(&files, UNIT);
    let everything = plan.everything();
    plan.add(&everything).unwrap();
    let files = Rc::new(Files::add(&mut engine, files, vec![Extents::default()], true).unwrap());
    let (owner, chunk) = (Owner::Stream { stream: 1, number: 0 }, plan.next_chunk().unwrap());
    let mut loads = Loads::default();
    loads.begin(&mut engine, Order { owner, files, chunk, memory: 0, frame: 0, page: UNIT }, 0);
    let (mut reads, mut now) = (0, 0);
    loop {
        let next = engine.0.borrow_mut().reads.pop();
        let read = next.expect("the load is not over");
        (reads, now) = (reads + 1, now + each);
        let fails = (read.at..read.at + read.len).step_by(UNIT).any(|at| is_bad(at / UNIT));
        let result = if fails { Err(Errno::IO) } else { Ok(read.len) };
        match loads.complete(&mut engine, Completion { token: read.token, result }, now) {
            Progress::Nothing => {}
            Progress::Later(..) => panic!("what fails for good is not tried again"),
            Progress::Over(loaded) => {
                let faults = loaded.outcome.faults;
                let units = faults.iter().flat_map(|faults| faults.units().iter().enumerate());
                let bad = units.filter(|(_, fault)| fault.is_some()).map(|(unit, _)| unit).collect();
                return (reads, now, bad);
            }
        }
    }
}

#[test]
fn what_fails_at_once_is_found() {
    assert_eq!(load(1_000_000, |_| false), (1, 1_000_000, vec![]));
    let (reads, _, bad) = load(1_000_000, |unit| unit == 300);
    assert_eq!((reads, bad), (19, vec![300]));
    let (reads, _, bad) = load(1_000_000, |_| true);
    assert_eq!((reads, bad.len()), (1023, 512));
}

/// However long failed reads take, they delay the worker little longer than the search. Good pages are lost only beside bad ones.
#[test]
fn a_search_ends() {
    const SECOND: u64 = 1_000_000_000;
    for each in [10_000_000, 100_000_000, SECOND, 7 * SECOND, 60 * SECOND] {
        let (_, took, bad) = load(each, |_| true);
        assert_eq!(bad.len(), 512);
        // These are the first read, those within the time, and one for each half that was postponed.
        assert!(took <= each + SEARCH + 10 * each, "{took} ns of reads that take {each}");
        let (_, _, bad) = load(each, |unit| unit == 300);
        assert!(bad.contains(&300) && bad.len() <= 256, "{} units for a read that takes {each}", bad.len());
    }
    // These are reads of all of it, of the good half, of the other half, and of its first quarter and eighth.
    let (reads, took, bad) = load(SECOND / 2, |unit| unit == 300);
    assert_eq!((reads, took, bad), (7, 7 * SECOND / 2, (256..320).collect()));
}
