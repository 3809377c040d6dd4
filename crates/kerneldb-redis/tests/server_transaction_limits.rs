//! Tests the limits on transactions as clients see them, with the kernel's answers and without, and in CONFIG and INFO.

mod common;
mod server;

use std::sync::atomic::Ordering::Relaxed;

use bedplate_kerneldb::Config;
use common::{can_run, small};
use server::{Client, Running, config_with, eventually, start_with, words};

const TIMED_OUT: &str = "-TXFAILED the transaction exceeded its time limit and was rolled back";

/// Servers with and without answers of the kernel, of one partition and of three.
fn servers() -> Vec<Running> {
    if !can_run() {
        return Vec::new();
    }
    let three = Config { partitions: 3, memory_bytes: 96 << 20, ..small() };
    [(true, small()), (false, small()), (true, three)]
        .map(|(kernel_path, database)| {
            start_with(Config { max_sessions: 256, ..database }, config_with(kernel_path))
        })
        .into()
}

/// Repeats a request until its reply is `wanted`.
fn until(client: &mut Client, line: &str, wanted: &str) {
    eventually(&format!("{line} is answered with {wanted}"), || {
        client.send(&words(line));
        client.lines(1) == [wanted]
    });
}

/// A client that is silent after BEGIN and SET loses its locks. Any next command gets an error.
#[test]
fn a_silent_transaction_lets_another_client_write() {
    for running in servers() {
        let (mut silent, mut other) = (running.client(), running.client());
        let commands = [
            "GET k2",
            "SET k2 3",
            "DEL k2",
            "EXISTS k2",
            "INCR k2",
            "GETSET k2 3",
            "EXPIRE k2 100",
            "MGET k1 k2",
        ];
        let commands = commands.map(|command| (command, TIMED_OUT));
        for (next, reply) in commands.into_iter().chain([("COMMIT", TIMED_OUT), ("ROLLBACK", "+OK")]) {
            other.ask("CONFIG SET transaction-idle-timeout 0", "+OK");
            silent.ask("BEGIN", "+OK");
            for key in ["k1", "k2", "k3", "k4", "k5"] {
                silent.ask(&format!("SET {key} silent"), "+OK");
            }
            other.send(&words("SET k1 other"));
            assert_eq!(other.lines(1), ["-CONFLICT conflict with another transaction"]);
            other.ask("CONFIG SET transaction-idle-timeout 50", "+OK");
            for key in ["k1", "k2", "k3", "k4", "k5"] {
                until(&mut other, &format!("SET {key} other"), "+OK");
            }
            silent.ask(next, reply);
            if next.contains(' ') {
                silent.ask("PING", "+PONG");
                silent.ask("COMMIT", TIMED_OUT);
            }
            silent.ask("GET k2", "$5\r\nother");
        }
        assert_eq!(running.db.stats().transactions_timed_out, 10);
        drop((silent, other));
        let db = running.db.clone();
        running.finish();
        db.verify().unwrap();
    }
}

/// The limits concern transactions, not requests that wait between MULTI and EXEC.
#[test]
fn a_silent_multi_is_not_affected() {
    for running in servers() {
        let (mut silent, mut other) = (running.client(), running.client());
        other.ask("CONFIG SET transaction-idle-timeout 300 transaction-timeout 3000", "+OK");
        silent.ask("MULTI", "+OK");
        silent.ask("SET k 1", "+QUEUED");
        other.ask("BEGIN", "+OK");
        // When another transaction has timed out, this one would have timed out as well.
        eventually("a transaction times out", || running.db.stats().transactions_timed_out > 0);
        silent.ask("GET k", "+QUEUED");
        silent.ask("EXEC", "*2\r\n+OK\r\n$1\r\n1");
        other.ask("ROLLBACK", "+OK");
        drop((silent, other));
        running.finish();
    }
}

