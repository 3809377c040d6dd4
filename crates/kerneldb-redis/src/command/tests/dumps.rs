//! DUMP and RESTORE, against a real Redis in both directions.

use bedplate_suite_support::redis::Redis;

use super::redis::RedisClient;
use super::{Client, encode, one};
use crate::command::Startup;
use crate::command::tests::model::Model;
use crate::rdb;

fn ask(client: &mut Client, args: &[&[u8]]) -> Vec<u8> {
    client.feed(&encode(args));
    client.finish();
    std::mem::take(&mut client.out)
}

/// The bytes of a reply that is a string.
fn bulk(reply: &[u8]) -> Vec<u8> {
    let start = reply.iter().position(|c| *c == b'\n').unwrap() + 1;
    reply[start..reply.len() - 2].to_vec()
}

fn values() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "0",
        "-1",
        "12",
        "127",
        "128",
        "-128",
        "-129",
        "32767",
        "32768",
        "-32768",
        "-32769",
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "9223372036854775807",
        "007",
        "-0",
        "+5",
        "1.5",
        "text",
    ];
    let mut values: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).into();
    // Lengths around those of the encodings; bytes that Redis compresses, and bytes that it does not.
    let mut state = 1u32;
    for length in [20, 21, 63, 64, 100, 16_383, 16_384, 65_535, 65_536] {
        values.push(vec![b'a'; length]);
        values.push((0..length).map(|i| (i % 251 * (i / 251 % 7)) as u8).collect());
        let random = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        values.push((0..length).map(random).collect());
    }
    values
}

#[test]
fn redis_and_this_server_restore_each_others_dumps() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    let mut compressed = 0;
    for value in values() {
        let set: [&[u8]; 3] = [b"SET", b"k", &value];
        assert_eq!(ask(&mut ours, &set), redis.call(&encode(&set)));
        let own = bulk(&ask(&mut ours, &[b"DUMP", b"k"]));
        let theirs = bulk(&redis.call(&encode(&["DUMP", "k"])));
        if theirs.len() < value.len() {
            compressed += 1;
        } else {
            assert_eq!(own, theirs);
        }
        let restore = |payload: &[u8]| encode(&[b"RESTORE", &b"k2"[..], b"0", payload, b"REPLACE"]);
        ours.feed(&restore(&theirs));
        assert_eq!((ours.take().as_str(), &redis.call(&restore(&own))[..]), ("+OK\r\n", &b"+OK\r\n"[..]));
        assert_eq!(bulk(&ask(&mut ours, &[b"GET", b"k2"])), value);
        assert_eq!(bulk(&redis.call(&encode(&["GET", "k2"]))), value);
    }
    assert!(compressed > 10, "{compressed}");
}

/// Payloads of Redis that are not strings.
#[test]
fn other_types_are_refused() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    for line in ["RPUSH k 1 2", "SADD k 1 2", "SADD k a b", "ZADD k 1 a", "HSET k a b", "XADD k * a b"] {
        redis.call(b"DEL k\r\n");
        let done = redis.call(format!("{line}\r\n").as_bytes());
        assert!(!done.starts_with(b"-"), "{line}");
        let payload = bulk(&redis.call(b"DUMP k\r\n"));
        let reply = ask(&mut ours, &[b"RESTORE", b"k", b"0", &payload]);
        assert_eq!(reply, b"-ERR Bad data format: the value is not a string\r\n", "{line}");
    }
    assert_eq!(ours.send("DBSIZE"), ":0\r\n");
}

