//! Tests scripts: the same scripts on a real Redis and on this crate, their transactions, and their limits.

use std::fmt::Write;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use bedplate_suite_support::redis::Redis;

use super::redis::RedisClient;
use super::{Client, encode, one};
use crate::limits::{
    SCRIPT_DECODE_BYTES_MAX, SCRIPT_MEMORY_BYTES_MAX, SCRIPT_PATTERN_BYTES_MAX, SCRIPT_REPLY_BYTES_MAX,
    SCRIPT_REPLY_DEPTH_MAX, SCRIPT_REQUEST_BYTES_MAX, SCRIPTS_COMPILED_MAX,
};

/// Scripts whose replies must be the same to the byte, in order. Each gets the keys `a` and `b`, and the arguments `1` and `x y`.
const SAME: &[&str] = &[
    "return 1",
    "return -1.9",
    "return 'text'",
    "return true",
    "return false",
    "return nil",
    "return",
    "return {1, 2, {3, 'x', {}}, nil, 4}",
    "return {1.9, true, false, 'y'}",
    "return {ok='fine'}",
    "return {err='ERR own'}",
    "return {err='without code'}",
    "return redis.error_reply('CODE text')",
    "return redis.error_reply('word')",
    "return redis.error_reply('-CODE text')",
    "return redis.error_reply(1)",
    "return redis.status_reply('fine')",
    "return {KEYS[1], KEYS[2], ARGV[1], ARGV[2], #KEYS, #ARGV}",
    "return KEYS",
    "return redis.call('set', KEYS[1], ARGV[1])",
    "return redis.call('GET', 'a')",
    "return redis.call('get', 'missing')",
    "return redis.call('get', 'missing') == false",
    "return redis.call('set', 'a', 'v').ok",
    "return redis.call('incr', 'n') + redis.call('incr', 'n')",
    "return type(redis.call('incr', 'n'))",
    "return redis.call('mget', 'a', 'missing', 'n')",
    "return redis.call('incrby', 'n', 2.0)",
    "return redis.call('set', 'f', 1.5)",
    "return redis.call('get', 'f')",
    "redis.call('set', 'big', 2^53) return redis.call('get', 'big')",
    "redis.call('set', 'third', 1/3) return redis.call('get', 'third')",
    "redis.call('set', 'e', 1e100) return redis.call('get', 'e')",
    "return redis.call('incr', 'a')",
    "return redis.pcall('incr', 'a')",
    "local e = redis.pcall('incr', 'a') return {type(e), e.err}",
    "local ok, e = pcall(redis.call, 'incr', 'a') return {tostring(ok), type(e), e.err}",
    "local ok, e = pcall(error, 'mine') return e",
    "local ok, e = pcall(function() error({err='MINE x'}) end) return e.err",
    "error('mine')",
    "error({err='MINE x'})",
    "error('two\\nlines')",
    "return redis.error_reply('ERR two\\nlines')",
    "error()",
    "return nosuch",
    "nosuch = 1",
    "redis = nil",
    "string.upper = nil",
    "rawset(string, 'upper', nil)",
    "setmetatable(string, {})",
    "return getmetatable('x')",
    "return _G.KEYS[1]",
    "return 1 + nil",
    "local x = {} return x.y.z",
    "return redis.call()",
    "return redis.pcall()",
    "return redis.call({})",
    "return redis.call('set', 'a', true)",
    "return redis.call('nosuch')",
    "return redis.pcall('nosuch')",
    "return redis.call('get')",
    "return redis.call('multi')",
    "return redis.call('eval', 'return 1', 0)",
    "return redis.call('config', 'get', 'timeout')",
    "return redis.sha1hex('')",
    "return redis.sha1hex('return 1')",
    "return redis.sha1hex()",
    "return redis.log(redis.LOG_DEBUG, 'text', 1)",
    "return redis.log(1)",
    "return redis.log('x', 'y')",
    "return redis.log(9, 'y')",
    "return {redis.LOG_DEBUG, redis.LOG_WARNING, redis.REPL_ALL}",
    "return redis.REDIS_VERSION",
    "return redis.REDIS_VERSION_NUM",
    "return redis.replicate_commands()",
    "return tostring(redis.set_repl(redis.REPL_NONE))",
    "return redis.call('ping')",
    "return redis.call('ping', 'x')",
    "return redis.call('exists', 'a', 'a', 'missing')",
    "return redis.call('ttl', 'a')",
    "return redis.call('del', 'a', 'missing')",
    "return redis.call('echo', 'x')",
    "redis.call('set', 'a', 1) error('after a write')",
    "return redis.call('get', 'a')",
    "redis.call('set', 'a', 2) return redis.call('nosuch')",
    "return redis.call('get', 'a')",
    "return cjson.encode({1, 2, 'x', {a=1}, true})",
    "return cjson.encode({})",
    "return cjson.encode({a={}})",
    "return cjson.encode('a\"b\\\\c/\\n\\t\\1')",
    "return cjson.encode({[1]=1, [2]=2, [4]=4})",
    "return cjson.encode({[1]=1, [100]=2})",
    "return cjson.encode({[-1]=1})",
    "return cjson.encode(1.5)",
    "return cjson.encode(1/3)",
    "return cjson.encode(1e20)",
    "return cjson.encode(123456789012)",
    "return cjson.encode(cjson.null)",
    "return cjson.encode(0/0)",
    "return cjson.encode(print)",
    "return cjson.encode(redis.call)",
    "local t = cjson.decode('{\"a\":[1,2,{\"b\":null}],\"c\":true,\"d\":\"x\\\\u00e9\"}') return {t.a[2], tostring(t.a[3].b == cjson.null), tostring(t.c), t.d}",
    "return cjson.decode('[1, 2.5, \"x\"]')",
    "return cjson.decode('5')",
    "return tostring(pcall(cjson.decode, '{'))",
    "return {bit.band(0xff, 0x0f), bit.bor(1, 2, 4), bit.bxor(5, 1), bit.bnot(0), bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-16, 2)}",
    "return {bit.tobit(0xffffffff), bit.bswap(0x12345678), bit.rol(0x12345678, 12), bit.ror(0x12345678, 12)}",
    "return {bit.tohex(255), bit.tohex(-1), bit.tohex(255, 4), bit.tohex(255, -4)}",
    "return {math.random(100), math.random(100), math.random(5, 7)}",
    "math.randomseed(42) return {math.random(1000), math.random(1000)}",
    "return {math.floor(1.7), math.max(1, 5), math.abs(-3)}",
    "return {string.upper('x'), ('x'):rep(3), string.format('%05.1f|%d|%s', 3.14159, 7, 'y')}",
    "return {table.concat({1, 2, 3}, ','), #table.concat({}), tostring(next({}))}",
    "local t = {3, 1, 2} table.sort(t) return t",
    "return {tostring(tonumber('0x10')), tostring(tonumber('x')), tonumber('12', 8)}",
    "return {type(os.clock()), tostring(os.time)}",
    "return os.time()",
    "return loadstring('return 1 + 1')()",
    "return loadstring('x = 1')()",
    "return loadstring('return KEYS[1]')()",
    "return tostring(loadstring('return +'))",
    "return load(function() return nil end)",
    "return print",
    "return require('x')",
    "return dofile('/etc/passwd')",
    "return getfenv",
    "return tostring(collectgarbage('count') > 0)",
    "local co = coroutine.wrap(function() coroutine.yield(1) coroutine.yield(2) end) return {co(), co()}",
    "local co = coroutine.create(function() error('inner') end) local ok, e = coroutine.resume(co) return {tostring(ok), e}",
    "return {unpack({1, 2, 3})}",
    "return select('#', 1, nil, nil)",
    "return {xpcall(function() error('x') end, function(e) return 'handled ' .. e end)}",
    "for i = 1, 3 do redis.call('incr', 'loop') end return redis.call('get', 'loop')",
    "local a = {} for i = 1, 200 do a[i] = i end return a",
    "#!lua\nreturn 1",
    "#!lua flags=no-writes\nreturn redis.call('get', 'a')",
    "#!lua flags=no-writes\nreturn redis.call('set', 'a', 1)",
    "#!lua flags=bad\nreturn 1",
    "#!python\nreturn 1",
    "return +",
    "return 1 1",
    "\n\nreturn nosuch",
    "local function f()\n  error('deep')\nend\nf()",
    "return redis.setresp(2)",
    "return {double=3.5}",
    "redis.call('set', 'bin', '\\0\\255') return #redis.call('get', 'bin')",
    "return '\\0\\1'",
];

