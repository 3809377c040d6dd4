//! Handlers: transactions at packets, tracepoints and timers; their failures and counts; libraries that come and go.

mod common;
mod handlers {
    pub mod exchange;
}

use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bedplate_kerneldb::limits::HANDLER_ATTEMPTS;
use bedplate_kerneldb::{Config, Database, Error, HandlerCounts, HandlerTarget, Session, SetOptions, sdk};
use common::{can_run, has_arenas, small};

const PASS: i32 = -1;
const DROP: i32 = 2;

/// Compiles some of the handlers of `libraries/handlers.bpf.c` as users compile theirs.
fn compiled(names: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    sdk::write_headers(folder.path()).unwrap();
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libraries/handlers.bpf.c"));
    let options: Vec<_> = names.iter().map(|name| format!("-DWITH_{name}")).collect();
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    sdk::compile(folder.path(), source, &options).unwrap()
}

/// Configurations with one partition and with several.
fn configs() -> Vec<Config> {
    match can_run() && has_arenas() {
        true => vec![small(), Config { partitions: 3, memory_bytes: 96 << 20, ..small() }],
        false => Vec::new(),
    }
}

fn loaded(config: Config, names: &[&str]) -> Database {
    let database = Database::create(config).unwrap();
    let mut loaded = database.load_library("handlers", &compiled(names), false).unwrap();
    let mut wanted = [names, &["handler_reset"]].concat();
    loaded.sort();
    wanted.sort();
    assert_eq!(loaded, wanted);
    database
}

/// Databases for one test after the other, because creating them and loading all handlers takes seconds.
fn shared() -> impl Iterator<Item = MutexGuard<'static, Database>> {
    static SHARED: OnceLock<Vec<Mutex<Database>>> = OnceLock::new();
    let names =
        ["tc_count", "tc_lenient", "tc_greedy", "xdp_count", "exec_count", "nested_outer", "nested_inner"];
    let load = || configs().into_iter().map(|config| Mutex::new(loaded(config, &names))).collect();
    SHARED.get_or_init(load).iter().map(|database| database.lock().unwrap_or_else(PoisonError::into_inner))
}

fn target(text: &str) -> HandlerTarget {
    text.parse().unwrap()
}

fn counts(database: &Database, name: &str) -> HandlerCounts {
    database.handlers().unwrap().into_iter().find(|handler| handler.name == name).unwrap().counts
}

/// The counts since an earlier time.
fn counts_since(before: &HandlerCounts, database: &Database, name: &str) -> HandlerCounts {
    let now = counts(database, name);
    HandlerCounts {
        runs: now.runs - before.runs,
        committed: now.committed - before.committed,
        refused: now.refused - before.refused,
        failed: now.failed - before.failed,
        nested: now.nested - before.nested,
        retries: now.retries - before.retries,
        last_error: now.last_error,
    }
}

fn number(session: &mut Session, key: &str) -> u64 {
    let value = session.get(key.as_bytes()).unwrap();
    value.map_or(0, |value| String::from_utf8(value.data).unwrap().parse().unwrap())
}

/// A packet with this first byte.
fn packet(first: u8) -> [u8; 64] {
    let mut packet = [0; 64];
    packet[0] = first;
    packet
}

/// Waits, for at most half a minute.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_packet_runs_a_transaction_and_gets_its_verdict() {
    for database in shared() {
        let mut session = database.session().unwrap();
        let (before, lenient_before) = (counts(&database, "tc_count"), counts(&database, "tc_lenient"));
        assert_eq!(database.run_handler("tc_count", &packet(4), 1).unwrap().0, PASS);
        assert_eq!(database.run_handler("tc_count", &packet(5), 3).unwrap().0, DROP);
        assert_eq!(database.run_handler("xdp_count", &packet(0), 7).unwrap().0, 2, "XDP_PASS");
        assert_eq!(
            (number(&mut session, "tc:4"), number(&mut session, "tc:5"), number(&mut session, "xdp:packets")),
            (1, 3, 7)
        );
        let expected = HandlerCounts {
            runs: 4,
            committed: 4,
            last_error: before.last_error.clone(),
            ..HandlerCounts::default()
        };
        assert_eq!(counts_since(&before, &database, "tc_count"), expected);
        // A refusal has no effect on the database, and the verdict that the handler has set.
        assert_eq!(database.run_handler("tc_lenient", &packet(255), 2).unwrap().0, DROP);
        assert_eq!(number(&mut session, "tc:255"), 0);
        let expected = HandlerCounts {
            runs: 2,
            refused: 2,
            last_error: lenient_before.last_error.clone(),
            ..HandlerCounts::default()
        };
        assert_eq!(counts_since(&lenient_before, &database, "tc_lenient"), expected);
        database.verify().unwrap();
    }
}

