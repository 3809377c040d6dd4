//! ACL, AUTH and the log of refusals.

use std::sync::Arc;

use super::model::Model;
use super::{Client, encode, one};
use crate::command::{Next, Startup};
use crate::limits::ACL_LOG_ENTRIES_MAX;

const DENIED: &str = "-NOPERM this user has no permissions to run the 'get' command\r\n";
const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

#[test]
fn a_user_is_described_in_both_protocols() {
    let mut c = one();
    assert_eq!(c.send("ACL SETUSER u on +get %R~a* (~b)"), "+OK\r\n");
    let rest = "$9\r\npasswords\r\n*0\r\n$8\r\ncommands\r\n$10\r\n-@all +get\r\n$4\r\nkeys\r\n$5\r\n%R~a*\r\n\
                $8\r\nchannels\r\n$0\r\n\r\n$9\r\nselectors\r\n*1\r\n";
    let selector = "$8\r\ncommands\r\n$5\r\n-@all\r\n$4\r\nkeys\r\n$2\r\n~b\r\n$8\r\nchannels\r\n$0\r\n\r\n";
    let flags = "$5\r\nflags\r\n";
    assert_eq!(c.send("ACL GETUSER u"), format!("*12\r\n{flags}*1\r\n$2\r\non\r\n{rest}*6\r\n{selector}"));
    c.send("HELLO 3");
    assert_eq!(c.send("ACL GETUSER u"), format!("%6\r\n{flags}~1\r\n$2\r\non\r\n{rest}%3\r\n{selector}"));
    assert_eq!(c.send("ACL GETUSER nosuch"), "_\r\n");
}

#[test]
fn a_connection_acts_for_its_user() {
    let model = Model::new(Startup::default());
    let (mut admin, mut c) = (Client::new(&model), Client::new(&model));
    admin.send("ACL SETUSER u on >p +@connection +acl|whoami +info +set ~k");
    assert_eq!(c.send("AUTH u q"), WRONG);
    assert_eq!(c.send("ACL WHOAMI"), "$7\r\ndefault\r\n");
    assert!(c.connection.at_rest());
    assert!(c.send("HELLO 2 AUTH u p").starts_with("*14\r\n"));
    assert!(!c.connection.at_rest(), "the kernel must not answer");
    assert_eq!(c.send("ACL WHOAMI"), "$1\r\nu\r\n");
    assert_eq!(c.send("GET k"), DENIED);
    assert!(admin.send("CLIENT LIST").contains(" user=u "));
    assert_eq!(admin.send("CLIENT KILL USER nosuch"), "-ERR No such user 'nosuch'\r\n");
    assert_eq!(admin.send("ACL DELUSER default"), "-ERR The 'default' user cannot be removed\r\n");
    assert_eq!(c.send("RESET"), "+RESET\r\n");
    assert!(c.connection.at_rest());
    c.send("AUTH u p");
    assert_eq!(admin.send("CLIENT KILL USER u"), ":1\r\n");
    assert_eq!(c.feed(b"PING\r\n"), Next::Close);
}

#[test]
fn the_connections_of_a_deleted_user_are_closed() {
    let model = Model::new(Startup::default());
    let (mut admin, mut other) = (Client::new(&model), Client::new(&model));
    admin.send("ACL SETUSER u on nopass +@all ~*");
    for client in [&mut admin, &mut other] {
        assert_eq!(client.send("AUTH u x"), "+OK\r\n");
    }
    admin.connection.feed(b"ACL DELUSER u\r\nPING\r\n");
    assert_eq!(admin.finish(), Next::Close);
    assert_eq!(admin.take(), ":1\r\n");
    assert_eq!(other.feed(b"PING\r\n"), Next::Close);
    assert_eq!(other.take(), "");
}

