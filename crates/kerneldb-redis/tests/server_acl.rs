//! Users and their rights, on every way of answering, and compared with a real Redis.

mod common;
mod server;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bedplate_kerneldb_redis::server::{Server, ServerConfig};
use bedplate_suite_support::redis::Redis;
use common::can_run;
use server::{Client, Running, config, config_with, eventually, request, start, ways, words};

/// Requests for each command of the table that runs without harm, at least one for each subcommand. `a` and `b` are keys.
const HARMLESS: &str = "\
acl cat|acl genpass|acl getuser a|acl help|acl list|acl log|acl users|acl whoami|acl dryrun default ping|\
append a x|bitcount a|bitfield a get u8 0|bitfield a set u8 0 1|bitfield_ro a get u8 0|bitop and a b|bitop and b a a|bitpos a 1|\
client getname|client getredir|client help|client id|client info|client list|client no-evict off|client setname x|client unpause|\
command|command count|command docs get|command getkeys get a|command help|command info get|command list|\
config get port|config help|config resetstat|config set timeout 0|\
copy a b|copy b a|dbsize|decr n|decrby n 2|del a|del a b|dump a|echo x|\
eval return+1 0|eval return+1 1 a|eval return+1 2 a b|eval_ro return+1 1 a|evalsha x 1 a|evalsha_ro x 1 b|\
exists a|exists a b|expire a 100|expireat a 4000000000|expiretime a|fcall f 1 a|fcall_ro f 1 b|flushall|flushdb|\
function delete f|function dump|function flush|function help|function kill|function list|function load x|function restore x|function stats|\
get a|get b|getbit a 1|getdel a|getex a|getrange a 0 1|getset a x|incr n|incrby n 1|incrbyfloat n 1|info server|keys *|lastsave|\
latency doctor|latency help|latency histogram|latency history x|latency latest|latency reset|lcs a b|\
memory help|memory usage a|mget a|mget a b|mset a 1|mset a 1 b 2|msetnx a 1 b 2|\
object encoding a|object freq a|object help|object idletime b|object refcount a|persist a|pexpire a 100000|pexpireat a 4000000000000|\
pexpiretime a|ping|psetex a 100000 x|pttl a|randomkey|rename a b|rename b a|renamenx a b|restore a 0 x|scan 0|\
script exists x|script flush|script help|script kill|script load return+1|select 0|\
set a x|set b x|set a x get|set a x ex 100|setbit a 1 1|setex a 100 x|setnx a x|setrange a 1 x|slowlog get|slowlog help|slowlog len|slowlog reset|strlen a|strlen b|substr a 0 1|time|\
touch a|touch a b|ttl a|type a|unlink a b|wait 0 0";

/// Requests that ACL DRYRUN only judges.
const JUDGED: &str = "\
acl deluser x|acl load|acl save|acl setuser x on|auth x|bgsave|client kill a|client pause 1|client reply off|discard|exec|hello|monitor|multi|quit|\
reset|save|script debug no|shutdown|unwatch|watch a|watch a b";

/// Requests that Redis does not have.
const OWN: &str = "\
bedplate help|bedplate stats|bedplate durability|bedplate verify|bedplate checkpoint|bedplate upgrade|begin|cas a x y|client no-touch off|\
client setinfo lib-name x|call p|commit|proc list|proc help|proc load x|proc replace x|proc unload x|proc attach x y|proc detach x y|rollback|\
waitaof 0 0 0";

/// Kinds of users: without rights, with categories, one key pattern, one command, a subcommand, several selectors.
const USERS: [&str; 13] = [
    "",
    "+@all",
    "+@read ~*",
    "+@all -@dangerous ~*",
    "+@all ~a",
    "+@all %R~a %W~b",
    "+@all -get ~*",
    "+get ~*",
    "+set ~a +ping",
    "+config|get +client|id +select|0 ~*",
    "+@all -config|set -client|list ~*",
    "-@all +@write +@connection ~* -set",
    "-@all (+get ~a) (+@write %W~a) (+mget +bitop %R~a ~b)",
];