/// Lines in Redis's protocol for people.
const LINES: &[&str] = &[
    "EVAL",
    "EVAL 'return 1'",
    "EVAL 'return 1' x",
    "EVAL 'return 1' 1",
    "EVAL 'return 1' -1",
    "EVAL 'return ARGV[1]' 0 x",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "EVALSHA E0E1F9FABFC9D4800C877A703B823AC0578FF8DB 0",
    "EVALSHA 0000000000000000000000000000000000000000 0",
    "EVALSHA x 0",
    "EVAL_RO 'return redis.call(\"get\", KEYS[1])' 1 a",
    "EVAL_RO 'return redis.call(\"set\", KEYS[1], 1)' 1 a",
    "EVALSHA_RO e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "SCRIPT",
    "SCRIPT FOO",
    "SCRIPT LOAD 'return 2'",
    "SCRIPT LOAD 'return +'",
    "SCRIPT EXISTS 7f923f79fe76194c868d7e1d0820de36700eb649 x",
    "EVALSHA 7f923f79fe76194c868d7e1d0820de36700eb649 0",
    "SCRIPT KILL",
    "SCRIPT FLUSH x",
    "SCRIPT FLUSH SYNC x",
    "SCRIPT FLUSH ASYNC",
    "SCRIPT EXISTS 7f923f79fe76194c868d7e1d0820de36700eb649",
    "EVALSHA 7f923f79fe76194c868d7e1d0820de36700eb649 0",
    "MULTI",
    "SET m 1",
    "EVAL 'return redis.call(\"incr\", KEYS[1])' 1 m",
    "EVAL 'return nosuch' 0",
    "EVAL_RO 'return redis.call(\"get\", KEYS[1])' 1 m",
    "EXEC",
    "MULTI",
    "EVAL 'return redis.call(\"set\", \"only\", 7)' 0",
    "EXEC",
    "GET only",
    "COMMAND GETKEYS EVAL 'return 1' 2 a b c",
    "COMMAND GETKEYS EVAL 'return 1' 0 a",
    "COMMAND GETKEYS EVAL 'return 1' 9 a",
    "HELLO 3",
    "EVAL 'return false' 0",
    "EVAL 'return true' 0",
    "EVAL 'return {double=3.5}' 0",
    "EVAL 'return {map={a=1}}' 0",
    "EVAL 'return {set={x=true}}' 0",
    "EVAL 'return redis.call(\"get\", \"nope\")' 0",
];

