//! Messages and their descriptors are unchanged after a transfer. Invalid bytes are refused.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socketpair};

use super::*;
use crate::Error;

fn pair() -> (Socket, Socket) {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (one.into(), other.into())
}

fn range() -> impl Strategy<Value = Range> {
    (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(file, start, end)| Range { file, start, end })
}

fn names() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..=DESCRIPTORS)
}

fn terms() -> impl Strategy<Value = Terms> {
    (any::<bool>(), 1..=crate::MAX_PAGES_HELD)
        .prop_map(|(is_watched, pages_held)| Terms { is_watched, pages_held })
}

fn request() -> impl Strategy<Value = Request> {
    let ranges = || prop::collection::vec(range(), 0..50);
    prop_oneof![
        Just(Request::Ring),
        Just(Request::About),
        (any::<u64>(), any::<u64>(), terms(), prop::option::of(ranges()), any::<u32>()).prop_map(
            |(page_size, ring_bytes, terms, ranges, files)| Request::Open {
                page_size,
                ring_bytes,
                terms,
                ranges,
                files
            }
        ),
        (any::<u64>(), terms(), any::<u32>()).prop_map(|(memory_bytes, terms, files)| Request::Found {
            memory_bytes,
            terms,
            files
        }),
        any::<[u8; 16]>().prop_map(|key| Request::Names { key }),
        (any::<[u8; 16]>(), any::<u64>(), any::<u32>()).prop_map(|(key, page_size, files)| Request::Join {
            key,
            page_size,
            files
        }),
        names().prop_map(Request::Files),
        ranges().prop_map(Request::Ranges),
        ranges().prop_map(Request::Cancel),
        Just(Request::Watch),
        Just(Request::Reader),
        (any::<u32>(), any::<u64>(), any::<u32>()).prop_map(|(fetch, start, len)| Request::Fetch {
            fetch,
            start,
            len
        }),
        any::<u32>().prop_map(|fetch| Request::Release { fetch }),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (any::<u8>(), ".{0,100}", any::<[u64; 5]>()).prop_map(|(engine, about, statistics)| Reply::About {
            engine,
            about,
            statistics
        }),
        (any::<u8>(), terms()).prop_map(|(pages, terms)| Reply::Channel { pages, terms }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(bytes, before)| Reply::Cancelled(Cancelled { bytes, before })),
        (any::<[u8; 16]>(), any::<u64>()).prop_map(|(key, memory_bytes)| Reply::Pool { key, memory_bytes }),
        (names(), any::<u32>()).prop_map(|(names, of)| Reply::Names { names, of }),
        Just(Reply::Done),
        (any::<[u64; 2]>(), any::<[u64; 5]>(), any::<u32>())
            .prop_map(|(identity, stamp, unit)| Reply::Reader { identity, stamp, unit }),
        (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(fetch, segment, at)| Reply::Fetched {
            fetch,
            segment,
            at
        }),
        (any::<u32>(), any::<u32>()).prop_map(|(fetch, error)| Reply::NotFetched { fetch, error }),
        (any::<bool>(), ".{0,100}").prop_map(|(invalid, text)| Reply::Failed { invalid, text }),
    ]
}