fn requests(lines: &str) -> Vec<Vec<Vec<u8>>> {
    let word = |word: &str| word.replace('+', " ").into_bytes();
    lines.split('|').map(|line| line.split(' ').map(word).collect()).collect()
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    request(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Reads one reply of RESP2 or RESP3, whole.
fn read_reply(reader: &mut impl BufRead) -> Vec<u8> {
    let mut reply = Vec::new();
    assert_ne!(reader.read_until(b'\n', &mut reply).unwrap(), 0, "the server has closed the connection");
    let count = std::str::from_utf8(&reply[1..]).ok().and_then(|text| text.trim_end().parse::<i64>().ok());
    match (reply[0], count) {
        (b'$' | b'=', Some(bytes @ 0..)) => {
            let start = reply.len();
            reply.resize(start + bytes as usize + 2, 0);
            reader.read_exact(&mut reply[start..]).unwrap();
        }
        (kind @ (b'*' | b'~' | b'%' | b'>'), Some(elements @ 0..)) => {
            for _ in 0..elements * if kind == b'%' { 2 } else { 1 } {
                reply.extend(read_reply(reader));
            }
        }
        _ => {}
    }
    reply
}

/// Sends requests at once, and returns their replies.
fn ask(client: &mut Client, requests: &[Vec<u8>]) -> Vec<Vec<u8>> {
    client.send(&requests.concat());
    let mut reader = BufReader::new(&client.socket);
    let replies = requests.iter().map(|_| read_reply(&mut reader)).collect();
    assert!(reader.buffer().is_empty(), "more replies than requests");
    replies
}

fn one(client: &mut Client, line: &str) -> String {
    let reply = ask(client, &[words(line)]).remove(0);
    String::from_utf8_lossy(&reply).trim_end().to_owned()
}

/// Whether a reply is about rights.
fn is_refusal(reply: &[u8]) -> bool {
    let text = String::from_utf8_lossy(reply);
    text.contains("NOPERM")
        || text.contains("The user executing the script")
        || text.starts_with("-EXECABORT")
}

/// The refusals among the replies to every harmless request, for a user on every way of sending.
fn refusals(addr: std::net::SocketAddr, user: usize) -> Vec<(String, Option<String>)> {
    let mut seen = Vec::new();
    let requests = requests(HARMLESS);
    let mut note = |how: &str, request: &[Vec<u8>], reply: &[u8]| {
        let shown = String::from_utf8_lossy(&request.join(&b' ')).into_owned();
        // A script's place is not the same in both servers.
        let text = String::from_utf8_lossy(reply).trim_end().to_owned();
        seen.push((format!("{how}: {shown}"), is_refusal(reply).then_some(text)));
    };
    for version in [2, 3] {
        let mut client = Client::new(addr);
        client.send(&words(&format!("HELLO {version} AUTH user{user} secret")));
        client.until("modules\r\n*0\r\n");
        // Alone in one version of the protocol, and in pipelines in the other one.
        for part in requests.chunks(if version == 2 { 1 } else { 7 }) {
            let encoded: Vec<_> = part.iter().map(|request| encode(request)).collect();
            for (request, reply) in part.iter().zip(ask(&mut client, &encoded)) {
                note(&format!("RESP{version}"), request, &reply);
            }
        }
    }
    // This user has the right to transactions and scripts as well.
    let mut client = Client::new(addr);
    assert_eq!(one(&mut client, &format!("AUTH with{user} secret")), "+OK");
    for request in &requests {
        let queued = request[0] != b"function" && request[0] != b"acl";
        if queued {
            let replies = ask(&mut client, &[words("MULTI"), encode(request), words("EXEC")]);
            note("queued", request, &replies[1]);
            if is_refusal(&replies[1]) {
                note("exec", request, &replies[2]);
            }
        }
        let script =
            [&[b"eval".to_vec(), b"return redis.pcall(unpack(ARGV))".to_vec(), b"0".to_vec()][..], request]
                .concat();
        let reply = ask(&mut client, &[encode(&script)]).remove(0);
        note("in a script", request, &reply);
    }
    seen
}

/// Makes the users of [`USERS`], by the connection of an administrator.
fn make_users(admin: &mut Client) {
    for (i, rules) in USERS.iter().enumerate() {
        let rules = if rules.is_empty() { String::new() } else { format!(" {rules}") };
        assert_eq!(one(admin, &format!("ACL SETUSER user{i} on >secret{rules}")), "+OK");
        let more = "+multi +exec +eval";
        assert_eq!(one(admin, &format!("ACL SETUSER with{i} on >secret{rules} {more}")), "+OK");
    }
}

#[test]
fn every_command_is_refused_as_by_redis() {
    if !can_run() {
        return;
    }
    let Some(redis) = Redis::start() else { return };
    let mut reference = Client::new(redis.addr());
    make_users(&mut reference);
    let expected: Vec<_> = (0..USERS.len()).map(|user| refusals(redis.addr(), user)).collect();
    for way in ways() {
        let running = start(way);
        let mut admin = running.client();
        make_users(&mut admin);
        for (user, expected) in expected.iter().enumerate() {
            let seen = refusals(running.addr, user);
            for (ours, theirs) in seen.iter().zip(expected) {
                assert_eq!(ours, theirs, "user{user} {:?}", USERS[user]);
            }
            assert_eq!(seen.len(), expected.len());
            let counts = expected.iter().filter(|(_, refusal)| refusal.is_some()).count();
            assert!(counts > 0, "user{user} was never refused");
        }
        let all = [HARMLESS, JUDGED].map(requests).concat();
        for (user, rules) in USERS.iter().enumerate() {
            for request in &all {
                let judged =
                    [&[b"acl".to_vec(), b"dryrun".to_vec(), format!("user{user}").into_bytes()][..], request]
                        .concat();
                let (ours, theirs) =
                    (ask(&mut admin, &[encode(&judged)]), ask(&mut reference, &[encode(&judged)]));
                assert_eq!(ours, theirs, "{rules:?} {}", String::from_utf8_lossy(&request.join(&b' ')));
            }
        }
        drop(admin);
        running.finish();
    }
}

/// The lists above have every command.
#[test]
fn the_lists_have_every_command() {
    if !can_run() {
        return;
    }
    let running = start(config());
    let mut admin = running.client();
    let listed: BTreeSet<String> = [HARMLESS, JUDGED, OWN]
        .map(requests)
        .concat()
        .into_iter()
        .flat_map(|request| {
            let names = request
                .iter()
                .take(2)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect::<Vec<_>>();
            [names[0].clone(), names.join("|")]
        })
        .collect();
    let reply = ask(&mut admin, &[words("COMMAND")]).remove(0);
    let text = String::from_utf8_lossy(&reply).into_owned();
    let lines: Vec<_> = text.lines().collect();
    // The name of a command is a bulk string, and its arity follows.
    let names: Vec<_> = lines
        .windows(3)
        .filter(|lines| lines[0].starts_with('$') && lines[2].starts_with(':'))
        .map(|lines| lines[1].to_owned())
        .filter(|name| {
            name != "index"
                && name != "keynumidx"
                && name != "firstkey"
                && name != "keystep"
                && name != "lastkey"
                && name != "limit"
        })
        .collect();
    assert!(names.len() > 150, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !listed.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // A user without rights gets none of the commands that Redis does not have either.
    make_users(&mut admin);
    let mut nobody = running.client();
    assert_eq!(one(&mut nobody, "AUTH user0 secret"), "+OK");
    for request in requests(OWN) {
        let reply = ask(&mut nobody, &[encode(&request)]).remove(0);
        assert!(reply.starts_with(b"-NOPERM"), "{}", String::from_utf8_lossy(&reply));
    }
    // A procedure uses keys that nobody can check.
    assert_eq!(one(&mut admin, "ACL SETUSER caller on nopass +call ~p"), "+OK");
    assert_eq!(one(&mut nobody, "AUTH caller x"), "+OK");
    assert!(
        one(&mut nobody, "CALL p")
            .starts_with("-NOPERM this user has no permissions to access one of the keys")
    );
    assert_eq!(one(&mut admin, "ACL SETUSER caller allkeys"), "+OK");
    assert!(one(&mut nobody, "CALL p").starts_with("-ERR"));
    drop((admin, nobody));
    running.finish();
}

/// Answers of the kernel so far.
fn kernel_commands(running: &Running) -> u64 {
    running.server.stats().unwrap().kernel_commands
}

/// Asks until the kernel answers.
fn until_the_kernel_answers(running: &Running, client: &mut Client) {
    eventually("the kernel answers", || {
        let before = kernel_commands(running);
        assert!(!one(client, "GET a").starts_with('-'));
        kernel_commands(running) > before
    });
}

const DENIED: &str = "-NOPERM this user has no permissions to run the 'get' command";

#[test]
fn the_kernel_answers_unrestricted_users_only() {
    if !can_run() {
        return;
    }
    for way in ways().into_iter().filter(|way| way.kernel_path) {
        let running = start(way);
        let mut admin = running.client();
        admin.ask("SET a 1", "+OK");
        admin.ask("ACL SETUSER u on >x +@all ~*", "+OK");
        let mut client = running.client();
        client.ask("AUTH u x", "+OK");
        // At once, while the kernel answers nobody, and when it answers others again.
        let pauses = [Duration::ZERO, Duration::from_millis(100)];
        for (rule, pause) in
            ["-get", "resetkeys", "-@read"].iter().flat_map(|rule| pauses.map(|pause| (rule, pause)))
        {
            until_the_kernel_answers(&running, &mut client);
            admin.ask(&format!("ACL SETUSER u {rule}"), "+OK");
            std::thread::sleep(pause);
            if !pause.is_zero() {
                until_the_kernel_answers(&running, &mut admin);
            }
            let before = kernel_commands(&running);
            assert!(one(&mut client, "GET a").starts_with("-NOPERM"), "{rule}");
            let replies = ask(&mut client, &[words("PING"), words("GET a"), words("SET b 1")]);
            assert_eq!(replies[0], b"+PONG\r\n");
            assert!(replies[1].starts_with(b"-NOPERM"));
            assert_eq!(kernel_commands(&running), before, "{rule}");
            admin.ask("ACL SETUSER u +@all ~*", "+OK");
        }
        until_the_kernel_answers(&running, &mut client);
        // Requests that the kernel has queued are checked by EXEC.
        client.ask("MULTI", "+OK");
        client.ask("GET a", "+QUEUED");
        client.ask("SET c 1", "+QUEUED");
        admin.ask("ACL SETUSER u -get", "+OK");
        let replies = ask(&mut client, &[words("EXEC")]).remove(0);
        assert_eq!(
            String::from_utf8_lossy(&replies),
            "*2\r\n-NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no \
             longer allowed for the following reason: no permission to execute the command or subcommand\r\n+OK\r\n"
        );
        admin.ask("ACL SETUSER u +@all", "+OK");
        until_the_kernel_answers(&running, &mut client);
        // An open transaction goes on with the rights that are left.
        client.ask("BEGIN", "+OK");
        client.ask("SET a 2", "+OK");
        admin.ask("ACL SETUSER u -get", "+OK");
        until_the_kernel_answers(&running, &mut admin);
        client.ask("GET a", DENIED);
        client.ask("COMMIT", "+OK");
        admin.ask("GET a", "$1\r\n2");
        // New connections are those of a default user who has lost rights.
        admin.ask("ACL SETUSER default -get", "+OK");
        let before = kernel_commands(&running);
        let mut fresh = running.client();
        fresh.ask("GET a", DENIED);
        admin.ask("GET a", DENIED);
        assert_eq!(kernel_commands(&running), before);
        admin.ask("ACL SETUSER default +@all", "+OK");
        until_the_kernel_answers(&running, &mut fresh);
        // RESET makes the connection one of the default user.
        client.ask("RESET", "+RESET");
        until_the_kernel_answers(&running, &mut client);
        drop((admin, client, fresh));
        running.finish();
    }
}

/// No request that is sent after the reply to ACL SETUSER is answered with the old rights, however busy the connections are.
#[test]
fn rights_are_lost_before_the_reply() {
    if !can_run() {
        return;
    }
    for way in ways() {
        let running = start(way);
        let mut admin = running.client();
        admin.ask("MSET a 1 b 1", "+OK");
        admin.ask("ACL SETUSER u on >x +@all ~*", "+OK");
        // Odd while the user has no right to GET. It is counted after the reply, and before the right is given back.
        let state = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (state, running) = (&state, &running);
                scope.spawn(move || {
                    let mut client = running.client();
                    client.ask("AUTH u x", "+OK");
                    let pipeline = if thread == 0 { 1 } else { 20 };
                    let requests = vec![words("GET a"); pipeline];
                    loop {
                        let before = state.load(Ordering::SeqCst);
                        let replies = ask(&mut client, &requests);
                        let after = state.load(Ordering::SeqCst);
                        if before == u64::MAX {
                            break;
                        }
                        if before == after && before % 2 == 1 {
                            assert!(replies.iter().all(|reply| reply.starts_with(b"-NOPERM")), "{before}");
                        }
                    }
                });
            }
            for _ in 0..40 {
                std::thread::sleep(Duration::from_millis(3));
                admin.ask("ACL SETUSER u -get", "+OK");
                state.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(3));
                state.fetch_add(1, Ordering::SeqCst);
                admin.ask("ACL SETUSER u +@all", "+OK");
            }
            state.store(u64::MAX, Ordering::SeqCst);
        });
        drop(admin);
        running.finish();
    }
}

