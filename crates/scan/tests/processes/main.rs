//! Tests of workers in processes of their own, with a daemon. They share a pool. A process that dies does not harm the others.

#[path = "../common/mod.rs"]
mod common;
mod roles;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate_scan::{Daemon, Error, FRAME, Options, Pool, Service};
use common::{folder, write};
use roles::{GONE, Process, REFUSED, Target};

/// This is not a test. It runs the role of a process that a test starts from this binary.
#[test]
fn role() {
    roles::play();
}

/// The number of kills, and the seed of the random numbers that choose their times.
struct Lots {
    kills: usize,
    seed: u64,
}

impl Lots {
    fn new(kills: usize) -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seed = number("BEDPLATE_TEST_SEED").unwrap_or_else(|| {
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
        });
        println!("BEDPLATE_TEST_SEED={seed}");
        let factor = number("BEDPLATE_TEST_KILLS").map_or(1.0, |kills| kills as f64 / 200.0);
        Self { kills: (kills as f64 * factor).ceil() as usize, seed }
    }

    /// A random number below `below`.
    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }
}

struct Scene {
    folder: tempfile::TempDir,
    file: PathBuf,
    size: u64,
}

impl Scene {
    fn new(chunks: usize) -> Self {
        let folder = folder();
        let file = write(folder.path(), 0, chunks * FRAME);
        Self { folder, file, size: (chunks * FRAME) as u64 }
    }

    /// A socket's name must be short, but the name of the build folder may be long.
    fn socket(&self) -> PathBuf {
        let name = self.folder.path().file_name().unwrap();
        std::env::temp_dir().join(format!("scan-test-{}{}", std::process::id(), name.display()))
    }

    fn pool(&self, service: &Service, chunks: usize) -> Pool {
        service.create_pool([&self.file], chunks * FRAME).unwrap()
    }

    fn worker(&self, pool: &Pool, pace: Duration) -> Process {
        Process::worker(&self.socket(), &Target::Pool(pool.key()), self.size, pace)
    }
}

/// Removes the socket, because a daemon that was killed cannot remove it, and no other process does.
impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.socket());
    }
}

/// Waits up to 10 s until `is` returns true.
fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < end, "{what}: not within 10 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The number of descriptors that a daemon without clients has. It has its listening socket, and the memory that it keeps ready
/// for a first reader. One of its threads makes that memory after the daemon has begun to listen.
fn descriptors_without_clients(daemon: &Process) -> usize {
    let count =
        |all: &[PathBuf], what: &str| all.iter().filter(|one| one.to_string_lossy().contains(what)).count();
    let mut all = Vec::new();
    soon("the daemon has its memory ready, and no client", || {
        all = daemon.descriptors();
        (count(&all, "socket:"), count(&all, "bedplate-frames")) == (1, 1)
    });
    all.len()
}

