//! Tests `bedplate kv dump` and `kv load` against redis-server. They have to work with it too, because they move data
//! between the two servers.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use redis::Connection;
use tempfile::TempDir;

/// A redis-server of its own, without persistence; it ends with this value.
struct Redis {
    child: Child,
    port: u16,
    _directory: TempDir,
}

impl Redis {
    fn start() -> Redis {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let directory = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .arg("--dir")
            .arg(directory.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (make setup)");
        Redis { child, port, _directory: directory }
    }

    fn connect(&self) -> Connection {
        let client = redis::Client::open(("127.0.0.1", self.port)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match client.get_connection() {
                Ok(connection) => return connection,
                Err(error) if Instant::now() > deadline => panic!("redis-server does not answer: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bedplate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bedplate")).args(args).output().unwrap()
}

fn expect(output: &Output, success: bool) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.success(), success, "{text}");
    text
}

#[test]
fn keys_survive_the_way_through_a_dump() {
    let (from, to) = (Redis::start(), Redis::start());
    let mut source = from.connect();
    let mut pipeline = redis::pipe();
    for number in 0..3_000 {
        pipeline.cmd("SET").arg(format!("key:{number}")).arg(vec![number as u8; number % 300]).ignore();
    }
    pipeline.cmd("SET").arg(&b"bin\r\n\0ary"[..]).arg(vec![0xffu8; 65_536]).ignore();
    pipeline.cmd("SET").arg("expires").arg("later").arg("EX").arg(5_000).ignore();
    pipeline.cmd("RPUSH").arg("a list").arg("is no string").ignore();
    pipeline.query::<()>(&mut source).unwrap();

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dump");
    let (file, from_port, to_port) = (file.to_str().unwrap(), from.port.to_string(), to.port.to_string());
    let said = expect(&bedplate(&["kv", "dump", file, "--port", &from_port]), true);
    assert!(said.starts_with("3,002 keys"), "{said}");
    assert!(expect(&bedplate(&["kv", "verify", file]), true).contains("sound: 3,002 keys"));
    let mut target = to.connect();
    redis::cmd("SET").arg("stays").arg("here").query::<()>(&mut target).unwrap();
    expect(&bedplate(&["kv", "load", file, "--port", &to_port]), true);

    let count: u64 = redis::cmd("DBSIZE").query(&mut target).unwrap();
    assert_eq!(count, 3_003);
    for number in [0, 1, 299, 2_999] {
        let value: Vec<u8> = redis::cmd("GET").arg(format!("key:{number}")).query(&mut target).unwrap();
        assert_eq!(value, vec![number as u8; number % 300]);
    }
    let value: Vec<u8> = redis::cmd("GET").arg(&b"bin\r\n\0ary"[..]).query(&mut target).unwrap();
    assert_eq!(value, vec![0xff; 65_536]);
    let at = |connection| redis::cmd("PEXPIRETIME").arg("expires").query::<i64>(connection).unwrap();
    let drift = (at(&mut source) - at(&mut target)).abs();
    assert!(drift < 2_000, "the expiry moved by {drift} ms");
}

#[test]
fn a_damaged_dump_is_refused() {
    let redis = Redis::start();
    let mut connection = redis.connect();
    redis::cmd("SET").arg("key").arg("value").query::<()>(&mut connection).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dump");
    let (name, port) = (file.to_str().unwrap(), redis.port.to_string());
    expect(&bedplate(&["kv", "dump", name, "--port", &port]), true);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 5]).unwrap();
    assert!(expect(&bedplate(&["kv", "verify", name]), false).contains("incomplete"));
    assert!(expect(&bedplate(&["kv", "load", name, "--port", &port]), false).contains("incomplete"));
}

#[test]
fn a_refused_key_is_reported_and_the_others_are_loaded() {
    let (from, to) = (Redis::start(), Redis::start());
    let mut source = from.connect();
    redis::pipe().cmd("SET").arg("a").arg("1").cmd("SET").arg("b").arg("2").query::<()>(&mut source).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dump");
    let name = file.to_str().unwrap();
    expect(&bedplate(&["kv", "dump", name, "--port", &from.port.to_string()]), true);
    let mut target = to.connect();
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1").query::<()>(&mut target).unwrap();
    let said = expect(&bedplate(&["kv", "load", name, "--port", &to.port.to_string()]), false);
    assert!(said.contains("refused 2 keys") && said.contains("hint: "), "{said}");
}

#[test]
fn stats_prints_a_line_per_interval_and_json() {
    let redis = Redis::start();
    drop(redis.connect());
    let port = redis.port.to_string();
    let said = expect(&bedplate(&["kv", "stats", "--port", &port, "-n", "2", "-i", "20ms"]), true);
    assert_eq!(said.lines().count(), 3, "{said}");
    let json = bedplate(&["kv", "stats", "--port", &port, "--json"]);
    let figures: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(figures["uptime_in_seconds"].is_string());
}
