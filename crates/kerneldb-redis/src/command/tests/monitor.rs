//! MONITOR, against a real Redis, and its limits.

use bedplate_suite_support::redis::Redis;

use super::redis::RedisClient;
use super::{Client, encode, one};
use crate::command::Startup;
use crate::command::tests::model::Model;
use crate::limits::{MONITOR_BACKLOG_BYTES_MAX, MONITORS_BACKLOG_BYTES_MAX};

/// The commands of a monitor's lines, without times and addresses: `client` or `lua`, and the arguments.
fn commands(lines: &str) -> Vec<String> {
    let command = |line: &str| {
        let (time, rest) =
            line.strip_prefix('+').unwrap().split_once(" [0 ").unwrap_or_else(|| panic!("{line}"));
        let (seconds, micros) = time.split_once('.').unwrap();
        assert!(seconds.parse::<u64>().unwrap() > 1_700_000_000 && micros.len() == 6, "{line}");
        let (source, args) = rest.split_once("] ").unwrap();
        assert!(source == "lua" || source.starts_with("127.0.0.1:"), "{line}");
        format!("{} {args}", if source == "lua" { source } else { "client" })
    };
    lines.split_terminator("\r\n").map(command).collect()
}

/// A model, a client of it, and a monitor.
fn observed() -> (Client, Client) {
    let model = Model::new(Startup::default());
    let (client, mut monitor) = (Client::new(&model), Client::new(&model));
    assert_eq!(monitor.send("MONITOR"), "+OK\r\n");
    (client, monitor)
}

fn seen(monitor: &mut Client) -> Vec<String> {
    monitor.process();
    commands(&monitor.take())
}

/// The monitor for which most bytes wait is closed when all of them together have too many.
#[test]
fn monitors_have_a_limit_together() {
    let model = Model::new(Startup::default());
    let mut client = Client::new(&model);
    let count = MONITORS_BACKLOG_BYTES_MAX / MONITOR_BACKLOG_BYTES_MAX + 2;
    let mut monitors: Vec<Client> = (0..count).map(|_| Client::new(&model)).collect();
    monitors.iter_mut().for_each(|monitor| drop(monitor.send("MONITOR")));
    let part = vec![b'x'; MONITOR_BACKLOG_BYTES_MAX / 128];
    for _ in 0..120 {
        client.feed(&encode(&[b"ECHO".as_slice(), &part]));
        client.take();
    }
    let killed = monitors.iter().filter(|monitor| monitor.connection.client().killed()).count();
    assert_eq!(killed, 2, "75 MiB are 11 MiB too many, and each monitor has 7.5 MiB");
}

#[test]
fn lines_are_those_of_redis() {
    let Some(server) = Redis::start() else { return };
    let (mut redis, mut redis_monitor) =
        (RedisClient::connect(server.addr()), RedisClient::connect(server.addr()));
    assert_eq!(redis_monitor.call(b"MONITOR\r\n"), b"+OK\r\n");
    let (mut ours, mut monitor) = observed();
    let lines = [
        "SET a b",
        "get a",
        "GET",
        "NOSUCH",
        "AUTH x",
        "AUTH x y",
        "HELLO 3 AUTH u p SETNAME x",
        "CONFIG GET port",
        "CONFIG SET slowlog-max-len 128",
        "CLIENT ID x",
        "CLIENT NO-EVICT on",
        "CLIENT GETNAME",
        "MULTI",
        "SET x 1",
        "INCR a",
        "CONFIG GET port",
        "INCR x",
        "EXEC",
        "EXEC",
        "MULTI",
        "NOSUCH",
        "EXEC",
        "WATCH x",
        "SET x 5",
        "MULTI",
        "SET y 1",
        "EXEC",
        "DISCARD",
        r#"SET bin "a\"\\\r\n\t\a\b\x00\x1f\x7f\xff ok'""#,
        r#"EVAL "redis.call('set', KEYS[1], 1) redis.pcall('incr', 'a') redis.pcall('get') return redis.call('GET', KEYS[1])" 1 k"#,
        "EVAL 'return 1' x",
        "EVALSHA ffff 0",
        "FCALL nosuch 0",
        "SCRIPT EXISTS ffff",
        "SLOWLOG LEN",
        "SAVE x",
        "SHUTDOWN x",
        "ECHO x",
        "SELECT 0",
        "FLUSHALL",
        "DBSIZE",
        "MEMORY USAGE nosuch",
        "DUMP nosuch",
        "RESTORE k 0 x",
        "RESET",
        "PING",
    ];
    for line in lines {
        ours.send(line);
        redis.call(format!("{line}\r\n").as_bytes());
    }
    let mut theirs = String::new();
    while !theirs.ends_with("\"PING\"\r\n") {
        theirs += &String::from_utf8(redis_monitor.call(b"")).unwrap();
    }
    assert_eq!(seen(&mut monitor), commands(&theirs));
}

