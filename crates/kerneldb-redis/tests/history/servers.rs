//! Servers whose histories are recorded: in this process, on a disk that can lose power, and in a process that can be killed.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use bedplate_kerneldb::testing::SimulatedDisk;
use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{
    Config, Durability, EngineKind, Store, StoreConfig,
    sdk::{self, Target},
};
use bedplate_kerneldb_redis::server::{Server, ServerHandle};

use crate::server::{Random, config, no_checkpoints, start_on, ways};

/// The settings in which servers differ.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub engine: EngineKind,
    pub partitions: u32,
    /// Versions of each key.
    pub versions: u32,
    /// Age at which the snapshots of readers give way to writers.
    pub snapshot_grace_ms: u64,
    /// The way of answering: an index of [`ways`], modulo their number. On hash maps there is only one.
    pub way: usize,
}

impl Variant {
    pub fn database(&self) -> Config {
        let config = Config {
            engine: self.engine,
            partitions: self.partitions,
            memory_bytes: u64::from(self.partitions) * (64 << 20),
            max_sessions: 256,
            versions: self.versions,
            ..Config::default()
        };
        config.timeouts.snapshot_grace_ms.store(self.snapshot_grace_ms, std::sync::atomic::Ordering::SeqCst);
        config
    }

    pub fn server(&self) -> bedplate_kerneldb_redis::server::ServerConfig {
        if self.engine == EngineKind::HashMap {
            return config();
        }
        let mut ways = ways();
        let way = self.way % ways.len();
        ways.swap_remove(way)
    }

    fn store(&self) -> StoreConfig {
        StoreConfig {
            database: self.database(),
            wal: Some(WalConfig {
                durability: Durability::Sync,
                segment_bytes: 4 << 20,
                ..WalConfig::default()
            }),
            checkpoint: no_checkpoints(),
            ..StoreConfig::default()
        }
    }
}

/// Compiles a C file of eBPF programs for the arena engine against the headers of this build, with further options of the compiler.
pub fn compile(source: &str, options: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    sdk::write_headers(folder.path()).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let compiler = sdk::compiler(Target::Arena, folder.path(), &source, "-".as_ref());
    let output = compiler.unwrap().args(options).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The library with the procedures.
pub fn procedures() -> &'static [u8] {
    static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        sdk::write_headers(folder.path()).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/history/history.bpf.c");
        sdk::compile(folder.path(), &source, &[]).unwrap()
    })
}

/// A server in this process, with durability sync, on a simulated disk.
pub struct LocalServer {
    disk: SimulatedDisk,
    store: Arc<Store>,
    server: ServerHandle,
}

impl LocalServer {
    /// Starts a server with the procedures.
    pub fn start(disk: SimulatedDisk, variant: Variant, procedures: &[u8]) -> LocalServer {
        let (store, server) = start_on(&disk, variant.store(), variant.server());
        store.load_library("history", procedures, false).unwrap();
        LocalServer { disk, store, server }
    }

    pub fn addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Holds replies to writers back, or lets them go.
    pub fn hold_syncs(&self, hold: bool) {
        self.disk.hold_syncs(hold);
    }

    /// The disk after a power failure at this moment.
    pub fn power_failure(&self, random: &mut Random) -> SimulatedDisk {
        self.disk.crash(&mut |n| random.below(n))
    }

    pub fn stop(self) {
        self.disk.hold_syncs(false);
        self.server.shutdown().unwrap();
        self.store.close(false).unwrap();
    }
}

/// A server in a process of its own, with durability sync, on a folder. Dropping it kills it.
pub struct ServerProcess {
    child: Child,
    pub addr: SocketAddr,
}

const ADDRESS: &str = "listening at ";
const FOLDER: &str = "BEDPLATE_TEST_HISTORY_FOLDER";
const WAY: &str = "BEDPLATE_TEST_HISTORY_WAY";

impl ServerProcess {
    /// Runs [`serve_until_killed`] in the test `child` of this program. The folder has the procedures in `history.o`, and the data
    /// in `data`.
    pub fn start(folder: &Path, way: usize) -> ServerProcess {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder)
            .env(WAY, way.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        let addr = lines.find_map(|line| Some(line.split_once(ADDRESS)?.1.parse().unwrap()));
        ServerProcess { child, addr: addr.expect("the server starts") }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The process of [`ServerProcess`]. Without its environment variables, this function does nothing.
pub fn serve_until_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let way = super::number(WAY).unwrap() as usize;
    let engine = EngineKind::Arena;
    let variant = Variant { engine, partitions: 1, versions: 4, snapshot_grace_ms: 3000, way };
    let data = folder.join("data");
    let is_new = !data.exists();
    let store = Store::open(variant.store(), &data, &mut |_| ()).unwrap().0;
    if is_new {
        store.load_library("history", &std::fs::read(folder.join("history.o")).unwrap(), false).unwrap();
    }
    let server = Server::start(Arc::new(store), variant.server()).unwrap();
    println!("{ADDRESS}{}", server.local_addr());
    loop {
        std::thread::park();
    }
}