#[test]
fn a_transaction_that_writes_too_much_is_told_so() {
    for running in servers() {
        let mut client = running.client();
        client.ask("BEGIN", "+OK");
        let value = "v".repeat(30_000);
        let mut refused = None;
        for i in 0..600 {
            client.send(&words(&format!("SET k {value}")));
            let reply = client.lines(1).remove(0);
            if reply != "+OK" {
                refused = Some((i, reply));
                break;
            }
        }
        // 56 bytes are counted for a write besides its key and value.
        let writes = (16 << 20) / (30_000 + 1 + 56);
        let message = "-ERR the transaction writes more than 16777216 bytes".to_owned();
        assert_eq!(refused, Some((writes, message)));
        client.send(&words("SET k 1"));
        assert!(client.lines(1)[0].starts_with("-TXFAILED"));
        client.ask("ROLLBACK", "+OK");
        client.ask("GET k", "$-1");
        drop(client);
        running.finish();
    }
}

/// Read-only transactions at four moments stop the writer of a key until the first one gives way.
#[test]
fn an_old_snapshot_gives_way_to_a_writer() {
    for running in servers() {
        let mut writer = running.client();
        writer.ask("CONFIG SET snapshot-grace 0 lock-timeout 0", "+OK");
        let mut readers = Vec::new();
        for i in 0..4 {
            writer.ask(&format!("SET k {i}"), "+OK");
            let mut reader = running.client();
            reader.ask("BEGIN READ ONLY", "+OK");
            reader.ask("GET k", &format!("$1\r\n{i}"));
            readers.push(reader);
        }
        writer.ask("SET k new", "-TRYAGAIN all versions of the key are in use by read-only transactions");
        writer.ask("CONFIG SET snapshot-grace 1", "+OK");
        until(&mut writer, "SET k new", "+OK");
        assert_eq!(running.db.stats().snapshots_revoked, 1);
        readers[0].ask("GET k", "-TXFAILED the snapshot is too old: a writer needed its versions");
        readers[0].send(&words("GET k"));
        assert!(readers[0].lines(1)[0].starts_with("-TXFAILED"));
        readers[0].ask("ROLLBACK", "+OK");
        readers[0].ask("GET k", "$3\r\nnew");
        for (i, reader) in readers.iter_mut().enumerate().skip(1) {
            reader.ask("GET k", &format!("$1\r\n{i}"));
            reader.ask("COMMIT", "+OK");
        }
        drop((writer, readers));
        running.finish();
    }
}

#[test]
fn config_and_info_show_the_limits() {
    for running in servers().into_iter().take(1) {
        let mut client = running.client();
        for (name, default, line) in [
            ("transaction-timeout", "600000", "transaction_timeout_ms"),
            ("transaction-idle-timeout", "60000", "transaction_idle_timeout_ms"),
            ("snapshot-grace", "3000", "snapshot_grace_ms"),
            ("scan-grace", "900000", "scan_grace_ms"),
        ] {
            client.ask(
                &format!("CONFIG GET {name}"),
                &format!("*2\r\n${}\r\n{name}\r\n${}\r\n{default}", name.len(), default.len()),
            );
            client.ask(&format!("CONFIG SET {name} 1234567"), "+OK");
            client.send(&words("INFO bedplate"));
            let header = client.lines(1).remove(0);
            let bytes: usize = header[1..].parse().unwrap();
            let mut text = vec![0; bytes + 2];
            std::io::Read::read_exact(&mut client.socket, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains(&format!("{line}:1234567\r\n")), "{text}");
            assert!(text.contains("transactions_timed_out:0\r\n"), "{text}");
            assert!(text.contains("snapshots_revoked:0\r\n"), "{text}");
            client.send(&words(&format!("CONFIG SET {name} -1")));
            assert!(client.lines(1)[0].starts_with("-ERR"));
        }
        assert_eq!(running.db.timeouts().scan_grace_ms.load(Relaxed), 1_234_567);
        drop(client);
        running.finish();
    }
}
