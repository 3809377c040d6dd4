//! Handlers while their database is exchanged: stand-ins fail the events, and nothing that was committed is lost.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_kerneldb::wal::WalConfig;
use bedplate_kerneldb::{Config, Database, Durability, HandlerTarget, Store, StoreConfig};

use crate::{Interfaces, compiled, configs, counts, counts_since, loaded, number, target, until};

/// The events that a handler is attached to.
fn targets(database: &Database, name: &str) -> Vec<HandlerTarget> {
    database.handlers().unwrap().into_iter().find(|handler| handler.name == name).unwrap().targets
}

/// Packets that an interface has sent.
fn sent_packets(interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/tx_packets");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Handlers move from one database to another one. In between, there is none, and stand-ins fail the events.
#[test]
fn stand_ins_fail_events_while_there_is_no_database() {
    let names = ["tc_count", "exec_count", "tick"];
    for config in configs() {
        let net = format!("198.18.{}", std::process::id() % 256);
        let interfaces = Interfaces::new(&format!("{net}.1"));
        let name = interfaces.0.clone();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let events = [
            ("tc_count", target(&format!("tc:{}/egress", interfaces.0))),
            ("exec_count", target("tracepoint:sched_process_exec")),
            ("tick", target("timer:2ms")),
        ];
        let happen = || {
            let _ = socket.send_to(b"packet", format!("{net}.2:9"));
            assert!(Command::new("/bin/true").status().unwrap().success());
        };
        let commit = |database: &Database| {
            for (name, event) in &events {
                assert_eq!(targets(database, name), std::slice::from_ref(event));
                let before = counts(database, name);
                until("events are committed", || {
                    happen();
                    counts_since(&before, database, name).committed > 0
                });
            }
        };
        let database = loaded(config.clone(), &names);
        for (name, event) in &events {
            database.attach_handler(name, event).unwrap();
        }
        commit(&database);
        let suspended = database.suspend_handlers().unwrap();
        let before = names.map(|name| counts(&database, name));
        assert!(names.iter().all(|name| targets(&database, name).is_empty()));
        drop(database);
        let sent = sent_packets(&interfaces.0);
        (0..3).for_each(|_| happen());
        assert_eq!(sent_packets(&interfaces.0), sent, "packets that the handler cannot count are dropped");
        let database = loaded(config, &names);
        database.resume_handlers(suspended);
        for (name, before) in names.iter().zip(&before).take(2) {
            let since = counts_since(before, &database, name);
            assert!(since.failed > 0 && since.last_error.is_some(), "{name}: {since:?}");
        }
        assert_eq!(counts_since(&before[2], &database, "tick").failed, 0, "a timer has no events meanwhile");
        commit(&database);
        // The same database goes on with its own counts.
        (0..100).for_each(|_| happen());
        let before = names.map(|name| counts(&database, name));
        database.resume_handlers(database.suspend_handlers().unwrap());
        for (name, before) in names.iter().zip(&before) {
            let since = counts_since(before, &database, name);
            assert!(since.runs < before.runs, "{name} has counted {before:?} and then {since:?}");
        }
        commit(&database);
        // An interface that is removed is in nobody's way, and one of the same name that comes later has the handler.
        drop(interfaces);
        let suspended = database.suspend_handlers().unwrap();
        let interfaces = Interfaces::again(&name, &format!("{net}.1"));
        database.resume_handlers(suspended);
        commit(&database);
        // Events whose handlers are gone are nobody's any more.
        let suspended = database.suspend_handlers().unwrap();
        database.unload_library("handlers").unwrap();
        database.resume_handlers(suspended);
        let sent = sent_packets(&interfaces.0);
        until("packets pass", || {
            happen();
            sent_packets(&interfaces.0) > sent
        });
    }
}

/// Every commit that a handler has counted is in the database after a change of its configuration.
#[test]
fn a_rebuild_keeps_handlers_and_what_they_have_committed() {
    for config in configs() {
        let net = format!("198.17.{}", std::process::id() % 256);
        let interfaces = Interfaces::new(&format!("{net}.1"));
        let event = target(&format!("tc:{}/egress", interfaces.0));
        let dir = tempfile::tempdir().unwrap();
        let with = |wal: Option<Durability>, versions| StoreConfig {
            database: Config { versions, wal_ring_bytes: 1 << 20, ..config.clone() },
            wal: wal.map(|durability| WalConfig { durability, ..WalConfig::default() }),
            ..StoreConfig::default()
        };
        let (on_disk, _) = Store::open(with(Some(Durability::Async), 4), dir.path(), &mut |_| ()).unwrap();
        let in_memory = Store::in_memory(config.clone()).unwrap();
        for (store, wal) in [(on_disk, Some(Durability::Async)), (in_memory, None)] {
            store.database().load_library("handlers", &compiled(&["tc_count"]), false).unwrap();
            store.database().attach_handler("tc_count", &event).unwrap();
            let ends = AtomicBool::new(false);
            let store = std::thread::scope(|scope| {
                let mut store = store;
                scope.spawn(|| {
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    socket.set_broadcast(true).unwrap();
                    while !ends.load(Ordering::Relaxed) {
                        let _ = socket.send_to(b"packet", format!("{net}.255:9"));
                    }
                });
                let committed = |store: &Store| counts(store.database(), "tc_count").committed;
                for (wal, versions) in [(None, 2), (wal, 4)] {
                    let before = committed(&store);
                    until("packets are counted", || committed(&store) > before + 100);
                    store = store.rebuild(with(wal, versions), &mut |_| ()).unwrap();
                    assert_eq!(targets(store.database(), "tc_count"), std::slice::from_ref(&event));
                }
                // A change that is refused keeps them as well.
                let refused = store.rebuild(with(wal, 65), &mut |_| ()).unwrap_err();
                store = *refused.store.unwrap();
                let before = committed(&store);
                until("packets are counted", || committed(&store) > before + 100);
                ends.store(true, Ordering::Relaxed);
                store
            });
            let database = store.database();
            database.detach_handler("tc_count", &event).unwrap();
            database.wait_for_programs().unwrap();
            let mut session = database.session().unwrap();
            let counted: u64 = (0..=255).map(|first| number(&mut session, &format!("tc:{first}"))).sum();
            let counts = counts(database, "tc_count");
            assert_eq!((counts.committed, counts.committed + counts.failed), (counted, counts.runs));
            assert!(counts.failed > 0, "no packet came during a change");
            database.verify().unwrap();
        }
    }
}
