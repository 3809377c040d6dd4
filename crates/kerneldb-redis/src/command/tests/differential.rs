//! Sends the same random commands to a real Redis and to this crate. Every reply must be byte for byte the same.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use bedplate_suite_support::redis::Redis;

use super::redis::{RedisClient, reply_len};
use super::{Client, encode};
use crate::command::tests::model::Model;
use crate::command::{Operators, Services, Startup};

type Words = Vec<String>;

fn any_of(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(words).prop_map(str::to_owned)
}

fn key() -> impl Strategy<Value = String> {
    any_of(&["a", "b", "c", "k[1]"])
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("9223372036854775807".to_string()),
        Just(" 1".to_string()),
        (-1000i64..1000).prop_map(|n| n.to_string()),
        (-1000i64..1000, 0u32..1000).prop_map(|(n, f)| format!("{n}.{f}")),
        "[a-z\u{e4}\n ]{0,12}",
        "x{40,50}",
        // A sequence must not reach the limit on values, which Redis does not have.
        prop::sample::select(&[200usize, 500, 1000][..]).prop_map(|n| "y".repeat(n)),
    ]
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (-20i64..20).prop_map(|n| n.to_string()),
        1 => Just(i64::MIN.to_string()),
        1 => Just(i64::MAX.to_string()),
        1 => Just("x".to_string()),
    ]
}

fn float() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (-1000i64..1000, 0u32..100_000).prop_map(|(n, f)| format!("{n}.{f}")),
        2 => (-99i64..99, -12i32..12).prop_map(|(n, e)| format!("{n}e{e}")),
        1 => any_of(&["inf", "nan", "1e400", "", "1.", ".5", "+3", "abc", "1e-400", "1e5000", "-0"]),
    ]
}

/// Far enough in the future that both servers print the same, or in the past.
fn seconds() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (100i64..200).prop_map(|s| (s * 100).to_string()),
        1 => any_of(&["0", "-1", "x", "9223372036854775807", "-9223372036854775808"]),
    ]
}

fn unix_time() -> impl Strategy<Value = String> {
    prop_oneof![6 => (40i64..60).prop_map(|s| (s * 100_000_000).to_string()), 1 => any_of(&["1", "0", "-5"])]
}

fn words(parts: &[&str]) -> Words {
    parts.iter().map(|p| p.to_string()).collect()
}

fn set_options() -> impl Strategy<Value = Words> {
    let option = prop_oneof![
        4 => any_of(&["NX", "xx", "GET", "KEEPTTL", "bogus"]).prop_map(|o| words(&[&o])),
        2 => (any_of(&["EX", "ex"]), seconds()).prop_map(|(o, s)| words(&[&o, &s])),
        1 => seconds().prop_map(|s| words(&["PX", &(s + "000")])),
        // No time is in the past, because Redis deletes such a key only at its next access, which DBSIZE shows.
        1 => (40i64..60).prop_map(|s| words(&["EXAT", &(s * 100_000_000).to_string()])),
    ];
    prop::collection::vec(option, 0..3).prop_map(|o| o.concat())
}

fn offset() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (0u32..90).prop_map(|n| n.to_string()),
        1 => (0u32..9).prop_map(|n| format!("#{n}")),
        1 => any_of(&["-1", "x", "", "4294967296", "#-1", "#x", "#9223372036854775807"]),
    ]
}

