//! Feeds arbitrary bytes to a connection: nothing panics, and the output consists of complete replies.

use proptest::prelude::*;

use super::model::Model;
use super::redis::reply_len;
use super::{Client, encode};
use crate::command::table::COMMANDS;
use crate::command::{Next, Startup};
use crate::resp::Protocol;

fn argument() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(
        &[
            "a",
            "b",
            "0",
            "1",
            "-1",
            "10",
            "x",
            "*",
            "ex",
            "px",
            "exat",
            "pxat",
            "nx",
            "xx",
            "gt",
            "lt",
            "get",
            "keepttl",
            "persist",
            "match",
            "count",
            "type",
            "string",
            "read",
            "only",
            "off",
            "on",
            "sync",
            "async",
            "skip",
            "id",
            "addr",
            "skipme",
            "no",
            "yes",
            "user",
            "default",
            "help",
            "docs",
            "list",
            "filterby",
            "pattern",
            "aclcat",
            "timeout",
            "requirepass",
            "lib-name",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
            "1e4931",
            "replace",
            "db",
            "2",
            "3",
            "auth",
            "setname",
            "idx",
            "len",
            "withmatchlen",
            "minmatchlen",
            "absttl",
            "idletime",
            "freq",
        ][..],
    );
    prop_oneof![
        8 => words.prop_map(|w| w.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => Just(vec![b'k'; 300]),
        1 => Just(vec![b'v'; 70_000]),
    ]
}

/// A command of the table, or a subcommand, with any arguments.
fn command() -> impl Strategy<Value = Vec<u8>> {
    let name = (any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(|(i, j)| {
        let spec = &COMMANDS[i.index(COMMANDS.len())];
        let mut words = vec![spec.name.as_bytes().to_vec()];
        if !spec.subs.is_empty() {
            words.push(spec.subs[j.index(spec.subs.len())].name.as_bytes().to_vec());
        }
        words
    });
    (name, prop::collection::vec(argument(), 0..5)).prop_map(|(name, args)| encode(&[name, args].concat()))
}

fn input() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        20 => command(),
        1 => Just(b"PING\r\n".to_vec()),
        1 => Just(encode(&["HELLO", "3"])),
    ];
    let end = prop_oneof![Just(Vec::new()), prop::collection::vec(any::<u8>(), 0..40)];
    (prop::collection::vec(part, 0..25), end).prop_map(|(parts, end)| [parts.concat(), end].concat())
}

fn check(input: &[u8], portion: usize, password: bool) -> Result<(), TestCaseError> {
    let password = if password { "a".to_owned() } else { String::new() };
    let model = Model::new(Startup { password, ..Startup::default() });
    let mut client = Client::new(&model);
    'input: for part in input.chunks(portion) {
        client.connection.feed(part);
        for _ in 0..20 {
            match client.process() {
                Next::RetryAfter(_) => {}
                // The test continues all the same.
                Next::Shutdown => {}
                Next::Close => break 'input,
                _ => break,
            }
        }
    }
    let mut rest = &client.out[..];
    while !rest.is_empty() {
        let len = reply_len(rest);
        prop_assert!(len.is_some(), "incomplete: {}", rest.escape_ascii());
        rest = &rest[len.unwrap_or(rest.len())..];
    }
    drop(client);
    prop_assert_eq!(model.locks(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_commands(input in input(), portion in prop_oneof![1usize..50, Just(1usize << 20)], password: bool) {
        check(&input, portion, password)?;
    }

    #[test]
    fn any_bytes(input in prop::collection::vec(any::<u8>(), 0..500), portion in 1usize..50) {
        check(&input, portion, false)?;
    }
}

/// Every description and help text is one complete reply in both protocols.
#[test]
fn descriptions_are_complete() {
    let model = Model::new(Startup::default());
    for hello in ["HELLO 2", "HELLO 3"] {
        let mut client = Client::new(&model);
        client.send(hello);
        for line in [
            "COMMAND",
            "COMMAND DOCS",
            "COMMAND INFO",
            "COMMAND INFO get client|list nosuch config",
            "COMMAND DOCS get client client|list nosuch",
            "COMMAND HELP",
            "COMMAND LIST",
            "CLIENT HELP",
            "CLIENT INFO",
            "CONFIG HELP",
            "CONFIG GET *",
            "OBJECT HELP",
            "MEMORY HELP",
            "BEDPLATE HELP",
            "BEDPLATE STATS",
            "INFO everything",
        ] {
            let reply = client.send(line);
            assert_eq!(reply_len(reply.as_bytes()), Some(reply.len()), "{hello}, {line}: {reply}");
            assert!(!reply.starts_with('-'), "{line}: {reply}");
        }
        assert_eq!(client.connection.protocol() == Protocol::Resp3, hello == "HELLO 3");
    }
}
