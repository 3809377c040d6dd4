//! Back pressure: TCP slows down a client that sends faster than the server works. The client is never
//! disconnected, and does not slow down the clients beside it.

mod common;
mod server;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Durability, Store, StoreConfig};
use bedplate_kerneldb_redis::server::{Server, ServerConfig, ServerHandle};
use common::can_run;
use server::model::{Pipeline, pipeline};
use server::{Client, Random, bulk, config, config_with, eventually, request, start};

/// The longest time for which a client beside a busy one may wait for a reply. The machine that runs the tests
/// may be busy with other things, so this is far longer than on an idle machine.
const BYSTANDER_MAX: Duration = Duration::from_secs(5);

fn open(dir: &Path, durability: Durability, server: ServerConfig) -> (Arc<Store>, ServerHandle) {
    let memory_bytes = 64 << 20;
    let database = Config { memory_bytes, max_sessions: 256, wal_ring_bytes: 1 << 20, ..Config::default() };
    // The limit is as low as possible, so that the server soon notices a stalled disk.
    let max_unsynced_bytes = 1 << 20;
    let wal = WalConfig { durability, max_unsynced_bytes, ..WalConfig::default() };
    let wal = (durability != Durability::Off).then_some(wal);
    let config = StoreConfig { database, wal, ..StoreConfig::default() };
    let (store, _) = Store::open(config, dir, &mut |_| {}).unwrap();
    let store = Arc::new(store);
    let server = Server::start(store.clone(), server).unwrap();
    (store, server)
}

/// Sends everything in one call while this thread reads exactly the expected replies.
fn exchange(client: &mut Client, requests: Vec<u8>, replies: &[u8]) {
    let mut writer = client.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&requests));
    client.expect(replies);
    sender.join().unwrap().unwrap();
}

/// Runs `work` while another client asks for one reply after the other; returns that client's longest wait.
fn with_bystander(addr: SocketAddr, work: impl FnOnce()) -> Duration {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bystander = scope.spawn(|| {
            let mut client = Client::new(addr);
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                // The kernel answers the first two, the event loop the last one.
                for (line, reply) in [("PING", "+PONG"), ("GET nothing", "$-1"), ("STRLEN nothing", ":0")] {
                    let start = Instant::now();
                    client.ask(line, reply);
                    longest = longest.max(start.elapsed());
                }
            }
            longest
        });
        work();
        stop.store(true, Ordering::Relaxed);
        bystander.join().unwrap()
    })
}

/// `count` SETEX of 200 bytes, and their replies.
fn setex(count: usize) -> (Vec<u8>, Vec<u8>) {
    let value = [b'v'; 200];
    let one = |i: usize| request(&[b"SETEX", format!("key:{i}").as_bytes(), b"1000", &value]);
    ((0..count).flat_map(one).collect(), b"+OK\r\n".repeat(count))
}

#[test]
fn pipelined_setex_is_answered_at_every_durability() {
    if !can_run() {
        return;
    }
    for durability in [Durability::Off, Durability::Async, Durability::Sync] {
        let dir = tempfile::tempdir().unwrap();
        let (store, server) = open(dir.path(), durability, config());
        let (requests, replies) = setex(5000);
        let longest = with_bystander(server.local_addr(), || {
            let mut client = Client::new(server.local_addr());
            for _ in 0..4 {
                exchange(&mut client, requests.clone(), &replies);
            }
            // More than any buffer on the way holds.
            exchange(&mut client, requests.repeat(20), &replies.repeat(20));
            client.ask("GET key:7", &format!("$200\r\n{}", "v".repeat(200)));
        });
        assert!(longest < BYSTANDER_MAX, "{durability:?}: the client beside it waited {longest:?}");
        let stats = server.stats().unwrap();
        assert_eq!(stats.broken, 0, "{stats:?}");
        server.shutdown().unwrap();
        store.close(false).unwrap();
    }
}