pub(super) fn eval(script: &str, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
    let count = keys.len().to_string();
    encode(&[&["EVAL", script, &count], keys, arguments].concat())
}

/// The reply of this crate to a request.
pub(super) fn ask(client: &mut Client, request: &[u8]) -> String {
    client.feed(request);
    client.finish();
    client.take()
}

#[test]
fn scripts_reply_as_in_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    let mut wrong = String::new();
    let scripts = SAME.iter().map(|script| (*script, eval(script, &["a", "b"], &["1", "x y"])));
    let lines = LINES.iter().map(|line| (*line, format!("{line}\r\n").into_bytes()));
    for (text, request) in scripts.chain(lines) {
        let reply = ask(&mut ours, &request);
        let expected = String::from_utf8_lossy(&redis.call(&request)).into_owned();
        if text != "HELLO 3" && reply != expected {
            let _ = write!(wrong, "\n{text:?}\n  Redis {expected:?}\n  ours  {reply:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// A statement of a script that calls commands on a few keys.
fn statement() -> impl Strategy<Value = String> {
    let key = || prop_oneof![Just("KEYS[1]"), Just("KEYS[2]"), Just("'c'"), Just("'d' .. ARGV[1]")];
    let value = || {
        prop_oneof![
            Just("ARGV[1]".to_owned()),
            Just("'text'".to_owned()),
            (-5..100i32).prop_map(|number| number.to_string()),
            Just("1.5".to_owned()),
        ]
    };
    let command = (key(), key(), value(), 0..16usize).prop_map(|(key, other, value, kind)| match kind {
        0 => format!("'set', {key}, {value}"),
        1 => format!("'get', {key}"),
        2 => format!("'incr', {key}"),
        3 => format!("'incrby', {key}, {value}"),
        4 => format!("'append', {key}, {value}"),
        5 => format!("'del', {key}, {other}"),
        6 => format!("'exists', {key}, {other}"),
        7 => format!("'mget', {key}, {other}"),
        8 => format!("'mset', {key}, {value}, {other}, 2"),
        9 => format!("'setnx', {key}, {value}"),
        10 => format!("'getset', {key}, {value}"),
        11 => format!("'strlen', {key}"),
        12 => format!("'incrbyfloat', {key}, {value}"),
        13 => format!("'set', {key}, {value}, 'nx', 'get'"),
        14 => format!("'getdel', {key}"),
        _ => format!("'rename', {key}, {other}"),
    });
    (command, key(), value(), 0..8usize).prop_map(|(command, key, value, kind)| match kind {
        0 | 1 => format!("r[#r + 1] = redis.call({command})"),
        2 | 3 => format!("r[#r + 1] = redis.pcall({command})"),
        4 => format!("if redis.call('get', {key}) == {value} then r[#r + 1] = redis.pcall({command}) end"),
        5 => format!("for i = 1, 3 do r[#r + 1] = redis.pcall({command}) end"),
        6 => format!("local ok, e = pcall(redis.call, {command}) r[#r + 1] = ok and 'done' or e"),
        _ => format!("r[#r + 1] = tostring(redis.call('get', {key})) .. '|' .. tostring(type({value}))"),
    })
}

#[test]
fn random_scripts_do_what_they_do_in_redis() {
    let Some(server) = Redis::start() else { return };
    let scripts = prop::collection::vec(statement(), 1..8);
    let cases = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) };
    let connected = std::cell::RefCell::new((RedisClient::connect(server.addr()), one()));
    proptest!(cases, |(statements in scripts)| {
        let (redis, ours) = &mut *connected.borrow_mut();
        let script = format!("local r = {{}}\n{}\nreturn r", statements.join("\n"));
        let requests = [eval(&script, &["a", "b"], &["7"]), encode(&["MGET", "a", "b", "c", "d7"])];
        for request in requests {
            let expected = String::from_utf8_lossy(&redis.call(&request)).into_owned();
            prop_assert_eq!(ask(ours, &request), expected, "{}", &script);
        }
    });
}

/// The time until a script ends, and its reply.
pub(super) fn timed(client: &mut Client, script: &str) -> (Duration, String) {
    let start = Instant::now();
    let reply = ask(client, &eval(script, &["k"], &[]));
    (start.elapsed(), reply)
}

/// Whatever a script does to go on, it ends when its time is over, and has written nothing.
#[test]
fn a_script_has_a_limit_of_time() {
    let mut client = one();
    assert_eq!(client.send("CONFIG SET busy-reply-threshold 50"), "+OK\r\n");
    for body in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "while true do pcall(coroutine.wrap(function() while true do end end)) end",
        "while true do redis.pcall('get', 'k') end",
        "while true do pcall(redis.call, 'nosuch') end",
        "local t = setmetatable({}, {__index = function() while true do end end}) return t.x",
        "table.sort({3, 2, 1}, function() while true do end end)",
        "return string.gsub('x', 'x', function() while true do end end)",
    ] {
        let (took, reply) = timed(&mut client, &format!("redis.call('set', KEYS[1], 1) {body}"));
        assert_eq!(reply, "-ERR the script has run for 50 ms, and was rolled back\r\n", "{body}");
        assert!(took < Duration::from_secs(20), "{body}: {took:?}");
        assert_eq!(client.send("GET k"), "$-1\r\n", "{body}");
    }
    assert_eq!(client.send("CONFIG SET busy-reply-threshold 5000"), "+OK\r\n");
    assert_eq!(client.send("EVAL 'return 1' 0"), ":1\r\n");
}