/// Commands on bits.
fn bits() -> impl Strategy<Value = Words> {
    let unit = || prop_oneof![2 => Just(None), 1 => any_of(&["bit", "BYTE", "word"]).prop_map(Some)];
    let kind = || any_of(&["u8", "i8", "u1", "i1", "i5", "u63", "i64", "u64", "u0", "i65", "8", "", "u7x"]);
    let part = prop_oneof![
        2 => (kind(), offset()).prop_map(|(t, o)| words(&["get", &t, &o])),
        2 => (kind(), offset(), number()).prop_map(|(t, o, n)| words(&["SET", &t, &o, &n])),
        2 => (kind(), offset(), number()).prop_map(|(t, o, n)| words(&["incrby", &t, &o, &n])),
        // Not FAIL: if no operation is left, Redis makes the value longer and does not tell clients that watch the key.
        2 => any_of(&["WRAP", "sat", "no"]).prop_map(|k| words(&["OVERFLOW", &k])),
    ];
    let range =
        || (number(), number(), unit()).prop_map(|(a, b, u)| [vec![a, b], u.into_iter().collect()].concat());
    prop_oneof![
        2 => (key(), offset()).prop_map(|(k, o)| words(&["getbit", &k, &o])),
        2 => (key(), offset(), any_of(&["0", "1", "1", "2", "-1", "x"]))
            .prop_map(|(k, o, b)| words(&["setbit", &k, &o, &b])),
        2 => (key(), prop_oneof![1 => Just(words(&[])), 1 => number().prop_map(|n| vec![n]), 4 => range()])
            .prop_map(|(k, r)| [words(&["bitcount", &k]), r].concat()),
        2 => (key(), any_of(&["0", "1", "2", "x"]), prop_oneof![1 => Just(words(&[])), 1 => number().prop_map(|n| vec![n]), 4 => range()])
            .prop_map(|(k, b, r)| [words(&["bitpos", &k, &b]), r].concat()),
        3 => (any_of(&["bitfield", "bitfield", "BITFIELD_RO"]), key(), prop::collection::vec(part, 0..4))
            .prop_map(|(c, k, p)| [words(&[&c, &k]), p.concat()].concat()),
    ]
}

fn lcs_options() -> impl Strategy<Value = Words> {
    let option = prop_oneof![
        3 => any_of(&["IDX", "withmatchlen", "IDX"]).prop_map(|o| words(&[&o])),
        1 => any_of(&["LEN", "minmatchlen", "foo"]).prop_map(|o| words(&[&o])),
        2 => number().prop_map(|n| words(&["MINMATCHLEN", &n])),
    ];
    prop::collection::vec(option, 0..3).prop_map(|o| o.concat())
}

/// Commands that do not delete.
fn keeping() -> impl Strategy<Value = Words> {
    prop_oneof![
        2 => (any_of(&["get", "STRLEN", "ttl", "TYPE", "expiretime", "incr", "DECR", "persist"]), key())
            .prop_map(|(c, k)| words(&[&c, &k])),
        3 => (key(), value(), set_options()).prop_map(|(k, v, o)| [words(&["SET", &k, &v]), o].concat()),
        2 => (any_of(&["setnx", "getset", "append"]), key(), value()).prop_map(|(c, k, v)| words(&[&c, &k, &v])),
        2 => (any_of(&["incrby", "decrby"]), key(), number()).prop_map(|(c, k, n)| words(&[&c, &k, &n])),
        1 => (key(), float()).prop_map(|(k, n)| words(&["incrbyfloat", &k, &n])),
        1 => (any_of(&["getrange", "substr"]), key(), number(), number())
            .prop_map(|(c, k, a, b)| words(&[&c, &k, &a, &b])),
        1 => (key(), -2i64..70, value()).prop_map(|(k, o, v)| words(&["setrange", &k, &o.to_string(), &v])),
        1 => (key(), (100u32..200), value()).prop_map(|(k, s, v)| words(&["setex", &k, &format!("{s}00"), &v])),
        1 => prop::collection::vec(key(), 1..5).prop_map(|k| [words(&["mget"]), k].concat()),
        1 => (any_of(&["exists", "touch"]), prop::collection::vec(key(), 1..4))
            .prop_map(|(c, k)| [words(&[&c]), k].concat()),
        1 => (any_of(&["mset", "MSETNX"]), prop::collection::vec((key(), value()), 1..4))
            .prop_map(|(c, kv)| kv.into_iter().fold(words(&[&c]), |w, (k, v)| [w, vec![k, v]].concat())),
        1 => (key(), key(), prop_oneof![Just(None), Just(Some("REPLACE")), Just(Some("foo"))])
            .prop_map(|(a, b, o)| [words(&["copy", &a, &b]), o.map(|o| words(&[o])).unwrap_or_default()].concat()),
        1 => key().prop_map(|k| words(&["getex", &k])),
        1 => key().prop_map(|k| words(&["getex", &k, "persist"])),
        1 => Just(words(&["dbsize"])),
        1 => (key(), key(), lcs_options()).prop_map(|(a, b, o)| [words(&["lcs", &a, &b]), o].concat()),
        3 => bits(),
    ]
}

