//! How a server is set up.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bedplate_kerneldb::{Error, Result};

/// How to start a [`Server`](super::Server).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on; port 0 takes a free one ([`ServerHandle::local_addr`] tells which).
    ///
    /// [`ServerHandle::local_addr`]: super::ServerHandle::local_addr
    pub bind: SocketAddr,
    /// Most connections at once, 1..=65536. More are refused with Redis's error. Each reserves about
    /// 6 KiB of kernel memory. The database's limit on sessions applies as well.
    pub max_clients: u32,
    /// Closes a connection that has sent nothing for so long, in whole seconds; `None` = never. Clients
    /// can change it (CONFIG SET timeout).
    pub idle_timeout: Option<Duration>,
    /// Probes connections whose client is silent for so long, so that vanished clients are noticed;
    /// `None` = never.
    pub keepalive: Option<Duration>,
    /// Password that clients must give (AUTH); empty = none.
    pub password: String,
    /// Size in bytes of the ring buffer through which the kernel hands requests to the event loop: a
    /// power of two, at least 1 MiB. A connection whose request finds it full is closed.
    pub records_bytes: u32,
    /// Whether the kernel answers. Without it the event loop executes every command: the same replies,
    /// slower; for comparison and for tests.
    pub kernel_path: bool,
    /// Answers clients on this machine inside of their own send calls, without TCP. Needs cgroup2.
    /// It attaches a program to the cgroup2 root: every process that connects to this server's port runs
    /// it, whoever owns the process; see `docs/kerneldb.md` for what that means.
    pub local_fast_path: bool,
    /// When the kernel's workers, which send the replies, are in the scheduler's batch class: more replies per
    /// CPU second to many busy clients on this machine, for a longer way to a few. It changes how the whole
    /// machine's deferred work is scheduled; see [`BatchWorkers`].
    ///
    /// [`BatchWorkers`]: super::BatchWorkers
    pub batch_workers: Batching,
}

/// When replies are sent in batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// Never: each reply interrupts what its processor does.
    Never,
    /// While many clients and all processors are busy. Without the right to do so (CAP_SYS_NICE): never.
    #[default]
    UnderLoad,
    /// As long as the server runs.
    Always,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 6380)),
            max_clients: 4000,
            idle_timeout: None,
            keepalive: Some(Duration::from_secs(300)),
            password: String::new(),
            records_bytes: 16 << 20,
            kernel_path: true,
            local_fast_path: false,
            batch_workers: Batching::default(),
        }
    }
}

impl ServerConfig {
    pub(super) fn check(&self) -> Result<()> {
        if !(1..=65_536).contains(&self.max_clients) {
            return Err(Error::Config("the maximum number of clients must be 1 to 65536".into()));
        }
        if !self.records_bytes.is_power_of_two() || self.records_bytes < 1 << 20 {
            return Err(Error::Config("the records' buffer must be a power of two of at least 1 MiB".into()));
        }
        Ok(())
    }
}