#[test]
fn a_monitor_cannot_touch_keys_and_ends_by_reset() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    // The lines of its own commands are not compared here: they come behind the replies.
    for line in [
        "MONITOR",
        "GET a",
        "SET a 1",
        "EVAL 'return 1' 0",
        "KEYS *",
        "DBSIZE",
        "CONFIG GET databases0",
        "MONITOR x",
    ] {
        assert_eq!(ours.send(line).as_bytes(), redis.call(format!("{line}\r\n").as_bytes()), "{line}");
    }
    assert!(ours.send("CLIENT INFO").contains(" flags=O "));
    assert!(ours.send("RESET").contains("+RESET\r\n"));
    assert!(ours.send("CLIENT INFO").contains(" flags=N "));
    assert_eq!(ours.send("GET a"), "$-1\r\n");
    assert_eq!(ours.send("MULTI"), "+OK\r\n");
    assert_eq!(ours.send("MONITOR"), "+QUEUED\r\n");
    assert_eq!(ours.send("EXEC"), "*1\r\n-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n");
    ours.send("BEGIN");
    assert_eq!(ours.send("MONITOR"), "-ERR MONITOR inside BEGIN is not allowed\r\n");
    ours.send("ROLLBACK");
    assert_eq!(ours.send("PING"), "+PONG\r\n");
}

/// A monitor gets the replies to its own commands, and the lines of these behind them.
#[test]
fn a_monitor_sees_its_own_commands() {
    let (mut client, mut monitor) = observed();
    let replies = monitor.send("PING");
    assert!(replies.starts_with("+PONG\r\n+") && replies.ends_with(" \"PING\"\r\n"), "{replies}");
    client.send("SET a 1");
    let (mut second, _) = (Client::with(monitor.services.session(), monitor.services.clone()), ());
    assert_eq!(second.send("MONITOR"), "+OK\r\n");
    assert_eq!(seen(&mut monitor), [r#"client "SET" "a" "1""#]);
    client.send("GET a");
    for monitor in [&mut monitor, &mut second] {
        assert_eq!(seen(monitor), [r#"client "GET" "a""#]);
    }
    assert_eq!(monitor.send("MONITOR"), "", "as in Redis");
}

/// A transaction that is rolled back and runs again is seen once.
#[test]
fn a_command_that_is_tried_again_is_seen_once() {
    let (mut client, mut monitor) = observed();
    let mut holder = Client::with(monitor.services.session(), monitor.services.clone());
    for (lines, expected) in [
        (vec!["INCR k"], vec![r#"client "INCR" "k""#]),
        (
            vec!["MULTI", "SET a 1", "INCR k", "EXEC"],
            vec![r#"client "SET" "a" "1""#, r#"client "INCR" "k""#, r#"client "EXEC""#],
        ),
        (
            vec![r#"EVAL "redis.call('set', 'a', 1) redis.call('incr', 'k')" 0"#],
            vec![
                r#"client "EVAL" "redis.call('set', 'a', 1) redis.call('incr', 'k')" "0""#,
                r#"lua "set" "a" "1""#,
                r#"lua "incr" "k""#,
            ],
        ),
    ] {
        holder.send("BEGIN");
        holder.send("SET k 1");
        let (last, first) = lines.split_last().unwrap();
        first.iter().for_each(|line| drop(client.send(line)));
        seen(&mut monitor);
        client.feed(format!("{last}\r\n").as_bytes());
        client.process();
        assert_eq!(seen(&mut monitor), Vec::<String>::new(), "it waits");
        holder.send("COMMIT");
        client.finish();
        assert!(!client.take().starts_with('-'));
        let all = seen(&mut monitor);
        assert_eq!(
            all,
            [vec![r#"client "COMMIT""#.to_owned()], expected.iter().map(|s| (*s).to_owned()).collect()]
                .concat()
        );
    }
}

/// A monitor that has as many bytes of lines as it may have stays, and one with more is closed.
#[test]
fn a_monitor_that_does_not_read_is_closed() {
    let (mut client, mut monitor) = observed();
    let line = |monitor: &mut Client, client: &mut Client, bytes: usize| {
        client.feed(&encode(&[b"ECHO", &vec![b'x'; bytes][..]]));
        client.take();
        monitor.connection.client().killed()
    };
    assert!(!line(&mut monitor, &mut client, 0));
    monitor.process();
    // Times have the same length in every line.
    let around = monitor.take().len();
    let bytes = 1 << 16;
    let count = MONITOR_BACKLOG_BYTES_MAX / (bytes + around);
    for _ in 0..count {
        assert!(!line(&mut monitor, &mut client, bytes));
    }
    let left = MONITOR_BACKLOG_BYTES_MAX - count * (bytes + around);
    assert!(!line(&mut monitor, &mut client, left - around));
    assert!(client.connection.server().monitors.exist());
    assert!(line(&mut monitor, &mut client, 0));
    assert!(!client.connection.server().monitors.exist());
    // The commands of one script can be too many as well.
    let mut second = Client::with(monitor.services.session(), monitor.services.clone());
    second.send("MONITOR");
    client.send("EVAL \"local x = ('x'):rep(60000) for i = 1, 200 do redis.call('echo', x) end\" 0");
    assert!(second.connection.client().killed());
    assert!(!client.connection.server().monitors.exist());
}

/// A connection that is gone is no monitor any more.
#[test]
fn a_closed_connection_is_no_monitor() {
    let (mut client, monitor) = observed();
    let services = monitor.services.clone();
    drop(monitor);
    client.send("PING");
    assert!(!client.connection.server().monitors.exist());
    drop(services);
}
