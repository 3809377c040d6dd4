//! A server that is upgraded to itself whenever a client asks for it. Only descriptors and files pass from one to the next, as with an exec.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bedplate_kerneldb::{Config, Image, Store, StoreConfig};
use bedplate_kerneldb_redis::server::{Handover, Server, ServerConfig, ServerHandle, Stopper, UpgradeCheck};

use crate::rebuild::work::{Work, check};
use crate::server::{Client, words};

/// Where the data is.
#[derive(Clone)]
pub enum Data {
    Directory(PathBuf),
    Memory,
}

pub struct Upgraded {
    pub addr: SocketAddr,
    stopper: mpsc::Receiver<Stopper>,
    thread: JoinHandle<u32>,
}

/// A configuration with upgrades.
pub fn upgradable(config: ServerConfig) -> ServerConfig {
    ServerConfig { upgrade: Some(UpgradeCheck::new(|| Ok(()))), ..config }
}

impl Upgraded {
    pub fn start(data: Data, store: StoreConfig, config: ServerConfig) -> Upgraded {
        let opened = match &data {
            Data::Directory(path) => Store::open(store.clone(), path, &mut |_| ()).unwrap().0,
            Data::Memory => Store::in_memory(store.database.clone()).unwrap(),
        };
        Upgraded::start_on(opened, data, store, config)
    }

    /// Starts on a store that was opened with this configuration.
    pub fn start_on(opened: Store, data: Data, store: StoreConfig, config: ServerConfig) -> Upgraded {
        let config = upgradable(config);
        let server = Server::start(Arc::new(opened), config.clone()).unwrap();
        let addr = server.local_addr();
        let (tell, stopper) = mpsc::channel();
        tell.send(server.stopper()).unwrap();
        let thread = thread::spawn(move || supervise(server, &data, &store, &config, &tell));
        Upgraded { addr, stopper, thread }
    }

    /// Stops the server; returns how often it was upgraded.
    pub fn stop(self) -> u32 {
        // A client can hear of the next server before this thread does.
        while !self.thread.is_finished() {
            self.stopper.try_iter().for_each(|stopper| stopper.stop());
            thread::sleep(Duration::from_millis(5));
        }
        self.thread.join().unwrap()
    }
}

fn supervise(
    mut server: ServerHandle,
    data: &Data,
    store: &StoreConfig,
    config: &ServerConfig,
    tell: &mpsc::Sender<Stopper>,
) -> u32 {
    let mut upgrades = 0;
    loop {
        let served = server.store();
        let Some(handover) = server.wait().unwrap() else {
            served.get().unwrap().close(matches!(data, Data::Directory(_))).unwrap();
            return upgrades;
        };
        upgrades += 1;
        let old = served.get().unwrap();
        let image = match data {
            Data::Directory(_) => None,
            Data::Memory => Some(old.image().unwrap().to_file().unwrap()),
        };
        old.close(false).unwrap();
        assert_eq!(old.database().claimed_io_buffers(), 0);
        assert_eq!(old.database().stats().active_snapshots, 0);
        drop((old, served));
        let mut preparation = Server::resume(config.clone(), pass(handover)).unwrap();
        let store = preparation.store_config(store.clone());
        let opened = match (data, image) {
            (Data::Directory(path), _) => {
                Store::open_with(store, path, &mut |_| (), &mut |database| preparation.load(database))
                    .unwrap()
                    .0
            }
            (Data::Memory, image) => {
                let image = Image::from_file(image.unwrap()).unwrap();
                Store::open_image(store, &image, &mut |database| preparation.load(database)).unwrap()
            }
        };
        server = preparation.start(Arc::new(opened)).unwrap();
        let _ = tell.send(server.stopper());
    }
}

/// Passes a handover on as an exec does.
fn pass(handover: Handover) -> Handover {
    let file: OwnedFd = handover.save().unwrap();
    std::mem::forget(handover);
    // SAFETY: The handover was forgotten, so nobody else uses its descriptors.
    unsafe { Handover::load(file) }.unwrap()
}

/// The configuration of a store without a data directory.
pub fn in_memory(database: Config) -> StoreConfig {
    StoreConfig { database, ..StoreConfig::default() }
}

/// Upgrades a server while clients work, and restarts it at the end. No request fails, and no data is lost.
pub fn upgrade_under_work(data: Data, store: StoreConfig, config: ServerConfig) {
    let running = Upgraded::start(data.clone(), store.clone(), config.clone());
    let mut admin = Client::new(running.addr);
    admin.ask("SET expiring v EX 1000", "+OK");
    let mut early = Client::new(running.addr);
    early.ask("CLIENT SETNAME early", "+OK");
    early.send(&words("CLIENT ID"));
    let id = early.lines(1).remove(0);
    let number = |text: &str| text[1..].parse::<u64>().unwrap();
    let work = Work::begin(running.addr);
    for _ in 0..3 {
        admin.ask("BEDPLATE UPGRADE", "+OK");
        thread::sleep(Duration::from_millis(100));
        early.ask("CLIENT GETNAME", "$5\r\nearly");
        early.ask("CLIENT ID", &id);
        let mut late = Client::new(running.addr);
        late.send(&words("CLIENT ID"));
        assert!(number(&late.lines(1)[0]) > number(&id));
    }
    let done = work.end();
    check(&mut admin, &done);
    admin.send(&words("TTL expiring"));
    let ttl: u64 = admin.lines(1)[0][1..].parse().unwrap();
    assert!((800..=1000).contains(&ttl), "{ttl}");
    admin.send(&words("INFO stats"));
    let info = admin.until("\r\n\r\n");
    assert!(info.contains("rejected_connections:0"), "{info}");
    drop((admin, early));
    assert_eq!(running.stop(), 3);
    if let Data::Directory(_) = data {
        let running = Upgraded::start(data, store, config);
        check(&mut Client::new(running.addr), &done);
        running.stop();
    }
}
