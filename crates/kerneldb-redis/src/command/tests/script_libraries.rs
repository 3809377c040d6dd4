//! Tests the libraries of scripts: the same calls on a real Redis and on this crate, and their limits.

use std::fmt::Write;

use proptest::prelude::*;

use super::one;
use bedplate_suite_support::redis::Redis;

use super::redis::RedisClient;
use super::scripts::{ask, eval, timed};
use crate::limits::{SCRIPT_JSON_ENCODE_DEPTH_MAX, SCRIPT_MSGPACK_DEPTH_MAX, SCRIPT_RESULTS_MAX};

/// Scripts whose replies must be the same to the byte, in order.
const SAME: &[&str] = &[
    // cmsgpack
    "return {cmsgpack._NAME, cmsgpack._VERSION, cmsgpack._COPYRIGHT, cmsgpack._DESCRIPTION}",
    "return cmsgpack.pack()",
    "return cmsgpack.pack(nil)",
    "return cmsgpack.pack(true, false, nil, 1, 'x')",
    "return cmsgpack.pack({})",
    "return cmsgpack.pack({1, 2, 3})",
    "return cmsgpack.pack({a = 1})",
    "return cmsgpack.pack({[1] = 1, [3] = 3})",
    "return cmsgpack.pack({[1.5] = 1})",
    "return cmsgpack.pack({[0] = 1})",
    "return cmsgpack.pack({[true] = {}})",
    "return cmsgpack.pack(redis.call)",
    "return cmsgpack.pack(cjson.null)",
    "local r = {} for _, n in ipairs({0, 1, 127, 128, 255, 256, 65535, 65536, 2^31, 2^32 - 1, 2^32, 2^53, 2^62, 2^63, 2^64, 1e300, -0}) do r[#r + 1] = cmsgpack.pack(n) r[#r + 1] = cmsgpack.pack(-n) end return r",
    "local r = {} for _, n in ipairs({0.5, 1/3, 1e-300, 1.1, 3.25, 1/0, -1/0}) do r[#r + 1] = cmsgpack.pack(n) end return r",
    "local r = {} for _, n in ipairs({-1, -31, -32, -33, -128, -129, -32768, -32769, -2^31, -2^31 - 1, -2^63}) do r[#r + 1] = cmsgpack.pack(n) end return r",
    "local r = {} for _, n in ipairs({0, 31, 32, 255, 256, 65535, 65536}) do r[#r + 1] = redis.sha1hex(cmsgpack.pack(('x'):rep(n))) end return r",
    "local r = {} for _, n in ipairs({15, 16, 65535, 65536}) do local t = {} for i = 1, n do t[i] = i end r[#r + 1] = redis.sha1hex(cmsgpack.pack(t)) end return r",
    "local t = {} t.t = t return cmsgpack.pack(t)",
    "local t = 1 for i = 1, 20 do t = {t} end return cmsgpack.pack(t)",
    "return {cmsgpack.unpack(cmsgpack.pack(1, 'x', true, false, nil, {1, {2}}, -5, 2^40))}",
    "local t = cmsgpack.unpack(cmsgpack.pack({a = {b = {1, 2, 'c'}}, d = 1.5})) return {t.a.b, tostring(t.d)}",
    "return {cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3))}",
    "return {cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3), 1)}",
    "return {cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3), 2)}",
    "return {cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3), 3)}",
    "return cmsgpack.unpack_one('x', 5)",
    "return cmsgpack.unpack_one('x', -1)",
    "return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 2)}",
    "return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 2, 1)}",
    "return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 9)}",
    "return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 0, 1)}",
    "return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 0)}",
    "return cmsgpack.unpack_limit('x', -1)",
    "return cmsgpack.unpack_limit('x')",
    "return {cmsgpack.unpack('')}",
    "return cmsgpack.unpack()",
    "return cmsgpack.unpack({})",
    "return cmsgpack.unpack(1)",
    "return cmsgpack.unpack('\\193')",
    "return cmsgpack.unpack('\\196\\1x')",
    "return cmsgpack.unpack('\\217')",
    "return cmsgpack.unpack('\\217\\5abc')",
    "return cmsgpack.unpack('\\220\\0\\5\\1')",
    "return cmsgpack.unpack('\\221\\255\\255\\255\\255')",
    "return cmsgpack.unpack('\\129\\192\\1')",
    "return tostring(cmsgpack.unpack('\\207\\255\\255\\255\\255\\255\\255\\255\\255'))",
    "return tostring(cmsgpack.unpack('\\206\\255\\255\\255\\255'))",
    "return tostring(cmsgpack.unpack('\\210\\255\\255\\255\\254'))",
    "return tostring(cmsgpack.unpack('\\209\\255\\254'))",
    "return tostring(cmsgpack.unpack('\\202\\63\\128\\0\\0'))",
    // struct
    "return struct.pack('>I2>I4', 258, 16909060)",
    "return struct.pack('<hH', -2, 65534)",
    "return struct.pack('bBhHlLiIT', -1, 255, -2, 65534, -3, 2^40, -4, 2^31, 7)",
    "return struct.pack('fd', 1.5, 1/3)",
    "return struct.pack('>fd', 1.5, 1/3)",
    "return struct.pack('s', 'text')",
    "return struct.pack('c3', 'text')",
    "return struct.pack('c0', 'text')",
    "return struct.pack('bxb', 1, 2)",
    "return struct.pack('!bi', 1, 2)",
    "return struct.pack('!4bd', 1, 2)",
    "return struct.pack('!8bi16', 1, 2)",
    "return struct.pack('i16 >i16', -5, -5)",
    "return struct.pack('i3', -5)",
    "return struct.pack('q')",
    "return struct.pack('i33', 1)",
    "return struct.pack('!3', 1)",
    "return struct.pack('c5', 'x')",
    "return struct.pack('i')",
    "return struct.pack('i', 'x')",
    "return struct.pack('i', '7')",
    "return struct.pack('s', {})",
    "return struct.pack('i99999999999', 1)",
    "return struct.pack()",
    "return struct.pack({})",
    "return struct.pack('B', 256.9)",
    "return struct.pack('L', 2^63)",
    "return {struct.unpack('>I2>I4', '\\1\\2\\1\\2\\3\\4')}",
    "return {struct.unpack('bBhH', '\\255\\255\\254\\255\\254\\255')}",
    "return {struct.unpack('l', '\\254\\255\\255\\255\\255\\255\\255\\255')}",
    "return {struct.unpack('i3', '\\254\\255\\255')}",
    "return {struct.unpack('i16', struct.pack('i16', -77))}",
    "local a, b = struct.unpack('fd', struct.pack('fd', 1.5, 1/3)) return {tostring(a), tostring(b)}",
    "return {struct.unpack('s', 'text\\0more')}",
    "return {struct.unpack('sb', 'text\\0\\7')}",
    "return {struct.unpack('bc0', '\\3abcdef')}",
    "return {struct.unpack('c3', 'abcdef')}",
    "return {struct.unpack('c3', 'abcdef', 3)}",
    "return {struct.unpack('!bi', struct.pack('!bi', 1, 2))}",
    "return {struct.unpack('', 'abc')}",
    "return struct.unpack('i', 'x')",
    "return struct.unpack('s', 'x')",
    "return struct.unpack('c0', 'x')",
    "return struct.unpack('sc0', 'x\\0y')",
    "return struct.unpack('i', 'xxxx', 0)",
    "return struct.unpack('i', 'xxxx', -1)",
    "return struct.unpack('i', 'xxxx', 2)",
    "return struct.unpack('i')",
    "return struct.unpack('bc0', '\\9abc')",
    "return {struct.size('bhi'), struct.size('!bhi'), struct.size('!8bi16'), struct.size('T'), struct.size('c7'), struct.size('!x i')}",
    "return struct.size('s')",
    "return struct.size('c0')",
    "return struct.size('?')",
    // cjson
    "return {cjson._NAME, cjson._VERSION, tostring(cjson.new().null == cjson.null)}",
    "return {cjson.encode_max_depth(), cjson.decode_max_depth(), cjson.encode_number_precision(), tostring(cjson.encode_keep_buffer()), tostring(cjson.encode_invalid_numbers()), tostring(cjson.decode_invalid_numbers())}",
    "local a, b, c = cjson.encode_sparse_array() return {tostring(a), b, c}",
    "return cjson.encode_max_depth(0)",
    "return cjson.encode_max_depth(1, 2)",
    "return cjson.encode_max_depth('x')",
    "return cjson.encode_number_precision(15)",
    "return cjson.encode_invalid_numbers('x')",
    "return cjson.encode_keep_buffer(1)",
    "return cjson.encode()",
    "return cjson.encode(1, 2)",
    "return cjson.decode()",
    "return cjson.decode({})",
    "return cjson.decode(5)",
    "return cjson.encode({[true] = 1})",
    "return cjson.encode({f = redis.call})",
    "return cjson.encode({1/0})",
    "return cjson.encode({[1] = 1, [100] = 2})",
    "return cjson.encode({1234567890123456, 12345678901234567890, 99999999999999, 100000000000000, 1e14, 123456789012345, 0.1, 1e-7})",
    "return cjson.encode({[1.5] = 1})",
    "return cjson.encode({[-0.5] = 'x'})",
    "return cjson.encode('\\0\\31\\127\\128\\255/\\\\\"')",
    "cjson.encode_sparse_array(true) local r = cjson.encode({[100] = 2}) cjson.encode_sparse_array(false) return r",
    "cjson.encode_sparse_array(false, 0) local r = cjson.encode({[20] = 2}) cjson.encode_sparse_array(false, 2, 10) return r",
    "cjson.encode_sparse_array(false, 2, 100) local r = cjson.encode({[20] = 2}) cjson.encode_sparse_array(false, 2, 10) return r",
    "cjson.encode_number_precision(3) local r = cjson.encode({1.23456, 123456, 12}) cjson.encode_number_precision(14) return r",
    "cjson.encode_invalid_numbers(true) local r = cjson.encode({1/0, -1/0, 0/0}) cjson.encode_invalid_numbers(false) return r",
    "cjson.encode_invalid_numbers('null') local r = cjson.encode({1/0, -1/0, 0/0}) cjson.encode_invalid_numbers('off') return r",
    "local r = cjson.encode_invalid_numbers('null') cjson.encode_invalid_numbers('off') return r",
    "cjson.encode_max_depth(2) local r = {tostring(pcall(cjson.encode, {{}})), select(2, pcall(cjson.encode, {{{}}}))} cjson.encode_max_depth(1000) return r",
    "cjson.decode_max_depth(2) local r = {tostring(pcall(cjson.decode, '[[]]')), select(2, pcall(cjson.decode, '[[[]]]'))} cjson.decode_max_depth(1000) return r",
    "cjson.decode_invalid_numbers(false) local r = select(2, pcall(cjson.decode, '0x1F')) cjson.decode_invalid_numbers(true) return r",
    "cjson.decode_invalid_numbers(false) local r = select(2, pcall(cjson.decode, 'inf')) cjson.decode_invalid_numbers(true) return r",
    "cjson.decode_invalid_numbers(false) local r = select(2, pcall(cjson.decode, '007')) cjson.decode_invalid_numbers(true) return r",
    "local own = cjson.new() own.encode_number_precision(2) return {own.encode(1.234), cjson.encode(1.234)}",
    "return tostring(cjson.decode('0x1F'))",
    "local t = cjson.decode('[inf, -Infinity, 007, +5, 1e3, -0.5]') for i = 1, #t do t[i] = tostring(t[i]) end return t",
    "return cjson.decode('\\0\\0')",
    "return cjson.decode('nul')",
    "return cjson.decode('truE')",
    "return cjson.decode('\"abc')",
    "return cjson.decode('\"\\\\u12\"')",
    "return cjson.decode('\"\\\\ud800\"')",
    "return cjson.decode('\"\\\\udc00\"')",
    "return cjson.decode('\"\\\\ud83d\\\\ude00 \\\\u00e9 \\\\u20ac\"')",
    "return cjson.decode('\"\\\\q\"')",
    "return cjson.decode('\"\\\\b\\\\f\\\\n\\\\r\\\\t\\\\/\\\\\\\\\"')",
    "return cjson.decode('\"\\255\\1\"')",
    "return cjson.decode('{1}')",
    "return cjson.decode('{\"a\" 1}')",
    "return cjson.decode('{\"a\":1 2}')",
    "return cjson.decode('{\"a\":1,}')",
    "return cjson.decode('[1 2]')",
    "return cjson.decode('[1,]')",
    "return cjson.decode('1 2')",
    "return cjson.decode('-')",
    "return cjson.decode('')",
    "return cjson.decode(' [ ] ')[1] == nil",
    "return cjson.decode(('['):rep(1001))",
    "local t = cjson.decode(('['):rep(1000) .. (']'):rep(1000)) return #t",
    "return #cjson.decode(' [ [ ] , { } , { \"a\" : [ 1 ] } , null , true ] ')",
    "return cjson.decode('{\"a\":{\"b\":[1,[2,[3]]]}}').a.b",
    "local ok, e = pcall(cjson.decode, '{') return e",
    "local ok, e = pcall(function() local x = cjson.decode('{') end) return e",
    "local ok, e = pcall(function() return cjson.decode('{') end) return e",
    "local ok, e = pcall(struct.pack, 'q') return e",
    "local p = struct.pack local ok, e = pcall(function() return p('q') end) return e",
    "local ok, e = pcall(coroutine.wrap(function() return struct.pack('q') end)) return e",
    "cjson.encode = nil",
    "cmsgpack.pack = nil",
    "struct.pack = nil",
    "redis.setresp(4)",
    "redis.setresp()",
    "local g = getmetatable(_G) g.__index = {}",
    "_G = {}",
    "KEYS = {}",
    "redis.call = nil",
    "redis.other = 1",
    "return tostring(redis.other)",
    "return loadstring(string.dump(function() return 1 end))()",
    "return type(string.dump(function() end))",
    "KEYS[1] = 'x' return KEYS[1]",
    "return {tostring(_G == _G._G), type(_G.KEYS), type(rawget(_G, 'x'))}",
];

