//! Tests functions: the same libraries on a real Redis and on this crate, their transactions, and their limits.

use std::fmt::Write;
use std::time::{Duration, Instant};

use bedplate_suite_support::redis::Redis;

use super::redis::RedisClient;
use super::scripts::ask;
use super::{Client, encode, one};
use crate::limits::{FUNCTION_BYTES_MAX, FUNCTION_LIBRARIES_MAX, FUNCTIONS_MAX, SCRIPT_MEMORY_BYTES_MAX};

/// A library with one function `f` of this body.
fn library(body: &str) -> String {
    format!("#!lua name=lib\nredis.register_function('f', function(KEYS, ARGV)\n{body}\nend)")
}

/// Codes whose replies to FUNCTION LOAD must be the same to the byte, in order.
const LOADED: &[&str] = &[
    "x",
    "#!lua",
    "#!lua name=l",
    "#!lua name='l\nx",
    "#!\nx",
    "#! name=l\nx",
    "#!lua\nx",
    "#!lua name=\nx",
    "#!lua name=a-b\nx",
    "#!LUA name=l\nreturn 1",
    "#!lua name=l NAME=b\nreturn 1",
    "#!lua name=l foo\nreturn 1",
    "#!python name=l\nreturn 1",
    "#!lua name=l\nreturn +",
    "#!lua name=l\nerror('x')",
    "#!lua name=l\nlocal x = nil + 1",
    "#!lua name=l\nreturn a",
    "#!lua name=l\na = 1",
    "#!lua name=l\nredis.x()",
    "#!lua name=l\nredis.call('ping')",
    "#!lua name=l\nreturn math.random()",
    "#!lua name=l\nreturn _G",
    "#!lua name=l\nlocal x = redis.REDIS_VERSION .. redis.LOG_DEBUG return x",
    "#!lua name=l\nredis.log(1)",
    "#!lua name=l\nredis.log('x', 'y')",
    "#!lua name=l\nredis.register_function = nil",
    "#!lua name=l\nredis.register_function()",
    "#!lua name=l\nredis.register_function('f')",
    "#!lua name=l\nredis.register_function('f', function() end, 3)",
    "#!lua name=l\nredis.register_function(nil, function() end)",
    "#!lua name=l\nredis.register_function('f', 1)",
    "#!lua name=l\nredis.register_function('a-b', function() end)",
    "#!lua name=l\nredis.register_function('', function() end)",
    "#!lua name=l\nredis.register_function('f', function() end) redis.register_function('f', function() end)",
    "#!lua name=l\nredis.register_function{}",
    "#!lua name=l\nredis.register_function{function_name = 'f'}",
    "#!lua name=l\nredis.register_function{callback = function() end}",
    "#!lua name=l\nredis.register_function{function_name = {}}",
    "#!lua name=l\nredis.register_function{callback = 1}",
    "#!lua name=l\nredis.register_function{description = {}}",
    "#!lua name=l\nredis.register_function{flags = 1}",
    "#!lua name=l\nredis.register_function{flags = {'x'}}",
    "#!lua name=l\nredis.register_function{flags = {function() end}}",
    "#!lua name=l\nredis.register_function{other = 1}",
    "#!lua name=l\nredis.register_function{[{}] = 1}",
    "#!lua name=l\nwhile true do end",
    "#!lua name=l\nlocal x = ('y'):rep(3) redis.register_function(x, function() return x end)",
    "#!lua name=l\nredis.register_function('again', function() end)",
    "#!lua name=m\nredis.register_function('YYY', function() end)",
    "#!lua name='m'\nredis.register_function{function_name = 'g', callback = function() return 1 end, description = 'some text', flags = {'no-writes', 'ALLOW-oom'}}",
    "#!lua name=n\nredis.register_function(1, redis.log)",
];