/// Several such clients at once, more than any buffer of the server holds.
#[test]
fn many_pipelining_clients_are_answered() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let (requests, replies) = setex(5000);
    std::thread::scope(|scope| {
        for _ in 0..24 {
            let (requests, replies, addr) = (requests.clone(), &replies, running.addr);
            scope.spawn(move || exchange(&mut Client::new(addr), requests, replies));
        }
    });
    running.finish();
}

/// Sends a pipeline in portions of random length while this thread reads and compares the replies. At some marks
/// the sender waits for all replies so far, so that the kernel answers again. `calm` is the average number of marks
/// between two such waits.
fn converse(client: &mut Client, pipeline: &Pipeline, seed: u64, calm: usize) {
    let received = AtomicUsize::new(0);
    let mut writer = client.socket.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed);
            let mut from = 0;
            for (requests, replies) in &pipeline.marks {
                let is_last = *requests == pipeline.requests.len();
                if random.below(calm) != 0 && !is_last {
                    continue;
                }
                let mut rest = &pipeline.requests[from..*requests];
                from = *requests;
                while !rest.is_empty() {
                    let longest = [30, 1500, 40_000, 300_000][random.below(4)];
                    let (portion, after) = rest.split_at(rest.len().min(1 + random.below(longest)));
                    writer.write_all(portion).unwrap();
                    rest = after;
                }
                if random.below(2) == 0 {
                    eventually("the replies are here", || received.load(Ordering::Relaxed) >= *replies);
                }
            }
        });
        let mut buffer = vec![0; 64 << 10];
        let mut rest = &pipeline.replies[..];
        while !rest.is_empty() {
            let n = client.socket.read(&mut buffer).unwrap();
            let at = pipeline.replies.len() - rest.len();
            assert!(n > 0 && rest.starts_with(&buffer[..n]), "wrong replies within {n} bytes from {at} on");
            rest = &rest[n..];
            received.fetch_add(n, Ordering::Relaxed);
        }
    });
}

/// For 50 MB of every kind of command, in portions that end anywhere, each reply is the expected one.
#[test]
fn mixed_pipelines_have_the_replies_of_a_model() {
    if !can_run() {
        return;
    }
    for (kernel_path, megabytes) in [(true, 12), (false, 1)] {
        let running = start(config_with(kernel_path));
        std::thread::scope(|scope| {
            for i in 1..=4u64 {
                let mut client = running.client();
                scope.spawn(move || {
                    let pipeline = pipeline(i, &format!("client{i}"), megabytes << 20);
                    // The first client waits very often, the last one hardly ever.
                    converse(&mut client, &pipeline, i, [1, 4, 30, 1000][i as usize - 1]);
                });
            }
        });
        let stats = running.server.stats().unwrap();
        assert!(!kernel_path || stats.kernel_commands > 1000 && stats.passed > 1000, "{stats:?}");
        running.finish();
    }
}

/// A client that stops sending after a large pipeline gets every reply, and then the end.
#[test]
fn a_half_closed_client_gets_every_reply() {
    if !can_run() {
        return;
    }
    let running = start(config());
    for seed in 1..=6 {
        let mut client = running.client();
        let pipeline = pipeline(seed, &format!("half{seed}"), 2 << 20);
        let mut writer = client.socket.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&pipeline.requests).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            client.expect(&pipeline.replies);
        });
        assert_eq!(client.rest(), b"");
    }
    running.finish();
}

/// Memory of this process that is in use, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Waits until a growing number stops growing.
fn until_it_stands_still(what: &AtomicUsize) {
    let (mut last, mut since) = (what.load(Ordering::Relaxed), Instant::now());
    eventually("the senders wait", || {
        let now = what.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_secs(1)
    });
}

/// Shuts connections down when it is dropped, so that a failed test does not wait for its senders.
struct ShutDown<'a>(&'a [Client]);

impl Drop for ShutDown<'_> {
    fn drop(&mut self) {
        // A connection that has ended already needs no shutdown.
        self.0.iter().for_each(|client| client.socket.shutdown(Shutdown::Both).unwrap_or(()));
    }
}

