//! The server as a cache: `maxmemory-policy`, and what clients see of it.

mod common;
mod server;

use std::time::Duration;

use bedplate_kerneldb::{Config, EngineKind, EvictionPolicy};
use bedplate_kerneldb_redis::server::ServerConfig;
use common::{can_run, has_cgroup2};
use server::{Client, Running, config, config_with, request, start_with};

/// Requests sent before their replies are read.
const BATCH: usize = 100;

fn start(config: ServerConfig) -> Running {
    start_with(Config { memory_bytes: 16 << 20, max_sessions: 256, ..Config::default() }, config)
}

/// Writes keys with values of some bytes, and returns how many were refused.
fn write(client: &mut Client, kind: &str, keys: usize, bytes: usize, options: &[&[u8]]) -> usize {
    let value = vec![b'v'; bytes];
    let mut refused = 0;
    for batch in 0..keys / BATCH {
        let mut requests = Vec::new();
        for number in batch * BATCH..(batch + 1) * BATCH {
            let key = format!("{kind}:{number}");
            requests.extend(request(&[&[b"SET".as_slice(), key.as_bytes(), &value], options].concat()));
        }
        client.send(&requests);
        for reply in client.lines(BATCH) {
            assert!(reply == "+OK" || reply.starts_with("-OOM"), "{reply}");
            refused += usize::from(reply != "+OK");
        }
    }
    refused
}