#[test]
fn a_script_has_limits_of_memory_and_of_its_reply() {
    let mut client = one();
    let megabytes = SCRIPT_MEMORY_BYTES_MAX >> 20;
    for body in [
        format!("local s = string.rep('x', {})", SCRIPT_MEMORY_BYTES_MAX + 1),
        "local t = {} while true do t[#t + 1] = {} end".into(),
        "local s = 'x' while true do s = s .. s end".into(),
    ] {
        let (_, reply) = timed(&mut client, &format!("redis.call('set', KEYS[1], 1) {body}"));
        let expected =
            format!("-ERR the script needs more than {megabytes} MiB of memory, and was rolled back\r\n");
        assert_eq!(reply, expected, "{body}");
        assert_eq!(client.send("GET k"), "$-1\r\n");
    }
    let (_, reply) = timed(&mut client, &format!("return string.rep('x', {SCRIPT_REPLY_BYTES_MAX})"));
    assert_eq!(reply.len(), SCRIPT_REPLY_BYTES_MAX + "$16777216\r\n\r\n".len());
    let long = format!("local s = string.rep('x', {}) return {{s, s, 1}}", SCRIPT_REPLY_BYTES_MAX / 2);
    let (_, reply) = timed(&mut client, &long);
    assert_eq!(reply, format!("-ERR a script's reply has at most {SCRIPT_REPLY_BYTES_MAX} bytes\r\n"));
    let nested = |depth| format!("local t = {{}} for i = 1, {depth} do t = {{t}} end return t");
    let (_, reply) = timed(&mut client, &nested(SCRIPT_REPLY_DEPTH_MAX));
    assert!(reply.starts_with("*1\r\n") && reply.ends_with("*0\r\n"), "{reply}");
    let (_, reply) = timed(&mut client, &nested(SCRIPT_REPLY_DEPTH_MAX + 1));
    assert_eq!(reply, "-ERR reached lua stack limit\r\n");
    let (_, reply) = timed(&mut client, "local t = {} t[1] = t t[2] = t return t");
    assert!(reply.starts_with("-ERR"), "{reply}");
    assert_eq!(client.send("EVAL 'return 1' 0"), ":1\r\n");
}

