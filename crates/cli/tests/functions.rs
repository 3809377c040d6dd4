//! Kills a server by `kill -9` while a client changes the libraries of functions. After the restart, the libraries are those of the last
//! reply, or those of the change that had no reply yet.
//!
//! `BEDPLATE_TEST_KILLS` is the number of kills (10).

mod running;

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Connection, RedisResult};
use running::Server;
use rustix::process::Signal;

/// Names of libraries, each with one function of the same name.
type Libraries = BTreeSet<String>;

/// A change of the libraries.
fn change(libraries: &Libraries, round: u32, step: u32) -> (redis::Cmd, Libraries) {
    let mut changed = libraries.clone();
    let command = match step % 5 {
        4 => {
            let name = changed.pop_first().unwrap();
            redis::cmd("FUNCTION").arg("DELETE").arg(name).clone()
        }
        3 if step % 2 == 1 => {
            changed.clear();
            redis::cmd("FUNCTION").arg("FLUSH").clone()
        }
        _ => {
            let name = format!("l{round}_{step}");
            let code = format!(
                "#!lua name={name}\nredis.register_function('{name}', function() return '{name}' end)"
            );
            changed.insert(name);
            redis::cmd("FUNCTION").arg("LOAD").arg(code).clone()
        }
    };
    (command, changed)
}

/// The libraries that a server has. Each function works.
fn found(connection: &mut Connection) -> Libraries {
    let list: Vec<Vec<redis::Value>> = redis::cmd("FUNCTION").arg("LIST").query(connection).unwrap();
    let name = |library: &Vec<redis::Value>| redis::from_redis_value::<String>(library[1].clone()).unwrap();
    let names: Libraries = list.iter().map(name).collect();
    for name in &names {
        let reply: String = redis::cmd("FCALL").arg(name).arg(0).query(connection).unwrap();
        assert_eq!(reply, *name);
    }
    names
}

#[test]
fn libraries_survive_kills() {
    let kills = std::env::var("BEDPLATE_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(10);
    let data = tempfile::tempdir().unwrap();
    let (mut libraries, mut in_doubt) = (Libraries::new(), None);
    let mut changes = 0;
    for round in 0..kills {
        let server = Server::start(data.path(), &[]);
        let mut connection = server.connect();
        let there = found(&mut connection);
        assert!(
            there == libraries || Some(&there) == in_doubt.as_ref(),
            "{there:?} {libraries:?} {in_doubt:?}"
        );
        (libraries, in_doubt) = (there, None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(u64::from(round * 7 % 50)));
                server.kill();
            });
            for step in 0.. {
                if libraries.is_empty() && step % 5 == 4 {
                    continue;
                }
                let (command, changed) = change(&libraries, round, step);
                let reply: RedisResult<redis::Value> = command.query(&mut connection);
                match reply {
                    Ok(_) => (libraries, changes) = (changed, changes + 1),
                    Err(_) => {
                        in_doubt = Some(changed);
                        break;
                    }
                }
            }
        });
    }
    println!("{changes} changes");
    assert!(changes > kills, "{changes}");
    let server = Server::start(data.path(), &[]);
    let there = found(&mut server.connect());
    assert!(there == libraries || Some(&there) == in_doubt.as_ref(), "{there:?} {libraries:?} {in_doubt:?}");
    assert_eq!(server.end(Signal::TERM).0, Some(0));
}