#[test]
fn libraries_do_what_they_do_in_redis() {
    let Some(server) = Redis::start() else { return };
    let mut redis = RedisClient::connect(server.addr());
    let mut ours = one();
    let mut wrong = String::new();
    for script in SAME {
        let request = eval(script, &[], &[]);
        let reply = ask(&mut ours, &request);
        let expected = String::from_utf8_lossy(&redis.call(&request)).into_owned();
        if reply != expected {
            let _ = write!(wrong, "\n{script:?}\n  Redis {expected:?}\n  ours  {reply:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Any bytes are the same values, or the same errors, in Redis.
#[test]
fn any_bytes_are_unpacked_as_in_redis() {
    let Some(server) = Redis::start() else { return };
    let connected = std::cell::RefCell::new((RedisClient::connect(server.addr()), one()));
    let byte = || {
        prop_oneof![
            2 => 0..8u8, 2 => 0x80..0xA4u8, 3 => 0xC0..=0xDFu8, 1 => any::<u8>(),
        ]
    };
    let json = || {
        let token = prop_oneof![
            Just("["),
            Just("]"),
            Just("{"),
            Just("}"),
            Just(","),
            Just(":"),
            Just("\"a\""),
            Just("1"),
            Just("-"),
            Just("."),
            Just("e"),
            Just("null"),
            Just(" "),
            Just("\""),
            Just("\\u0041"),
            Just("0x"),
            Just("[1,"),
            Just("{\"k\":"),
            Just("nan"),
            Just("true"),
        ];
        prop::collection::vec(token, 0..9).prop_map(|tokens| tokens.concat())
    };
    let cases = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) };
    // A text of the value in which keys are sorted.
    let show = "local function show(v) if type(v) ~= 'table' then return type(v) .. tostring(v) end \
                local r = {} for k, x in pairs(v) do r[#r + 1] = show(k) .. '=' .. show(x) end \
                table.sort(r) return '{' .. table.concat(r, ',') .. '}' end ";
    let msgpack = format!("{show} return show({{pcall(cmsgpack.unpack, ARGV[1])}})");
    let decode = format!("{show} return show({{pcall(cjson.decode, ARGV[2])}})");
    let unpack = format!("{show} return show({{pcall(struct.unpack, 'bHi3>i!4ld', ARGV[1])}})");
    proptest!(cases, |(bytes in prop::collection::vec(byte(), 0..24), json in json())| {
        let (redis, ours) = &mut *connected.borrow_mut();
        for script in [&msgpack, &decode, &unpack] {
            let arguments: [&[u8]; 5] = [b"EVAL", script.as_bytes(), b"0", &bytes, json.as_bytes()];
            let request = super::encode(&arguments);
            let expected = String::from_utf8_lossy(&redis.call(&request)).into_owned();
            prop_assert_eq!(ask(ours, &request), expected, "{} {:?} {:?}", script, &bytes, &json);
        }
    });
}

#[test]
fn one_past_each_limit_is_an_error() {
    let mut client = one();
    let mut run = |body: String| timed(&mut client, &body).1;
    let unpack = |depth| format!("return type(cmsgpack.unpack(('\\145'):rep({depth}) .. '\\144'))");
    assert_eq!(run(unpack(SCRIPT_MSGPACK_DEPTH_MAX - 1)), "$5\r\ntable\r\n");
    assert!(run(unpack(SCRIPT_MSGPACK_DEPTH_MAX)).contains("the packed tables are too deep"));
    let encode = |depth| format!("local t = 1 for i = 1, {depth} do t = {{t}} end return #cjson.encode(t)");
    assert_eq!(
        run(encode(SCRIPT_JSON_ENCODE_DEPTH_MAX)),
        format!(":{}\r\n", 2 * SCRIPT_JSON_ENCODE_DEPTH_MAX + 1)
    );
    assert!(run(encode(SCRIPT_JSON_ENCODE_DEPTH_MAX + 1)).contains("excessive nesting (129)"));
    let results = |count| format!("return select('#', cmsgpack.unpack(('\\1'):rep({count})))");
    assert_eq!(run(results(SCRIPT_RESULTS_MAX)), format!(":{SCRIPT_RESULTS_MAX}\r\n"));
    assert!(run(results(SCRIPT_RESULTS_MAX + 1)).contains("too many return values at once"));
    let results =
        |count| format!("return select('#', struct.unpack(('b'):rep({count}), ('x'):rep({count})))");
    assert_eq!(run(results(SCRIPT_RESULTS_MAX)), format!(":{}\r\n", SCRIPT_RESULTS_MAX + 1));
    assert!(run(results(SCRIPT_RESULTS_MAX + 1)).contains("too many results"));
    for decode in ["cmsgpack.unpack", "cjson.decode"] {
        let long = format!("return {decode}(('0'):rep(2^23 + 1))");
        assert!(run(long).contains("the text is too long"), "{decode}");
    }
    let pack = "local s = ('x'):rep(2^22) return #cmsgpack.pack({s, s, s, s, s})";
    assert!(run(pack.into()).contains("the packed text is too long"));
    let pack = "local s = ('x'):rep(2^22) return #struct.pack('c0c0c0c0c0', s, s, s, s, s)";
    assert!(run(pack.into()).contains("the packed text is too long"));
}

/// The settings of one script do not matter for the next one.
#[test]
fn settings_last_for_one_run() {
    let mut client = one();
    assert_eq!(timed(&mut client, "return cjson.encode_number_precision(3)").1, ":3\r\n");
    assert_eq!(timed(&mut client, "return cjson.encode_number_precision()").1, ":14\r\n");
}

/// A text of many small values takes long, and its reader looks at the clock.
#[test]
fn many_unpacked_values_take_time() {
    let mut client = one();
    let body = "return #cmsgpack.unpack('\\221\\0\\15\\255\\255' .. ('\\1'):rep(2^20 - 1))";
    assert_eq!(timed(&mut client, body).1, format!(":{}\r\n", (1 << 20) - 1));
    assert_eq!(client.send("CONFIG SET busy-reply-threshold 5"), "+OK\r\n");
    let reply = timed(&mut client, body).1;
    assert!(reply.contains("has run for 5 ms"), "{reply}");
}