#[test]
fn a_failure_is_counted_and_has_the_verdict_of_the_authors_choice() {
    for database in shared() {
        let mut client = database.session().unwrap();
        let before = ["tc_count", "tc_lenient"].map(|name| (name, counts(&database, name)));
        client.begin().unwrap();
        client.set(b"tc:0", b"17", SetOptions::default()).unwrap();
        assert_eq!(database.run_handler("tc_count", &packet(0), 1).unwrap().0, DROP);
        assert_eq!(database.run_handler("tc_lenient", &packet(0), 1).unwrap().0, PASS);
        for (name, before) in &before {
            let expected = HandlerCounts {
                runs: 1,
                failed: 1,
                retries: u64::from(HANDLER_ATTEMPTS) - 1,
                last_error: Some(Error::Conflict.to_string()),
                ..HandlerCounts::default()
            };
            assert_eq!(counts_since(before, &database, name), expected);
        }
        client.commit().unwrap();
        // The next packet has a transaction again.
        assert_eq!(database.run_handler("tc_count", &packet(0), 1).unwrap().0, PASS);
        assert_eq!(number(&mut client, "tc:0"), 18);
        // A transaction that is too large fails as a whole.
        assert_eq!(database.run_handler("tc_greedy", &packet(0), 1).unwrap().0, DROP);
        let limit =
            if database.config().partitions == 1 { Error::TooManyLocks } else { Error::TooManyVisits };
        assert_eq!(counts(&database, "tc_greedy").last_error, Some(limit.to_string()));
        (0..200).for_each(|i| {
            // Nothing is left, and no lock.
            assert_eq!(client.get(format!("greedy:{i}").as_bytes()).unwrap(), None);
            client.set(format!("greedy:{i}").as_bytes(), b"", SetOptions::default()).unwrap();
            client.delete(format!("greedy:{i}").as_bytes()).unwrap();
        });
        // A value that is not a number is a refusal.
        client.set(b"tc:0", b"many", SetOptions::default()).unwrap();
        assert_eq!(database.run_handler("tc_count", &packet(0), 1).unwrap().0, PASS);
        assert_eq!(counts_since(&before[0].1, &database, "tc_count").refused, 1);
        database.verify().unwrap();
    }
}

#[test]
fn packets_on_all_processors_and_clients_lose_no_count() {
    for database in shared() {
        let rounds = 300;
        let before = counts(&database, "tc_count");
        let database = &*database;
        let added: u64 = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        database.run_handler("tc_count", &packet(2), 20).unwrap();
                    }
                });
            }
            let client = scope.spawn(|| {
                let mut session = database.session().unwrap();
                (0..rounds).fold(0, |added, _| {
                    let done: Result<(), Error> = (|| {
                        session.begin()?;
                        let before = number_in(&mut session, b"tc:2")?;
                        session.set(b"tc:2", (before + 1).to_string().as_bytes(), SetOptions::default())?;
                        session.commit().map(drop)
                    })();
                    if done.is_err() {
                        session.rollback().unwrap();
                    }
                    added + u64::from(done.is_ok())
                })
            });
            client.join().unwrap()
        });
        let counts = counts_since(&before, database, "tc_count");
        assert_eq!((counts.runs, counts.committed + counts.failed), (3 * 20 * rounds, counts.runs));
        assert!(counts.committed > 0 && counts.nested == 0, "{counts:?}");
        assert_eq!(number(&mut database.session().unwrap(), "tc:2"), counts.committed + added);
        database.verify().unwrap();
    }
}