/// Sends `requests` this many times and counts the bytes that TCP has taken.
fn flood(mut socket: TcpStream, requests: &[u8], rounds: usize, sent: &AtomicUsize) -> std::io::Result<()> {
    for _ in 0..rounds {
        socket.write_all(requests)?;
        sent.fetch_add(requests.len(), Ordering::Relaxed);
    }
    Ok(())
}

/// A client that sends 64 MB and reads nothing has to wait, without harm to others. Then it reads everything.
#[test]
fn a_client_that_reads_late_gets_every_reply() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let value = vec![b'e'; 1000];
    let (echo, reply) = (request(&[b"ECHO", &value]), bulk(&value));
    let (requests, replies) = (echo.repeat(64), reply.repeat(64));
    let rounds = (64 << 20) / requests.len();
    let sent = AtomicUsize::new(0);
    let mut client = running.client();
    let writer = client.socket.try_clone().unwrap();
    let ends = [Client { socket: client.socket.try_clone().unwrap() }];
    std::thread::scope(|scope| {
        let shut_down = ShutDown(&ends);
        let sender = scope.spawn(|| flood(writer, &requests, rounds, &sent));
        until_it_stands_still(&sent);
        assert!(!sender.is_finished(), "{} bytes were taken without a reader", sent.load(Ordering::Relaxed));
        let longest = with_bystander(running.addr, || std::thread::sleep(Duration::from_millis(200)));
        assert!(longest < BYSTANDER_MAX, "the client beside it waited {longest:?}");
        for _ in 0..rounds {
            client.expect(&replies);
        }
        sender.join().unwrap().unwrap();
        drop(shut_down);
    });
    drop((client, ends));
    running.finish();
}

/// The server's memory for 64 such clients has a limit.
#[test]
fn clients_that_do_not_read_take_bounded_memory() {
    const CLIENTS: usize = 64;
    /// Bytes of unsent replies (1 MiB and one reply), a portion of input, and the allocator's overhead.
    const EACH: usize = 3 << 20;
    if !can_run() {
        return;
    }
    let running = start(config());
    let requests = request(&[b"ECHO", &vec![b'e'; 1000]]).repeat(64);
    let sent = AtomicUsize::new(0);
    let clients: Vec<_> = (0..CLIENTS).map(|_| running.client()).collect();
    let before = resident_bytes();
    std::thread::scope(|scope| {
        let _shut_down = ShutDown(&clients);
        for client in &clients {
            let writer = client.socket.try_clone().unwrap();
            // Ends with an error when its connection is shut down.
            scope.spawn(|| flood(writer, &requests, 1000, &sent));
        }
        until_it_stands_still(&sent);
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < CLIENTS * EACH, "{} MiB for {CLIENTS} clients", grown >> 20);
        let longest = with_bystander(running.addr, || std::thread::sleep(Duration::from_millis(200)));
        assert!(longest < BYSTANDER_MAX, "the client beside them waited {longest:?}");
        // Only the client beside them has disconnected.
        eventually("it is gone", || running.server.stats().unwrap().clients <= CLIENTS as u64);
        assert_eq!(running.server.stats().unwrap().clients, CLIENTS as u64, "a client was disconnected");
    });
    drop(clients);
    running.finish();
}

