//! Tests of scans whose opening fails. They leave nothing in the engine or elsewhere.

mod common;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bedplate_scan::{Buffer, Completion, Engine, Error, FRAME, Kind, Range, Read, Result, Scan, Service};
use common::{folder, write};

/// The files and memory that an engine has registered, and the number of steps before one fails.
#[derive(Default)]
struct Known {
    files: AtomicI64,
    memories: AtomicI64,
    left: AtomicI64,
}

impl Known {
    fn step(&self) -> Result<()> {
        if self.left.fetch_sub(1, SeqCst) <= 0 {
            return Err(Error::Invalid("the table is full, as this test wants".into()));
        }
        Ok(())
    }
}

/// An engine whose steps fail after a given number.
struct Full {
    inner: Box<dyn Engine>,
    known: Arc<Known>,
}

impl Engine for Full {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }

    fn about(&self) -> String {
        self.inner.about()
    }

    fn add_file(&mut self, file: Arc<OwnedFd>) -> Result<usize> {
        self.known.step()?;
        self.known.files.fetch_add(1, SeqCst);
        self.inner.add_file(file)
    }

    fn remove_file(&mut self, file: usize) {
        self.known.files.fetch_sub(1, SeqCst);
        self.inner.remove_file(file);
    }

    fn add_memory(&mut self, memory: Buffer) -> Result<usize> {
        self.known.step()?;
        self.known.memories.fetch_add(1, SeqCst);
        self.inner.add_memory(memory)
    }

    fn remove_memory(&mut self, memory: usize) {
        self.known.memories.fetch_sub(1, SeqCst);
        self.inner.remove_memory(memory);
    }

    fn submit(&mut self, read: Read) {
        self.inner.submit(read);
    }

    fn wait(&mut self, timeout: Option<Duration>, complete: &mut Vec<Completion>) {
        self.inner.wait(timeout, complete);
    }
}

fn service() -> (Service, Arc<Known>) {
    let known = Arc::new(Known::default());
    let its = known.clone();
    let wrap = |inner| -> Box<dyn Engine> { Box::new(Full { inner, known: its }) };
    (Service::builder().wrap(wrap).build().unwrap(), known)
}

/// Waits until the engine has no file and no memory registered, and the service has nothing open.
fn settle(service: &Service, known: &Known) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let now = service.statistics();
        let (files, memories) = (known.files.load(SeqCst), known.memories.load(SeqCst));
        if (now.channels, now.pools, files, memories) == (0, 0, 0, 0) {
            return;
        }
        assert!(Instant::now() < end, "{now:?}, {files} files, {memories} memories");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn whatever_fails_nothing_is_left() {
    let folder = folder();
    let paths: Vec<_> = (0..3).map(|file| write(folder.path(), file, 10_000)).collect();
    for steps in 0..4 {
        let (service, known) = service();
        known.left.store(steps, SeqCst);
        assert!(matches!(service.open(Scan::of(&paths)), Err(Error::Invalid(_))));
        known.left.store(steps, SeqCst);
        assert!(matches!(service.create_pool(&paths, 8 * FRAME), Err(Error::Invalid(_))));
        settle(&service, &known);
        known.left.store(4, SeqCst);
        drop(service.open(Scan::of(&paths)).unwrap());
        settle(&service, &known);
    }
}

/// The service keeps no memory for later channels, whether scans have ended or were refused.
#[test]
fn scans_leave_no_memory() {
    let folder = folder();
    let path = write(folder.path(), 0, 10_000);
    let (service, known) = service();
    known.left.store(1000, SeqCst);
    let outside = Range { file: 0, start: 0, end: 10_001 };
    for _ in 0..6 {
        drop(service.open(Scan::of([&path])).unwrap());
        settle(&service, &known);
        assert!(matches!(service.open(Scan::of([&path]).ranges([outside])), Err(Error::Invalid(_))));
        settle(&service, &known);
    }
}

/// The control loop never asks a file system for the extents of a file. The thread that opens a scan has done that.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_loop_does_not_ask_for_extents() {
    let folder = folder();
    // The file has more separate extents than one call returns.
    let (path, other) =
        (folder.path().join("f"), std::fs::File::create(folder.path().join("other")).unwrap());
    let file = std::fs::File::create(&path).unwrap();
    for piece in 0..700u64 {
        use std::os::unix::fs::FileExt;
        file.write_all_at(&[1; 4096], piece * 8192).unwrap();
        other.write_all_at(&[1; 4096], piece * 4096).unwrap();
    }
    file.sync_all().unwrap();
    let (asked, was_asked) = std::sync::mpsc::channel();
    let wrap = move |inner: Box<dyn Engine>| {
        // The control loop's thread calls this.
        asked.send(common::ioctls::count()).unwrap();
        inner
    };
    let service = Service::builder().wrap(wrap).build().unwrap();
    let count = was_asked.recv().unwrap();
    let mut channel = service.open(Scan::of([&path])).unwrap();
    while let Some(page) = channel.next_page().unwrap() {
        assert!(page.iter().step_by(8192).all(|byte| *byte == 1));
    }
    let pool = service.create_pool([&path], 8 * FRAME).unwrap();
    let mut channel = service.join(pool.key(), FRAME).unwrap();
    while channel.next_page().unwrap().is_some() {}
    assert_eq!(count.load(SeqCst), 0, "the loop's thread calls ioctl");
}
