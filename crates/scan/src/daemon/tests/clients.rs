//! Malformed messages, invalid files, requests beyond limits, and silent clients.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;
use crate::limits::{MAX_PENDING_RANGES, UNCOUNTED};
use crate::plan::Range;
use crate::wire::RANGES;
use crate::{Error, Scan};

const OPEN: Request =
    Request::Open { page_size: 4096, ring_bytes: 4 << 20, terms: TERMS, ranges: None, files: 1 };

fn open(path: impl rustix::path::Arg, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Sends bytes, with the same descriptor `count` times.
fn send(socket: &Socket, bytes: &[u8], file: &OwnedFd, count: usize) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = vec![file.as_fd(); count];
    assert!(count == 0 || control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

#[test]
fn garbage_ends_its_own_connection() {
    let scene = Scene::new(4);
    let pool = scene.pool(8);
    let file = open(scene.file(), OFlags::RDONLY);
    let packet = || {
        (
            prop::collection::vec(any::<u8>(), 1..200),
            0u8..11,
            any::<bool>(),
            prop_oneof![Just(0usize), 0usize..200],
        )
    };
    let strategy = (prop::collection::vec(packet(), 1..5), any::<bool>());
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let result = runner.run(&strategy, |(packets, begins)| {
        let socket = scene.client();
        if begins {
            let _ = begin(&socket, &OPEN, &file);
        }
        for (mut bytes, kind, valid, count) in packets {
            if valid {
                bytes.splice(..1, [crate::wire::VERSION, kind]);
            }
            // The connection may be over by now.
            let _ = send(&socket, &bytes, &file, count);
        }
        Ok(())
    });
    result.unwrap();
    scene.honest(&pool);
    drop(pool);
    scene.nothing_is_left();
}

#[test]
fn files_that_cannot_be_scanned_are_refused() {
    let scene = Scene::new(1);
    let (pipe, _writer) = std::io::pipe().unwrap();
    let huge = tempfile::tempfile_in(scene.folder.path()).unwrap();
    huge.set_len(5 << 40).unwrap();
    let wrong: [(OwnedFd, &str); 6] = [
        (open("/", OFlags::RDONLY), "directory"),
        (open("/dev/null", OFlags::RDONLY), "cannot be scanned"),
        (pipe.into(), "cannot be scanned"),
        (open(scene.file(), OFlags::WRONLY), "denied"),
        (open(scene.file(), OFlags::PATH), "denied"),
        (huge.into(), "at most"),
    ];
    for (file, why) in &wrong {
        let socket = scene.client();
        let reply = begin(&socket, &OPEN, file).message;
        assert!(matches!(&reply, Reply::Failed { text, .. } if text.contains(why)), "{reply:?}: not {why}");
        assert!(matches!(socket.receive::<Reply>(), Err(Error::Gone)));
    }
    scene.nothing_is_left();
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let scene = Scene::new(1);
    let file = open(scene.file(), OFlags::RDONLY);
    let after_open = |names: usize, files: usize| {
        let socket = scene.client();
        socket.send(&OPEN, &[]).unwrap();
        refused(&socket, &Request::Files(vec![Vec::new(); names]), &vec![file.as_fd(); files])
    };
    for (names, files) in [(1, 0), (0, 1), (0, 0), (2, 2), (1, 2)] {
        assert!(after_open(names, files).contains("other files"), "{names} names of {files} files");
    }
    let socket = scene.client();
    socket.send(&OPEN, &[]).unwrap();
    assert!(refused(&socket, &Request::About, &[]).contains("should follow"));
    for request in [
        Request::Ring,
        Request::Files(Vec::new()),
        Request::Ranges(Vec::new()),
        Request::Cancel(Vec::new()),
        Request::Watch,
    ] {
        assert!(refused(&scene.client(), &request, &[]).contains("to begin with"));
    }
    assert!(refused(&scene.client(), &Request::About, &[file.as_fd()]).contains("descriptors"));
    let socket = scene.client();
    send(&socket, &[crate::wire::VERSION, 6, 1, 0, 0, 0, 0, 0, 0, 0], &file, 60).unwrap();
    assert!(
        matches!(socket.receive::<Reply>().unwrap().message, Reply::Failed { text, .. } if text.contains("too many"))
    );
    // The same holds for a pool.
    let socket = scene.client();
    let reply = begin(&socket, &Request::Found { memory_bytes: 16 << 20, terms: TERMS, files: 1 }, &file);
    let Reply::Pool { key, .. } = reply.message else { panic!("{reply:?}") };
    let other =
        begin(&scene.client(), &Request::Join { key: [7; 16], page_size: 4096, files: 1 }, &file).message;
    assert!(matches!(other, Reply::Failed { text, .. } if text.contains("no pool has this access key")));
    let none = refused(&scene.client(), &Request::Join { key, page_size: 4096, files: 0 }, &[]);
    assert!(none.contains("are not the pool's"), "{none}");
    assert!(refused(&socket, &Request::Ring, &[]).contains("nothing to say"));
    scene.nothing_is_left();
}

#[test]
fn too_much_is_refused() {
    let mut options = Options::default();
    options.limits.memory = 64 << 20;
    let scene = Scene::with(1, &options);
    let open = |page_size, ring_bytes, files| Request::Open {
        page_size,
        ring_bytes,
        terms: TERMS,
        ranges: None,
        files,
    };
    for request in [
        open(u64::MAX, 4 << 20, 1),
        open(4096, u64::MAX, 1),
        open(4096, 128 << 20, 1),
        open(4096, 4 << 20, u32::MAX),
        Request::Found { memory_bytes: u64::MAX, terms: TERMS, files: 1 },
        Request::Found { memory_bytes: 128 << 20, terms: TERMS, files: 1 },
        Request::Join { key: [0; 16], page_size: u64::MAX, files: u32::MAX },
    ] {
        refused(&scene.client(), &request, &[]);
    }
    let file = super::clients::open(scene.file(), OFlags::RDONLY);
    let all = Range { file: 0, start: 0, end: u64::MAX };
    let request = Request::Open {
        page_size: 4096,
        ring_bytes: 4 << 20,
        terms: TERMS,
        ranges: Some(vec![all]),
        files: 1,
    };
    assert!(matches!(begin(&scene.client(), &request, &file).message, Reply::Failed { .. }));
    // The memory of a channel is available again after its end.
    let service = Service::connect(scene.socket()).unwrap();
    let scan = || Scan::of([scene.file()]).ring_bytes(48 << 20).unwrap();
    for _ in 0..3 {
        let channel = service.open(scan()).unwrap();
        assert!(matches!(service.open(scan()), Err(Error::Refused(_))));
        let mut channel = channel;
        let wrong = channel.notify_ranges(&[all]).unwrap_err();
        assert!(matches!(wrong, Error::Invalid(_)), "{wrong}");
        drop(channel);
        let end = Instant::now() + PATIENCE;
        while scene.service.statistics().channels > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    scene.nothing_is_left();
}

/// A sparse file costs its maker no memory, but the service needs memory for the list of its chunks.
#[test]
fn a_pools_list_of_chunks_is_counted() {
    let mut options = Options::default();
    options.limits.memory = 64 << 20;
    let scene = Scene::with(1, &options);
    let sparse = tempfile::tempfile_in(scene.folder.path()).unwrap();
    if let Err(error) = sparse.set_len(3 << 40) {
        eprintln!("skipped: there are no files of 3 TiB here ({error})");
        return;
    }
    let request = Request::Found { memory_bytes: 16 << 20, terms: TERMS, files: 1 };
    let reply = begin(&scene.client(), &request, &open(path_of(&sparse), OFlags::RDONLY)).message;
    assert!(
        matches!(&reply, Reply::Failed { text, .. } if text.contains("1572864 chunks of 2 MiB takes 200802304 bytes")),
        "{reply:?}"
    );
    // For an eighth of the file, there is enough memory for the list.
    sparse.set_len(3 << 37).unwrap();
    let socket = scene.client();
    let reply = begin(&socket, &request, &open(path_of(&sparse), OFlags::RDONLY)).message;
    assert!(matches!(reply, Reply::Pool { .. }), "{reply:?}");
    drop(socket);
    scene.nothing_is_left();
}

fn path_of(file: &std::fs::File) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file))
}

