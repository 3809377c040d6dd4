//! The server's memory limit, for clients whose values change their size.

mod common;
mod server;

use bedplate_kerneldb::{Config, HeapStats};
use common::can_run;
use server::{Client, Running, config_with, request, start_with};

/// Requests sent before their replies are read.
const BATCH: usize = 50;

/// Sets keys until the server says that it has no memory; returns how many there are.
fn fill(client: &mut Client, bytes: usize, expires: bool) -> usize {
    let value = vec![b'v'; bytes];
    for batch in 0.. {
        let mut requests = Vec::new();
        for number in batch * BATCH..(batch + 1) * BATCH {
            let key = format!("key:{number:012}");
            let mut args: Vec<&[u8]> = vec![b"SET", key.as_bytes(), &value];
            if expires {
                args.extend([b"PX".as_slice(), b"100000000"]);
            }
            requests.extend(request(&args));
        }
        client.send(&requests);
        let refused = client.lines(BATCH).iter().filter(|reply| reply.starts_with("-OOM")).count();
        if refused > 0 {
            return (batch + 1) * BATCH - refused;
        }
    }
    unreachable!()
}

/// A server whose memory is full soon.
fn start_small(kernel_path: bool) -> Running {
    let database = Config { memory_bytes: 24 << 20, max_sessions: 256, ..Config::default() };
    start_with(database, config_with(kernel_path))
}

fn heap_bytes(heap: &HeapStats) -> u64 {
    heap.slab_bytes + heap.free_bytes + heap.unused_bytes
}

#[test]
fn memory_moves_between_all_sizes_of_values() {
    if !can_run() {
        return;
    }
    for kernel_path in [true, false] {
        let running = start_small(kernel_path);
        let mut client = running.client();
        for (bytes, expires) in
            [(128, false), (1024, false), (64, true), (60 << 10, false), (1024, true), (128, false)]
        {
            let keys = fill(&mut client, bytes, expires);
            let heap = running.db.heap_stats();
            let share = heap.allocated_bytes as f64 / heap_bytes(&heap) as f64;
            assert!(share >= 0.85, "{keys} values of {bytes} bytes, only {share:.2} in use: {heap:?}");
            client.ask("FLUSHALL", "+OK");
        }
        client.send(&server::words("INFO memory"));
        let info = client.until("\r\n\r\n");
        for name in
            ["allocator_allocated:", "allocator_active:", "mem_fragmentation_ratio:", "bedplate_free_slabs:"]
        {
            assert!(info.contains(name), "{name} in {info}");
        }
        drop(client);
        running.finish();
    }
}

/// A database that was full once has no unused memory left, but it has free slabs.
#[test]
fn the_kernel_answers_transactions_again_when_a_full_database_has_been_emptied() {
    if !can_run() {
        return;
    }
    let running = start_small(true);
    let mut client = running.client();
    fill(&mut client, 1024, false);
    client.ask("FLUSHALL", "+OK");
    server::eventually("slabs are free", || running.db.heap_stats().free_slabs() > 200);
    let before = running.server.stats().unwrap();
    for _ in 0..10 {
        client.ask("BEGIN", "+OK");
        for number in 0..10 {
            client.ask(&format!("SET key:{number} value"), "+OK");
        }
        client.ask("COMMIT", "+OK");
    }
    let after = running.server.stats().unwrap();
    assert_eq!(after.passed, before.passed, "packets were passed to the event loop");
    drop(client);
    running.finish();
}

/// Locking an absent key takes memory. A command that writes nothing, or only deletes, must not fail
/// when there is none.
#[test]
fn a_full_database_says_what_is_not_there_and_deletes_what_is() {
    if !can_run() {
        return;
    }
    for kernel_path in [true, false] {
        let running = start_small(kernel_path);
        let mut client = running.client();
        fill(&mut client, 20, false);
        client.ask("SET another value", "-OOM command not allowed when used memory > 'maxmemory'.");
        for (command, reply) in [
            ("GETDEL nosuch", "$-1"),
            ("EXPIRE nosuch 10", ":0"),
            ("PERSIST nosuch", ":0"),
            ("GETEX nosuch PERSIST", "$-1"),
            ("RENAME nosuch another", "-ERR no such key"),
            ("UNLINK nosuch neither", ":0"),
            ("INCR nosuch", "-OOM command not allowed when used memory > 'maxmemory'."),
            ("DEL nosuch key:000000000010 neither key:000000000011", ":2"),
            ("EXISTS key:000000000010 key:000000000011 key:000000000012", ":1"),
        ] {
            client.ask(command, reply);
        }
        drop(client);
        running.finish();
    }
}
