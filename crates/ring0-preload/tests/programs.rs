//! Tests that unmodified programs of the distribution work in ring 0, in a virtual machine.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bedplate_suite_support::programs;
use bedplate_vm::{File, Job, Kernel, Machine, Report, Series};

const LIBRARY: &str = "/lib/bedplate/preload.so";

/// Builds the library in the development profile, which must also be the profile of this test.
fn library() -> PathBuf {
    programs::build(&["ring0-preload"]).unwrap();
    programs::folder().unwrap().join("libbedplate_ring0_preload.so")
}

/// Runs a shell script in a guest that has the programs and the library.
fn run(series: Series, programs: &[&str], script: &str) -> (Report, String, String) {
    let mut machine = Machine::new(Kernel::get(series).unwrap())
        .limit(Duration::from_secs(300))
        .env("PRELOAD", LIBRARY)
        .file(File { host: library(), guest: LIBRARY.into() });
    for name in programs {
        machine = machine.program(name).unwrap();
    }
    let jobs = [Job::new(["sh", "-c", script])];
    let ended = machine.capture_despite_losses(&jobs, |why| println!("{why}")).unwrap();
    (ended.report, ended.out, ended.err)
}

/// The value of `name=` in a line of statistics.
fn count(line: &str, name: &str) -> u64 {
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {line:?}")).parse().unwrap()
}

/// redis-server with I/O threads. Its data must be readable again, after a forked child has saved them and the
/// server has restarted.
#[test]
fn redis_server_works_in_ring_0() {
    let script = r#"
        set -e
        serve() {
            LD_PRELOAD=$PRELOAD BEDPLATE_RING0_REQUIRED=1 BEDPLATE_RING0_STATISTICS=/tmp/statistics \
                redis-server --port 7777 --io-threads 2 --dir /tmp --save "" --loglevel warning &
            for i in $(seq 600); do redis-cli --raw -p 7777 PING >/dev/null 2>&1 && break; sleep 0.2; done
        }
        serve
        redis-cli --raw -p 7777 INCRBY n 41
        redis-cli --raw -p 7777 INCR n
        redis-benchmark -p 7777 -n 2000 -c 10 -P 4 -t set,lpush -q >/dev/null
        redis-cli --raw -p 7777 BGSAVE
        for i in $(seq 600); do redis-cli --raw -p 7777 INFO persistence | grep -q rdb_bgsave_in_progress:0 && break; sleep 0.2; done
        redis-cli --raw -p 7777 INFO persistence | grep rdb_last_bgsave_status
        redis-cli --raw -p 7777 SHUTDOWN NOSAVE || true
        wait
        serve
        redis-cli --raw -p 7777 GET n
        redis-cli --raw -p 7777 LLEN mylist
        redis-cli --raw -p 7777 EXISTS key:__rand_int__
        redis-cli --raw -p 7777 SHUTDOWN NOSAVE || true
        wait
        cat /tmp/statistics
    "#;
    let (report, out, err) = run(Series::V6_1, &["redis-server", "redis-cli", "redis-benchmark"], script);
    assert!(report.succeeded(), "{report:?}\n{out}\n{err}");
    let out = out.replace('\r', "");
    for expected in ["41\n42\n", "\nrdb_last_bgsave_status:ok\n", "\n42\n2000\n1\n"] {
        assert!(out.contains(expected), "{expected:?} is not in\n{out}\n{err}");
    }
    let lines: Vec<&str> = out.lines().filter(|line| line.starts_with("pid=")).collect();
    assert!(lines.len() >= 2, "{out}\n{err}");
    // The server's main thread, its I/O threads, and its background threads.
    assert!(lines.iter().any(|line| count(line, "cpus") >= 4), "{lines:?}");
    assert!(lines.iter().all(|line| count(line, "resumed_natively") == 0), "{lines:?}");
    assert!(
        lines.iter().any(|line| count(line, "system_calls") > 1000 && count(line, "clones") > 0),
        "{lines:?}"
    );
}

/// SQLite's shell: transactions, a file with a write-ahead log, and sorting.
#[test]
fn sqlite_works_in_ring_0() {
    let script = r#"
        set -e
        export BEDPLATE_RING0_REQUIRED=1 BEDPLATE_RING0_STATISTICS=/tmp/statistics
        LD_PRELOAD=$PRELOAD sqlite3 /tmp/db "
            PRAGMA journal_mode=WAL;
            CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
                INSERT INTO t SELECT i, printf('%08d', (i * 7919) % 20000) FROM n;
            BEGIN; DELETE FROM t WHERE a % 2; ROLLBACK;
            SELECT count(*), sum(a) FROM t;
            SELECT a FROM t ORDER BY b LIMIT 3;"
        LD_PRELOAD=$PRELOAD sqlite3 /tmp/db "PRAGMA integrity_check; SELECT max(b) FROM t;"
        cat /tmp/statistics
    "#;
    let (report, out, err) = run(Series::V6_12, &["sqlite3"], script);
    assert!(report.succeeded(), "{report:?}\n{out}\n{err}");
    assert!(out.starts_with("wal\n20000|200010000\n20000\n"), "{out}");
    assert!(out.contains("\nok\n00019999\npid="), "{out}\n{err}");
    let lines: Vec<&str> = out.lines().filter(|line| line.starts_with("pid=")).collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| count(line, "resumed_natively") == 0), "{out}");
    assert!(count(lines[0], "system_calls") > 100, "{out}");
}

#[test]
fn a_program_that_clears_its_environment_has_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("clear.c"), folder.path().join("clear"));
    std::fs::write(&source, "#include <stdlib.h>\nint main(void) { return clearenv(); }\n").unwrap();
    assert!(Command::new("cc").arg("-o").arg(&program).arg(&source).status().unwrap().success());
    let program = program.to_str().unwrap();
    let script = format!(
        "BEDPLATE_RING0_REQUIRED=1 BEDPLATE_RING0_STATISTICS=/tmp/statistics LD_PRELOAD=$PRELOAD {program} && \
         cat /tmp/statistics"
    );
    let (report, out, err) = run(Series::V6_12, &[program], &script);
    assert!(report.succeeded() && out.starts_with("pid="), "{report:?}\n{out}\n{err}");
}
