//! Real file systems that become full.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bedplate_kerneldb::{Durability, Error, SetOptions, Store, Written};

use super::super::{LONG, config, contents, open, set};

/// Makes `child` write, and names its directory.
const CHILD: &str = "KERNELDB_TEST_FULL_DISK_DATA";

/// A small file system of its own, which is unmounted when dropped.
struct Mounted {
    at: PathBuf,
    _temp: tempfile::TempDir,
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

impl Mounted {
    fn tmpfs(size: &str) -> Result<Mounted, String> {
        let temp = tempfile::tempdir().unwrap();
        let at = temp.path().join("mnt");
        std::fs::create_dir(&at).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&at))?;
        Ok(Mounted { at, _temp: temp })
    }

    fn ext4(bytes: u64) -> Result<Mounted, String> {
        let temp = tempfile::tempdir().unwrap();
        let (at, image) = (temp.path().join("mnt"), temp.path().join("image"));
        std::fs::create_dir(&at).unwrap();
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        Ok(Mounted { at, _temp: temp })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = run(Command::new("umount").arg(&self.at)) {
            eprintln!("{e}");
        }
    }
}

fn on_each_disk(test: impl Fn(&Path)) {
    for disk in [Mounted::tmpfs("6m"), Mounted::ext4(12 << 20)] {
        match disk {
            Ok(disk) => test(&disk.at),
            // Without the right to mount (in a container, for example) there is no small disk to fill.
            Err(e) => eprintln!("skipped: {e}"),
        }
    }
}

fn value(i: u32) -> Vec<u8> {
    vec![i as u8; 10_000]
}

/// Writes keys 0, 1, … with sync durability until the log cannot be written; returns how many are
/// acknowledged.
fn write_until_full(store: &Store, mut acknowledge: impl FnMut(u32)) -> u32 {
    let mut session = store.database().session().unwrap();
    let mut acknowledged = 0u32;
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < LONG, "the disk never ran full");
        match session.set(&acknowledged.to_le_bytes(), &value(acknowledged), SetOptions::default()) {
            Ok(Written::Done { commit_ts }) => {
                match store.wait_durable(commit_ts, Duration::from_millis(300)) {
                    Ok(true) => {
                        acknowledged += 1;
                        acknowledge(acknowledged);
                    }
                    // The write is slow, but the loop goes on.
                    Ok(false) => {}
                    Err(Error::WalFailed) => return acknowledged,
                    Err(e) => panic!("{e}"),
                }
            }
            Ok(Written::ConditionFailed) => unreachable!("there is no condition"),
            Err(Error::WalFailed) => return acknowledged,
            Err(e) if e.is_transient() => std::thread::sleep(Duration::from_micros(100)),
            Err(e) => panic!("{e}"),
        }
    }
}

/// The process that is killed on a full disk, while its log writer keeps trying.
#[test]
fn child() {
    let Ok(data) = std::env::var(CHILD) else { return };
    let (store, _) = open(config(Durability::Sync), Path::new(&data));
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        // Fails, and so ends this process, when the reader has gone.
        writeln!(out, "{line}").unwrap();
        out.flush().unwrap();
    };
    write_until_full(&store, |n| say(format!("acknowledged {n}")));
    loop {
        say("full".into());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_crash_on_a_full_disk_loses_nothing_acknowledged() {
    on_each_disk(|at| {
        std::fs::write(at.join("ballast"), vec![1; 1 << 20]).unwrap();
        let data = at.join("data");
        let mut acknowledged = 0u32;
        for round in 0..4 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "durability::disks::child", "--nocapture", "--test-threads=1"])
                .env(CHILD, &data)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut full = false;
            for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
                match line.rsplit_once(' ') {
                    Some(("acknowledged", n)) => acknowledged = acknowledged.max(n.parse().unwrap()),
                    _ if line == "full" => {
                        full = true;
                        // The kill comes at any point of the log writer's attempts.
                        std::thread::sleep(Duration::from_micros(7919 * (round + 1)));
                        child.kill().unwrap();
                        break;
                    }
                    _ => {}
                }
            }
            child.wait().unwrap();
            assert!(full && acknowledged > 50, "round {round}: {acknowledged} acknowledged");
            let (store, report) = open(config(Durability::Sync), &data);
            let mut session = store.database().session().unwrap();
            for i in 0..acknowledged {
                let found = session.get(&i.to_le_bytes()).unwrap();
                assert!(found.is_some_and(|v| v.data == value(i)), "round {round}, key {i}: {report:?}");
            }
            drop(session);
            drop(store);
        }
    });
}

