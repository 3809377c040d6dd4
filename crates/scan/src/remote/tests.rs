//! Clients of daemons that do not answer, or answer too late.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};

use super::*;
use crate::clock::Clock;
use crate::memory::Frames;
use crate::wire::tests::Signals;
use crate::{MAX_PATIENCE, MIN_PATIENCE, Service};

/// A socket that listens.
struct Listener {
    folder: tempfile::TempDir,
    socket: Socket,
}

impl Listener {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = Socket::unnamed().unwrap();
        let this = Self { folder, socket };
        bind(&this.socket, &SocketAddrUnix::new(this.path()).unwrap()).unwrap();
        listen(&this.socket, 8).unwrap();
        this
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn accept(&self) -> Socket {
        accept_with(&self.socket, SocketFlags::CLOEXEC).unwrap().into()
    }
}

fn is_late(error: &Error) -> bool {
    matches!(error, Error::System { source: Errno::TIMEDOUT, .. })
}

#[test]
fn a_listener_that_never_answers_is_waited_for_as_long_as_was_asked() {
    let listener = Listener::new();
    let patience = Duration::from_millis(300);
    let wait = || {
        let begin = Instant::now();
        let error = Service::connect_within(listener.path(), patience).unwrap_err();
        assert!(is_late(&error), "{error}");
        // This limit is far below the time that others get, and enough for a busy machine.
        assert!((patience..Duration::from_secs(20)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    };
    wait();
    let _signals = Signals::begin();
    wait();
}

#[test]
fn patience_has_limits() {
    let folder = tempfile::tempdir().unwrap();
    let connect = |patience| Service::connect_within(folder.path().join("none"), patience).unwrap_err();
    let ns = Duration::from_nanos(1);
    for patience in [Duration::ZERO, MIN_PATIENCE - ns, MAX_PATIENCE + ns, Duration::MAX] {
        let error = connect(patience);
        assert!(matches!(error, Error::Invalid(_)), "{patience:?}: {error}");
    }
    for patience in [MIN_PATIENCE, MAX_PATIENCE] {
        let error = connect(patience);
        assert!(matches!(error, Error::File { .. }), "{patience:?}: {error}");
    }
}

/// A daemon that answers a channel's first request later than its client waits, and reports when it has done so.
fn late(listener: Listener, may: mpsc::Receiver<()>, has: mpsc::Sender<()>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let about = listener.accept();
        about.receive::<Request>().unwrap();
        let statistics = Statistics::default().to_words();
        about.send(&Reply::About { engine: 1, about: String::new(), statistics }, &[]).unwrap();
        let channel = listener.accept();
        let Request::Open { terms, .. } = channel.receive().unwrap().message else {
            panic!("a channel is opened")
        };
        channel.receive::<Request>().unwrap();
        let (board, frames) = (Board::new(4, Clock::monotonic()).unwrap(), Frames::new(4).unwrap());
        board.service().total.store(1, std::sync::atomic::Ordering::Release);
        let descriptors = [board.file().as_fd(), frames.lend().as_fd()];
        channel.send(&Reply::Channel { pages: 2, terms }, &descriptors).unwrap();
        channel.receive::<Request>().unwrap();
        may.recv().unwrap();
        // The client may have closed the connection.
        let _ = channel.send(&Reply::Done, &[]);
        has.send(()).unwrap();
        // The daemon answers no other request.
        while channel.receive::<Request>().is_ok() {}
    })
}

/// The answer to an abandoned request is not taken for that to the next one.
#[test]
fn a_channel_whose_answer_is_late_is_over() {
    let listener = Listener::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let (path, (may, wait), (has, answered)) = (listener.path(), mpsc::channel(), mpsc::channel());
    let daemon = late(listener, wait, has);
    let service = Service::connect_within(path, Duration::from_secs(2)).unwrap();
    let mut channel = service.open(Scan::of([file.path()]).ranges([])).unwrap();
    let range = |start| Range { file: 0, start, end: start + 4096 };
    let error = channel.notify_ranges(&[range(0)]).unwrap_err();
    assert!(is_late(&error), "{error}");
    may.send(()).unwrap();
    answered.recv().unwrap();
    // The late answer would also be a valid answer to this request.
    let next = channel.notify_ranges(&[range(4096)]);
    assert!(matches!(next, Err(Error::Gone)), "{next:?}");
    assert!(matches!(channel.cancel_ranges(&[range(0)]), Err(Error::Gone)));
    assert!(matches!(channel.next_page(), Err(Error::Gone)));
    drop(channel);
    daemon.join().unwrap();
}