/// A client that announces ranges and reads none reaches a limit: that of the channel, or that of the memory of all clients.
#[test]
fn ranges_that_nobody_reads_have_a_limit() {
    let mut little = Options::default();
    little.limits.memory = 16 << 20;
    for (options, most, why) in [
        (Options::default(), MAX_PENDING_RANGES, "at most 1048576"),
        (little, UNCOUNTED + (12 << 20) / size_of::<Range>(), "announced and not read yet takes"),
    ] {
        let scene = Scene::with(1, &options);
        let socket = scene.client();
        let request = Request::Open {
            page_size: 4096,
            ring_bytes: 4 << 20,
            terms: TERMS,
            ranges: Some(Vec::new()),
            files: 1,
        };
        let reply = begin(&socket, &request, &open(scene.file(), OFlags::RDONLY)).message;
        assert!(matches!(reply, Reply::Channel { .. }), "{reply:?}");
        let batch = Request::Ranges(vec![Range { file: 0, start: 0, end: 4096 }; RANGES]);
        let mut announced = 0;
        let text = loop {
            match ask(&socket, &batch, &[]).unwrap().message {
                Reply::Done => announced += RANGES,
                Reply::Failed { text, .. } => break text,
                reply => panic!("{reply:?}"),
            }
        };
        assert!(text.contains(why), "{text}");
        // Some are in frames, and each batch counts as one more.
        assert!((most - most / 100..=most + 64 * RANGES).contains(&announced), "{announced} of {most}");
        // The channel continues.
        let cancel = Request::Cancel(vec![Range { file: 0, start: 0, end: 4096 }]);
        assert!(matches!(ask(&socket, &cancel, &[]).unwrap().message, Reply::Cancelled(_)));
        assert!(matches!(ask(&socket, &batch, &[]).unwrap().message, Reply::Done));
        drop(socket);
        scene.nothing_is_left();
    }
}

/// Two hundred clients connect and send nothing, and some ask for a channel and never receive the answer. The daemon serves
/// others meanwhile.
#[test]
fn who_says_nothing_keeps_nobody() {
    let scene = Scene::new(2);
    let pool = scene.pool(8);
    let silent: Vec<_> = (0..200).map(|_| scene.client()).collect();
    for socket in &silent[..20] {
        socket.send(&OPEN, &[]).unwrap();
    }
    scene.honest(&pool);
    let more: Vec<_> = (0..70).map(|_| scene.client()).collect();
    let service = Service::connect(scene.socket());
    assert!(matches!(&service, Err(Error::Refused(text)) if text.contains("256")), "{service:?}");
    drop((silent, more));
    let end = Instant::now() + PATIENCE;
    while Service::connect(scene.socket()).is_err() {
        assert!(Instant::now() < end, "connections that are over are in the way");
        std::thread::sleep(Duration::from_millis(10));
    }
    scene.honest(&pool);
    drop(pool);
    scene.nothing_is_left();
}