#[test]
fn a_full_disk_stops_writes_and_loses_nothing_acknowledged() {
    on_each_disk(|at| {
        // Space that can be freed later.
        std::fs::write(at.join("ballast"), vec![1; 2 << 20]).unwrap();
        let data = at.join("data");
        let (store, _) = open(config(Durability::Sync), &data);
        let acknowledged = write_until_full(&store, |_| ());
        let mut session = store.database().session().unwrap();
        assert!(acknowledged > 50, "{acknowledged}");
        let wal = store.wal().unwrap();
        let failed = Instant::now();
        while !wal.failed() {
            assert!(failed.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Writes are refused; reads are served.
        let refused = session.set(b"refused", b"", SetOptions::default());
        assert!(matches!(refused, Err(Error::WalFailed)), "{refused:?}");
        assert_eq!(session.get(&0u32.to_le_bytes()).unwrap().unwrap().data, value(0));
        assert!(session.get(b"refused").unwrap().is_none());
        // With free space it goes on by itself.
        std::fs::remove_file(at.join("ballast")).unwrap();
        let started = Instant::now();
        while wal.failed() {
            assert!(started.elapsed() < LONG, "{:?}", wal.stats());
            std::thread::sleep(Duration::from_millis(5));
        }
        let ts = set(&mut session, b"after", b"again").unwrap();
        assert!(store.wait_durable(ts, LONG).unwrap());
        let before = contents(store.database());
        drop(session);
        drop(store);
        let (store, _) = open(config(Durability::Sync), &data);
        assert_eq!(contents(store.database()), before);
        let mut session = store.database().session().unwrap();
        for i in 0..acknowledged {
            assert_eq!(session.get(&i.to_le_bytes()).unwrap().unwrap().data, value(i));
        }
    });
}

#[test]
fn a_checkpoint_that_does_not_fit_leaves_the_old_one() {
    on_each_disk(|at| {
        let data = at.join("data");
        let (store, _) = open(config(Durability::Sync), &data);
        let mut session = store.database().session().unwrap();
        for i in 0..100u32 {
            set(&mut session, &i.to_le_bytes(), &[1; 10_000]).unwrap();
        }
        let ts = store.database().clock();
        assert!(store.wait_durable(ts, LONG).unwrap());
        let good = store.checkpoint().unwrap();
        // Fill the rest of the disk, except for a little.
        let mut ballast = Vec::new();
        for (i, size) in [1 << 20, 1 << 18, 1 << 16].into_iter().enumerate() {
            let mut n = 0;
            loop {
                let path = at.join(format!("ballast {i} {n}"));
                n += 1;
                let written = std::fs::write(&path, vec![1; size])
                    .and_then(|()| std::fs::File::open(&path)?.sync_all());
                if written.is_err() {
                    std::fs::remove_file(&path).unwrap();
                    break;
                }
                ballast.push(path);
            }
        }
        let error = store.checkpoint().unwrap_err();
        assert!(
            matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(libc::ENOSPC)),
            "{error}"
        );
        let status = store.checkpoint_status();
        assert_eq!((status.completed, status.failed), (1, 1));
        assert!(status.last_error.is_some());
        let names: Vec<_> = std::fs::read_dir(data.join("checkpoint")).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(good.path.exists());
        for path in ballast {
            std::fs::remove_file(path).unwrap();
        }
        store.checkpoint().unwrap();
        assert_eq!(store.checkpoint_status().last_error, None);
    });
}

#[test]
fn a_restart_on_a_full_disk_can_read() {
    on_each_disk(|at| {
        let data = at.join("data");
        let (store, _) = open(config(Durability::Sync), &data);
        let mut session = store.database().session().unwrap();
        for i in 0..20u32 {
            let ts = set(&mut session, &i.to_le_bytes(), &[1; 10_000]).unwrap();
            assert!(store.wait_durable(ts, LONG).unwrap());
        }
        drop(session);
        drop(store);
        // The disk has no free byte.
        let mut full = std::fs::File::create(at.join("ballast")).unwrap();
        while std::io::Write::write_all(&mut full, &[1; 4096]).is_ok() {}
        while std::io::Write::write_all(&mut full, &[1]).is_ok() {}
        let _ = full.sync_all();
        drop(full);
        let (store, report) = open(config(Durability::Sync), &data);
        assert_eq!(contents(store.database()).len(), 20, "{report:?}");
        let mut session = store.database().session().unwrap();
        let ts = set(&mut session, b"more", &[2; 10_000]).unwrap();
        assert!(matches!(store.wait_durable(ts, Duration::from_millis(300)), Err(Error::WalFailed)));
        std::fs::remove_file(at.join("ballast")).unwrap();
        assert!(store.wait_durable(ts, LONG).unwrap());
        drop(session);
        drop(store);
        let (store, _) = open(config(Durability::Sync), &data);
        assert_eq!(contents(store.database()).len(), 21);
    });
}