/// Bodies of the function `f`, in order. Each is called with the keys `a` and `b`, and the argument `1`.
const BODIES: &[&str] = &[
    "return 1",
    "return {KEYS[1], KEYS[2], ARGV[1], #KEYS, #ARGV}",
    "return redis.call('set', KEYS[1], ARGV[1])",
    "return redis.call('incr', KEYS[1]) + redis.call('incr', 'n')",
    "return redis.pcall('incr', 'a', 'b')",
    "return redis.call('incr', 'a', 'b')",
    "return redis.call('nosuch')",
    "return redis.call('eval', 'return 1', 0)",
    "return redis.call('fcall', 'f', 0)",
    "return redis.call('function', 'flush')",
    "return nosuch",
    "return KEYS.x",
    "error('x')",
    "error({err = 'MINE x'})",
    "local e = redis.pcall('incr', 'a', 'b') return e.err",
    "return {err = 'MINE x'}",
    "return redis.register_function",
    "return redis.register_function('x', function() end)",
    "return {type(_G), type(redis.replicate_commands), type(redis.setresp), type(redis.call)}",
    "return _G == _G._G",
    "x = 1",
    "local function g() y = 1 end g()",
    "local g = getmetatable(_G) g.__index = {}",
    "setmetatable(_G, {})",
    "redis.call = nil",
    "redis = nil",
    "return loadstring('return redis.call(\"get\", \"a\")')()",
    "return loadstring('z = 1')()",
    "return 1 + nil",
    "return cjson.encode({cmsgpack.unpack(cmsgpack.pack(1, 2))})",
    "return redis.sha1hex('x')",
    "return redis.error_reply('MINE x')",
    "return redis.status_reply('fine')",
    "return coroutine.wrap(function() return redis.call('get', 'a') end)()",
    "return (pcall(function() error('x') end))",
];

/// Lines in Redis's protocol for people. The functions are those of the library `l`.
const LINES: &[&str] = &[
    "FUNCTION FLUSH",
    "FUNCTION LOAD \"#!lua name=l\\nlocal n = 0 redis.register_function{function_name='count', callback=function() n = n + 1 return n end} redis.register_function{function_name='get', callback=function(k) return redis.call('get', k[1]) end, description='reads', flags={'no-writes'}} redis.register_function('put', function(k, a) return redis.call('set', k[1], a[1]) end) redis.register_function{function_name='bad', callback=function(k) return redis.call('set', k[1], 1) end, flags={'no-writes'}}\"",
    "FCALL count 0",
    "FCALL COUNT 0",
    "FCALL put 1 k v",
    "FCALL get 1 k",
    "FCALL_RO get 1 k",
    "FCALL_RO put 1 k v",
    "FCALL bad 1 k",
    "FCALL_RO bad 1 k",
    "FCALL get x",
    "FCALL get 2 k",
    "FCALL get -1 k",
    "FCALL nope x",
    "FCALL nope",
    "FCALL",
    "FUNCTION",
    "FUNCTION FOO",
    "FUNCTION LOAD",
    "FUNCTION LOAD x y",
    "FUNCTION LOAD replace",
    "FUNCTION LOAD replace replace x",
    "FUNCTION DELETE",
    "FUNCTION DELETE zz",
    "FUNCTION DELETE L",
    "FUNCTION RESTORE x",
    "FUNCTION RESTORE x y",
    "FUNCTION RESTORE x y z",
    "FUNCTION FLUSH x",
    "FUNCTION FLUSH sync x",
    "FUNCTION LIST x",
    "FUNCTION LIST libraryname",
    "FUNCTION LIST withcode withcode",
    "FUNCTION LIST libraryname x libraryname x",
    "FUNCTION LIST libraryname x*",
    "FUNCTION STATS",
    "FUNCTION KILL",
    "FUNCTION STATS x",
    "FLUSHALL",
    "FCALL count 0",
    "MULTI",
    "FCALL put 1 k w",
    "FCALL get 1 k",
    "FCALL nope 0",
    "FCALL_RO put 0",
    "FUNCTION STATS",
    "EXEC",
    "COMMAND GETKEYS FCALL get 2 a b c",
    "COMMAND GETKEYS FCALL_RO get 1 a",
    "HELLO 3",
    "FUNCTION STATS",
    "FUNCTION FLUSH ASYNC",
    "FUNCTION LIST",
    "FUNCTION LOAD \"#!lua name=l\\nredis.register_function{function_name='get', callback=function(k) return {double=1.5} end, flags={'no-writes', 'allow-stale'}}\"",
    "FUNCTION LIST LIBRARYNAME l WITHCODE",
    "FCALL get 0",
    "HELLO 2",
    "FUNCTION LIST",
    "FUNCTION DELETE l",
    "FUNCTION LIST",
    "EVAL_RO '#!lua\\nreturn 1' 0",
];

fn load(client: &mut Client, code: &str) -> String {
    ask(client, &encode(&["FUNCTION", "LOAD", "REPLACE", code]))
}