#[test]
fn deleted_users_lose_their_connections() {
    if !can_run() {
        return;
    }
    for way in ways() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("users.acl");
        std::fs::write(&file, "user u on >x +@all ~*\nuser v on nopass +get ~*\n").unwrap();
        let running = start(ServerConfig { acl_file: Some(file.clone()), ..way });
        let mut admin = running.client();
        admin.ask("SET a 1", "+OK");
        let mut clients: Vec<_> = ["u x", "v y", "u x"]
            .map(|user| {
                let mut client = running.client();
                client.ask(&format!("AUTH {user}"), "+OK");
                client.ask("GET a", "$1\r\n1");
                client
            })
            .into();
        assert_eq!(one(&mut clients[0], "ACL DELUSER u nosuch"), ":1");
        for i in [0, 2] {
            assert_eq!(clients[i].rest(), b"");
        }
        clients[1].ask("GET a", "$1\r\n1");
        // The users of the file are other ones, whatever their names.
        admin.ask("ACL LOAD", "+OK");
        assert_eq!(clients[1].rest(), b"");
        let mut client = running.client();
        client.ask("AUTH u x", "+OK");
        client.ask("ACL LOAD", "+OK");
        assert_eq!(client.rest(), b"");
        admin.ask("GET a", "$1\r\n1");
        // A file with a mistake changes nothing, and a saved file is the same after it was loaded.
        admin.ask(
            "ACL SETUSER w on #2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881 (+get ~x)",
            "+OK",
        );
        let list = one(&mut admin, "ACL LIST");
        admin.ask("ACL SAVE", "+OK");
        let saved = std::fs::read_to_string(&file).unwrap();
        admin.ask("ACL DELUSER w", ":1");
        admin.ask("ACL LOAD", "+OK");
        assert_eq!(one(&mut admin, "ACL LIST"), list);
        std::fs::write(&file, saved.clone() + "user x +nosuch\n").unwrap();
        let error = one(&mut admin, "ACL LOAD");
        let place = format!("-ERR {}:5: Error in applying operation '+nosuch'", file.display());
        assert!(error.starts_with(&place), "{error}");
        assert_eq!(one(&mut admin, "ACL LIST"), list);
        let refused =
            Server::prepare(ServerConfig { acl_file: Some(file.clone()), ..config() }).err().unwrap();
        assert!(refused.to_string().contains(&format!("{}:5: ", file.display())), "{refused}");
        drop((admin, client, clients));
        running.finish();
    }
}