fn number_in(session: &mut Session, key: &[u8]) -> Result<u64, Error> {
    Ok(session.get(key)?.map_or(0, |value| String::from_utf8(value.data).unwrap().parse().unwrap()))
}

#[test]
fn a_tracepoint_runs_a_transaction() {
    for database in shared() {
        let mut session = database.session().unwrap();
        database.attach_handler("exec_count", &target("tracepoint:sched_process_exec")).unwrap();
        // Nobody else starts programs as this user.
        let user = 2_000_000 + std::process::id();
        let run = |program: &str| assert!(Command::new(program).uid(user).status().unwrap().success());
        (0..20).for_each(|_| run("/bin/true"));
        let count = number(&mut session, &format!("exec:{user}"));
        let all = counts(&database, "exec_count");
        assert!(count == 20 || all.failed > 0, "{count} {all:?}");
        let last = session.get(format!("exec:{user}:last").as_bytes()).unwrap().unwrap().data;
        let last = String::from_utf8(last).unwrap();
        assert!(last.starts_with("pid ") && last.ends_with(" /bin/true"), "{last}");
        database.detach_handler("exec_count", &target("tracepoint:sched_process_exec")).unwrap();
        run("/bin/true");
        assert_eq!(number(&mut session, &format!("exec:{user}")), count);
        database.wait_for_programs().unwrap();
    }
}

/// An event inside of a handler neither waits for ever nor disturbs the transaction that it has interrupted.
#[test]
fn an_event_inside_of_a_handler_fails() {
    for database in shared() {
        let mut session = database.session().unwrap();
        database.attach_handler("nested_inner", &target("tracepoint:bpf_trace_printk")).unwrap();
        assert_eq!(database.run_handler("nested_outer", &packet(0), 5).unwrap().0, PASS);
        let (outer, inner) = (counts(&database, "nested_outer"), counts(&database, "nested_inner"));
        assert_eq!((outer.committed, outer.failed), (5, 0));
        // Others may print as well, outside of handlers.
        assert!(inner.nested >= 5 && inner.failed == inner.nested, "{inner:?}");
        assert_eq!(number(&mut session, "outer"), 5);
        database.detach_handler("nested_inner", &target("tracepoint:bpf_trace_printk")).unwrap();
        database.wait_for_programs().unwrap();
        assert_eq!(number(&mut session, "inner"), counts(&database, "nested_inner").committed);
        database.verify().unwrap();
    }
}

/// A pair of connected interfaces, which is removed at the end.
struct Interfaces(String);

