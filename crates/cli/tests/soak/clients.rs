//! The clients of the soak. Each runs until the segment ends, and checks the replies that it can predict.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use redis::{Connection, ErrorKind, RedisError, RedisResult, ServerErrorKind};

use crate::kill::model::Random;
use crate::kill::wire::put;

/// Number of upgrades in the run.
pub static UPGRADES: AtomicUsize = AtomicUsize::new(0);

/// A part of the run, which ends by a kill of the server or of all clients.
pub struct Segment {
    pub port: u16,
    /// Set before the end, so that broken connections are expected from then on.
    pub ending: AtomicBool,
    /// Number of times that [`changing_sizes`] has filled its share, in all segments.
    pub fills: AtomicUsize,
    /// The server may be upgraded in it.
    pub upgrades: bool,
}

/// The reason why a client stopped: the connection broke, or a reply was wrong.
#[derive(Debug)]
pub enum Stop {
    Disconnected(String),
    Wrong(String),
}

pub type Result<T = ()> = std::result::Result<T, Stop>;

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Disconnected(error.to_string())
    }
}

impl From<RedisError> for Stop {
    fn from(error: RedisError) -> Stop {
        match error.kind() {
            ErrorKind::Io => Stop::Disconnected(error.to_string()),
            _ if error.is_connection_dropped() || error.is_unrecoverable_error() => {
                Stop::Disconnected(error.to_string())
            }
            _ => Stop::Wrong(error.to_string()),
        }
    }
}

macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(Stop::Wrong(format!($($message)*)));
        }
    };
}

impl Segment {
    pub fn ends(&self) -> bool {
        self.ending.load(SeqCst)
    }

    pub fn connect(&self) -> RedisResult<Connection> {
        let connection = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?.get_connection()?;
        connection.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(connection)
    }

    /// Turns a client's end into an error unless it was expected.
    pub fn judge(&self, client: &str, result: Result) -> Option<String> {
        match result {
            Ok(()) => None,
            Err(Stop::Disconnected(_)) if self.ends() => None,
            Err(Stop::Disconnected(why)) => Some(format!("{client} was disconnected: {why}")),
            Err(Stop::Wrong(why)) => Some(format!("{client}: {why}")),
        }
    }
}

/// Whether a command lost against another client and may be tried again.
fn is_conflict(error: &RedisError) -> bool {
    let code = error.code().unwrap_or_default();
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ExecAbort | ServerErrorKind::TryAgain))
        || ["CONFLICT", "ABORTED", "TRYAGAIN", "EXECABORT"].contains(&code)
}

/// A value of a length whose bytes depend on all of its arguments.
fn pattern(tag: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(31).wrapping_add(tag) >> (i % 3)) as u8).collect()
}