/// No script sees changes that another one has tried to make to the environment.
#[test]
fn scripts_see_nothing_of_one_another() {
    let mut client = one();
    for attempt in [
        "rawset(KEYS, 'x', 1) KEYS.y = 2",
        "pcall(rawset, _G, 'leak', 1)",
        "pcall(rawset, redis, 'leak', 1)",
        "pcall(function() string.leak = 1 end)",
        "pcall(function() getmetatable('').__index.leak = 1 end)",
        "pcall(function() getmetatable(redis).__index.leak = 1 end)",
        "pcall(setmetatable, _G, {__index = function() return 'leak' end})",
        "pcall(function() redis.call = function() return 'leak' end end)",
        "pcall(function() loadstring('leak = 1')() end)",
        "pcall(loadstring, '\\27Lua')",
        "pcall(function() table.insert(string, 'leak') end)",
    ] {
        ask(&mut client, &eval(attempt, &["k"], &[]));
        let seen = "local function seen(f) local ok, v = pcall(f) return tostring(ok and v) end \
                    return {seen(function() return leak end), seen(function() return string.leak end), \
                    seen(function() return redis.leak end), seen(function() return ('x').leak end), \
                    seen(function() return string[1] end), redis.call('ping').ok, tostring(KEYS.y)}";
        let reply = ask(&mut client, &eval(seen, &["k"], &[]));
        let words: Vec<&str> = reply.lines().filter(|line| !line.starts_with(['$', '*'])).collect();
        assert_eq!(words, ["false", "nil", "nil", "nil", "nil", "PONG", "nil"], "{attempt}");
    }
}

/// Scripts that try to use up memory and time where Lua's own limits do not see it. The server goes on.
#[test]
fn no_script_uses_up_the_server() {
    let mut client = one();
    assert_eq!(client.send("CONFIG SET busy-reply-threshold 300"), "+OK\r\n");
    for body in [
        "local t = {} for i = 1, 60 do t = {t, t} end return cjson.encode(t)",
        "local s = ('x'):rep(2^24) local t = {} for i = 1, 7000 do t[i] = s end return redis.pcall('del', unpack(t)).err",
        "local s = ('x'):rep(2^24) local t = {} for i = 1, 7000 do t[i] = s end return redis.log(0, unpack(t))",
        "return cjson.decode('[' .. ('0,'):rep(15e6) .. '0]')",
        "return cjson.decode(('['):rep(100000))",
        "local t = {} for i = 1, 1000 do t = {t} end return cjson.encode(t)",
        "return string.find(('a'):rep(300000), ('a?'):rep(300000))",
        "return string.gsub(('a'):rep(300000), ('a-'):rep(300000), '')",
        "return string.match(('a'):rep(300000), ('(a*)'):rep(300000))",
        "local m = {} for i = 1, 8000 do m['k' .. i] = 'v' end return {map = m}",
        "local t = {} for i = 1, 7900 do t[i] = 'k' .. i end return redis.call('mget', unpack(t))",
        "local t = {} for i = 1, 4000 do t[i] = 'k' .. i end local u = {} pcall(function() while true do u[#u + 1] = {} end end) return redis.pcall('mget', unpack(t))",
        "local function f(n) if n == 0 then for i = 1, 4000 do end return end for i = 1, 500 do coroutine.wrap(f)(n - 1) end end f(6)",
        "while true do string.rep('', 2^31 - 1) end",
        "local s = ('x'):rep(1e6) while true do s:find('y') end",
        "local t = {} for i = 1, 1e5 do t[i] = i % 7 end while true do table.sort(t) end",
        "while true do redis.call('keys', '*') end",
        "local function f() return pcall(f) end f()",
        "local function f() f() end f()",
        "local s = '(' for i = 1, 14 do s = s .. s end return loadstring('return ' .. s)",
        "return coroutine.wrap(function() local t = {} while true do t[#t + 1] = {} end end)()",
        "for i = 1, 50 do KEYS[i] = ('x'):rep(2^20) .. i end return 1",
    ] {
        let (took, reply) = timed(&mut client, body);
        // The limit is 0.3 s; a loaded machine needs longer, and memory is filled before the clock is looked at.
        assert!(took < Duration::from_secs(30), "{body}: {took:?}");
        assert!(!reply.is_empty(), "{body}");
        let small = "local t = {} for i = 1, 10000 do t[i] = {i} end return #t";
        assert_eq!(
            timed(&mut client, small).1,
            ":10000\r\n",
            "after {body}: {}",
            &reply[..reply.len().min(200)]
        );
    }
    // Many different scripts take no memory from one another.
    for i in 0..SCRIPTS_COMPILED_MAX + 1 {
        let script = format!("local x = {i} if x < 0 then {} end return x", "x = 1 ".repeat(15_000));
        assert_eq!(timed(&mut client, &script).1, format!(":{i}\r\n"));
    }
}