impl Interfaces {
    fn new(address: &str) -> Interfaces {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // An interface's name has at most 15 characters.
        let name = format!("bh{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Interfaces::again(&name, address)
    }

    /// The pair of this name.
    fn again(name: &str, address: &str) -> Interfaces {
        let interfaces = Interfaces(name.to_owned());
        for words in [
            format!("link add {name} type veth peer name {name}p"),
            format!("addr add {address}/24 dev {name}"),
            format!("link set {name} up"),
            format!("link set {name}p up"),
        ] {
            let done = Command::new("ip").args(words.split(' ')).output().unwrap();
            assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
        }
        interfaces
    }
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}

#[test]
fn packets_of_an_interface_run_transactions() {
    for database in shared() {
        let net = format!("198.19.{}", std::process::id() % 256);
        let interfaces = Interfaces::new(&format!("{net}.1"));
        let (here, peer) = (&interfaces.0, format!("{}p", interfaces.0));
        // Nobody has the address, so the kernel asks for it on the wire.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let send = || drop(socket.send_to(b"packet", format!("{net}.2:9")));
        for (handler, event) in
            [("xdp_count", format!("xdp:{peer}")), ("tc_count", format!("tc:{here}/egress"))]
        {
            let event = target(&event);
            let before = counts(&database, handler);
            database.attach_handler(handler, &event).unwrap();
            until("packets are seen", || {
                send();
                counts_since(&before, &database, handler).committed > 0
            });
            if let HandlerTarget::Xdp(_) = event {
                let other = Database::create(Config { memory_bytes: 16 << 20, ..small() }).unwrap();
                other.load_library("handlers", &compiled(&["xdp_count"]), false).unwrap();
                let error = other.attach_handler("xdp_count", &event).unwrap_err().to_string();
                assert!(error.contains("cannot attach the handler: Device or resource busy"), "{error}");
            }
            database.detach_handler(handler, &event).unwrap();
            database.wait_for_programs().unwrap();
            let before = counts(&database, handler);
            send();
            assert_eq!(counts(&database, handler), before);
        }
        database.verify().unwrap();
    }
}

#[test]
fn handlers_come_and_go_with_their_library() {
    let names = ["exec_count", "tick"];
    let library = compiled(&names);
    for database in configs().into_iter().map(|config| loaded(config, &names)) {
        let mut session = database.session().unwrap();
        let timer = target("timer:2ms");
        let stands_still = |session: &mut Session| {
            let after = number(session, "ticks");
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(number(session, "ticks"), after);
        };
        // A timer runs until it is detached, and can be attached again.
        for _ in 0..2 {
            let before = number(&mut session, "ticks");
            database.attach_handler("tick", &timer).unwrap();
            let again = database.attach_handler("tick", &target("timer:3ms")).unwrap_err().to_string();
            assert!(again.contains("one timer"), "{again}");
            until("the timer runs", || number(&mut session, "ticks") > before + 3);
            database.detach_handler("tick", &timer).unwrap();
            stands_still(&mut session);
        }
        let exec = target("tracepoint:sched_process_exec");
        database.attach_handler("exec_count", &exec).unwrap();
        database.attach_handler("tick", &timer).unwrap();
        let targets = |name: &str| {
            let handlers = database.handlers().unwrap();
            handlers.into_iter().find(|handler| handler.name == name).map(|handler| handler.targets)
        };
        // The new handlers take the old ones' places, and count from 0.
        database.load_library("handlers", &library, true).unwrap();
        assert_eq!(targets("exec_count"), Some(vec![exec.clone()]));
        assert_eq!(targets("tick"), Some(vec![target("timer:2ms")]));
        until("the new timer runs", || counts(&database, "tick").committed > 1);
        assert!(Command::new("/bin/true").status().unwrap().success());
        assert!(counts(&database, "exec_count").runs > 0);
        // Another library cannot have the same names, and the map of buffers is one for all libraries.
        let error = database.load_library("other", &library, false).unwrap_err().to_string();
        assert!(error.contains("in the library handlers already"), "{error}");
        // The end of the library is the end of its timer.
        assert!(database.unload_library("handlers").unwrap());
        stands_still(&mut session);
        assert!(database.handlers().unwrap().is_empty() && database.procedures().is_empty());
        database.load_library("other", &library, false).unwrap();
        // The session of each processor is free again.
        database.attach_handler("tick", &target("timer:2ms")).unwrap();
        until("the timer runs", || counts(&database, "tick").committed > 1);
        database.detach_handlers();
        assert_eq!(targets("tick"), Some(Vec::new()));
        stands_still(&mut session);
        database.verify().unwrap();
    }
}

#[test]
fn mistakes_are_errors_of_one_line() {
    for database in shared() {
        let attach =
            |name: &str, text: &str| database.attach_handler(name, &target(text)).unwrap_err().to_string();
        assert_eq!(attach("nothing", "xdp:lo"), "there is no handler nothing");
        assert_eq!(attach("tc_count", "xdp:lo"), "a handler of tc cannot be attached to xdp:lo");
        assert_eq!(
            attach("exec_count", "tracepoint:sched_switch"),
            "a handler of tracepoint:sched_process_exec cannot be attached to tracepoint:sched_switch"
        );
        let too_short = HandlerTarget::Timer(Duration::from_micros(999));
        let error = database.attach_handler("tc_count", &too_short).unwrap_err().to_string();
        assert_eq!(error, "timer:999µs: a timer has an interval of 1 ms to 1 day");
        assert_eq!(
            attach("tc_count", "tc:bedplate-none/egress"),
            "there is no network interface bedplate-none"
        );
        let exec = target("tracepoint:sched_process_exec");
        database.attach_handler("exec_count", &exec).unwrap();
        assert!(attach("exec_count", "tracepoint:sched_process_exec").contains("already"));
        database.detach_handler("exec_count", &exec).unwrap();
        let error = database.detach_handler("exec_count", &exec).unwrap_err().to_string();
        assert_eq!(error, "exec_count is not attached to tracepoint:sched_process_exec");
        assert!(matches!(database.run_handler("exec_count", &packet(0), 1), Err(Error::Library(_))));
        assert!(matches!(database.run_handler("tc_count", &[0; 4], 1), Err(Error::Io { .. })));
    }
}

/// No lock is left when handlers are replaced and removed in the middle of events.
#[test]
fn handlers_that_are_replaced_leave_no_lock() {
    let library = compiled(&["tc_many"]);
    for database in configs().into_iter().map(|config| loaded(config, &["tc_many"])) {
        let runs = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    // Until the handler is gone.
                    while database.run_handler("tc_many", &packet(8), 50).is_ok() {
                        runs.fetch_add(50, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..2 {
                let before = runs.load(Ordering::Relaxed);
                until("events happen", || runs.load(Ordering::Relaxed) > before);
                database.load_library("handlers", &library, true).unwrap();
            }
            database.unload_library("handlers").unwrap();
        });
        let mut session = database.session().unwrap();
        session.begin().unwrap();
        for key in 0..8 {
            session.set(format!("many:{key}").as_bytes(), b"0", SetOptions::default()).unwrap();
        }
        session.commit().unwrap();
        database.verify().unwrap();
    }
}

/// The keys of a handler may be in any partition; the number of keys of other partitions has a limit.
#[test]
fn a_handler_uses_keys_of_all_partitions() {
    for database in configs().into_iter().map(|config| loaded(config, &["tc_many"])) {
        let mut session = database.session().unwrap();
        let run = |keys: u8, times: u32| database.run_handler("tc_many", &packet(keys), times).unwrap().0;
        // Each key takes two operators.
        assert_eq!((run(6, 5), run(9, 5)), (PASS, PASS), "{:?}", counts(&database, "tc_many"));
        let several = database.config().partitions > 1;
        assert_eq!(run(60, 1), if several { DROP } else { PASS });
        assert_eq!(counts(&database, "tc_many").failed, u64::from(several));
        for key in 0..60 {
            let runs = [(6, 5), (9, 5), (60, u64::from(!several))];
            let count = runs.iter().filter(|(keys, _)| key < *keys).map(|(_, times)| times).sum();
            assert_eq!(number(&mut session, &format!("many:{key}")), count);
        }
        // A conflict in another partition rolls back what was written in all of them, and releases it for the next attempt.
        for key in 0..9 {
            let key = format!("many:{key}");
            session.begin().unwrap();
            session.set(key.as_bytes(), b"100", SetOptions::default()).unwrap();
            let before = counts(&database, "tc_many");
            assert_eq!(run(9, 1), DROP);
            let counts = counts_since(&before, &database, "tc_many");
            // The tail calls that visits take suffice for one other attempt.
            let retries = if several { 1 } else { u64::from(HANDLER_ATTEMPTS) - 1 };
            assert!(counts.failed == 1 && counts.retries >= retries, "{key}: {counts:?}");
            assert_eq!(counts.last_error, Some(Error::Conflict.to_string()));
            session.rollback().unwrap();
            assert_eq!(run(9, 1), PASS);
        }
        let each = 5 + 9 + u64::from(!several);
        (6..9).for_each(|key| assert_eq!(number(&mut session, &format!("many:{key}")), each));
        database.verify().unwrap();
    }
}