/// Writes keys that expire soon and reads some of them before and after their time.
pub fn expiring_keys(segment: &Segment, mut random: Random) -> Result {
    /// The server's clock for expiries has a resolution of milliseconds; the rest is for interruptions.
    const TOLERANCE: Duration = Duration::from_millis(100);
    struct Key {
        name: String,
        tag: u64,
        length: usize,
        /// The key lives at least until the first moment and at most until the second.
        dies: (Instant, Instant),
    }
    let mut connection = segment.connect()?;
    let mut keys: VecDeque<Key> = VecDeque::new();
    while !segment.ends() {
        let mut pipeline = redis::pipe();
        let mut batch = Vec::new();
        for _ in 0..100 {
            let (tag, length, ttl) = (random.next(), random.below(2000) as usize, 20 + random.below(1500));
            let name = format!("expiring:{tag}");
            let value = pattern(tag, length);
            match random.below(3) {
                0 => pipeline.cmd("SET").arg(&name).arg(value).arg("PX").arg(ttl),
                1 => pipeline.cmd("PSETEX").arg(&name).arg(ttl).arg(value),
                _ => pipeline.cmd("SET").arg(&name).arg(value).cmd("PEXPIRE").arg(&name).arg(ttl),
            }
            .ignore();
            batch.push((name, tag, length, Duration::from_millis(ttl)));
        }
        let sent = Instant::now();
        let () = pipeline.query(&mut connection)?;
        let acknowledged = Instant::now();
        let key =
            |(name, tag, length, ttl)| Key { name, tag, length, dies: (sent + ttl, acknowledged + ttl) };
        keys.extend(batch.into_iter().map(key));
        keys.drain(..keys.len().saturating_sub(5000));
        for _ in 0..20 {
            let key = &keys[random.below(keys.len() as u64) as usize];
            let before = Instant::now();
            let found: Option<Vec<u8>> = redis::cmd("GET").arg(&key.name).query(&mut connection)?;
            let after = Instant::now();
            match found {
                Some(value) => {
                    ensure!(value == pattern(key.tag, key.length), "{} has another value", key.name);
                    ensure!(before < key.dies.1 + TOLERANCE, "{} is there after its expiry", key.name);
                }
                None => ensure!(after + TOLERANCE > key.dies.0, "{} is gone before its expiry", key.name),
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Sends many requests in one write while another thread reads the replies.
pub fn deep_pipelines(segment: &Segment, mut random: Random) -> Result {
    const REQUESTS: usize = 5000;
    let socket = TcpStream::connect(("127.0.0.1", segment.port))?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut replies = BufReader::new(socket.try_clone()?);
    while !segment.ends() {
        let mut requests = Vec::new();
        for i in 0..REQUESTS {
            let value = pattern(random.next(), 200);
            put(&mut requests, &[b"SETEX", format!("deep:{i}").as_bytes(), b"2", &value]);
        }
        std::thread::scope(|scope| -> Result {
            let writer = scope.spawn(|| (&socket).write_all(&requests));
            for i in 0..REQUESTS {
                let mut line = String::new();
                if replies.read_line(&mut line)? == 0 {
                    return Err(Stop::Disconnected(format!("after {i} of {REQUESTS} replies")));
                }
                ensure!(line == "+OK\r\n", "SETEX in a pipeline was answered with {line:?}");
            }
            Ok(writer.join().unwrap()?)
        })?;
        std::thread::sleep(Duration::from_millis(random.below(200)));
    }
    Ok(())
}

/// The lengths of the values of [`changing_sizes`]. Together their shares are more than the server's memory.
pub const LENGTHS: [usize; 6] = [100, 60_000, 300, 16_000, 1000, 4000];

/// Deletes the keys of [`changing_sizes`]. An earlier segment may have left any of them, so this searches for them.
pub fn remove_sizes(connection: &mut Connection) -> RedisResult<()> {
    let mut cursor = 0u64;
    loop {
        let (next, names): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg("size:*")
            .arg("COUNT")
            .arg(1000)
            .query(connection)?;
        for names in names.chunks(100) {
            let _: u64 = redis::cmd("DEL").arg(names).query(connection)?;
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}

/// Fills a share of the memory with values of one size, checks them, deletes them, and continues with another size.
pub fn changing_sizes(segment: &Segment, mut random: Random, bytes: usize) -> Result {
    const BATCH_BYTES: usize = 256 << 10;
    let mut connection = segment.connect()?;
    // Other clients check durability; this one is about memory.
    let () = redis::cmd("BEDPLATE").arg("DURABILITY").arg("ASYNC").query(&mut connection)?;
    while !segment.ends() {
        remove_sizes(&mut connection)?;
        let length = LENGTHS[segment.fills.load(SeqCst) % LENGTHS.len()];
        let count = bytes / (length + 200);
        let batch = (BATCH_BYTES / length).clamp(1, 400);
        for from in (0..count).step_by(batch) {
            if segment.ends() {
                return Ok(());
            }
            let mut pipeline = redis::pipe();
            for i in from..(from + batch).min(count) {
                pipeline.cmd("SET").arg(format!("size:{i}")).arg(pattern(i as u64, length)).ignore();
            }
            let () = pipeline.query(&mut connection).map_err(|error| match Stop::from(error) {
                Stop::Wrong(why) => Stop::Wrong(format!("{from} of {count} values of {length} bytes: {why}")),
                stop => stop,
            })?;
        }
        for _ in 0..200 {
            let i = random.below(count as u64);
            let found: Option<Vec<u8>> = redis::cmd("GET").arg(format!("size:{i}")).query(&mut connection)?;
            ensure!(found == Some(pattern(i, length)), "size:{i} does not have its value of {length} bytes");
        }
        segment.fills.fetch_add(1, SeqCst);
    }
    Ok(())
}

pub const ACCOUNTS: u64 = 16;
pub const BALANCE: i64 = 100;

fn account(i: u64) -> String {
    format!("account:{i}")
}

/// The sum of all accounts, read in one snapshot.
pub fn total(connection: &mut Connection) -> RedisResult<i64> {
    let names: Vec<_> = (0..ACCOUNTS).map(account).collect();
    let balances: Vec<Option<i64>> = redis::cmd("MGET").arg(names).query(connection)?;
    Ok(balances.into_iter().map(Option::unwrap_or_default).sum())
}

/// Opens the accounts.
pub fn open_accounts(connection: &mut Connection) -> RedisResult<()> {
    let mut pipeline = redis::pipe();
    for i in 0..ACCOUNTS {
        pipeline.cmd("SET").arg(account(i)).arg(BALANCE).ignore();
    }
    pipeline.query(connection)
}

/// Moves money between accounts, in both kinds of transactions; the total stays.
pub fn transfers(segment: &Segment, mut random: Random) -> Result {
    let mut connection = segment.connect()?;
    while !segment.ends() {
        let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
        if from == to {
            continue;
        }
        let amount = random.below(20) as i64;
        let moved = match random.below(2) {
            0 => optimistic(&mut connection, &account(from), &account(to), amount),
            _ => interactive(&mut connection, &account(from), &account(to), amount),
        };
        match moved {
            Err(error) if is_conflict(&error) => {}
            other => other?,
        }
        if random.below(10) == 0 {
            let sum = total(&mut connection)?;
            ensure!(sum == ACCOUNTS as i64 * BALANCE, "the accounts' total is {sum}");
        }
    }
    Ok(())
}

fn optimistic(connection: &mut Connection, from: &str, to: &str, amount: i64) -> RedisResult<()> {
    let () = redis::cmd("WATCH").arg(from).arg(to).query(connection)?;
    let balances: Vec<i64> = redis::cmd("MGET").arg(from).arg(to).query(connection)?;
    let mut transaction = redis::pipe();
    // `atomic()` would hide the error if EXEC is refused.
    transaction.cmd("MULTI").ignore();
    transaction.cmd("SET").arg(from).arg(balances[0] - amount).ignore();
    transaction.cmd("SET").arg(to).arg(balances[1] + amount).ignore();
    transaction.cmd("EXEC");
    // None means that another client has changed an account, so EXEC did nothing.
    let _: (Option<(String, String)>,) = transaction.query(connection)?;
    Ok(())
}

fn interactive(connection: &mut Connection, from: &str, to: &str, amount: i64) -> RedisResult<()> {
    let () = redis::cmd("BEGIN").query(connection)?;
    let mut run = || -> RedisResult<()> {
        let balance: i64 = redis::cmd("GET").arg(from).query(connection)?;
        let () = redis::cmd("SET").arg(from).arg(balance - amount).query(connection)?;
        let balance: i64 = redis::cmd("GET").arg(to).query(connection)?;
        let () = redis::cmd("SET").arg(to).arg(balance + amount).query(connection)?;
        redis::cmd("COMMIT").query(connection)
    };
    let result = run();
    if let Err(error) = &result
        && error.kind() != ErrorKind::Io
    {
        // A failed COMMIT has ended the transaction already.
        let _ = redis::cmd("ROLLBACK").query::<()>(connection);
    }
    result
}

pub const FIXED: usize = 500;

/// Writes the keys that [`scans`] looks for.
pub fn write_fixed(connection: &mut Connection) -> RedisResult<()> {
    let mut pipeline = redis::pipe();
    for i in 0..FIXED {
        pipeline.cmd("SET").arg(format!("fixed:{i}")).arg(i).ignore();
    }
    pipeline.query(connection)
}

/// Scans all keys. Each scan must find the keys that are always there.
pub fn scans(segment: &Segment, mut random: Random) -> Result {
    let mut connection = segment.connect()?;
    while !segment.ends() {
        let (mut cursor, mut found) = (0u64, std::collections::BTreeSet::new());
        loop {
            let count = [10, 100, 1000][random.below(3) as usize];
            let (next, names): (u64, Vec<String>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg("fixed:*")
                .arg("COUNT")
                .arg(count)
                .query(&mut connection)?;
            found.extend(names);
            cursor = next;
            if cursor == 0 {
                break;
            }
            if segment.ends() {
                return Ok(());
            }
        }
        ensure!(found.len() == FIXED, "SCAN found {} of {FIXED} keys that are always there", found.len());
        let _: Option<String> = redis::cmd("RANDOMKEY").query(&mut connection)?;
        let keys: Vec<String> = redis::cmd("KEYS").arg("fixed:1*").query(&mut connection)?;
        ensure!(keys.len() == 111, "KEYS found {} of 111 keys", keys.len());
    }
    Ok(())
}

/// Takes checkpoints, changes settings, options of the database and its durability, upgrades the server, and reads statistics.
pub fn administration(segment: &Segment, mut random: Random) -> Result {
    let mut connection = segment.connect()?;
    while !segment.ends() {
        match random.below(7) {
            // The reply is an error while another checkpoint is being taken.
            0 => drop(redis::cmd("BGSAVE").query::<String>(&mut connection)),
            1 => {
                let (name, value) =
                    [("lock-timeout", 500 + random.below(1000)), ("timeout", random.below(2) * 600)]
                        [random.below(2) as usize];
                let () = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query(&mut connection)?;
                let read: Vec<String> = redis::cmd("CONFIG").arg("GET").arg(name).query(&mut connection)?;
                ensure!(read == [name.to_owned(), value.to_string()], "CONFIG GET {name} gives {read:?}");
            }
            2 => {
                let mode = ["OFF", "ASYNC", "SYNC"][random.below(3) as usize];
                let () = redis::cmd("BEDPLATE").arg("DURABILITY").arg(mode).query(&mut connection)?;
                let _: i64 = redis::cmd("INCR").arg("administration").query(&mut connection)?;
            }
            3 => {
                let done: Vec<i64> =
                    redis::cmd("WAITAOF").arg(1).arg(0).arg(30_000).query(&mut connection)?;
                ensure!(done == [1, 0], "WAITAOF gives {done:?}");
            }
            // The reply is an error while transactions of others stay open.
            4 if random.below(80) == 0 => {
                // With fewer versions, a checkpoint is in the way of writers.
                let versions = 4 + random.below(5);
                let set = redis::cmd("CONFIG")
                    .arg("SET")
                    .arg("versions")
                    .arg(versions)
                    .query::<()>(&mut connection);
                match set {
                    Err(error) if error.code() == Some("TRYAGAIN") => {}
                    set => set?,
                }
            }
            // The reply is an error in the same case, and if the server has the local fast path.
            5 if segment.upgrades && random.below(4) == 0 => {
                match redis::cmd("BEDPLATE").arg("UPGRADE").query::<()>(&mut connection) {
                    Err(error) if error.code() == Some("TRYAGAIN") => {}
                    Err(error) if error.to_string().contains("the local fast path") => {}
                    upgraded => {
                        upgraded?;
                        UPGRADES.fetch_add(1, SeqCst);
                    }
                }
            }
            5 => drop(redis::cmd("CLIENT").arg("LIST").query::<String>(&mut connection)?),
            _ => drop(redis::cmd("INFO").query::<String>(&mut connection)?),
        }
        std::thread::sleep(Duration::from_millis(random.below(100)));
    }
    Ok(())
}

/// Disconnects in the middle of a transaction and of a request. Its writes disappear and its locks are released.
pub fn leaving_clients(segment: &Segment, mut random: Random) -> Result {
    let mut connection = segment.connect()?;
    while !segment.ends() {
        let key = format!("left:{}", random.below(8));
        {
            let mut leaving = segment.connect()?;
            let () = redis::cmd("BEGIN").query(&mut leaving)?;
            let () = redis::cmd("SET").arg(&key).arg("never").query(&mut leaving)?;
            if random.below(2) == 0 {
                leaving.send_packed_command(b"*3\r\n$3\r\nSET\r\n$4\r\nle")?;
            }
            if random.below(2) == 0 {
                let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut segment.connect()?)?;
                let _: u64 = redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).query(&mut connection)?;
            }
        }
        let started = Instant::now();
        // The lock is released once the server has noticed; until then a write reports the conflict.
        loop {
            match redis::cmd("SET").arg(&key).arg("mine").query::<()>(&mut connection) {
                Ok(()) => break,
                Err(error) if is_conflict(&error) && started.elapsed() < Duration::from_secs(30) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let found: Option<String> = redis::cmd("GETDEL").arg(&key).query(&mut connection)?;
        ensure!(found.as_deref() == Some("mine"), "{key} has the value {found:?}");
    }
    Ok(())
}

/// Runs redis-benchmark again and again.
pub fn benchmark(segment: &Segment, mut random: Random) -> Result {
    while !segment.ends() {
        let depth = [1, 16, 64][random.below(3) as usize].to_string();
        let length = [3, 100, 1500][random.below(3) as usize].to_string();
        let port = segment.port.to_string();
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-P", &depth, "-d", &length]);
        command.args(["-t", "ping,set,get,incr,mset", "-n", "10000", "-c", "20", "-r", "1000", "-q"]);
        external(segment, "redis-benchmark", &mut command)?;
    }
    Ok(())
}

/// The program for redis-py; it runs until the connection ends or its time is over.
const PYTHON: &str = r#"
import random, redis, sys, time
client = redis.Redis(port=int(sys.argv[1]), socket_timeout=60)
random.seed(int(sys.argv[2]))
end = time.monotonic() + 3
while time.monotonic() < end:
    key = "python:%d" % random.randrange(100)
    value = bytes(random.randrange(256) for _ in range(random.randrange(300)))
    assert client.set(key, value, ex=random.choice([None, 60]))
    assert client.get(key) == value
    with client.pipeline(transaction=random.random() < 0.5) as pipe:
        pipe.set(key, 5).incrby(key, 7).ttl(key).delete(key)
        assert pipe.execute() == [True, 12, -1, 1]
    assert client.getset(key, "x") is None
    assert client.exists(key, "python:none") == 1
"#;

/// Runs redis-py again and again.
pub fn python(segment: &Segment, mut random: Random) -> Result {
    let probe = Command::new("/usr/bin/python3").args(["-c", "import redis"]).stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    while !segment.ends() {
        let (port, seed) = (segment.port.to_string(), random.below(1 << 30).to_string());
        external(segment, "redis-py", Command::new("/usr/bin/python3").args(["-c", PYTHON, &port, &seed]))?;
    }
    Ok(())
}

/// Runs a program to its end, or kills it when the segment ends.
fn external(segment: &Segment, name: &str, command: &mut Command) -> Result {
    let output = tempfile::NamedTempFile::new()?;
    let errors = output.reopen()?;
    let mut child = command.stdin(Stdio::null()).stdout(output.reopen()?).stderr(errors).spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            if !status.success() && !segment.ends() {
                let said = std::fs::read_to_string(output.path()).unwrap_or_default();
                let tail: Vec<_> = said.lines().rev().take(8).collect();
                return Err(Stop::Wrong(format!("{name} ended with {status}: {tail:?}")));
            }
            return Ok(());
        }
        if segment.ends() {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
