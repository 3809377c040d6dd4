//! A private redis-server, whose replies are compared with Bedplate's.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time until the server answers.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A redis-server of version 7.0 on a free port, which writes no files. It ends when this is dropped.
pub struct Redis {
    process: Child,
    addr: SocketAddr,
}

impl Redis {
    /// `None`, with a message, if there is no redis-server of that version.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn start() -> Option<Redis> {
        let version = Command::new("redis-server").arg("--version").output();
        let version =
            version.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
        if !version.contains("v=7.0.") {
            println!("skipped: redis-server 7.0 is not installed (found {version:?})");
            return None;
        }
        let deadline = Instant::now() + START_LIMIT;
        // Another process may take the port in between. Then the server ends, and the next port is tried.
        loop {
            let mut redis = Redis::on_a_port();
            while redis.process.try_wait().expect("the state of redis-server").is_none() {
                if TcpStream::connect(redis.addr).is_ok() {
                    return Some(redis);
                }
                assert!(Instant::now() < deadline, "redis-server does not answer");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn on_a_port() -> Redis {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("the address of a socket");
        drop(listener);
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(std::env::temp_dir());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Redis { process: command.spawn().expect("redis-server starts"), addr }
    }

    /// The address at which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
