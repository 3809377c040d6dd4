//! Files as storage: many operations at once, with and without the page cache.

use bedplate_bufpool::PAGE;
use bedplate_bufpool::storage::{File, Read, Storage, Write};

/// Pages with the alignment that direct I/O needs.
#[repr(C, align(4096))]
struct Pages([[u8; PAGE]; 200]);

fn pages() -> Box<Pages> {
    Box::new(Pages([[0; PAGE]; 200]))
}

fn check(direct: bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let file = File::open(&path, direct).unwrap();
    assert!(direct || !file.is_direct());
    let mut content = pages();
    for (number, page) in content.0.iter_mut().enumerate() {
        page.fill(number as u8 + 1);
    }
    // Most writes are single pages at scattered positions, and one write has several pages.
    let mut writes: Vec<_> =
        (0..150).map(|page| Write::new(page * 7 % 150, &content.0[page as usize..][..1])).collect();
    writes.push(Write::new(200, &content.0[150..]));
    file.write(&mut writes);
    assert!(writes.iter().all(|write| write.result.is_ok()));
    file.sync().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 250 * PAGE as u64);
    let mut found = pages();
    let places = (0..150).map(|page| page * 7 % 150).chain(200..240).chain(245..255);
    let mut reads: Vec<_> =
        places.zip(found.0.iter_mut()).map(|(page, image)| Read::into_image(page, image)).collect();
    file.read(&mut reads);
    assert!(reads.iter().all(|read| read.result.is_ok()));
    for (number, page) in found.0[..190].iter().enumerate() {
        assert!(page.iter().all(|byte| *byte == number as u8 + 1), "page {number}");
    }
    // Reads beyond the end of the file return zeros.
    assert!(found.0[190..195].iter().zip(&content.0[195..]).all(|(found, page)| found == page));
    assert!(found.0[195..].iter().flatten().all(|byte| *byte == 0));
    file.grow(250..1000).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1000 * PAGE as u64);
    file.grow(100..200).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1000 * PAGE as u64);
}

#[test]
fn what_is_written_is_read_past_the_page_cache() {
    check(true);
}

#[test]
fn what_is_written_is_read_through_the_page_cache() {
    check(false);
}

#[test]
fn errors_are_of_the_operation_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::open(&folder.path().join("pages"), true).unwrap();
    let content = pages();
    let mut writes =
        [Write::new(0, &content.0[..1]), Write::new(u64::MAX / PAGE as u64 - 1, &content.0[1..2])];
    file.write(&mut writes);
    assert!(writes[0].result.is_ok() && writes[1].result.is_err());
}

/// To make the name durable, the storage opens the directory, which inotify reports. It does so only if the file may be
/// new.
#[test]
fn the_name_of_a_new_file_is_made_durable() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let opened = || {
        let watch = init(CreateFlags::NONBLOCK).unwrap();
        add_watch(&watch, folder.path(), WatchFlags::OPEN).unwrap();
        drop(File::open(&path, true).unwrap());
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(watch, &mut buffer);
        let mut folder_was = false;
        while let Ok(event) = reader.next() {
            folder_was |= event.events().contains(ReadFlags::ISDIR);
        }
        folder_was
    };
    assert!(opened());
    std::fs::write(&path, [0; PAGE]).unwrap();
    assert!(!opened());
}
