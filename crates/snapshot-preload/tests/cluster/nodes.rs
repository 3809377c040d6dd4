//! The servers of a cluster, each with its own folder, and operations on all of them.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::{Server, Statistics, bgsave, info, saved, wait_for_replica};

/// Masters; each has one replica.
pub const MASTERS: usize = 3;
const NODES: usize = 2 * MASTERS;

/// The time after which a node that does not answer counts as failed. Even on a busy machine, a node must not be late for this
/// long.
const NODE_TIMEOUT_MILLIS: u32 = 8000;

/// The time within which the nodes must agree.
const PATIENCE: Duration = Duration::from_secs(600);

/// A node also listens on this much above its port.
const BUS_OFFSET: u16 = 10_000;

/// Ports below those that the kernel gives to clients, even with `BUS_OFFSET`.
const PORTS: std::ops::Range<u16> = 14_000..20_000;

/// A server of a cluster.
pub struct Node {
    pub server: Server,
    pub folder: TempDir,
    /// The cluster's name for the node.
    pub id: String,
}

/// All servers of a cluster.
pub struct Cluster {
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// Starts the servers under the library and makes them a cluster.
    pub fn start() -> Self {
        let mut cluster = Self { nodes: Vec::new() };
        let mut ports = PORTS.filter(|port| both_are_free(*port));
        for _ in 0..NODES {
            let folder = tempfile::tempdir().unwrap();
            let server = start(ports.next().expect("no free ports"), &folder);
            let id = redis::cmd("CLUSTER").arg("MYID").query(&mut server.connect()).unwrap();
            cluster.nodes.push(Node { server, folder, id });
        }
        let addresses = cluster.addresses();
        let mut arguments = vec!["create"];
        arguments.extend(addresses.iter().map(String::as_str));
        arguments.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        Cli::start(&arguments).wait();
        cluster.wait_until_agreed();
        cluster
    }

    /// The addresses of all nodes.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(Node::address).collect()
    }

    /// The nodes that are masters now.
    pub fn masters(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_master()).collect()
    }

    /// The replica of a master.
    pub fn replica_of(&self, master: usize) -> usize {
        let port = self.nodes[master].server.port.to_string();
        let follows = |node: &Node| {
            !node.is_master() && info(&mut node.server.connect(), "replication", "master_port") == port
        };
        self.nodes.iter().position(follows).expect("every master has a replica")
    }

    /// Waits until all slots are served, every replica follows its master, and all nodes agree on the assignment of slots.
    pub fn wait_until_agreed(&self) {
        wait_for("the nodes do not agree", || {
            let is_well = |node: &Node| {
                let mut connection = node.server.connect();
                let text: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection).unwrap();
                text.contains("cluster_state:ok")
                    && text.contains(&format!("cluster_known_nodes:{NODES}"))
                    && (node.is_master()
                        || info(&mut connection, "replication", "master_link_status") == "up")
            };
            let check = || {
                let mut check = Command::new("redis-cli");
                check
                    .args(["--cluster", "check", &self.nodes[0].address()])
                    .output()
                    .unwrap()
                    .status
                    .success()
            };
            self.masters().len() == MASTERS && self.nodes.iter().all(is_well) && check()
        });
    }

    /// Waits until every replica has all writes of its master. No client may write meanwhile.
    pub fn wait_for_replicas(&self) {
        for master in self.masters() {
            let replica = self.replica_of(master);
            wait_for_replica(&self.nodes[master].server, &self.nodes[replica].server);
        }
    }

    /// Begins to move slots from a master to another one.
    pub fn begin_resharding(&self, from: usize, to: usize, slots: u32) -> Cli {
        let [from, to] = [&self.nodes[from], &self.nodes[to]];
        let (address, slots) = (from.address(), slots.to_string());
        Cli::start(&[
            "reshard",
            &address,
            "--cluster-from",
            &from.id,
            "--cluster-to",
            &to.id,
            "--cluster-slots",
            &slots,
            "--cluster-yes",
        ])
    }

    /// All masters save at the same time.
    pub fn save(&self) {
        let masters = self.masters();
        let mut connections: Vec<_> = masters.iter().map(|node| self.nodes[*node].server.connect()).collect();
        connections.iter_mut().for_each(bgsave);
        for connection in &mut connections {
            assert_eq!(saved(connection), "ok");
        }
    }

    /// Kills a master, and waits until its replica has replaced it.
    pub fn fail_over(&mut self, master: usize, replica: usize) {
        let node = &mut self.nodes[master];
        node.server.process.kill().unwrap();
        node.server.process.wait().unwrap();
        wait_for("the replica does not become a master", || {
            let text = |node: &Node| -> String {
                redis::cmd("CLUSTER").arg("INFO").query(&mut node.server.connect()).unwrap()
            };
            let mut others = self.nodes.iter().enumerate().filter(|(node, _)| *node != master);
            self.nodes[replica].is_master() && others.all(|(_, node)| text(node).contains("cluster_state:ok"))
        });
    }

    /// Restarts a node that was killed.
    pub fn restart(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.server = start(node.server.port, &node.folder);
    }

    /// Ends all servers and returns their statistics, in the order of the nodes.
    pub fn stop(self) -> Vec<Statistics> {
        self.nodes.into_iter().map(|node| node.server.stop(node.folder.path())).collect()
    }
}

