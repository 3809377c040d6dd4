//! The slow log, against a real Redis.

use bedplate_suite_support::redis::Redis;

use super::redis::RedisClient;
use super::{Client, encode, one};
use crate::command::Startup;
use crate::command::tests::model::Model;

/// A reply without the numbers of entries, times and addresses. It must not have six entries, because an entry has six fields.
fn normalize(reply: &str) -> String {
    let lines: Vec<&str> = reply.split("\r\n").collect();
    let mut normal = Vec::new();
    let mut i = 0;
    while i < lines.len() {
        let is_entry = lines[i] == "*6" && lines.get(i + 3).is_some_and(|line| line.starts_with(':'));
        normal.push(if lines[i].starts_with("127.0.0.1:") { "ADDRESS" } else { lines[i] });
        i += if is_entry { 4 } else { 1 };
    }
    // The lengths of addresses differ.
    normal
        .into_iter()
        .filter(|line| !["$11", "$13", "$14", "$15"].contains(line))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn entries_are_those_of_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    let many = (0..40).map(|i| format!("k{i}")).collect::<Vec<_>>().join(" ");
    let lines = [
        "CONFIG GET slowlog-log-slower-than",
        "CONFIG GET slowlog-max-len",
        "CONFIG SET slowlog-log-slower-than 0",
        "CLIENT SETNAME me",
        "SLOWLOG RESET",
        "SET a 1",
        "get a",
        "INCR nosuch x",
        "NOSUCH",
        "MULTI",
        "SET b 2",
        "INCR b",
        "APPEND b x",
        "INCR b",
        "EXEC",
        "EXEC",
        "MULTI",
        "NOSUCH",
        "EXEC",
        "AUTH x",
        "AUTH x y",
        "HELLO 2 AUTH x y SETNAME z",
        "CONFIG SET requirepass \"\"",
        "SLOWLOG GET -1",
        "SLOWLOG LEN",
        "SLOWLOG GET",
        "SLOWLOG GET 0",
        "SLOWLOG GET 3",
        "SLOWLOG GET -2",
        "SLOWLOG GET x",
        "SLOWLOG GET 1 2",
        "SLOWLOG FOO",
        "SLOWLOG",
        "SLOWLOG RESET x",
        &format!("MGET {many}"),
        &format!("MGET {}", &many[..many.find(" k31").unwrap()]),
        &format!("MGET {}", &many[..many.find(" k32").unwrap()]),
        &format!("ECHO {}", "x".repeat(128)),
        &format!("ECHO {}", "x".repeat(129)),
        &format!("ECHO {}", "x".repeat(1129)),
        "SLOWLOG GET 7",
        "CONFIG SET slowlog-max-len 3",
        "SLOWLOG LEN",
        "SLOWLOG GET -1",
        "CONFIG SET slowlog-max-len 0",
        "SLOWLOG LEN",
        "CONFIG SET slowlog-max-len 128",
        "CONFIG SET slowlog-log-slower-than -1",
        "SLOWLOG RESET",
        "PING",
        "SLOWLOG LEN",
        "CONFIG SET slowlog-log-slower-than 1000000000",
        "PING",
        "SLOWLOG LEN",
    ];
    for line in lines {
        let own = ours.send(line);
        let theirs = String::from_utf8(redis.call(format!("{line}\r\n").as_bytes())).unwrap();
        assert_eq!(normalize(&own), normalize(&theirs), "{line}");
    }
}

/// Commands of scripts, of which Redis says that they come from no client.
#[test]
fn commands_of_scripts_are_logged_before_the_script() {
    let mut client = one();
    client.send("CONFIG SET slowlog-log-slower-than 0");
    client.send("SLOWLOG RESET");
    client.feed(&encode(&["EVAL", "redis.call('set', 'a', 1) return redis.pcall('incr', 'a')", "0"]));
    client.take();
    let log = client.send("SLOWLOG GET 3");
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text}: {log}"));
    assert!(
        at("EVAL") < at("incr\r\n$1\r\na") && at("incr\r\n$1\r\na") < at("set\r\n$1\r\na\r\n$1\r\n1"),
        "{log}"
    );
}

/// A command that is rolled back and executed again is logged once, with the time since its first attempt.
#[test]
fn a_command_that_waits_for_a_lock_is_logged_once() {
    let model = Model::new(Startup::default());
    let (mut holder, mut client) = (Client::new(&model), Client::new(&model));
    // The threshold is high, so that other commands do not reach it on a busy machine.
    client.send("CONFIG SET slowlog-log-slower-than 200000");
    for (lines, logged) in [
        (vec!["INCR k"], vec!["INCR"]),
        (vec!["MULTI", "SET a 1", "INCR k", "EXEC"], vec![]),
        (vec!["EVAL \"redis.call('set', 'a', 1) redis.call('incr', 'k')\" 0"], vec!["EVAL"]),
    ] {
        client.send("SLOWLOG RESET");
        holder.send("BEGIN");
        holder.send("SET k 1");
        let (last, first) = lines.split_last().unwrap();
        first.iter().for_each(|line| drop(client.send(line)));
        client.feed(format!("{last}\r\n").as_bytes());
        assert_eq!(client.take(), "", "it waits");
        std::thread::sleep(std::time::Duration::from_millis(250));
        client.process();
        holder.send("COMMIT");
        client.finish();
        assert!(!client.take().starts_with('-'));
        assert_eq!(client.send("SLOWLOG LEN"), format!(":{}\r\n", logged.len()));
        let log = client.send("SLOWLOG GET");
        assert!(logged.iter().all(|name| log.contains(name)), "{log}");
    }
}

#[test]
fn one_past_the_limit_on_entries_is_an_error() {
    let mut client = one();
    assert_eq!(client.send("CONFIG SET slowlog-max-len 10000"), "+OK\r\n");
    let error = client.send("CONFIG SET slowlog-max-len 10001");
    assert!(error.contains("argument is out of range"), "{error}");
    assert!(client.send("CONFIG SET slowlog-max-len -1").starts_with("-ERR CONFIG SET failed"));
    assert!(client.send("CONFIG SET slowlog-log-slower-than -2").starts_with("-ERR CONFIG SET failed"));
}