fn call(client: &mut Client, function: &str) -> String {
    ask(client, &encode(&["FCALL", function, "1", "k"]))
}

#[test]
fn functions_reply_as_in_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    let mut wrong = String::new();
    let mut requests: Vec<(String, Vec<u8>)> = Vec::new();
    for code in LOADED {
        requests.push(((*code).to_owned(), encode(&["FUNCTION", "LOAD", code])));
    }
    for function in ["yyy", "YYY", "g", "1"] {
        requests.push((format!("FCALL {function}"), encode(&["FCALL", function, "0"])));
    }
    requests.push(("list".into(), encode(&["FUNCTION", "LIST", "LIBRARYNAME", "m", "WITHCODE"])));
    requests.push(("flush".into(), encode(&["FUNCTION", "FLUSH"])));
    for body in BODIES {
        requests.push((format!("load {body}"), encode(&["FUNCTION", "LOAD", "REPLACE", &library(body)])));
        requests.push(((*body).to_owned(), encode(&["FCALL", "f", "2", "a", "b", "1"])));
    }
    for line in LINES {
        requests.push(((*line).to_owned(), format!("{line}\r\n").into_bytes()));
    }
    for (text, request) in requests {
        let reply = ask(&mut ours, &request);
        let expected = String::from_utf8_lossy(&redis.call(&request)).into_owned();
        if !text.starts_with("HELLO") && reply != expected {
            let _ = write!(wrong, "\n{text:?}\n  Redis {expected:?}\n  ours  {reply:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The bytes of a reply that is a string.
fn payload(reply: &[u8]) -> Vec<u8> {
    let line = reply.windows(2).position(|end| end == b"\r\n").unwrap();
    reply[line + 2..reply.len() - 2].to_vec()
}

/// Redis restores what this crate has dumped, and the other way round.
#[test]
fn dumps_are_those_of_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    let numbers: String = (0..2000).map(|i| format!("{i},")).collect();
    let codes = [
        library("return 'f'"),
        format!(
            "#!lua name=long\nlocal t = {{{numbers}}}\nredis.register_function('long', function() return #t end)"
        ),
    ];
    for code in &codes {
        assert_eq!(
            load(&mut ours, code),
            String::from_utf8(redis.call(&encode(&["FUNCTION", "LOAD", code]))).unwrap()
        );
    }
    let list = encode(&["FUNCTION", "LIST", "LIBRARYNAME", "long", "WITHCODE"]);
    let expected = redis.call(&list);
    let theirs = payload(&redis.call(&encode(&["FUNCTION", "DUMP"])));
    ours.feed(&encode(&["FUNCTION", "DUMP"]));
    let own = payload(&std::mem::take(&mut ours.out));
    assert!(own.len() > theirs.len(), "Redis compresses");
    let restore = |payload: &[u8], policy: &str| {
        let words: [&[u8]; 4] = [b"FUNCTION", b"RESTORE", payload, policy.as_bytes()];
        encode(&words)
    };
    assert_eq!(redis.call(&restore(&own, "FLUSH")), b"+OK\r\n");
    assert_eq!(redis.call(&list), expected);
    assert_eq!(ask(&mut ours, &restore(&theirs, "APPEND")), "-ERR Library lib already exists\r\n");
    assert_eq!(ask(&mut ours, &restore(&theirs, "REPLACE")), "+OK\r\n");
    assert_eq!(ask(&mut ours, &list), String::from_utf8(expected).unwrap());
    assert_eq!(call(&mut ours, "long"), ":2000\r\n");
    // A function of another library has the name of one that is restored: nothing changes.
    assert_eq!(ours.send("FUNCTION FLUSH"), "+OK\r\n");
    assert_eq!(
        load(&mut ours, "#!lua name=other\nredis.register_function('LONG', function() return 'other' end)"),
        "$5\r\nother\r\n"
    );
    assert_eq!(ask(&mut ours, &restore(&theirs, "REPLACE")), "-ERR Function long already exists\r\n");
    assert_eq!(call(&mut ours, "long"), "$5\r\nother\r\n");
    assert_eq!(ask(&mut ours, &restore(&theirs, "FLUSH")), "+OK\r\n");
    assert_eq!(call(&mut ours, "f"), "$1\r\nf\r\n");
    let mut damaged = theirs.clone();
    damaged[20] ^= 1;
    assert_eq!(
        ask(&mut ours, &restore(&damaged, "FLUSH")),
        "-ERR DUMP payload version or checksum are wrong\r\n"
    );
    assert_eq!(call(&mut ours, "f"), "$1\r\nf\r\n");
}

/// Libraries change in no transaction, and functions are called in all.
#[test]
fn functions_in_transactions() {
    let mut client = one();
    load(&mut client, &library("redis.call('set', KEYS[1], 7) return redis.call('get', KEYS[1])"));
    client.send("MULTI");
    for change in ["LOAD x", "DELETE lib", "FLUSH", "RESTORE x"] {
        let reply = client.send(&format!("FUNCTION {change}"));
        assert_eq!(reply, "-ERR Command not allowed inside a transaction\r\n", "{change}");
    }
    assert!(client.send("EXEC").starts_with("-EXECABORT"));
    client.send("BEGIN");
    assert_eq!(call(&mut client, "f"), "$1\r\n7\r\n");
    assert_eq!(client.send("ROLLBACK"), "+OK\r\n");
    assert_eq!(client.send("GET k"), "$-1\r\n");
    client.send("BEGIN");
    assert_eq!(load(&mut client, &library("return 'second'")), "$3\r\nlib\r\n");
    assert_eq!(client.send("ROLLBACK"), "+OK\r\n");
    assert_eq!(call(&mut client, "f"), "$6\r\nsecond\r\n");
}

/// Functions and libraries that do not end, or take all memory. Others go on, and nothing is written.
#[test]
fn no_function_uses_up_the_server() {
    let mut client = one();
    load(
        &mut client,
        "#!lua name=good\nlocal n = 0 redis.register_function('good', function() n = n + 1 return n end)",
    );
    for (body, expected) in [
        ("while true do end", "the script has run for 300 ms, and was rolled back"),
        ("while true do pcall(function() while true do end end) end", "300 ms, and was rolled back"),
        ("local t = {} while true do t[#t + 1] = {} end", "64 MiB of memory, and was rolled back"),
        ("return ('x'):rep(2^26 + 1)", "64 MiB of memory, and was rolled back"),
        ("local function f() return f() + 1 end return f()", "stack overflow"),
        ("for i = 1, 1e9 do coroutine.create(print) end", "-ERR"),
    ] {
        load(&mut client, &library(&format!("redis.call('set', KEYS[1], 1) {body}")));
        // On a busy machine, memory may last longer than a short time.
        let time_ms = if expected.contains("300 ms") { 300 } else { 20_000 };
        assert_eq!(client.send(&format!("CONFIG SET busy-reply-threshold {time_ms}")), "+OK\r\n");
        let start = Instant::now();
        let reply = call(&mut client, "f");
        assert!(reply.contains(expected), "{body}: {reply}");
        assert!(start.elapsed() < Duration::from_secs(30), "{body}");
        if expected.contains("rolled back") {
            assert_eq!(client.send("GET k"), "$-1\r\n", "{body}");
        }
        assert!(call(&mut client, "good").starts_with(':'), "{body}");
        assert_eq!(client.send("EVAL 'return 1' 0"), ":1\r\n");
        client.send("DEL k");
    }
    for (code, expected) in [
        ("while true do end", "FUNCTION LOAD timeout"),
        ("local t = {} while true do t = {t, t, {}} end", "needs more than 64 MiB of memory"),
        ("local s = 'x' while true do s = s .. s end", "needs more than 64 MiB of memory"),
        (
            "local i = 0 while true do i = i + 1 redis.register_function('f' .. i, redis.log) end",
            "-ERR Error registering",
        ),
        (
            "local s = ('x'):rep(2^19) redis.register_function{function_name='a', callback=redis.log, description=s} redis.register_function{function_name='b', callback=redis.log, description=s .. s}",
            "too many functions",
        ),
    ] {
        let reply = load(&mut client, &format!("#!lua name=hostile\n{code}"));
        assert!(reply.contains(expected), "{code}: {reply}");
        assert!(call(&mut client, "good").starts_with(':'), "{code}");
    }
    // A library that keeps much is loaded again, so that it starts over.
    load(
        &mut client,
        "#!lua name=keeps\nlocal kept = {} redis.register_function('keep', function() kept[#kept + 1] = ('x'):rep(2^20) .. #kept return #kept end)",
    );
    let most = (SCRIPT_MEMORY_BYTES_MAX >> 20) + 10;
    let counts: Vec<String> = (0..most).map(|_| call(&mut client, "keep")).collect();
    assert!(counts.iter().all(|count| count.starts_with(':')), "{counts:?}");
    assert!(counts.iter().filter(|count| *count == ":1\r\n").count() > 1, "{counts:?}");
    assert_eq!(client.send("FUNCTION STATS").matches(":2\r\n").count(), 0);
}

#[test]
fn one_past_each_limit_of_libraries_is_an_error() {
    let mut client = one();
    for i in 0..FUNCTION_LIBRARIES_MAX {
        let code = format!("#!lua name=l{i}\nredis.register_function('f{i}', function() return {i} end)");
        assert!(load(&mut client, &code).starts_with('$'), "{i}");
    }
    let more = "#!lua name=more\nredis.register_function('more', function() end)";
    assert_eq!(
        load(&mut client, more),
        format!("-ERR there are at most {FUNCTION_LIBRARIES_MAX} libraries of functions\r\n")
    );
    assert_eq!(call(&mut client, "more"), "-ERR Function not found\r\n");
    assert_eq!(call(&mut client, "f511"), ":511\r\n");
    assert_eq!(client.send("FUNCTION DELETE l0"), "+OK\r\n");
    let functions = |count| {
        format!(
            "#!lua name=more\nlocal i = 0 while i < {count} do i = i + 1 redis.register_function('g' .. i, redis.log) end"
        )
    };
    let left = FUNCTIONS_MAX - (FUNCTION_LIBRARIES_MAX - 1);
    assert_eq!(load(&mut client, &functions(left)), "$4\r\nmore\r\n");
    assert_eq!(
        load(&mut client, &functions(left + 1)),
        format!("-ERR there are at most {FUNCTIONS_MAX} functions\r\n")
    );
    assert_eq!(client.send("FUNCTION FLUSH"), "+OK\r\n");
    let long = |i: usize, bytes: usize| {
        let code =
            format!("#!lua name=long{i}\nredis.register_function('f{i}', function() return {i} end)\n--");
        let rest = bytes - code.len() - "long0f0".len();
        code + &"x".repeat(rest)
    };
    let eighth = FUNCTION_BYTES_MAX / 8;
    assert!((0..8).all(|i| load(&mut client, &long(i, eighth)).starts_with('$')));
    assert!((0..8).all(|i| call(&mut client, &format!("f{i}")) == format!(":{i}\r\n")));
    let bytes = format!("-ERR all libraries of functions have at most {FUNCTION_BYTES_MAX} bytes\r\n");
    load(&mut client, &long(7, eighth - 1));
    assert!(load(&mut client, &long(7, eighth)).starts_with('$'));
    load(&mut client, &long(6, eighth - 1));
    assert_eq!(load(&mut client, &long(8, 200)), bytes);
}

/// Local variables of a library keep their values, and are its own.
#[test]
fn libraries_have_variables_of_their_own() {
    let mut client = one();
    let counter = |name: &str| {
        format!(
            "#!lua name={name}\nlocal n = 0 redis.register_function('{name}', function() n = n + 1 return n end)"
        )
    };
    load(&mut client, &counter("one"));
    load(&mut client, &counter("two"));
    assert_eq!(
        [call(&mut client, "one"), call(&mut client, "one"), call(&mut client, "two")],
        [":1\r\n", ":2\r\n", ":1\r\n"]
    );
    // A library that is not loaded changes nothing.
    assert!(load(&mut client, "#!lua name=one\nerror()").starts_with("-ERR"));
    assert_eq!(client.send("SCRIPT FLUSH"), "+OK\r\n");
    assert_eq!(call(&mut client, "one"), ":3\r\n");
    // Commands can be kept, and work in later calls.
    load(
        &mut client,
        "#!lua name=one\nlocal kept redis.register_function('one', function(k) kept = kept or redis return kept.call('incr', k[1]) end)",
    );
    assert_eq!([call(&mut client, "one"), call(&mut client, "one")], [":1\r\n", ":2\r\n"]);
    // The function that registers can be kept, too, and registers nothing later.
    load(
        &mut client,
        "#!lua name=one\nlocal lib = redis redis.register_function('one', function() lib.register_function('x', redis.log) end) redis.register_function('two_', function() lib.x = 1 end)",
    );
    assert!(
        call(&mut client, "one")
            .starts_with("-ERR redis.register_function can only be called on FUNCTION LOAD command")
    );
    assert!(call(&mut client, "two_").contains("Attempt to modify a readonly table"));
}