fn nothing_is_left(service: &Service, daemon: &Process, descriptors: usize) {
    soon("nothing is left", || {
        let now = service.statistics();
        (now.channels, now.pools, now.pool_frames) == (0, 0, 0)
    });
    // The statistics come over a connection of their own. The daemon closes it a moment after its answer.
    let end = Instant::now() + Duration::from_secs(10);
    while daemon.descriptors().len() > descriptors {
        assert!(Instant::now() < end, "more than {descriptors} descriptors: {:?}", daemon.descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn processes_share_one_stream() {
    let scene = Scene::new(40);
    let daemon = Process::daemon(&scene.socket());
    let service = Service::connect(scene.socket()).unwrap();
    let descriptors = descriptors_without_clients(&daemon);
    let mut best = f64::INFINITY;
    // Other programs sometimes take processor time from workers. The service reads chunks separately for a worker that falls
    // behind.
    for _ in 0..6 {
        let pool = scene.pool(&service, 24);
        let before = service.statistics().bytes_read;
        let mut workers: Vec<_> = (0..4).map(|_| scene.worker(&pool, Duration::from_millis(15))).collect();
        workers.iter_mut().for_each(|worker| worker.hear("joined"));
        assert_eq!(service.statistics().channels, 4);
        workers.iter_mut().for_each(Process::say_go);
        workers.iter_mut().for_each(|worker| worker.hear("done"));
        best = best.min((service.statistics().bytes_read - before) as f64 / scene.size as f64);
        assert!(workers.iter_mut().all(|worker| worker.end().success()));
        if best <= 1.1 {
            break;
        }
    }
    assert!(best <= 1.1, "4 processes had {best} times the file read");
    nothing_is_left(&service, &daemon, descriptors);
}

#[test]
fn a_private_scan_is_read_by_the_daemon() {
    let scene = Scene::new(10);
    let mut daemon = Process::daemon(&scene.socket());
    let service = Service::connect(scene.socket()).unwrap();
    let descriptors = descriptors_without_clients(&daemon);
    let mut worker = Process::worker(&scene.socket(), &Target::File(&scene.file), scene.size, Duration::ZERO);
    for _ in 0..3 {
        worker.say_go();
        worker.hear("done");
    }
    assert!(worker.end().success());
    assert_eq!(service.statistics().bytes_read / scene.size, 3);
    nothing_is_left(&service, &daemon, descriptors);
    assert!(daemon.end().success());
    assert!(!scene.socket().exists(), "a daemon that ended left its socket");
    assert!(matches!(service.open(bedplate_scan::Scan::of([&scene.file])), Err(Error::Gone)));
}

/// The serving process also has pools of its own. Its threads share them with other processes.
#[test]
fn pools_of_the_process_that_serves_are_joined_by_others() {
    let scene = Scene::new(8);
    let service = Service::start().unwrap();
    let daemon = Daemon::bind(service.clone(), scene.socket(), &Options::default()).unwrap();
    let stopper = daemon.stopper();
    let daemon = std::thread::spawn(move || daemon.run());
    // Create the pool by a file name, and by a descriptor of a file with a name.
    for by_name in [true, false] {
        let open = || std::fs::File::open(&scene.file).unwrap();
        let pool = match by_name {
            true => scene.pool(&service, 8),
            false => service.create_pool([open()], 8 * FRAME).unwrap(),
        };
        let mut workers: Vec<_> = (0..2).map(|_| scene.worker(&pool, Duration::ZERO)).collect();
        let mut here = service.join(pool.key(), FRAME).unwrap();
        workers.iter_mut().for_each(|worker| worker.hear("joined"));
        assert_eq!((service.statistics().channels, service.statistics().pools), (3, 1));
        workers.iter_mut().for_each(Process::say_go);
        let mut bytes = 0;
        while let Some(page) = here.next_page().unwrap() {
            assert!(common::is_right(page.file(), page.offset(), &page));
            bytes += page.len() as u64;
        }
        assert_eq!(bytes, scene.size);
        workers.iter_mut().for_each(|worker| worker.hear("done"));
        assert!(workers.iter_mut().all(|worker| worker.end().success()));
        drop((here, pool));
        soon("nothing is left", || (service.statistics().channels, service.statistics().pools) == (0, 0));
    }
    assert!(scene.socket().exists());
    stopper.stop();
    daemon.join().unwrap().unwrap();
    assert!(!scene.socket().exists(), "a daemon that ended left its socket");
}

/// Workers are killed at random moments. The other workers get every page once, and nothing leaks.
#[test]
fn workers_that_are_killed_take_nothing_with_them() {
    let mut lots = Lots::new(200);
    let scene = Scene::new(6);
    let daemon = Process::daemon(&scene.socket());
    let service = Service::connect(scene.socket()).unwrap();
    let descriptors = descriptors_without_clients(&daemon);
    let pool = scene.pool(&service, 10);
    let begin = |number: u64| {
        let mut worker = match number % 3 {
            2 => Process::worker(&scene.socket(), &Target::File(&scene.file), scene.size, Duration::ZERO),
            _ => scene.worker(&pool, Duration::ZERO),
        };
        (0..5_000).for_each(|_| worker.say_go());
        worker
    };
    let mut survivors: Vec<_> = (0..2).map(begin).collect();
    let mut victims: Vec<_> = (0..3).map(begin).collect();
    let mut scans = 0;
    for _ in 0..lots.kills {
        std::thread::sleep(Duration::from_millis(lots.draw(30)));
        let victim = &mut victims[lots.draw(3) as usize];
        assert!(victim.is_running(), "a worker ended by itself");
        victim.signal(libc::SIGKILL);
        *victim = begin(lots.draw(3));
        scans += survivors.iter().map(|survivor| survivor.count("done")).sum::<usize>();
    }
    assert!(scans > 2, "survivors got {scans} scans done");
    drop(victims);
    for survivor in &mut survivors {
        survivor.hear("done");
        assert!(survivor.is_running());
    }
    drop((survivors, pool));
    nothing_is_left(&service, &daemon, descriptors);
    println!("{scans} scans beside {} kills", lots.kills);
}

/// The daemon is killed at random moments. Every worker gets an error, at any point of its work.
#[test]
fn a_daemon_that_is_killed_is_missed_by_everybody() {
    let mut lots = Lots::new(20);
    let scene = Scene::new(6);
    for round in 0..lots.kills {
        // The socket of the previous daemon still exists.
        let daemon = Process::daemon(&scene.socket());
        let service = Service::connect(scene.socket()).unwrap();
        let pool = scene.pool(&service, 8);
        let pace = Duration::from_millis(lots.draw(3));
        let mut workers: Vec<_> = (0..2).map(|_| scene.worker(&pool, pace)).collect();
        workers.push(Process::worker(&scene.socket(), &Target::File(&scene.file), scene.size, pace));
        workers.iter_mut().for_each(|worker| (0..1_000).for_each(|_| worker.say_go()));
        std::thread::sleep(Duration::from_millis(lots.draw(80)));
        // This worker polls, in this process.
        let mut polls = service.join(pool.key(), FRAME).ok();
        daemon.signal(libc::SIGKILL);
        let killed = Instant::now();
        for worker in &mut workers {
            assert_eq!(worker.wait().code(), Some(GONE), "round {round}");
        }
        if let Some(channel) = &mut polls {
            // Every other round, the worker first checks whether a page is ready.
            let asks = round % 2 == 1;
            let error = loop {
                if asks {
                    match channel.wait(Some(Duration::ZERO)) {
                        Ok(true) => {}
                        Ok(false) => continue,
                        Err(error) => break error,
                    }
                }
                match channel.get_page() {
                    Ok(bedplate_scan::Got::Page(_)) => channel.put_page().unwrap(),
                    Ok(bedplate_scan::Got::NotYet) => std::thread::yield_now(),
                    Ok(bedplate_scan::Got::End) => break Error::Gone,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::Gone), "{error}");
        }
        assert!(killed.elapsed() < Duration::from_secs(5), "it took {:?} to be noticed", killed.elapsed());
    }
}

/// A worker that is stopped keeps one page, and delays no other worker. When it continues, it still has its page.
#[test]
fn a_worker_that_is_stopped_stops_nobody() {
    let scene = Scene::new(20);
    let _daemon = Process::daemon(&scene.socket());
    let service = Service::connect(scene.socket()).unwrap();
    let pool = scene.pool(&service, 8);
    let mut stopped = scene.worker(&pool, Duration::from_millis(10));
    stopped.hear("joined");
    stopped.say_go();
    std::thread::sleep(Duration::from_millis(50));
    stopped.signal(libc::SIGSTOP);
    let mut others: Vec<_> = (0..3).map(|_| scene.worker(&pool, Duration::ZERO)).collect();
    for other in &mut others {
        other.say_go();
        other.hear("done");
    }
    drop(others);
    stopped.signal(libc::SIGCONT);
    stopped.hear("done");
    assert!(stopped.end().success());
}

/// The key alone is not enough: a process that joins must be able to open the files.
#[test]
fn who_cannot_read_the_files_cannot_join() {
    let scene = Scene::new(4);
    let _daemon = Process::daemon(&scene.socket());
    let service = Service::connect(scene.socket()).unwrap();
    let pool = scene.pool(&service, 8);
    // The file has another name now, and later another file has its name. The daemon compares files and not names.
    let aside = scene.folder.path().join("aside");
    std::fs::rename(&scene.file, &aside).unwrap();
    let mut worker = scene.worker(&pool, Duration::ZERO);
    assert_eq!(worker.wait().code(), Some(REFUSED));
    write(scene.folder.path(), 0, 4 * FRAME);
    let mut worker = scene.worker(&pool, Duration::ZERO);
    assert_eq!(worker.wait().code(), Some(REFUSED));
    let other = service.join_with(pool.key(), [&scene.file], 4096).unwrap_err();
    assert!(other.to_string().contains("are not the pool's"), "{other}");
    // A process can join with another name of the same file, or with a descriptor of it.
    let open = std::fs::File::open(&aside).unwrap();
    for mut channel in [
        service.join_with(pool.key(), [&aside], 4096).unwrap(),
        service.join_with(pool.key(), [open], 4096).unwrap(),
    ] {
        let page = channel.next_page().unwrap().unwrap();
        assert!(common::is_right(0, page.offset(), &page));
    }
    std::fs::rename(&aside, &scene.file).unwrap();
    assert!(service.join(pool.key(), 4096).is_ok());
    drop(pool);
    soon("the pool is gone", || service.statistics().pools == 0);
}

#[test]
fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
    let scene = Scene::new(1);
    let socket = scene.socket();
    let bind = |path: &Path| Daemon::bind(Service::start().unwrap(), path, &Options::default());
    let first = bind(&socket).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions()) & 0o777,
        0o600
    );
    let refused = bind(&socket).unwrap_err().to_string();
    assert!(refused.contains("somebody listens") && !refused.contains('\n'), "{refused}");
    drop(first);
    assert!(!socket.exists());
    let mut killed = Process::daemon(&socket);
    killed.signal(libc::SIGKILL);
    killed.wait();
    assert!(socket.exists());
    drop(bind(&socket).unwrap());
    assert!(bind(&scene.file).unwrap_err().to_string().contains("is no socket"));
    assert!(Service::connect(&socket).is_err());
}