impl Node {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server.port)
    }

    fn is_master(&self) -> bool {
        info(&mut self.server.connect(), "replication", "role") == "master"
    }

    /// Whether each of these keys is in a slot that this node serves.
    pub fn serves(&self, keys: &[String]) -> Vec<bool> {
        let mut connection = self.server.connect();
        let text: String = redis::cmd("CLUSTER").arg("NODES").query(&mut connection).unwrap();
        let line = text.lines().find(|line| line.contains("myself")).unwrap();
        // A range is FIRST-LAST or a number.
        let ranges: Vec<(u16, u16)> = line
            .split_whitespace()
            .skip(8)
            .map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap(), last.parse().unwrap())
            })
            .collect();
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd("CLUSTER").arg("KEYSLOT").arg(key);
        }
        let slots: Vec<u16> = pipeline.query(&mut connection).unwrap();
        slots.iter().map(|slot| ranges.iter().any(|(first, last)| (first..=last).contains(&slot))).collect()
    }
}

fn start(port: u16, folder: &TempDir) -> Server {
    let timeout = NODE_TIMEOUT_MILLIS.to_string();
    // Saving takes a while, so that writes occur during it.
    let options = [
        ["--cluster-enabled", "yes"],
        ["--cluster-node-timeout", &timeout],
        ["--repl-diskless-sync-delay", "0"],
        ["--rdb-key-save-delay", "100"],
    ];
    Server::start_on(port, "redis-server", folder.path(), Some("remap"), options.as_flattened())
}

fn both_are_free(port: u16) -> bool {
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    is_free(port) && is_free(port + BUS_OFFSET)
}

/// A running `redis-cli` for the cluster. It is killed when dropped.
pub struct Cli {
    process: Child,
    /// Its output, which is more than a pipe holds.
    said: File,
}

impl Cli {
    fn start(arguments: &[&str]) -> Self {
        let said = tempfile::tempfile().unwrap();
        let mut command = Command::new("redis-cli");
        command.arg("--cluster").args(arguments).stdin(Stdio::null());
        command.stdout(said.try_clone().unwrap()).stderr(said.try_clone().unwrap());
        Self { process: command.spawn().unwrap(), said }
    }

    /// Whether it has ended. If so, it must have been successful.
    pub fn has_ended(&mut self) -> bool {
        let Some(status) = self.process.try_wait().unwrap() else { return false };
        assert!(status.success(), "redis-cli: {status}\n{}", self.said());
        true
    }

    fn wait(&mut self) {
        let limit = Instant::now() + PATIENCE;
        while !self.has_ended() {
            assert!(Instant::now() < limit, "redis-cli does not end:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn said(&mut self) -> String {
        let mut text = String::new();
        self.said.rewind().unwrap();
        self.said.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Cli {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wait_for(failure: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < limit, "{failure}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
