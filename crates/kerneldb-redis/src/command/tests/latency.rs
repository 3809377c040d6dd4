//! LATENCY and the statistics of errors, against a real Redis.

use bedplate_suite_support::redis::Redis;

use super::one;
use super::redis::RedisClient;

/// A script that takes as many milliseconds as its argument says.
const BUSY: &str = "EVAL \"local e = redis.call('time') local t = 0 while t < tonumber(ARGV[1]) * 1000 do local n = redis.call('time') t = (n[1] - e[1]) * 1000000 + n[2] - e[2] end\" 0";

/// The numbers of a reply.
fn numbers(reply: &str) -> Vec<u64> {
    reply.split("\r\n").filter_map(|line| line.strip_prefix(':')).map(|n| n.parse().unwrap()).collect()
}

#[test]
fn replies_are_those_of_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    for line in [
        "CONFIG GET latency-monitor-threshold",
        "CONFIG SET latency-monitor-threshold x",
        "LATENCY",
        "LATENCY FOO",
        "LATENCY LATEST",
        "LATENCY LATEST x",
        "LATENCY HISTORY",
        "LATENCY HISTORY nosuch",
        "LATENCY HISTORY command",
        "LATENCY RESET",
        "LATENCY RESET nosuch command",
        "LATENCY DOCTOR x",
        "LATENCY HELP x",
        "CONFIG RESETSTAT",
        "LATENCY HISTOGRAM nosuch get",
        "INFO errorstats",
        "CONFIG SET latency-monitor-threshold 1000",
        "GET a",
        "LATENCY LATEST",
        "NOSUCH",
        "GET",
        "EVALSHA x 0",
        "SET s v",
        "INCR s",
        "AUTH a b",
        "EVAL \"return redis.error_reply('MY_CODE text')\" 0",
        "EXEC",
        "MULTI",
        "INCR s",
        "EXEC",
        "INFO errorstats",
        "CONFIG RESETSTAT",
        "INFO errorstats",
    ] {
        assert_eq!(ours.send(line).as_bytes(), redis.call(format!("{line}\r\n").as_bytes()), "{line}");
    }
}

/// The threshold is high, so that other commands do not reach it on a busy machine.
#[test]
fn long_commands_are_events() {
    let mut client = one();
    let busy = |ms: u64| format!("{BUSY} {ms}");
    client.send(&busy(5));
    assert_eq!(client.send("LATENCY LATEST"), "*0\r\n", "it is not monitored");
    assert!(client.send("LATENCY DOCTOR").contains("latency-monitor-threshold"));
    client.send("CONFIG SET latency-monitor-threshold 200");
    assert!(client.send("LATENCY DOCTOR").contains("No command of the event loop has taken 200 ms."));
    assert_eq!(client.send(&busy(220)), "$-1\r\n");
    let latest = client.send("LATENCY LATEST");
    assert!(latest.starts_with("*1\r\n*4\r\n$7\r\ncommand\r\n"), "{latest}");
    let history = numbers(&client.send("LATENCY HISTORY command"));
    let [time_s, ms, max_ms] = numbers(&latest)[..] else { panic!("{latest}") };
    assert_eq!((history[history.len() - 2], history[history.len() - 1]), (time_s, ms));
    assert!(time_s > 1_700_000_000 && (200..10_000).contains(&ms) && max_ms >= ms, "{latest}");
    assert_eq!(client.send("LATENCY HISTORY fast-command"), "*0\r\n");
    assert!(client.send("LATENCY DOCTOR").contains("command: "));
    assert_eq!(client.send("LATENCY RESET fast-command nosuch"), ":0\r\n");
    assert_eq!(client.send("LATENCY RESET"), ":1\r\n");
    assert_eq!(client.send("LATENCY LATEST"), "*0\r\n");
}

#[test]
fn histograms_have_every_call() {
    let mut client = one();
    client.send("CONFIG RESETSTAT");
    for line in ["SET a 1", "GET a", "GET a", "INCR a x", "CLIENT ID", "CLIENT GETNAME"] {
        client.send(line);
    }
    client.send(&format!("{BUSY} 3"));
    let calls = |reply: &str, name: &str| {
        let at =
            reply.find(&format!("\r\n{name}\r\n*4\r\n$5\r\ncalls\r\n:")).unwrap_or_else(|| panic!("{reply}"));
        numbers(&reply[at + 1..])[0]
    };
    let all = client.send("LATENCY HISTOGRAM");
    assert!(all.starts_with("*14\r\n"), "{all}");
    assert_eq!((calls(&all, "set"), calls(&all, "get"), calls(&all, "client|id")), (1, 2, 1));
    assert_eq!((calls(&all, "config|resetstat"), calls(&all, "eval")), (1, 1));
    let some = client.send("LATENCY HISTOGRAM client nosuch GET get");
    assert!(some.starts_with("*6\r\n"), "{some}");
    assert_eq!((calls(&some, "client|getname"), calls(&some, "get")), (1, 2));
    assert!(client.send("LATENCY HISTOGRAM client|id").starts_with("*2\r\n$9\r\nclient|id\r\n"));
    // The script has taken 3 ms and more: the bucket of 4,096 microseconds or a later one.
    let eval = numbers(&client.send("LATENCY HISTOGRAM eval"));
    assert!(eval[0] == 1 && eval[1] >= 4096 && eval[1].is_power_of_two() && eval[2] == 1, "{eval:?}");
    let stats = client.send("INFO commandstats");
    assert!(
        stats.contains("cmdstat_client|id:calls=1,") && stats.contains("cmdstat_incr:calls=0,"),
        "{stats}"
    );
    assert!(
        stats.lines().any(|line| line.starts_with("cmdstat_incr:") && line.contains("rejected_calls=1,"))
    );
}
