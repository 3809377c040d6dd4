//! Active expiry and statistics as clients see them.

mod common;
mod server;

use common::can_run;
use server::{Client, Running, config, eventually, start, words};

/// A figure of INFO.
fn info(client: &mut Client, section: &str, name: &str) -> String {
    client.send(format!("INFO {section}\r\n").as_bytes());
    let head = client.lines(1).remove(0);
    let length: usize = head.trim_start_matches('$').parse().unwrap();
    let mut text = vec![0; length + 2];
    std::io::Read::read_exact(&mut client.socket, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")).map(str::to_owned));
    line.unwrap_or_default()
}

fn number(client: &mut Client, section: &str, name: &str) -> u64 {
    let text = info(client, section, name);
    text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}"))
}

fn dbsize(client: &mut Client) -> u64 {
    client.send(b"DBSIZE\r\n");
    client.lines(1)[0].trim_start_matches(':').parse().unwrap()
}

#[test]
fn expired_keys_leave_and_info_says_so() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut c = running.client();
    for key in ["key1", "key2", "key3"] {
        c.ask(&format!("PSETEX {key} 100 a"), "+OK");
    }
    c.ask("SET stays a EX 3600", "+OK");
    c.ask("SET ever a", "+OK");
    eventually("the keys are deleted", || dbsize(&mut c) == 2);
    assert_eq!(number(&mut c, "stats", "expired_keys"), 3);
    eventually("the time to live is known", || {
        let line = info(&mut c, "keyspace", "db0");
        let ttl = line.strip_prefix("keys=2,expires=1,avg_ttl=").unwrap_or_else(|| panic!("{line}"));
        (3_000_000..=3_600_000).contains(&ttl.parse::<u64>().unwrap())
    });
    // A key that is overwritten after its expiry has expired, too.
    c.ask("CONFIG SET active-expire-effort 10", "+OK");
    c.ask("CONFIG GET active-expire-effort", "*2\r\n$20\r\nactive-expire-effort\r\n$2\r\n10");
    assert_eq!(running.db.expire_effort(), 10);
    for refused in ["0", "11"] {
        c.send(format!("CONFIG SET active-expire-effort {refused}\r\n").as_bytes());
        assert!(c.lines(1)[0].starts_with("-ERR CONFIG SET failed"), "{refused}");
    }
    running.db.set_expire_effort(0).unwrap();
    c.ask("SET late a PXAT 1", "+OK");
    c.ask("SET late b", "+OK");
    assert_eq!(number(&mut c, "stats", "expired_keys"), 4);
    assert!(info(&mut c, "stats", "expired_stale_perc").parse::<f64>().unwrap() <= 100.0);
    assert_eq!(number(&mut c, "stats", "expired_time_cap_reached_count"), 0);
    drop(c);
    running.finish();
}

/// INFO's figures, which are the same whether the kernel or the event loop answers.
fn figures(running: &Running, kernel: bool) -> Vec<(&'static str, u64)> {
    let mut c = running.client();
    c.ask("SET k v", "+OK");
    for _ in 0..50 {
        c.ask("GET k", "$1\r\nv");
        c.ask("GET none", "$-1");
    }
    c.ask("MULTI", "+OK");
    c.ask("SET k w", "+QUEUED");
    c.ask("GET k", "+QUEUED");
    c.ask("EXEC", "*2\r\n+OK\r\n$1\r\nw");
    c.ask("BEGIN", "+OK");
    c.ask("COMMIT", "+OK");
    c.ask("PING", "+PONG");
    c.ask("DEL k", ":1");
    let answered = running.server.stats().unwrap().kernel_commands;
    assert_eq!(answered > 100, kernel, "{answered}");
    let calls = |c: &mut Client, name| {
        let line = info(c, "commandstats", &format!("cmdstat_{name}"));
        let calls = line.strip_prefix("calls=").unwrap_or("0").split(',').next().unwrap();
        calls.parse::<u64>().unwrap()
    };
    let mut all = Vec::new();
    for name in ["get", "set", "del", "ping", "multi", "exec", "begin", "commit", "client"] {
        all.push((name, calls(&mut c, name)));
    }
    for name in ["keyspace_hits", "keyspace_misses", "total_net_input_bytes", "total_commands_processed"] {
        all.push((name, number(&mut c, "stats", name)));
    }
    eventually("the rate is seen", || {
        c.ask("PING", "+PONG");
        number(&mut c, "stats", "instantaneous_ops_per_sec") > 0
    });
    let output = number(&mut c, "stats", "total_net_output_bytes");
    assert!(output > 500, "{output}");
    c.ask("CONFIG RESETSTAT", "+OK");
    for name in ["keyspace_hits", "keyspace_misses", "expired_keys"] {
        assert_eq!(number(&mut c, "stats", name), 0, "{name}");
    }
    assert!(number(&mut c, "stats", "total_commands_processed") < 8);
    assert!(number(&mut c, "stats", "total_net_input_bytes") < 200);
    assert_eq!(calls(&mut c, "get"), 0);
    c.ask("GET k", "$-1");
    assert_eq!(number(&mut c, "stats", "keyspace_misses"), 1);
    assert_eq!(calls(&mut c, "get"), 1);
    all
}

#[test]
fn info_counts_what_the_kernel_answers() {
    if !can_run() {
        return;
    }
    let with_kernel = start(config());
    let found = figures(&with_kernel, true);
    with_kernel.finish();
    let without = start(server::config_with(false));
    let expected = figures(&without, false);
    without.finish();
    assert_eq!(found, expected);
    assert!(expected.contains(&("keyspace_hits", 51)) && expected.contains(&("keyspace_misses", 50)));
}

/// A command that changes a value at the moment of its expiry keeps the expiry, or creates a new value. The old value does not become
/// permanent.
#[test]
fn a_changed_value_keeps_its_expiry() {
    if !can_run() {
        return;
    }
    let hash_maps =
        bedplate_kerneldb::Config { engine: bedplate_kerneldb::EngineKind::HashMap, ..common::small() };
    let mut servers: Vec<_> = server::ways().into_iter().map(start).collect();
    servers.push(server::start_with(hash_maps, config()));
    for running in servers {
        let mut c = running.client();
        for command in [
            "INCR k",
            "APPEND k 0",
            "INCRBYFLOAT k 1",
            "SETRANGE k 4 7",
            "SETBIT k 60 1",
            "SET k 2000 XX KEEPTTL",
            "SET k 2000 KEEPTTL GET",
        ] {
            for round in 0..60 {
                c.ask("SET k 1000 PX 3", "+OK");
                std::thread::sleep(std::time::Duration::from_micros(1000 + round * 20));
                let commands = 40;
                let mut all = words(command).repeat(commands);
                all.extend([words("PTTL k"), words("GETRANGE k 0 3")].concat());
                c.send(&all);
                let mut replies = c.replies(commands + 2);
                let (value, left) = (replies.pop().unwrap(), replies.pop().unwrap());
                let is_old = value.starts_with(b"$4") && &value[4..8] >= b"1000".as_slice();
                // SET with GET writes the same value again when the old one has gone.
                let is_new = command.ends_with("GET") && replies.iter().any(|reply| reply == b"$-1\r\n");
                let has_no_expiry = left == b":-1\r\n";
                assert!(
                    !(is_old && has_no_expiry) || is_new,
                    "{command}: {:?}",
                    String::from_utf8_lossy(&value)
                );
                c.send(&words("DEL k"));
                c.replies(1);
            }
        }
        drop(c);
        running.finish();
    }
}