#[test]
fn a_monitor_ends_when_its_user_may_not_be_one() {
    let model = Model::new(Startup::default());
    let (mut admin, mut other, mut changed) = (Client::new(&model), Client::new(&model), Client::new(&model));
    admin.send("ACL SETUSER u on nopass +@all ~*");
    admin.send("ACL SETUSER low on nopass +get +acl ~*");
    for client in [&mut other, &mut changed] {
        client.send("AUTH u x");
        assert_eq!(client.send("MONITOR"), "+OK\r\n");
    }
    // AUTH as a user without the right.
    assert_eq!(changed.send("AUTH low x"), "+OK\r\n");
    admin.send("SET a 1");
    changed.process();
    assert_eq!(changed.take(), "");
    assert_eq!(changed.send("GET a"), "$1\r\n1\r\n");
    other.process();
    assert!(other.take().contains("\"SET\" \"a\" \"1\""));
    // The users of others.
    admin.send("ACL SETUSER u -get");
    assert_eq!(other.process(), Next::NeedInput);
    admin.send("ACL SETUSER u -monitor");
    admin.send("SET a secret");
    assert_eq!(other.process(), Next::Close);
    assert!(!other.take().contains("secret"));
    // The own user.
    changed.send("AUTH default x");
    assert_eq!(changed.send("MONITOR"), "+OK\r\n");
    changed.send("ACL SETUSER default -monitor");
    changed.take();
    admin.send("SET a secret");
    changed.process();
    assert_eq!(changed.take(), "");
}

#[test]
fn refusals_are_logged_with_their_contexts() {
    let model = Model::new(Startup::default());
    let (mut admin, mut c) = (Client::new(&model), Client::new(&model));
    admin.send("ACL SETUSER u on nopass +@all -get ~a");
    c.send("AUTH u x");
    c.send("AUTH u2 x");
    c.send("GET a");
    c.send("GET a");
    c.send("SET b 1");
    c.send("MULTI");
    c.send("STRLEN c");
    c.send("EXEC");
    c.connection.feed(&encode(&["EVAL", "return redis.pcall('config', 'get', 'x')", "0"]));
    c.finish();
    c.connection.feed(&encode(&["EVAL", "return redis.pcall('get', 'a')", "0"]));
    c.finish();
    let log = admin.send("ACL LOG");
    let fields: Vec<_> = log.split("\r\n").filter(|line| !line.starts_with(['$', '*'])).collect();
    let entries: Vec<_> =
        fields.chunks(14).filter(|entry| entry.len() == 14).map(|e| [e[1], e[3], e[5], e[7], e[9]]).collect();
    assert_eq!(
        entries,
        [
            [":1", "command", "lua", "get", "u"],
            [":1", "key", "multi", "c", "u"],
            [":1", "key", "toplevel", "b", "u"],
            [":2", "command", "toplevel", "get", "u"],
            [":1", "auth", "toplevel", "AUTH", "u2"],
        ]
    );
    assert!(fields[13].contains(" cmd=eval user=u "), "{}", fields[13]);
    assert!(admin.send("ACL LOG 1").starts_with("*1\r\n"));
    admin.send("CONFIG SET acllog-max-len 2");
    c.send("GET a");
    assert!(admin.send("ACL LOG").starts_with("*2\r\n"));
    assert_eq!(admin.send("ACL LOG RESET"), "+OK\r\n");
    assert_eq!(admin.send("ACL LOG"), "*0\r\n");
    let set =
        |admin: &mut Client, entries: usize| admin.send(&format!("CONFIG SET acllog-max-len {entries}"));
    assert_eq!(set(&mut admin, ACL_LOG_ENTRIES_MAX), "+OK\r\n");
    assert!(set(&mut admin, ACL_LOG_ENTRIES_MAX + 1).contains("out of range"));
}

#[test]
fn a_queue_is_checked_again_by_exec() {
    let model = Model::new(Startup::default());
    let (mut admin, mut c) = (Client::new(&model), Client::new(&model));
    admin.send("ACL SETUSER u on nopass +@all ~*");
    c.send("AUTH u x");
    c.send("SET a 1");
    for line in ["MULTI", "SET a 2", "AUTH default x", "GET a", "AUTH u x", "GET a"] {
        c.send(line);
    }
    admin.send("ACL SETUSER u -get");
    let replies = c.send("EXEC");
    assert!(
        replies.starts_with("*5\r\n+OK\r\n+OK\r\n$1\r\n2\r\n+OK\r\n-NOPERM ACLs rules changed"),
        "{replies}"
    );
    // Changes of users are not a part of a transaction.
    c.send("RESET");
    c.send("MULTI");
    assert_eq!(c.send("ACL SETUSER u on"), "-ERR Command not allowed inside a transaction\r\n");
}