/// A number that INFO shows.
fn info(client: &mut Client, section: &str, name: &str) -> String {
    client.send(&request(&[b"INFO", section.as_bytes()]));
    let text = client.until("\r\n\r\n");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")).map(str::to_owned));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Values that together need several times the memory, of different sizes, on each way to the data.
#[test]
fn writes_find_memory() {
    if !can_run() {
        return;
    }
    let mut ways = vec![config_with(true), config_with(false)];
    if has_cgroup2() {
        ways.push(ServerConfig { local_fast_path: true, ..config() });
    }
    for config in ways {
        let running = start(config);
        let mut client = running.client();
        assert!(write(&mut client, "full", 150_000, 100, &[]) > 0, "without a policy, writes are refused");
        client.ask("CONFIG SET maxmemory-policy allkeys-lru", "+OK");
        for (kind, keys, bytes) in
            [("a", 150_000, 100), ("b", 30_000, 1000), ("c", 2000, 30_000), ("d", 200_000, 8)]
        {
            assert_eq!(write(&mut client, kind, keys, bytes, &[]), 0, "values of {bytes} bytes");
            let newest = format!("EXISTS {kind}:{}", keys - 1);
            client.ask(&newest, ":1");
        }
        assert!(info(&mut client, "stats", "evicted_keys").parse::<u64>().unwrap() > 100_000);
        assert_eq!(info(&mut client, "memory", "maxmemory_policy"), "allkeys-lru");
        client.ask("CONFIG RESETSTAT", "+OK");
        drop(client);
        running.finish();
    }
}

/// Transactions find memory as well, and so do several keys of one command.
#[test]
fn transactions_find_memory() {
    if !can_run() {
        return;
    }
    let running = start(ServerConfig { eviction: EvictionPolicy::AllkeysRandom, ..config() });
    let mut client = running.client();
    let value = "v".repeat(1000);
    for round in 0..1500 {
        client.ask("MULTI", "+OK");
        for number in 0..20 {
            client.ask(&format!("SET k:{round}:{number} {value}"), "+QUEUED");
        }
        client.send(&request(&[b"EXEC"]));
        let replies = client.lines(21);
        assert!(replies[0] == "*20" && replies[1..].iter().all(|reply| reply == "+OK"), "{replies:?}");
        client.ask(&format!("MSET a:{round} {value} b:{round} {value} c:{round} {value}"), "+OK");
        client.ask("BEGIN", "+OK");
        client.ask(&format!("SET d:{round} {value}"), "+OK");
        client.ask("COMMIT", "+OK");
    }
    drop(client);
    running.finish();
}

#[test]
fn only_keys_that_expire() {
    if !can_run() {
        return;
    }
    let running = start(ServerConfig { eviction: EvictionPolicy::VolatileLru, ..config() });
    let mut client = running.client();
    assert_eq!(write(&mut client, "kept", 20_000, 100, &[]), 0);
    assert_eq!(write(&mut client, "cache", 200_000, 100, &[b"EX", b"10000"]), 0);
    for number in 0..20_000 {
        client.send(&request(&[b"EXISTS", format!("kept:{number}").as_bytes()]));
    }
    assert!(client.many_lines(20_000).iter().all(|reply| reply == ":1"));
    assert!(write(&mut client, "more", 200_000, 100, &[]) > 0, "in the end, there is nothing to evict");
    drop(client);
    running.finish();
}

#[test]
fn what_objects_say() {
    if !can_run() {
        return;
    }
    const NO_COUNT: &str = "-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                            switching between policies at runtime LRU and LFU data will take some time to adjust.";
    const NO_TIME: &str = "-ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching \
                           between policies at runtime LRU and LFU data will take some time to adjust.";
    let running = start(ServerConfig { eviction: EvictionPolicy::AllkeysLru, ..config() });
    let mut client = running.client();
    client.ask("SET k v", "+OK");
    client.ask("OBJECT IDLETIME k", ":0");
    client.ask("OBJECT IDLETIME none", "$-1");
    client.ask("OBJECT FREQ k", NO_COUNT);
    std::thread::sleep(Duration::from_millis(2600));
    // None of these is a use of the key.
    client.ask("EXISTS k", ":1");
    client.ask("TTL k", ":-1");
    client.ask("TYPE k", "+string");
    client.send(&request(&[b"OBJECT", b"IDLETIME", b"k"]));
    let idle = client.lines(1).remove(0);
    assert!([":1", ":2", ":3"].contains(&&*idle), "{idle}");
    client.ask("TOUCH k", ":1");
    client.ask("OBJECT IDLETIME k", ":0");

    client.ask("CONFIG SET maxmemory-policy allkeys-lfu lfu-log-factor 0 lfu-decay-time 0", "+OK");
    std::thread::sleep(Duration::from_millis(300));
    client.ask("OBJECT FREQ k", ":5");
    for _ in 0..100 {
        client.ask("GET k", "$1");
        client.lines(1);
    }
    client.ask("OBJECT FREQ k", ":105");
    client.ask("OBJECT FREQ none", "$-1");
    client.ask("OBJECT IDLETIME k", NO_TIME);
    client.ask("MULTI", "+OK");
    client.ask("OBJECT FREQ k", "+QUEUED");
    client.send(&request(&[b"EXEC"]));
    assert_eq!(client.lines(2), ["*1", ":105"]);
    drop(client);
    running.finish();
}

#[test]
fn the_policy_is_a_setting() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut client = running.client();
    for policy in EvictionPolicy::ALL {
        client.ask(&format!("CONFIG SET maxmemory-policy {}", policy.name()), "+OK");
        client.send(&request(&[b"CONFIG", b"GET", b"maxmemory-policy"]));
        assert_eq!(client.lines(5)[4], policy.name());
        assert_eq!(running.db.eviction(), policy);
    }
    client.send(&request(&[b"CONFIG", b"SET", b"maxmemory-policy", b"lru"]));
    let reply = client.lines(1).remove(0);
    assert!(reply.contains("must be one of the following: volatile-lru"), "{reply}");
    client.send(&request(&[b"CONFIG", b"SET", b"lfu-log-factor", b"1000001"]));
    assert!(client.lines(1)[0].contains("out of range"));
    drop(client);
    running.finish();
}

/// Hash maps do not know the use of keys.
#[test]
fn on_hash_maps() {
    if !can_run() {
        return;
    }
    let database = Config {
        engine: EngineKind::HashMap,
        memory_bytes: 16 << 20,
        max_sessions: 256,
        ..Config::default()
    };
    let running = start_with(database, config());
    let mut client = running.client();
    client.send(&request(&[b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru"]));
    let reply = client.lines(1).remove(0);
    assert!(reply.contains("choose a policy at random"), "{reply}");
    client.ask("CONFIG SET maxmemory-policy allkeys-random", "+OK");
    assert_eq!(write(&mut client, "k", 60_000, 100, &[]), 0);
    assert!(info(&mut client, "stats", "evicted_keys").parse::<u64>().unwrap() > 10_000);
    drop(client);
    running.finish();
    let with_policy = ServerConfig { eviction: EvictionPolicy::VolatileLfu, ..config() };
    let error = with_policy.check_engine(EngineKind::HashMap).unwrap_err().to_string();
    assert!(error.contains("cannot evict by volatile-lfu"), "{error}");
}