/// One past each limit, there is an error.
#[test]
fn texts_of_a_script_have_limits() {
    let mut client = one();
    let mut run = |body: String| timed(&mut client, &body).1;
    let pattern = |bytes| format!("return string.find('a', ('a'):rep({bytes}))");
    assert_eq!(run(pattern(SCRIPT_PATTERN_BYTES_MAX)), "$-1\r\n");
    assert!(run(pattern(SCRIPT_PATTERN_BYTES_MAX + 1)).starts_with("-ERR the pattern is too long"));
    let decode = |bytes| format!("return #cjson.decode('[' .. (' '):rep({bytes} - 2) .. ']')");
    assert_eq!(run(decode(SCRIPT_DECODE_BYTES_MAX)), ":0\r\n");
    assert!(run(decode(SCRIPT_DECODE_BYTES_MAX + 1)).contains("the text is too long"));
    // Four times the same text, so that the interpreter has memory for it. The limit is looked at before each value: here before the 1.
    let quarter = SCRIPT_REQUEST_BYTES_MAX / 4;
    let encode = |bytes| format!("local s = ('x'):rep({bytes}) return #cjson.encode({{s, s, s, s, 1}})");
    assert_eq!(run(encode(quarter - 4)), format!(":{}\r\n", SCRIPT_REQUEST_BYTES_MAX - 1));
    assert!(run(encode(quarter - 3)).contains("Cannot serialise, the text is too long"));
    let request = |rest: &str| {
        format!("local s = ('x'):rep({quarter} - 1) return redis.pcall('del', s, s, s, s, '{rest}')")
    };
    assert!(run(request("x")).starts_with("-ERR key exceeds the limit"));
    assert_eq!(run(request("xx")), "-ERR the arguments of the command are too long\r\n");
}

/// At a limit, a script's whole transaction is rolled back.
#[test]
fn a_limit_undoes_the_transaction() {
    let mut client = one();
    let loops = eval("redis.call('set', KEYS[1], 1) while true do end", &["k"], &[]);
    let memory = eval(
        "redis.call('set', KEYS[1], 1) coroutine.wrap(function() local t = {} while true do t[#t + 1] = {} end end)()",
        &["k"],
        &[],
    );
    assert!(ask(&mut client, &memory).contains("of memory, and was rolled back"));
    assert_eq!(client.send("GET k"), "$-1\r\n");
    assert_eq!(client.send("CONFIG SET busy-reply-threshold 50"), "+OK\r\n");
    client.send("MULTI");
    client.send("SET other 1");
    assert_eq!(ask(&mut client, &loops), "+QUEUED\r\n");
    client.send("SET other 2");
    let reply = client.send("EXEC");
    assert!(reply.starts_with("-EXECABORT Transaction rolled back: ERR the script has run for"), "{reply}");
    assert_eq!(client.send("MGET k other"), "*2\r\n$-1\r\n$-1\r\n");
    client.send("BEGIN");
    client.send("SET other 1");
    let reply = ask(&mut client, &loops);
    assert!(
        reply.starts_with("-TXFAILED the transaction was rolled back: ERR the script has run"),
        "{reply}"
    );
    assert!(client.send("COMMIT").starts_with('-'));
    assert_eq!(client.send("MGET k other"), "*2\r\n$-1\r\n$-1\r\n");
}