#[test]
fn scripts_ask_for_rights() {
    let model: Arc<Model> = Model::new(Startup::default());
    let (mut admin, mut c) = (Client::new(&model), Client::new(&model));
    admin.send("ACL SETUSER u on nopass +eval +get +config|get ~a");
    c.send("AUTH u x");
    let mut ask = |script: &str| {
        c.connection.feed(&encode(&["EVAL", script, "0"]));
        c.finish();
        c.take()
    };
    for (command, reply) in [
        ("'get', 'a'", ":1\r\n"),
        ("'GET', 'b'", "$-1\r\n"),
        ("'set', 'a', 'b'", "$-1\r\n"),
        ("'config', 'get'", ":1\r\n"),
        ("'config', 'set'", "$-1\r\n"),
        ("'get'", ":1\r\n"),
    ] {
        assert_eq!(ask(&format!("return redis.acl_check_cmd({command})")), reply, "{command}");
    }
    assert!(
        ask("return redis.acl_check_cmd('nosuch')")
            .starts_with("-ERR Invalid command passed to redis.acl_check_cmd()")
    );
    assert!(ask("return redis.acl_check_cmd()").starts_with("-ERR Please specify at least one argument"));
    assert!(
        ask("return redis.call('set', 'a', '1')")
            .starts_with("-ERR The user executing the script can't run this command")
    );
    assert!(
        ask("return redis.call('get', 'b')")
            .starts_with("-ERR The user executing the script can't access at least one")
    );
}

#[test]
fn a_password_past_the_limit_of_all_users_is_refused() {
    let mut c = one();
    // Users with long patterns fill the limit, but for a few bytes.
    let pattern = "x".repeat(100_000);
    let fill = |c: &mut Client, user: &str, bytes: usize| {
        c.connection.feed(&encode(&["ACL", "SETUSER", user, &format!("~{}", &pattern[..bytes])]));
        c.finish();
        c.take()
    };
    let refused = "-ERR the rules of all users have at most 1048576 bytes\r\n";
    let mut user = 0;
    for bytes in [100_000, 1000, 10] {
        while fill(&mut c, &format!("u{user}"), bytes) == "+OK\r\n" {
            user += 1;
        }
        assert_eq!(fill(&mut c, "u", bytes), refused);
    }
    let reply = c.send("CONFIG SET requirepass secret timeout 7");
    assert!(reply.contains("argument 'requirepass') - the rules of all users"), "{reply}");
    assert_eq!(c.send("CONFIG GET requirepass"), "*2\r\n$11\r\nrequirepass\r\n$0\r\n\r\n");
    assert_eq!(c.send("CONFIG GET timeout"), "*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    c.send("ACL DELUSER u0");
    assert_eq!(c.send("CONFIG SET requirepass secret timeout 7"), "+OK\r\n");
    assert_eq!(c.send("CONFIG GET timeout"), "*2\r\n$7\r\ntimeout\r\n$1\r\n7\r\n");
    assert!(c.send("AUTH wrong").starts_with("-WRONGPASS"));
}

#[test]
fn passwords_are_generated() {
    let mut c = one();
    for (bits, digits) in [("", 64), ("5", 2), ("1", 1), ("4096", 1024)] {
        let reply = c.send(&format!("ACL GENPASS {bits}"));
        let password = reply.split("\r\n").nth(1).unwrap();
        assert!(password.len() == digits && password.bytes().all(|byte| byte.is_ascii_hexdigit()), "{reply}");
    }
    for bits in ["0", "4097", "-1"] {
        assert!(c.send(&format!("ACL GENPASS {bits}")).contains("a positive number up to 4096"));
    }
    assert_ne!(c.send("ACL GENPASS"), c.send("ACL GENPASS"));
}
