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
    /// `None`, with a message, if there is no redis-server.
    pub fn start() -> Option<Redis> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--save", "", "--dir", "/tmp"])
            .stdout(Stdio::null())
            .spawn();
        let Ok(process) = process else {
            println!("skipped: redis-server is not installed");
            return None;
        };
        let redis = Redis { process, addr };
        eventually("redis-server answers", || TcpStream::connect(addr).is_ok());
        Some(redis)
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
