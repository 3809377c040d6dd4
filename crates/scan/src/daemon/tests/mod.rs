//! Clients that break the rules, beside a correct client. The correct client gets its scan, and the others leave nothing behind.

mod boards;
mod clients;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Daemon, Options, Stopper};
use crate::wire::{Received, Reply, Request, Socket};
use crate::{FRAME, Pool, Result, Service};

const TERMS: crate::service::Terms = crate::service::Terms { is_watched: true, pages_held: 1 };

const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon in a thread, and a file.
struct Scene {
    folder: tempfile::TempDir,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<()>>>,
    service: Service,
    chunks: u64,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stopper.stop();
        let result = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            result.unwrap().unwrap();
        }
    }
}

impl Scene {
    fn new(chunks: u64) -> Self {
        Self::with(chunks, &Options::default())
    }

    fn with(chunks: u64, options: &Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("file")).unwrap();
        for page in 0..chunks * (FRAME / 4096) as u64 {
            file.write_all_at(&[page as u8 | 1; 4096], page * 4096).unwrap();
        }
        let service = Service::start().unwrap();
        let daemon = Daemon::bind(service.clone(), folder.path().join("socket"), options).unwrap();
        let stopper = daemon.stopper();
        let thread = Some(std::thread::spawn(move || daemon.run()));
        Self { folder, stopper, thread, service, chunks }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    fn client(&self) -> Socket {
        Socket::connect(&self.socket(), PATIENCE).unwrap()
    }

    fn pool(&self, frames: usize) -> Pool {
        Service::connect(self.socket()).unwrap().create_pool([self.file()], frames * FRAME).unwrap()
    }

    /// A member of a pool gets all pages.
    fn honest(&self, pool: &Pool) {
        let mut channel = Service::connect(self.socket()).unwrap().join(pool.key(), 4096).unwrap();
        let mut pages = 0;
        while let Some(page) = channel.next_page().unwrap() {
            assert!(
                page.iter().all(|byte| *byte == (page.offset() / 4096) as u8 | 1),
                "at {}",
                page.offset()
            );
            pages += 1;
        }
        assert_eq!(pages, self.chunks * (FRAME / 4096) as u64);
    }

    /// Checks that clients that were connected have left nothing in the daemon.
    fn nothing_is_left(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.service.statistics();
            if (now.channels, now.pools, now.pool_frames) == (0, 0, 0) {
                return;
            }
            assert!(Instant::now() < end, "{now:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends a request and receives the answer.
fn ask(socket: &Socket, request: &Request, files: &[BorrowedFd<'_>]) -> Result<Received<Reply>> {
    socket.send(request, files)?;
    socket.receive()
}

/// Sends a request that is refused. Returns the reason.
fn refused(socket: &Socket, request: &Request, files: &[BorrowedFd<'_>]) -> String {
    match ask(socket, request, files).unwrap().message {
        Reply::Failed { text, .. } => text,
        reply => panic!("{request:?} is not refused: {reply:?}"),
    }
}

/// Opens an object whose files follow in one message.
fn begin(socket: &Socket, request: &Request, file: &impl AsFd) -> Received<Reply> {
    socket.send(request, &[]).unwrap();
    ask(socket, &Request::Files(vec![Vec::new()]), &[file.as_fd()]).unwrap()
}
