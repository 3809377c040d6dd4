//! The real Redis, whose replies are compared with the server's.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use super::eventually;

/// A redis-server of its own on a free port, without files. It ends when this is dropped.
pub struct Redis {
    process: Child,
    addr: SocketAddr,
}

impl Redis {
    /// `None`, with a message, if there is no redis-server of version 7.0, whose replies are compared.
    pub fn start() -> Option<Redis> {
        let version = Command::new("redis-server").arg("--version").output();
        let version =
            version.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
        if !version.contains("v=7.0.") {
            println!("skipped: redis-server 7.0 is not installed (found {version:?})");
            return None;
        }
        // Another test may take the port in between. Then the process ends, and the next port is tried.
        loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            drop(listener);
            let process = Command::new("redis-server")
                .args([
                    "--bind",
                    "127.0.0.1",
                    "--port",
                    &addr.port().to_string(),
                    "--save",
                    "",
                    "--dir",
                    "/tmp",
                ])
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let mut redis = Redis { process, addr };
            let mut has_ended = false;
            eventually("redis-server answers or ends", || {
                has_ended = redis.process.try_wait().unwrap().is_some();
                has_ended || TcpStream::connect(addr).is_ok()
            });
            if !has_ended {
                return Some(redis);
            }
        }
    }

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
