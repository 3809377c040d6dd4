//! Kills processes: a backend in the middle of a scan, the server, and the daemon that reads for backends that share.

use bedplate_postgres_suite::extension::{Build, is_stock};
use bedplate_postgres_suite::{Cluster, Gate, Installation, Step, Stop, execute};
use rustix::process::Signal;

use crate::common::{FORCE, Pair, SERIAL, each_installation, rows, settings, shared};

const QUERY: &str = "select count(*), sum(k), sum(hashtid(ctid)::bigint) from t";

fn cluster(installation: &Installation) -> Cluster {
    let mut cluster = Cluster::create(installation, &settings(installation, Build::Faults)).unwrap();
    fill(&mut cluster);
    cluster
}

/// Makes the table, which is in no buffer then.
fn fill(cluster: &mut Cluster) {
    cluster.run("create table t(id int, k int, pad text)").unwrap();
    cluster
        .run("insert into t select g, g % 100, repeat('x', 100) from generate_series(1, 50000) g")
        .unwrap();
    cluster.stop(Stop::Fast).unwrap();
    cluster.start().unwrap();
}

fn compare(cluster: &Cluster) {
    let mut pair = Pair::new(cluster);
    pair.begin(None).unwrap();
    pair.compare(QUERY).unwrap();
    assert!(is_stock() || pair.counters(QUERY).direct > 0);
    pair.end().unwrap();
}

/// The number of this session's process.
fn pid(client: &mut bedplate_postgres_suite::postgres::Client) -> i32 {
    rows(client, "select pg_backend_pid()").unwrap()[0].parse().unwrap()
}

fn kill(pid: i32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: i32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn a_backend_that_is_killed_in_a_scan_leaves_nothing_behind() {
    each_installation(|installation| {
        let mut cluster = cluster(installation);
        for step in [Step::BeforeRead, Step::AfterRead] {
            let path = cluster.make_folder("gates").unwrap().join("gate");
            let mut client = cluster.client().unwrap();
            execute(
                &mut client,
                &format!("{FORCE}; {SERIAL}; set bedplate_scan.fault_gate = '{}'", path.display()),
            )
            .unwrap();
            let backend = pid(&mut client);
            let gate = Gate::close(&path, step).unwrap();
            cluster.give(&path.with_extension(step.name())).unwrap();
            let scan = std::thread::spawn(move || rows(&mut client, QUERY));
            if !is_stock() {
                gate.wait(|| if scan.is_finished() { Err("the scan has ended".into()) } else { Ok(()) })
                    .unwrap();
            }
            let begins = cluster.begins();
            kill(backend);
            assert!(scan.join().unwrap().is_err() || is_stock());
            gate.open();
            cluster.wait_for_recovery(begins).unwrap();
            assert!(!cluster.processes().contains(&backend), "the killed backend is still there");
            compare(&cluster);
        }
        // `stop` fails unless all processes end.
        cluster.stop(Stop::Fast).unwrap();
    });
}

#[test]
fn a_server_that_is_stopped_in_a_scan_ends_with_all_of_its_processes() {
    each_installation(|installation| {
        let mut cluster = cluster(installation);
        for how in [Stop::Fast, Stop::Immediate] {
            let mut client = cluster.client().unwrap();
            execute(&mut client, FORCE).unwrap();
            execute(&mut client, "begin; declare c cursor for select * from t").unwrap();
            rows(&mut client, "fetch 1000 from c").unwrap();
            cluster.stop(how).unwrap();
            cluster.start().unwrap();
            compare(&cluster);
        }
    });
}

/// When the daemon is killed while it reads for a scan, the scan continues by itself, no backend ends, and a new daemon starts.
#[test]
fn a_daemon_that_is_killed_does_not_show() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        let mut cluster =
            Cluster::create(installation, &shared(settings(installation, Build::Faults))).unwrap();
        fill(&mut cluster);
        let daemon = wait_for_daemon(&cluster, None);
        let path = cluster.make_folder("gates").unwrap().join("gate");
        let mut pair = Pair::new(&cluster);
        let setup = format!("{SERIAL}; set bedplate_scan.fault_gate = '{}'", path.display());
        execute(&mut pair.direct, &setup).unwrap();
        pair.begin(None).unwrap();
        let gate = Gate::close(&path, Step::AfterRead).unwrap();
        cluster.give(&path.with_extension(Step::AfterRead.name())).unwrap();
        let Pair { mut plain, mut direct } = pair;
        let scan = std::thread::spawn(move || rows(&mut direct, QUERY).map(|rows| (direct, rows)));
        gate.wait(|| if scan.is_finished() { Err("the scan has ended".into()) } else { Ok(()) }).unwrap();
        kill(daemon);
        gate.open();
        let (_direct, found) = scan.join().unwrap().unwrap();
        assert_eq!(found, rows(&mut plain, QUERY).unwrap());
        // The session still works, so the server has not restarted.
        rows(&mut plain, "select 1").unwrap();
        compare(&cluster);
        wait_for_daemon(&cluster, Some(daemon));
        compare(&cluster);
        cluster.stop(Stop::Fast).unwrap();
    });
}

