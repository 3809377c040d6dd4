//! A process that writes and is killed at random moments loses nothing that it has acknowledged.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bedplate_kerneldb::{Durability, SetOptions};

use super::super::{LONG, config, open, set};

const CHILD: &str = "KERNELDB_TEST_CHILD_DATA";
const WRITERS: u64 = 3;

/// The process that is killed: writers that print acknowledged commits, and checkpoints all the time.
/// Writer w counts up in key "w", and in every second step in two keys in one transaction.
#[test]
fn child() {
    let Ok(data) = std::env::var(CHILD) else { return };
    let (store, _) = open(config(Durability::Sync), Path::new(&data));
    let store = &store;
    std::thread::scope(|scope| {
        for w in 0..WRITERS {
            scope.spawn(move || {
                let mut session = store.database().session().unwrap();
                let (key, twin) = (format!("count {w}"), format!("twin {w}"));
                let count = session.get(key.as_bytes()).unwrap();
                let mut count = count.map_or(0, |v| u64::from_le_bytes(v.data.try_into().unwrap()));
                loop {
                    count += 1;
                    let value = count.to_le_bytes();
                    let ts = if count % 2 == 0 {
                        session.begin().unwrap();
                        session.set(key.as_bytes(), &value, SetOptions::default()).unwrap();
                        session.set(twin.as_bytes(), &value, SetOptions::default()).unwrap();
                        session.commit().unwrap()
                    } else {
                        set(&mut session, key.as_bytes(), &value).unwrap()
                    };
                    assert!(store.wait_durable(ts, LONG).unwrap());
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "acknowledged {w} {count}").unwrap();
                    out.flush().unwrap();
                }
            });
        }
        scope.spawn(|| {
            loop {
                store.checkpoint().unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    });
}

#[test]
fn killed_at_random_moments() {
    let temp = tempfile::tempdir().unwrap();
    let rounds: u64 = std::env::var("KERNELDB_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let mut acknowledged = [0u64; WRITERS as usize];
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "durability::kill::child", "--nocapture", "--test-threads=1"])
            .env(CHILD, temp.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = rustix::process::Pid::from_child(&child);
        let mut killer = None;
        for line in lines.map_while(|l| l.ok()) {
            let Some((_, ack)) = line.split_once("acknowledged ") else { continue };
            let (w, count) = ack.split_once(' ').unwrap();
            // The kill may cut off the last line, which then shows a smaller count.
            let Ok(count) = count.parse::<u64>() else { continue };
            let slot = &mut acknowledged[w.parse::<usize>().unwrap()];
            *slot = count.max(*slot);
            // The kill comes after the first acknowledgement, after a time that differs from round to
            // round.
            killer.get_or_insert_with(|| {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(round * 7919 % 60_000));
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                })
            });
        }
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(killer.is_some(), "the child never acknowledged anything: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");

        let (store, report) = open(config(Durability::Sync), temp.path());
        let mut session = store.database().session().unwrap();
        for (w, &acknowledged) in acknowledged.iter().enumerate() {
            let mut count = |name: &str| {
                let value = session.get(format!("{name} {w}").as_bytes()).unwrap();
                value.map_or(0, |v| u64::from_le_bytes(v.data.try_into().unwrap()))
            };
            let (count, twin) = (count("count"), count("twin"));
            assert!(count >= acknowledged, "round {round}: {count} of {acknowledged}, {report:?}");
            // A transaction is never recovered in part.
            assert_eq!(twin, count / 2 * 2, "round {round}: {report:?}");
        }
    }
}