#[test]
fn restore_has_the_replies_of_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    let good = rdb::seal(b"\0\x01v".to_vec());
    let empty = rdb::seal(Vec::new());
    let damaged = rdb::seal(b"\0\xc3\x03\x0a\x00a\x20".to_vec());
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    let option_lists: [&[&[u8]]; 16] = [
        &[],
        &[b"REPLACE"],
        &[b"replace", b"ABSTTL"],
        &[b"IDLETIME", b"5", b"REPLACE"],
        &[b"FREQ", b"255", b"REPLACE"],
        &[b"FREQ", b"256"],
        &[b"FREQ", b"-1"],
        &[b"FREQ", b"x"],
        &[b"FREQ"],
        &[b"IDLETIME", b"-1"],
        &[b"IDLETIME", b"x"],
        &[b"IDLETIME"],
        &[b"FREQ", b"1", b"IDLETIME", b"1"],
        &[b"IDLETIME", b"1", b"FREQ", b"1"],
        &[b"IDLETIME", b"1", b"IDLETIME", b"2", b"replace"],
        &[b"foo"],
    ];
    for payload in [&good[..], &empty, &damaged, &good[..5], b""] {
        for time in [&b"0"[..], b"-1", b"x", b"4000000000000", b"1"] {
            for options in option_lists {
                commands.push([&[&b"RESTORE"[..], b"k", time, payload], options].concat());
                if time == b"1" {
                    // Whether a millisecond has passed depends on the machine, unless it lies in the past.
                    let absolute = options.contains(&&b"ABSTTL"[..]);
                    let name: &[u8] = if absolute { b"EXISTS" } else { b"DEL" };
                    commands.push(vec![name, b"k"]);
                }
            }
        }
    }
    for (key, reply) in
        [("a", "+OK\r\n"), ("k", "+OK\r\n"), ("k", "-BUSYKEY Target key name already exists.\r\n")]
    {
        let restore: [&[u8]; 4] = [b"RESTORE", key.as_bytes(), b"0", &good];
        assert_eq!(String::from_utf8_lossy(&ask(&mut ours, &restore)), reply);
        assert_eq!(String::from_utf8_lossy(&redis.call(&encode(&restore))), reply);
    }
    for command in &commands {
        let shown = || command.iter().map(|arg| arg.escape_ascii().to_string()).collect::<Vec<_>>().join(" ");
        let text = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
        let (own, theirs) = (ask(&mut ours, command), redis.call(&encode(command)));
        // The key of a short time may be gone already.
        if command[0] != b"DEL" {
            assert_eq!(text(&own), text(&theirs), "{}", shown());
        }
    }
    for line in ["RESTORE k", "RESTORE k 0", "DUMP", "DUMP a b", "DUMP nope"] {
        let request = format!("{line}\r\n");
        assert_eq!(ours.send(line).as_bytes(), redis.call(request.as_bytes()), "{line}");
    }
}

/// Requests that Redis accepts although they make no sense, and the limit on values.
#[test]
fn payloads_that_redis_accepts_and_this_server_does_not() {
    let mut client = Client::new(&Model::new(Startup::default()));
    let mut restore = |contents: &[u8], time: &str| {
        let payload = rdb::seal(contents.to_vec());
        let reply = ask(&mut client, &[b"RESTORE", b"k", time.as_bytes(), &payload, b"REPLACE"]);
        String::from_utf8(reply).unwrap()
    };
    assert_eq!(restore(b"\0\x01vmore", "0"), "-ERR Bad data format\r\n");
    assert_eq!(restore(b"\0\x05abc", "0"), "-ERR Bad data format\r\n");
    let invalid = "-ERR invalid expire time in 'restore' command\r\n";
    assert_eq!(restore(b"\0\x01v", "9223372036854775807"), invalid);
    for (length, reply) in [(65_536, "+OK\r\n"), (65_537, "-ERR value exceeds the limit of 65536 bytes\r\n")]
    {
        let mut contents = vec![0];
        rdb::write_string(&vec![b'x'; length], &mut contents);
        assert_eq!(restore(&contents, "0"), reply);
    }
}

/// An expiry that is set counts from the command, and one that is missing deletes the old one.
#[test]
fn restore_sets_the_expiry() {
    let mut client = one();
    let payload = rdb::seal(b"\0\x01v".to_vec());
    for (time, option, ttl) in
        [("100400", "replace", ":100\r\n"), ("4000000000000", "ABSTTL", ""), ("0", "replace", ":-1\r\n")]
    {
        let restore: [&[u8]; 6] =
            [b"RESTORE", b"k", time.as_bytes(), &payload, b"REPLACE", option.as_bytes()];
        assert_eq!(ask(&mut client, &restore), b"+OK\r\n");
        match option {
            "ABSTTL" => assert_eq!(client.send("PEXPIRETIME k"), format!(":{time}\r\n")),
            _ => assert_eq!(client.send("TTL k"), ttl),
        }
    }
}