/// Commands that may delete, or that are wrong.
fn deleting() -> impl Strategy<Value = Words> {
    let conditions = prop::collection::vec(any_of(&["NX", "xx", "GT", "LT", "foo"]), 0..3);
    prop_oneof![
        2 => (any_of(&["del", "unlink"]), prop::collection::vec(key(), 1..3)).prop_map(|(c, k)| [words(&[&c]), k].concat()),
        1 => key().prop_map(|k| words(&["getdel", &k])),
        // An empty result deletes the destination.
        1 => (any_of(&["and", "OR", "xor", "not", "nand"]), key(), prop::collection::vec(key(), 0..4))
            .prop_map(|(o, k, s)| [words(&["bitop", &o, &k]), s].concat()),
        2 => (key(), unix_time(), conditions).prop_map(|(k, s, c)| [words(&["expireat", &k, &s]), c].concat()),
        1 => (any_of(&["expire", "pexpire"]), key(), seconds())
            .prop_map(|(c, k, s)| words(&[&c, &k, &(if c == "expire" { s } else { s + "000" })])),
        1 => (key(), unix_time()).prop_map(|(k, s)| words(&["getex", &k, "exat", &s])),
        1 => (any_of(&["rename", "RENAMENX"]), key(), key()).prop_map(|(c, a, b)| words(&[&c, &a, &b])),
        1 => Just(words(&["flushall"])),
        1 => prop::collection::vec("[a-z]{1,9}", 0..4).prop_map(|w| [words(&["nosuch"]), w].concat()),
        1 => (any_of(&["get", "set", "mset", "client", "config|get"]), prop::collection::vec(key(), 0..4))
            .prop_map(|(c, k)| [words(&[&c]), k].concat()),
        1 => any_of(&["", "*", "[ab]", "k\\[*", "?", "[^a]"]).prop_map(|p| words(&["keys", &p])),
    ]
}

fn transactional() -> impl Strategy<Value = Words> {
    prop_oneof![
        3 => Just(words(&["multi"])),
        3 => Just(words(&["EXEC"])),
        1 => Just(words(&["discard"])),
        1 => Just(words(&["unwatch"])),
    ]
}

/// KEYS has no order.
fn normalize(command: &Words, reply: Vec<u8>) -> Vec<u8> {
    if !command[0].eq_ignore_ascii_case("keys") || !reply.starts_with(b"*") {
        return reply;
    }
    let mut parts: Vec<&[u8]> = reply.split(|c| *c == b'\n').collect();
    parts.sort();
    parts.concat()
}

/// A client of one of the two servers that are compared.
pub(super) trait Side {
    /// Sends requests in these portions and returns `replies` replies.
    fn call(&mut self, portions: &[&[u8]], replies: usize) -> Vec<Vec<u8>>;

    /// Whether it has no transaction open, as far as one can see.
    fn is_idle(&self) -> bool {
        true
    }
}

impl Side for RedisClient {
    fn call(&mut self, portions: &[&[u8]], replies: usize) -> Vec<Vec<u8>> {
        portions.iter().for_each(|portion| self.send(portion));
        (0..replies).map(|_| self.call(&[])).collect()
    }
}

impl<S: Operators, V: Services> Side for Client<S, V> {
    fn call(&mut self, portions: &[&[u8]], replies: usize) -> Vec<Vec<u8>> {
        for portion in portions {
            self.feed(portion);
            self.finish();
        }
        let mut out = std::mem::take(&mut self.out);
        let found: Vec<Vec<u8>> =
            std::iter::from_fn(|| reply_len(&out).map(|len| out.drain(..len).collect())).collect();
        assert_eq!((found.len(), out.len()), (replies, 0));
        found
    }

    fn is_idle(&self) -> bool {
        !self.session.in_transaction()
    }
}

/// Whether a command is sent alone, or all of them as one stream that is cut at these places.
#[derive(Clone, Debug)]
enum Sending {
    Alone,
    Stream(Vec<prop::sample::Index>),
}

