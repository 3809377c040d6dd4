//! Tests of a file that changes twice within one tick of the clock. The worker gets the last content, also where the kernel's
//! time stamps are as coarse as the tick.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_scan::{Choice, FRAME, Kind, Scan, Service};
use common::Faults;

#[test]
fn a_change_right_after_another_one_is_seen() {
    const ROUNDS: u64 = 60;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, vec![0; FRAME]).unwrap();
    let file = Arc::new(File::options().read(true).write(true).open(&path).unwrap());
    let (number, changes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (writer, new, left) = (file.clone(), number.clone(), changes.clone());
    // The data becomes outdated before the service takes the file's stamp.
    let faults = Faults::new(|_, _| None).after_reading(move |_| {
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            let number = new.fetch_add(1, Ordering::SeqCst) + 1;
            writer.write_all_at(&number.to_le_bytes(), 0).unwrap();
        }
    });
    let service =
        Service::builder().engine(Choice::Only(Kind::Threads)).wrap(faults.around()).build().unwrap();
    for round in 0..ROUNDS {
        let before = number.fetch_add(1, Ordering::SeqCst) + 1;
        changes.store(1 + round % 2, Ordering::SeqCst);
        // In most rounds the scan takes its first stamp of the file in the same tick.
        file.write_all_at(&before.to_le_bytes(), 0).unwrap();
        let mut channel = service.open(Scan::of([&path])).unwrap();
        let page = channel.next_page().unwrap().unwrap();
        let seen = u64::from_le_bytes(page[..8].try_into().unwrap());
        assert_eq!(seen, number.load(Ordering::SeqCst), "round {round}, after {before}");
    }
}