proptest! {
    #[test]
    fn messages_arrive_as_they_were(request in request(), reply in reply(), count in 0..=DESCRIPTORS) {
        let (one, other) = pair();
        let files: Vec<OwnedFd> = (0..count).map(|_| tempfile::tempfile().unwrap().into()).collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        one.send(&request, &files).unwrap();
        let received = other.receive::<Request>().unwrap();
        prop_assert_eq!(received.message, request);
        prop_assert_eq!(received.descriptors.len(), count);
        other.send(&reply, &[]).unwrap();
        prop_assert_eq!(one.receive::<Reply>().unwrap().message, reply);
    }

    /// One byte of a message is changed, missing or added.
    #[test]
    fn what_is_no_message_is_refused(request in request(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut packet = request.encode();
        packet.push(byte);
        prop_assert!(Request::decode(&packet).is_err());
        packet.truncate(at.index(packet.len() - 1));
        prop_assert!(Request::decode(&packet).is_err());
        let mut packet = request.encode();
        let at = at.index(packet.len());
        packet[at] = byte;
        arbitrary_packet(&packet);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(mut packet in prop::collection::vec(any::<u8>(), 0..400), valid in any::<bool>()) {
        if let (true, Some(version)) = (valid, packet.first_mut()) {
            *version = VERSION;
        }
        arbitrary_packet(&packet);
    }
}

const TERMS: Terms = Terms { is_watched: false, pages_held: crate::MAX_PAGES_HELD };

/// A message with a number of pages that no client may hold is invalid.
#[test]
fn limits_are_checked_when_a_message_is_read() {
    for (pages_held, is_right) in
        [(0, false), (1, true), (TERMS.pages_held, true), (TERMS.pages_held + 1, false)]
    {
        let request = Request::Found { memory_bytes: 1, terms: Terms { pages_held, ..TERMS }, files: 1 };
        assert_eq!(Request::decode(&request.encode()).is_ok(), is_right, "{pages_held}");
    }
}

#[test]
fn the_longest_messages_fit() {
    let (one, other) = pair();
    let range = Range { file: 1, start: 2, end: u64::MAX };
    let longest = [
        Request::Files(vec![vec![b'n'; NAME]; DESCRIPTORS]),
        Request::Open {
            page_size: 1,
            ring_bytes: 2,
            terms: TERMS,
            ranges: Some(vec![range; RANGES]),
            files: 3,
        },
    ];
    for request in longest {
        one.send(&request, &[]).unwrap();
        assert_eq!(other.receive::<Request>().unwrap().message, request);
    }
    assert!(one.send(&Request::Files(vec![vec![b'n'; MESSAGE]]), &[]).is_err());
}

#[test]
fn who_is_gone_is_noticed() {
    let (one, other) = pair();
    assert!(one.is_alive());
    drop(other);
    assert!(!one.is_alive());
    assert!(matches!(one.receive::<Reply>(), Err(Error::Gone)));
    assert!(matches!(one.send(&Request::About, &[]), Err(Error::Gone)));
    one.send_now(&Request::Ring, &[]);
}

/// Signals that interrupt a thread's system calls every 10 ms, while this object exists.
pub struct Signals {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// Sends them to the calling thread.
    pub fn begin() -> Self {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: plain old data.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        // SAFETY: the handler does nothing. It has no flags, so the kernel does not restart interrupted calls.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) }, 0);
        // SAFETY: the call has no preconditions.
        let to = unsafe { libc::pthread_self() };
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                // SAFETY: the thread waits for this one before it drops the object that keeps it alive.
                unsafe { libc::pthread_kill(to, libc::SIGUSR2) };
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Each call ends at about its time limit, whatever interrupts it.
#[test]
fn waiting_ends_in_time_though_signals_arrive() {
    let (one, _other) = pair();
    let patience = Duration::from_millis(300);
    one.set_patience(Some(patience));
    let _signals = Signals::begin();
    let begin = Instant::now();
    let error = one.receive::<Reply>().unwrap_err();
    assert!(matches!(error, Error::System { source: Errno::TIMEDOUT, .. }), "{error}");
    assert!(begin.elapsed() >= patience);
    // The loop runs until the other side's buffer is full.
    let files = Request::Files(vec![vec![b'n'; NAME]; DESCRIPTORS]);
    let error = std::iter::repeat_with(|| one.send(&files, &[])).find_map(|sent| sent.err()).unwrap();
    assert!(matches!(error, Error::System { source: Errno::TIMEDOUT, .. }), "{error}");
    // Without a time limit it would never end. The bound leaves time for a busy machine.
    assert!(begin.elapsed() < Duration::from_secs(20));
}

/// No process accepts connections, and the queue has no room for another one.
#[test]
fn connecting_ends_in_time_though_signals_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Socket::unnamed().unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _signals = Signals::begin();
    let (begin, patience) = (Instant::now(), Duration::from_millis(300));
    let mut connected = Vec::new();
    let error = loop {
        match Socket::connect(&path, patience) {
            Ok(socket) => connected.push(socket),
            Err(error) => break error,
        }
    };
    assert_eq!(error, Errno::TIMEDOUT);
    assert!((patience..Duration::from_secs(20)).contains(&begin.elapsed()));
}
