//! Tests texts of replies: sends the same list of commands to a real Redis and to this crate, and commands that Redis lacks.

use bedplate_suite_support::redis::Redis;

use super::redis::RedisClient;
use super::{Client, encode, one};
use crate::command::Startup;
use crate::command::tests::model::Model;
use crate::limits::KEPT_BULK_BYTES_MAX;

/// Inline commands whose replies must be the same to the byte, in order.
const SAME: &str = r#"
FOO a b
foo
"fo\r\no" "a\nb" c
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b
foo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb c
GET
get a b
CONFIG SET databases 1
CONFIG SET daemonize yes
CONFIG SET appendfsync everysec
CONFIG SET timeout 5 timeout 6 timeout 7
CONFIG SET foo 1
CONFIG SET maxclients x
CONFIG SET timeout 5 timeout 6
CONFIG SET timeout 5 foo 6
CONFIG SET timeout 7
CONFIG GET timeout
CONFIG GET TIMEO*
CONFIG GET nosuch
CONFIG SET timeout 0
CONFIG SET timeout
CONFIG SET timeout 1 x
CONFIG
CONFIG FOO
CONFIG GET
CONFIG RESETSTAT
CLIENT FOO x
CLIENT SETNAME
CLIENT SETNAME "a b"
CLIENT GETNAME
CLIENT SETNAME me
CLIENT GETNAME
CLIENT SETNAME ""
CLIENT GETNAME
CLIENT KILL 1.1.1.1:1
CLIENT KILL ID x
CLIENT KILL FOO x
CLIENT KILL ID 999999
CLIENT KILL TYPE foo
CLIENT NO-EVICT x
CLIENT NO-EVICT on
CLIENT NO-EVICT off
CLIENT REPLY x
CLIENT REPLY on
CLIENT GETREDIR
CLIENT LIST ID x
CLIENT LIST TYPE foo
CLIENT LIST TYPE replica
CLIENT LIST FOO
CLIENT PAUSE x
CLIENT PAUSE -1
CLIENT UNPAUSE
CLIENT ID x
SELECT 99
SELECT x
SELECT 0
AUTH foo
AUTH foo bar
AUTH default bar
AUTH a b c
HELLO 4
HELLO x
HELLO 3 FOO
HELLO 3 AUTH foo bar
HELLO 2 SETNAME "a b"
SET a b EX 0
SET a b EX x
SET a b EX
SET a b EX 1 PX 1
SET a b NX XX
SET a b FOO
SET a b KEEPTTL EX 1
SET a b EXAT -1
SET a b EX 9223372036854775807
SET a b PX 9223372036854775807
SET n 5
SET n 6 NX
SET n 7 NX GET
SET n 8 XX GET
SET p v EXAT 1
GET p
TTL p
SET p v NX GET
SET nope 1 XX
SET nope 1 XX GET
GETEX n EX
GETEX n FOO
GETEX n PERSIST EX 5
GETEX n PX 0
EXPIRE a 1 NX XX
EXPIRE a 1 GT LT
EXPIRE a 1 foo
EXPIRE a 9223372036854775807
EXPIRE a x
EXPIRE nope 10
EXPIREAT n x
PEXPIREAT n 9223372036854775807
PEXPIRETIME n
PERSIST n
PERSIST n
TTL n
PTTL nope
EXPIRETIME nope
SETEX a 0 b
SETEX a -1 b
SETEX a x b
PSETEX a 0 b
SCAN x
SCAN 0 COUNT 0
SCAN 0 COUNT x
SCAN 0 FOO
SCAN 0 MATCH
SHUTDOWN FOO
SHUTDOWN SAVE NOSAVE
WAIT 0 0
WAIT 1 10
WAIT x y
WAIT 0 -1
WAIT 0 x
OBJECT ENCODING nope
OBJECT ENCODING n
OBJECT REFCOUNT nope
OBJECT FOO
OBJECT FREQ n
OBJECT FREQ nope
OBJECT ENCODING
OBJECT
SET e1 12345678901234567890
OBJECT ENCODING e1
SET e2 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
OBJECT ENCODING e2
SET e3 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
OBJECT ENCODING e3
COMMAND COUNT x
COMMAND FOO
COMMAND INFO nosuch
COMMAND GETKEYS set a b
COMMAND GETKEYS mset a b c d
COMMAND GETKEYS foo a
COMMAND GETKEYS get a b
COMMAND GETKEYS ping x
COMMAND GETKEYS config get x
COMMAND LIST FILTERBY x
COMMAND LIST FILTERBY PATTERN incrbyf*
MEMORY USAGE nope
MEMORY USAGE n SAMPLES -1
MEMORY USAGE n FOO 1
MEMORY FOO
SET text1 ohmytext
SET text2 mynewtext
LCS text1 text2
LCS text1 text2 LEN
LCS text1 text2 IDX
LCS text1 text2 IDX MINMATCHLEN 4 WITHMATCHLEN
LCS text2 text1 IDX MINMATCHLEN -1
LCS text1 nope
LCS nope nope IDX
LCS text1 text1 IDX WITHMATCHLEN
LCS text1 text2 IDX LEN
LCS text1 text2 MINMATCHLEN
LCS text1 text2 MINMATCHLEN x
LCS text1 text2 FOO
LCS text1
DEL text1 text2
COPY n n
COPY n m DB x
COPY n m FOO
COPY n m
COPY n m
COPY n m REPLACE
RENAME nope x
RENAMENX nope x
RENAMENX n m
BGSAVE foo
FLUSHALL foo
FLUSHALL sync async
FLUSHDB foo
SETRANGE n -1 x
SETRANGE n x x
SETRANGE nope 5 ""
APPEND n 00
GETRANGE n x y
GETRANGE n 0 -1
GETRANGE n -2 -1
GETRANGE n 5 3
GETRANGE n -100 0
SUBSTR n 0 0
SET s str
INCR s
INCRBY n x
INCRBYFLOAT n x
INCRBYFLOAT s 1
INCRBYFLOAT n inf
INCRBYFLOAT n 1e4931
DECRBY n -9223372036854775808
SET max 9223372036854775807
INCR max
MSET a
MSET a b c
MSETNX a b c
MSET a 1 b 2
MSETNX c 1 a 2
MGET a b c
EXISTS a a nope
TOUCH a nope
TYPE a
TYPE nope
DEL a a b
UNLINK nope
PING
PING hello
PING a b
ECHO x
ECHO
TIME x
LASTSAVE x
EXEC
DISCARD
MULTI
MULTI
WATCH a
SHUTDOWN
EXEC
MULTI
SAVE
EXEC
MULTI
FOO
SET a 1
EXEC
MULTI
SET a x
INCR a
GET a
PING
ECHO
EXEC
MULTI
SET a y
INCR a
HELLO 4
CLIENT GETNAME
EXEC
MULTI
SET a z
DISCARD
GET a
MULTI
EXEC
WATCH a
SET a 1
MULTI
GET a
EXEC
WATCH a nope
MULTI
GET a
EXEC
UNWATCH
WATCH
RESET
FLUSHALL
DBSIZE
RANDOMKEY
KEYS *
SCAN 0
INFO nosuchsection
SET k v
RANDOMKEY
SCAN 0 MATCH k TYPE string COUNT 100000
SCAN 0 MATCH x* COUNT 100000
SCAN 0 TYPE hash COUNT 100000
KEYS [
KEYS k
FLUSHDB async
DBSIZE
CLIENT REPLY skip
PING
CLIENT REPLY skip
CLIENT REPLY on
PING
CLIENT REPLY skip
CLIENT REPLY skip
PING
PING
CLIENT REPLY skip
RESET
PING
CLIENT REPLY off
PING
CLIENT REPLY on
HELLO 3
GET nope
MGET nope
MSET t1 abcbdab t2 bdcaba
LCS t1 t2 IDX WITHMATCHLEN
DEL t1 t2
EXEC
CONFIG GET timeout
SCAN 0
COMMAND INFO nosuch
WATCH w
SET w 1
MULTI
EXEC
INCRBYFLOAT f 3.0
RESET
QUIT
"#;

/// The connection's number differs.
fn normalize(line: &str, reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply).into_owned();
    if !line.starts_with("HELLO 3") || text.starts_with('-') {
        return text;
    }
    let id = text.find("id\r\n:").map(|at| at + 4);
    id.map_or(text.clone(), |at| {
        let end = text[at..].find('\r').map_or(text.len(), |end| at + end);
        format!("{}:ID{}", &text[..at], &text[end..])
    })
}