/// A daemon that does not answer delays one scan a little, and later scans not at all. The server stops without it.
#[test]
fn a_daemon_that_stands_still_does_not_hold_scans_up() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        let mut cluster =
            Cluster::create(installation, &shared(settings(installation, Build::Product))).unwrap();
        fill(&mut cluster);
        let daemon = wait_for_daemon(&cluster, None);
        signal(daemon, Signal::STOP);
        let mut client = cluster.client().unwrap();
        execute(&mut client, &format!("{FORCE}; {SERIAL}")).unwrap();
        // The daemon's own answers may take 30 seconds elsewhere.
        let start = std::time::Instant::now();
        for _ in 0..20 {
            assert_eq!(rows(&mut client, "select count(*) from t").unwrap(), ["50000"]);
        }
        let time = start.elapsed();
        assert!(time.as_secs() < 20, "twenty scans took {time:?}");
        cluster.stop(Stop::Fast).unwrap();
    });
}

/// Waits until a daemon listens, and returns its process, which is not `gone`.
fn wait_for_daemon(cluster: &Cluster, gone: Option<i32>) -> i32 {
    let start = std::time::Instant::now();
    loop {
        let text =
            std::fs::read_to_string(cluster.data().join("pg_stat_tmp/bedplate_scan.pid")).unwrap_or_default();
        let pid = text.trim().parse().ok().filter(|pid| Some(*pid) != gone);
        if let Some(pid) = pid
            && cluster.data().join("pg_stat_tmp/bedplate_scan.sock").exists()
        {
            return pid;
        }
        assert!(start.elapsed().as_secs() < 120, "there is no daemon\n{}", cluster.log_end());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Cancels and ends sessions in scans. The next scan of a session that continues is right.
#[test]
fn scans_can_be_cancelled_at_any_time() {
    each_installation(|installation| {
        let cluster = cluster(installation);
        let mut pair = Pair::new(&cluster);
        for setup in ["set statement_timeout = 1", "set statement_timeout = 3", "set statement_timeout = 10"]
        {
            execute(&mut pair.direct, setup).unwrap();
            for _ in 0..20 {
                let _ = rows(&mut pair.direct, "select count(*) from t a join t b using (k)");
            }
            execute(&mut pair.direct, "reset statement_timeout").unwrap();
            pair.begin(None).unwrap();
            pair.compare(QUERY).unwrap();
            pair.end().unwrap();
        }
        let mut client = cluster.client().unwrap();
        let mut victim = cluster.client().unwrap();
        execute(&mut victim, FORCE).unwrap();
        let backend = pid(&mut victim);
        let scan =
            std::thread::spawn(move || rows(&mut victim, "select count(*) from t a join t b using (k)"));
        rows(&mut client, &format!("select pg_terminate_backend({backend})")).unwrap();
        assert!(scan.join().unwrap().is_err());
        compare(&cluster);
    });
}