/// Runs the commands on both sides, which start empty.
fn compare(
    commands: &[(usize, Words)],
    sending: &Sending,
    redis: &mut [RedisClient],
    ours: &mut [impl Side],
) -> Result<(), TestCaseError> {
    for (theirs, ours) in redis.iter_mut().zip(ours.iter_mut()) {
        for start in [&b"RESET\r\n"[..], b"FLUSHALL\r\n"] {
            assert_eq!(ours.call(&[start], 1), Side::call(theirs, &[start], 1));
        }
    }
    let batches: Vec<&[(usize, Words)]> = match sending {
        Sending::Alone => commands.chunks(1).collect(),
        Sending::Stream(_) => vec![commands],
    };
    for batch in batches {
        let stream: Vec<u8> = batch.iter().flat_map(|(_, command)| encode(command)).collect();
        let mut cuts = vec![0, stream.len()];
        if let Sending::Stream(indexes) = sending {
            cuts.extend(indexes.iter().map(|i| i.index(stream.len())));
        }
        cuts.sort();
        let portions: Vec<&[u8]> = cuts.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
        let who = batch[0].0;
        let expected = Side::call(&mut redis[who], &portions, batch.len());
        let replies = ours[who].call(&portions, batch.len());
        for (((_, command), reply), expected) in batch.iter().zip(replies).zip(expected) {
            prop_assert_eq!(
                normalize(command, reply).escape_ascii().to_string(),
                normalize(command, expected).escape_ascii().to_string(),
                "client {} {:?}",
                who,
                command
            );
        }
    }
    prop_assert!(ours.iter().all(Side::is_idle));
    Ok(())
}

fn check(
    cases: u32,
    redis: &mut [RedisClient],
    ours: &mut [impl Side],
    strategy: impl Strategy<Value = (Vec<(usize, Words)>, Sending)>,
) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let sides = std::cell::RefCell::new((redis, ours));
    TestRunner::new(config)
        .run(&strategy, |(commands, sending)| {
            let (redis, ours) = &mut *sides.borrow_mut();
            compare(&commands, &sending, redis, ours)
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// All properties, with two clients each.
pub(super) fn check_all<T: Side>(cases: u32, mut client: impl FnMut() -> T) {
    let Some(redis) = Redis::start() else { return };
    let mut theirs = [RedisClient::connect(redis.addr()), RedisClient::connect(redis.addr())];
    let mut ours = [client(), client()];
    let alone = || Just(Sending::Alone);
    let stream = prop::collection::vec(any::<prop::sample::Index>(), 0..12).prop_map(Sending::Stream);
    check(cases, &mut theirs, &mut ours, (one_client(), alone()));
    check(cases, &mut theirs, &mut ours, (one_client(), stream.clone()));
    check(cases, &mut theirs, &mut ours, (two_clients_with_transactions(), alone()));
    check(cases, &mut theirs, &mut ours, (one_client_with_deletions_in_transactions(), alone()));
    check(cases, &mut theirs, &mut ours, (one_client_with_deletions_in_transactions(), stream));
}

#[test]
fn on_the_model() {
    let model = Model::new(Startup::default());
    check_all(200, || Client::new(&model));
    assert_eq!(model.locks(), 0);
}

fn one_client() -> impl Strategy<Value = Vec<(usize, Words)>> {
    let command = prop_oneof![6 => keeping(), 3 => deleting()];
    prop::collection::vec(command.prop_map(|c| (0, c)), 1..60)
}

fn two_clients_with_transactions() -> impl Strategy<Value = Vec<(usize, Words)>> {
    // A key that is created and deleted again between WATCH and EXEC counts as changed in Redis. Here it is
    // unchanged, because it is absent at both times. So this test deletes nothing.
    let watch = prop::collection::vec(key(), 1..3).prop_map(|k| [words(&["watch"]), k].concat());
    let command = prop_oneof![6 => local(keeping()), 3 => transactional(), 1 => watch];
    prop::collection::vec((0usize..2, command), 1..60)
}

fn one_client_with_deletions_in_transactions() -> impl Strategy<Value = Vec<(usize, Words)>> {
    // Commands on all keys do not see a transaction's own writes.
    let local = prop_oneof![4 => keeping(), 3 => deleting(), 2 => transactional()]
        .prop_filter("commands on all keys", |c| {
            !["keys", "dbsize", "flushall"].contains(&&c[0].to_ascii_lowercase()[..])
        });
    prop::collection::vec(local.prop_map(|c| (0, c)), 1..60)
}

/// Removes DBSIZE, whose reply does not include a transaction's own writes.
fn local(commands: impl Strategy<Value = Words>) -> impl Strategy<Value = Words> {
    commands.prop_filter("on all keys", |c| c[0] != "dbsize")
}