/// When the memory is full, writes are refused one by one, and everything else continues.
#[test]
fn pipelines_go_on_when_the_memory_is_full() {
    const KEYS: usize = 80_000;
    if !can_run() {
        return;
    }
    let running = start(config());
    let value = vec![b'v'; 1000];
    let set = |i: usize| request(&[b"SET", format!("key:{i}").as_bytes(), &value]);
    let requests: Vec<u8> = (0..KEYS).flat_map(set).collect();
    let mut client = running.client();
    let longest = with_bystander(running.addr, || {
        let mut writer = client.socket.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&requests).unwrap());
            let replies = client.many_lines(KEYS);
            let stored = replies.iter().filter(|line| *line == "+OK").count();
            let refused = replies.iter().filter(|line| line.starts_with("-OOM ")).count();
            assert!(stored > 1000 && refused > 1000 && stored + refused == KEYS, "{stored} and {refused}");
        });
        client.ask("GET key:0", &format!("$1000\r\n{}", "v".repeat(1000)));
        client.ask("DEL key:0", ":1");
        eventually("there is room for the same value again", || {
            client.send(&set(0));
            client.lines(1)[0] == "+OK"
        });
    });
    assert!(longest < BYSTANDER_MAX, "the client beside it waited {longest:?}");
    drop(client);
    running.finish();
}

/// A file system of its own that can be frozen: writes to it wait until it is thawed.
struct Disk {
    at: std::path::PathBuf,
    temp: tempfile::TempDir,
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

impl Disk {
    fn mount() -> Result<Disk, String> {
        let temp = tempfile::tempdir().unwrap();
        let (at, image) = (temp.path().join("mnt"), temp.path().join("image"));
        std::fs::create_dir(&at).unwrap();
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-m", "0", image.to_str().unwrap()])?;
        run("mount", &["-o", "loop", image.to_str().unwrap(), at.to_str().unwrap()])?;
        Ok(Disk { at, temp })
    }

    fn freeze(&self) -> Result<Frozen<'_>, String> {
        run("fsfreeze", &["-f", self.at.to_str().unwrap()]).map(|()| Frozen(self))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(e) = run("umount", &[self.at.to_str().unwrap()]) {
            eprintln!("{}: {e}", self.temp.path().display());
        }
    }
}

/// Thaws the disk when it is dropped.
struct Frozen<'a>(&'a Disk);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run("fsfreeze", &["-u", self.0.at.to_str().unwrap()]).unwrap();
    }
}

/// While the disk stalls, writes wait and reads are answered. Afterwards every write is answered.
#[test]
fn pipelines_wait_for_a_disk_that_stands_still() {
    if !can_run() {
        return;
    }
    let disk = match Disk::mount() {
        Ok(disk) => disk,
        // Without the right to mount (in a container, for example) the test cannot stall a disk.
        Err(e) => return eprintln!("skipped: {e}"),
    };
    for (durability, count) in [(Durability::Async, 100_000), (Durability::Sync, 5000)] {
        let (store, server) = open(&disk.at.join(format!("{durability:?}")), durability, config());
        let (requests, replies) = setex(1000);
        let (got, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut client = Client::new(server.local_addr());
        client.ask("SET before 1", "+OK");
        let writer = client.socket.try_clone().unwrap();
        let frozen = match disk.freeze() {
            Ok(frozen) => frozen,
            Err(e) => return eprintln!("skipped: {e}"),
        };
        let rounds = count / 1000;
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| flood(writer, &requests, rounds, &sent));
            let receiver = scope.spawn(|| {
                for _ in 0..rounds {
                    client.expect(&replies);
                    got.fetch_add(1, Ordering::Relaxed);
                }
            });
            until_it_stands_still(&got);
            // Longer than the server retries after a lock conflict.
            let longest = with_bystander(server.local_addr(), || std::thread::sleep(Duration::from_secs(2)));
            assert!(longest < BYSTANDER_MAX, "{durability:?}: the client beside it waited {longest:?}");
            assert!(!receiver.is_finished(), "{durability:?}: writes did not wait for the disk");
            drop(frozen);
            receiver.join().unwrap();
            sender.join().unwrap().unwrap();
        });
        let mut other = Client::new(server.local_addr());
        other.ask("GET before", "$1\r\n1");
        other.ask("SET after 1", "+OK");
        drop((client, other));
        let stats = server.stats().unwrap();
        assert_eq!(stats.broken, 0, "{stats:?}");
        server.shutdown().unwrap();
        store.close(false).unwrap();
    }
}