#[test]
fn texts_are_those_of_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    let mut wrong = Vec::new();
    for line in SAME.lines().filter(|l| !l.is_empty()) {
        let request = format!("{line}\r\n");
        ours.feed(request.as_bytes());
        ours.finish();
        let reply = std::mem::take(&mut ours.out);
        // Redis must send as many replies as this crate. PONG shows that it sends no others.
        let silent = reply.is_empty();
        let expected = if silent {
            redis.send(request.as_bytes());
            Vec::new()
        } else {
            redis.call(request.as_bytes())
        };
        let (reply, expected) = (normalize(line, &reply), normalize(line, &expected));
        if reply != expected {
            wrong.push(format!("{line}\n  here:  {reply:?}\n  redis: {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn protocol_errors_are_those_of_redis() {
    let Some(server) = Redis::start() else { return };
    for input in [
        &b"*x\r\n"[..],
        b"*99999999999\r\n",
        b"*1\r\nx\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$536870913\r\n",
        b"get \"a\r\n",
        b"PING\r\n*1\r\n$4\r\nPING\r\n*1\r\n:1\r\n",
    ] {
        let mut redis = RedisClient::connect(server.addr());
        let mut expected = redis.call(input);
        expected.extend(redis.rest());
        let mut ours = one();
        let next = ours.feed(input);
        assert_eq!(ours.take(), String::from_utf8(expected).unwrap(), "{}", input.escape_ascii());
        assert_eq!(next, crate::command::Next::Close);
    }
}

#[test]
fn the_table_is_that_of_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut compared = 0;
    for spec in crate::command::table::COMMANDS {
        let request = encode(&["COMMAND", "INFO", spec.name]);
        let theirs = String::from_utf8(redis.call(&request)).unwrap();
        if theirs.ends_with("$-1\r\n") {
            continue;
        }
        let mut ours = one();
        ours.feed(&request);
        // Name, arity, flags, key positions and categories come before the tips.
        let head = |text: &str| {
            let mut tokens: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
            let end = tokens.iter().rposition(|t| t.starts_with("+@")).unwrap() + 1;
            tokens.truncate(end);
            tokens
        };
        let own = |text: String| {
            // Subcommands have categories too, so only the text before the first nested command counts.
            let nested = text.find('|').map_or(text.len(), |at| at);
            text[..nested].to_owned()
        };
        let key_specs = |text: String| text.split("\r\n*0\r\n").next().unwrap().to_owned();
        if spec.subs.is_empty() {
            assert_eq!(head(&ours.take()), head(&theirs), "{}", spec.name);
        } else {
            assert_eq!(
                key_specs(own(ours.take())).split('@').next(),
                key_specs(own(theirs)).split('@').next(),
                "{}",
                spec.name
            );
        }
        compared += 1;
    }
    assert!(compared > 60, "only {compared}");
}

#[test]
fn own_texts() {
    let mut c = one();
    for (line, reply) in [
        ("SET \"\" x", "-ERR empty keys are not supported\r\n"),
        ("GET \"\"", "-ERR empty keys are not supported\r\n"),
        ("COPY a a DB 1", "-ERR DB index is out of range\r\n"),
        ("CAS k a b", ":0\r\n"),
        ("SET k a EX 100", "+OK\r\n"),
        ("CAS k a b", ":1\r\n"),
        ("GET k", "$1\r\nb\r\n"),
        ("TTL k", ":100\r\n"),
        ("CAS k a", "-ERR wrong number of arguments for 'cas' command\r\n"),
        ("BEGIN FOO", "-ERR syntax error\r\n"),
        ("COMMIT", "-ERR COMMIT without BEGIN\r\n"),
        ("ROLLBACK", "-ERR ROLLBACK without BEGIN\r\n"),
        ("BEDPLATE DURABILITY", "$5\r\nasync\r\n"),
        ("BEDPLATE DURABILITY sync", "+OK\r\n"),
        ("bedplate durability", "$4\r\nsync\r\n"),
        ("BEDPLATE DURABILITY x", "-ERR syntax error\r\n"),
        ("BEDPLATE STATS", "*2\r\n$4\r\nkeys\r\n:1\r\n"),
        ("BEDPLATE VERIFY", "$4\r\ndone\r\n"),
        ("BEDPLATE CHECKPOINT", "$4\r\ndone\r\n"),
        ("BEDPLATE X", "-ERR unknown subcommand 'X'. Try BEDPLATE HELP.\r\n"),
        ("SAVE", "+OK\r\n"),
        ("BGSAVE", "+Background saving started\r\n"),
        ("LASTSAVE", ":1\r\n"),
        ("WAITAOF 1 0 100", "*2\r\n:1\r\n:0\r\n"),
        ("WAITAOF 2 0 0", "-ERR value is out of range, must be between 0 and 1\r\n"),
        ("WAITAOF 0 -1 0", "-ERR value is out of range, must be positive\r\n"),
        ("CLIENT SETINFO lib-name redis-py", "+OK\r\n"),
        ("CLIENT SETINFO foo x", "-ERR Unrecognized option 'foo'\r\n"),
        ("CLIENT NO-TOUCH on", "+OK\r\n"),
        ("CONFIG SET client-query-buffer-limit 2mb", "+OK\r\n"),
        (
            "CONFIG GET client-query-buffer-limit",
            "*2\r\n$25\r\nclient-query-buffer-limit\r\n$7\r\n2097152\r\n",
        ),
        ("SHUTDOWN x", "-ERR syntax error\r\n"),
    ] {
        assert_eq!(c.send(line), reply, "{line}");
    }
}

#[test]
fn sizes() {
    let mut c = one();
    let mut call = |args: &[&[u8]]| {
        c.feed(&encode(args));
        c.take()
    };
    let (long_key, key) = ([b'k'; 256], [b'k'; 255]);
    let (long, value) = (vec![b'v'; 65537], vec![b'v'; 65536]);
    let huge = vec![b'v'; 200_000];
    let key_error = "-ERR key exceeds the limit of 255 bytes\r\n";
    let value_error = "-ERR value exceeds the limit of 65536 bytes\r\n";
    let string_error = "-ERR string exceeds maximum allowed size of 65536 bytes\r\n";
    assert_eq!(call(&[b"SET", &long_key, b"v"]), key_error);
    assert_eq!(call(&[b"GET", &long_key]), key_error);
    assert_eq!(call(&[b"SET", &huge, b"v"]), key_error);
    assert_eq!(call(&[b"SET", b"k", &long]), value_error);
    assert_eq!(call(&[b"SET", b"k", &huge]), value_error);
    let argument_error = "-ERR argument exceeds the limit of 131072 bytes\r\n";
    assert_eq!(call(&[b"ECHO", &huge]), argument_error);
    assert_eq!(call(&[b"ECHO", &huge[..KEPT_BULK_BYTES_MAX + 1]]), argument_error);
    let kept = call(&[b"ECHO", &huge[..KEPT_BULK_BYTES_MAX]]);
    assert_eq!(kept.len(), KEPT_BULK_BYTES_MAX + "$131072\r\n\r\n".len());
    assert_eq!(call(&[b"SET", &key, &value]), "+OK\r\n");
    assert_eq!(call(&[b"APPEND", &key, b"x"]), string_error);
    assert_eq!(call(&[b"SETRANGE", &key, b"65536", b"x"]), string_error);
    assert_eq!(call(&[b"SETRANGE", &key, b"65535", b"x"]), ":65536\r\n");
    assert_eq!(call(&[b"MSET", b"a", b"1", b"b", &long]), value_error);
    assert_eq!(call(&[b"EXISTS", b"a", &key]), ":1\r\n");
    let many: Vec<Vec<u8>> = (0..129).map(|i| format!("k{i}").into_bytes()).collect();
    let mut mset: Vec<&[u8]> = vec![b"MSET"];
    many.iter().for_each(|k| mset.extend([&k[..], b"v"]));
    assert_eq!(call(&mset), "-ERR the transaction touches more than 128 keys\r\n");
    assert_eq!(call(&mset[..257]), "+OK\r\n");
    let mget: Vec<&[u8]> = [&b"MGET"[..]].into_iter().chain(many.iter().map(|k| &k[..])).collect();
    assert!(call(&mget).starts_with("*129\r\n"));
}

#[test]
fn info_and_client_list_have_what_tools_read() {
    let model = Model::new(Startup { port: 7777, ..Default::default() });
    let mut c = Client::new(&model);
    c.send("CLIENT SETNAME me");
    c.send("SET k v");
    let info = c.send("INFO");
    for field in [
        "# Server\r\n",
        "redis_version:7.0.15\r\n",
        "tcp_port:7777\r\n",
        "connected_clients:1\r\n",
        "role:master\r\n",
        "total_commands_processed:2\r\n",
        "db0:keys=1,expires=0,avg_ttl=0\r\n",
        "aof_enabled:1\r\n",
    ] {
        assert!(info.contains(field), "{field} is not in {info}");
    }
    assert!(!c.send("INFO server keyspace").contains("# Clients"));
    let list = c.send("CLIENT LIST");
    assert!(
        list.contains(" name=me ") && list.contains("cmd=client|list") && list.contains("resp=2"),
        "{list}"
    );
    assert!(c.send("HELLO 3").starts_with("%7\r\n"));
    assert!(c.send("CLIENT INFO").starts_with('='));
    drop(c);
    assert_eq!(Client::new(&model).connection.server().clients.len(), 1);
}