#[test]
fn a_password_is_that_of_the_default_user() {
    if !can_run() {
        return;
    }
    let running = start(ServerConfig { password: "secret".into(), ..config() });
    let mut client = running.client();
    client.ask("PING", "-NOAUTH Authentication required.");
    client.ask("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled.");
    client.ask("AUTH nosuch secret", "-WRONGPASS invalid username-password pair or user is disabled.");
    client.ask("AUTH default secret", "+OK");
    client.ask("ACL WHOAMI", "$7\r\ndefault");
    client.ask("SET a 1", "+OK");
    until_the_kernel_answers(&running, &mut client);
    client.ask("ACL SETUSER default >second", "+OK");
    let mut second = running.client();
    second.ask("AUTH second", "+OK");
    client.ask("CONFIG SET requirepass third", "+OK");
    let mut third = running.client();
    for (password, reply) in
        [("secret", "-WRONGPASS invalid username-password pair or user is disabled."), ("third", "+OK")]
    {
        third.ask(&format!("AUTH {password}"), reply);
    }
    // It stays authenticated, but nobody can become the user any more.
    client.ask("ACL SETUSER default off", "+OK");
    second.ask("GET a", "$1\r\n1");
    third.ask("AUTH third", "-WRONGPASS invalid username-password pair or user is disabled.");
    let log = one(&mut client, "ACL LOG 1");
    assert!(log.contains("auth") && log.contains("default"), "{log}");
    drop((client, second, third));
    running.finish();
    let both = ServerConfig { password: "x".into(), acl_file: Some("x".into()), ..config_with(true) };
    assert!(both.check().unwrap_err().to_string().contains("in that file"));
}

/// A database of several partitions has several programs.
#[test]
fn the_programs_of_all_partitions_stop_answering() {
    if !can_run() {
        return;
    }
    let running = server::start_with_partitions(config());
    let mut admin = running.client();
    admin.ask("ACL SETUSER u on >x +@all ~*", "+OK");
    let mut client = running.client();
    client.ask("AUTH u x", "+OK");
    for i in 0..20 {
        client.ask(&format!("SET k{i} {i}"), "+OK");
    }
    admin.ask("ACL SETUSER u resetkeys %R~k1* -set", "+OK");
    client.ask("SET k1 x", "-NOPERM this user has no permissions to run the 'set' command");
    client.ask("GET k1", "$1\r\n1");
    client.ask("GET k2", "-NOPERM this user has no permissions to access one of the keys used as arguments");
    drop((admin, client));
    running.finish();
}
