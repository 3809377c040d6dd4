//! The configuration of a server.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::CLIENTS_MAX;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{EngineKind, Error, EvictionPolicy, Result};

/// The configuration of a [`Server`](super::Server).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on; port 0 takes a free one, which [`ServerHandle::local_addr`] returns.
    ///
    /// [`ServerHandle::local_addr`]: super::ServerHandle::local_addr
    pub bind: SocketAddr,
    /// Most connections at once, 1..=[`CLIENTS_MAX`]. More are refused with Redis's error. Each reserves about
    /// 6 KiB of kernel memory. The database's limit on sessions applies as well.
    pub max_clients: u32,
    /// Time without a request after which a connection is closed, in whole seconds; `None` = never. Clients
    /// can change it (CONFIG SET timeout).
    pub idle_timeout: Option<Duration>,
    /// Time of silence after which the server probes a connection, to notice vanished clients;
    /// `None` = never.
    pub keepalive: Option<Duration>,
    /// Password of the user `default`, which clients must give (AUTH); empty = none.
    pub password: String,
    /// Which keys are evicted when memory becomes short. Clients can change it (CONFIG SET maxmemory-policy). A database on hash
    /// maps cannot evict by recency or frequency.
    pub eviction: EvictionPolicy,
    /// File of users and their rules, in Redis's format. It is read at the start and by ACL LOAD, and ACL SAVE writes it. A user `default`
    /// that it does not have needs no password, so a password beside it is a configuration error.
    pub acl_file: Option<PathBuf>,
    /// Whether the kernel answers. If not, the event loop executes every command, with the same replies but
    /// slower. That is for comparison and for tests. A database on hash maps is always served in this way.
    pub kernel_path: bool,
    /// Answers clients on this machine inside their own send calls, without TCP. Needs cgroup2.
    /// It attaches a program to the cgroup2 root. Every process that connects to this server's port runs
    /// the program, regardless of its owner; `docs/kerneldb.md` has the consequences.
    pub local_fast_path: bool,
    /// The times at which the kernel's workers, which send the replies, are in the scheduler's batch class. This changes
    /// the scheduling of the whole machine's deferred work and needs CAP_SYS_NICE; see [`BatchWorkers`].
    ///
    /// [`BatchWorkers`]: super::BatchWorkers
    pub batch_workers: Batching,
    /// The log that clients can switch on (CONFIG SET appendonly yes) if the store has none; `None` = one with the default configuration.
    pub log: Option<WalConfig>,
    /// Whether clients may load, replace and remove procedures (PROC). A procedure is code that runs in the kernel: it can
    /// read and write all data, and it can read all memory of the kernel.
    pub procedure_loading: bool,
    /// Checks that another program can take the place of this one. With it, clients can ask for an upgrade (BEDPLATE UPGRADE), at which
    /// [`ServerHandle::wait`] returns a [`Handover`]. `None` = they cannot.
    ///
    /// [`ServerHandle::wait`]: super::ServerHandle::wait
    /// [`Handover`]: super::Handover
    pub upgrade: Option<UpgradeCheck>,
}

/// A check that precedes an upgrade. It runs on a thread of its own, and should take no longer than
/// [`UPGRADE_CHECK_WAIT`](crate::limits::UPGRADE_CHECK_WAIT). The client gets its error.
#[derive(Clone)]
pub struct UpgradeCheck(Arc<dyn Fn() -> std::result::Result<(), String> + Send + Sync>);

impl UpgradeCheck {
    /// A check.
    pub fn new(check: impl Fn() -> std::result::Result<(), String> + Send + Sync + 'static) -> UpgradeCheck {
        UpgradeCheck(Arc::new(check))
    }

    pub(super) fn run(&self) -> std::result::Result<(), String> {
        (self.0)()
    }
}

impl fmt::Debug for UpgradeCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpgradeCheck")
    }
}

/// The times at which replies are sent in batches. All but `Never` need CAP_SYS_NICE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// Never: the server leaves the machine's kernel workers alone.
    #[default]
    Never,
    /// While many clients and all processors are busy.
    UnderLoad,
    /// The whole time that the server runs.
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
            eviction: EvictionPolicy::default(),
            acl_file: None,
            kernel_path: true,
            local_fast_path: false,
            batch_workers: Batching::default(),
            log: None,
            procedure_loading: false,
            upgrade: None,
        }
    }
}

impl ServerConfig {
    /// Returns an error for a value out of range, or for a privilege that this process lacks.
    pub fn check(&self) -> Result<()> {
        if self.batch_workers != Batching::Never && !may_schedule_others() {
            return Err(Error::Config(
                "batching replies by the kernel's workers needs CAP_SYS_NICE, which this process lacks"
                    .into(),
            ));
        }
        if self.acl_file.is_some() && !self.password.is_empty() {
            return Err(Error::Config(
                "with an ACL file, the password of the user default is in that file: \"user default on >PASSWORD ~* &* +@all\"".into(),
            ));
        }
        if !(1..=CLIENTS_MAX).contains(&self.max_clients) {
            return Err(Error::Config(format!("the maximum number of clients must be 1 to {CLIENTS_MAX}")));
        }
        Ok(())
    }

    /// Returns an error for a server that a database of this engine cannot have.
    pub fn check_engine(&self, engine: EngineKind) -> Result<()> {
        if self.local_fast_path && engine == EngineKind::HashMap {
            return Err(Error::Config("the local fast path needs the arena engine".into()));
        }
        if !engine.evicts(self.eviction) {
            return Err(Error::Config(format!(
                "the hash-map engine does not know how often keys are used, so it cannot evict by {}",
                self.eviction.name()
            )));
        }
        Ok(())
    }
}

/// Whether this process may change the scheduling of others' threads.
fn may_schedule_others() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_NICE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_clients_has_a_limit() {
        let check = |max_clients| ServerConfig { max_clients, ..ServerConfig::default() }.check();
        assert!(check(1).is_ok() && check(CLIENTS_MAX).is_ok());
        for out_of_range in [0, CLIENTS_MAX + 1] {
            let message = check(out_of_range).unwrap_err().to_string();
            assert!(message.contains("1 to 65536"), "{out_of_range}: {message}");
        }
    }
}
