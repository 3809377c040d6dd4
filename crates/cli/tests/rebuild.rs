//! Changes options of the database of a real server, and looks for what the old database has left in the kernel.

#[path = "soak/footprint.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod footprint;
mod running;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use footprint::{Footprint, exist, kernel_objects_where};
use redis::Connection;
use running::Server;
use rustix::process::Signal;

fn change(connection: &mut Connection, name: &str, value: &str) {
    let () = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query(connection).unwrap();
}

/// Maps with data of a process's database, as "map 7". Programs that stay with the connections keep other maps.
fn data_maps(process: u32) -> BTreeSet<String> {
    // Hash maps and arenas (BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_ARENA).
    let holds_data = |info: &str| info.lines().any(|line| matches!(line, "map_type:\t1" | "map_type:\t33"));
    kernel_objects_where(process, holds_data)
}

/// The old database's maps leave the kernel, and the server has as many descriptors and threads as before.
#[test]
fn the_old_database_leaves_the_kernel() {
    for options in [
        &["--local-fast-path"][..],
        &["--no-kernel-path"],
        &["--engine", "hash-map"],
        &["--partitions", "2"],
        &["--in-memory"],
    ] {
        let data = tempfile::tempdir().unwrap();
        let server = Server::start(data.path(), options);
        let mut connection = server.connect();
        let value = "v".repeat(10_000);
        for i in 0..500 {
            let () = redis::cmd("SET").arg(i).arg(&value).query(&mut connection).unwrap();
        }
        let before = Footprint::of(server.process(), 0);
        for (name, value) in
            [("versions", "8"), ("maxmemory", "96mb"), ("versions", "4"), ("maxmemory", "64mb")]
        {
            let old = data_maps(server.process());
            change(&mut connection, name, value);
            let new = data_maps(server.process());
            let gone: Vec<&String> = old.difference(&new).collect();
            assert!(!gone.is_empty(), "{options:?}: {name} has replaced nothing");
            let since = Instant::now();
            while exist(&gone) {
                assert!(since.elapsed() < Duration::from_secs(60), "{options:?}: of {gone:?} some are left");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let after = Footprint::of(server.process(), 0);
        // The first object with the server's programs is gone, too.
        assert!(after.descriptors <= before.descriptors, "{options:?}: {before:?} {after:?}");
        assert_eq!(after.threads, before.threads, "{options:?}");
        let kept: String = redis::cmd("GET").arg(499).query(&mut connection).unwrap();
        assert_eq!(kept, value);
        drop(connection);
        let (code, said) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{said}");
    }
}

/// A log that was switched on while the server ran is the log of the next start, and without one, the end saves the data.
#[test]
fn durability_that_was_changed_counts_at_the_end() {
    let data = tempfile::tempdir().unwrap();
    for (start, changed) in [("async", "no"), ("off", "yes"), ("sync", "no"), ("off", "yes")] {
        let server = Server::start(data.path(), &["--durability", start]);
        let mut connection = server.connect();
        change(&mut connection, "appendonly", changed);
        let count: u64 = redis::cmd("INCR").arg("n").query(&mut connection).unwrap();
        if changed == "yes" {
            let done: Vec<u64> = redis::cmd("WAITAOF").arg(1).arg(0).arg(0).query(&mut connection).unwrap();
            assert_eq!(done, [1, 0]);
            // Nothing but the log has this.
            server.end(Signal::KILL);
        } else {
            let refused = redis::cmd("WAITAOF").arg(1).arg(0).arg(0).query::<Vec<u64>>(&mut connection);
            assert!(refused.unwrap_err().to_string().contains("appendonly is disabled"));
            let (code, said) = server.end(Signal::TERM);
            assert_eq!(code, Some(0), "{said}");
        }
        let server = Server::start(data.path(), &[]);
        let kept: u64 = redis::cmd("GET").arg("n").query(&mut server.connect()).unwrap();
        assert_eq!(kept, count, "{start}, appendonly {changed}");
        server.end(Signal::TERM);
    }
}
