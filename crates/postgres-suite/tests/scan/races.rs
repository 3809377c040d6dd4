//! Makes races: stops a scan at each of its steps while others change the table, write it out and take it from
//! the buffers. A mutant leaves out one rule of the scan, which these tests must notice.

use std::thread::JoinHandle;

use bedplate_postgres_suite::extension::{Build, is_stock};
use bedplate_postgres_suite::plan::counters;
use bedplate_postgres_suite::postgres::Client;
use bedplate_postgres_suite::{Cluster, Gate, Installation, Settings, Step, Stop, execute};

use crate::common::{Pair, SERIAL, check, each_installation, rows, settings, shared};

const QUERY: &str = "select count(*), sum(k), sum(id::bigint), sum(hashtid(ctid)::bigint), md5(string_agg(id || ':' || k, ',' order by id, k)) from t";

/// Number of small tables. Their scans take no ring of buffers of their own, and together they are larger than all buffers.
const FILLERS: usize = 10;
/// Number of pages of the table that are in buffers if a part of it is. A scan reads nothing of a table that is completely
/// in buffers.
const PART: usize = 40;

/// A cluster with a table of one chunk, and the means to take its blocks from the buffers.
struct Scene {
    cluster: Cluster,
    /// The session that changes the table.
    writer: Client,
}

impl Scene {
    fn new(installation: &Installation, checksums: bool) -> Self {
        Self::with(installation, settings(installation, Build::Faults).checksums(checksums))
    }

    fn with(installation: &Installation, settings: Settings) -> Self {
        let settings = settings.with("shared_buffers", "4MB");
        let mut cluster = Cluster::create(installation, &settings).unwrap();
        let mut writer = cluster.client().unwrap();
        for filler in 0..FILLERS {
            let create = format!("create table filler{filler}(pad text) with (autovacuum_enabled = off)");
            let fill =
                format!("insert into filler{filler} select repeat('f', 1000) from generate_series(1, 700)");
            execute(&mut writer, &format!("{create}; {fill}")).unwrap();
        }
        drop(writer);
        // Hint bits would make the first scans of the fillers write.
        cluster.run("vacuum (freeze)").unwrap();
        cluster.stop(Stop::Fast).unwrap();
        cluster.start().unwrap();
        let mut writer = cluster.client().unwrap();
        execute(
            &mut writer,
            "set bedplate_scan.enabled = off; set enable_seqscan = off; create extension if not exists pg_buffercache",
        )
        .unwrap();
        Self { cluster, writer }
    }

    /// Makes the table again, written out and in no buffer.
    fn table(&mut self) {
        execute(&mut self.writer, "drop table if exists t").unwrap();
        execute(
            &mut self.writer,
            "create table t(id int, k int, pad text) with (autovacuum_enabled = off, fillfactor = 70);
             insert into t select g, g % 100, repeat('x', 60) from generate_series(1, 6000) g",
        )
        .unwrap();
        self.evict();
    }

    /// Number of buffers that have blocks of the table.
    fn buffers(&mut self) -> u64 {
        let count = "select count(*) from pg_buffercache b join pg_class c on b.relfilenode = pg_relation_filenode(c.oid)
                     where c.relname = 't' and b.relforknumber = 0";
        rows(&mut self.writer, count).unwrap()[0].parse().unwrap()
    }

    /// Writes the table out and takes it from the buffers.
    fn evict(&mut self) {
        execute(&mut self.writer, "checkpoint").unwrap();
        let scans = (0..FILLERS)
            .map(|filler| format!("select count(*) from filler{filler}"))
            .collect::<Vec<_>>()
            .join(";");
        for _ in 0..50 {
            if self.buffers() == 0 {
                return;
            }
            execute(&mut self.writer, &scans).unwrap();
        }
        panic!("{} buffers still have blocks of the table", self.buffers());
    }

    /// Commits and aborts changes to all of the table: rows stay on their pages, move, are inserted and are deleted.
    fn change(&mut self) {
        execute(
            &mut self.writer,
            "update t set k = k + 1000 where id % 2 = 0;
             update t set k = k + 1000, pad = pad || repeat('y', 200) where id % 9 = 0;
             delete from t where id % 7 = 0;
             insert into t select g, 5, 'new' from generate_series(6001, 6500) g",
        )
        .unwrap();
        execute(&mut self.writer, "begin; update t set k = -1 where id % 3 = 0; rollback").unwrap();
    }

    /// Commits changes to the first pages of the table. Only these are in buffers then.
    fn change_part(&mut self) {
        execute(&mut self.writer, &format!("update t set k = k + 1000 where ctid < '({PART},1)'")).unwrap();
    }

    /// Brings the first pages of the table into buffers.
    fn load_part(&mut self) {
        rows(&mut self.writer, &format!("select count(k) from t where ctid < '({PART},1)'")).unwrap();
    }

    /// The path of this scene's gates.
    fn gate(&self) -> std::path::PathBuf {
        self.cluster.make_folder("gates").unwrap().join("gate")
    }

    /// Two sessions, the direct one with these settings.
    fn pair(&self, setup: &str) -> Pair {
        let mut pair = Pair::new(&self.cluster);
        let gate = self.gate();
        execute(
            &mut pair.direct,
            &format!("{SERIAL}; set bedplate_scan.fault_gate = '{}'; {setup}", gate.display()),
        )
        .unwrap();
        execute(&mut pair.plain, SERIAL).unwrap();
        pair
    }

    /// Scans in both sessions under a new snapshot. The scan of the extension is stopped at a step while `meanwhile` runs.
    /// It is an error if the rows differ, or if the scan failed.
    fn race(&mut self, pair: Pair, step: Step, meanwhile: impl FnOnce(&mut Self)) -> Result<(), String> {
        let mut pair = pair;
        pair.begin(None)?;
        let gate = Gate::close(&self.gate(), step)?;
        self.cluster.give(&self.gate().with_extension(step.name()))?;
        let Pair { mut plain, mut direct } = pair;
        let scan: JoinHandle<(Client, Result<Vec<String>, String>)> = std::thread::spawn(move || {
            let seen = rows(&mut direct, QUERY);
            (direct, seen)
        });
        gate.wait(|| match scan.is_finished() {
            true => Err(format!("the scan has not come to the step {}", step.name())),
            false => Ok(()),
        })?;
        meanwhile(self);
        gate.open();
        let (mut direct, seen) = scan.join().map_err(|_| "the scan's thread panicked")?;
        let expected = rows(&mut plain, QUERY)?;
        let result = check(QUERY, &expected, &seen?);
        execute(&mut direct, "rollback").and(execute(&mut plain, "rollback"))?;
        result
    }
}

/// The content of buffers when a scan begins.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// Nothing, because the file has all committed changes.
    Absent,
    /// Some pages, with changes that the file does not have.
    Dirty,
    /// Some pages, as they are in the file.
    Clean,
}

impl Scene {
    fn prepare(&mut self, before: Before) {
        self.table();
        match before {
            Before::Absent => {
                self.change();
                self.evict();
            }
            Before::Dirty => self.change_part(),
            Before::Clean => self.load_part(),
        }
        let buffers = self.buffers();
        let is_part = !matches!(before, Before::Absent);
        assert!(
            if is_part { (1..90).contains(&buffers) } else { buffers == 0 },
            "{before:?}: {buffers} buffers"
        );
    }
}

#[test]
fn what_happens_at_any_step_of_a_scan_does_not_show() {
    each_installation(|installation| {
        let mut scene = Scene::new(installation, false);
        for step in Step::ALL {
            for before in [Before::Absent, Before::Dirty, Before::Clean] {
                // The changes are written out, and in no buffer any more, before the scan continues.
                scene.prepare(before);
                let pair = scene.pair("");
                scene
                    .race(pair, step, |scene| {
                        scene.change();
                        scene.evict();
                    })
                    .unwrap_or_else(|error| panic!("{step:?}, {before:?}, evicted: {error}"));
                // Only versions before 18 run all combinations, because these take long.
                if installation.version >= 18 {
                    continue;
                }
                // The changes are in buffers, and not written out.
                scene.prepare(before);
                let pair = scene.pair("");
                scene
                    .race(pair, step, Scene::change)
                    .unwrap_or_else(|error| panic!("{step:?}, {before:?}, dirty: {error}"));
                // Only earlier changes are written out.
                if !matches!(before, Before::Dirty) {
                    continue;
                }
                scene.prepare(before);
                let pair = scene.pair("");
                scene
                    .race(pair, step, Scene::evict)
                    .unwrap_or_else(|error| panic!("{step:?}, {before:?}, only evicted: {error}"));
            }
        }
    });
}

/// While a scan is stopped, vacuum removes rows that were deleted before the snapshot, and freezes all transactions.
#[test]
fn vacuum_beside_a_scan_does_not_show() {
    each_installation(|installation| {
        let mut scene = Scene::new(installation, true);
        for step in Step::ALL {
            scene.prepare(Before::Absent);
            let pair = scene.pair("");
            scene
                .race(pair, step, |scene| {
                    execute(&mut scene.writer, "delete from t where id % 11 = 0").unwrap();
                    execute(&mut scene.writer, "vacuum (freeze, truncate off) t").unwrap();
                    scene.evict();
                    execute(&mut scene.writer, "update t set k = 77").unwrap();
                    scene.evict();
                })
                .unwrap_or_else(|error| panic!("{step:?}: {error}"));
        }
    });
}

/// A scan's mutant must give wrong rows in a race in which the scan itself does not.
fn caught(scene: &mut Scene, mutant: &str, race: impl Fn(&mut Scene, Pair) -> Result<(), String>) {
    let pair = scene.pair("");
    race(scene, pair).unwrap_or_else(|error| panic!("without a mutant: {error}"));
    let pair = scene.pair(&format!("set bedplate_scan.mutant = '{mutant}'"));
    let error = race(scene, pair).expect_err("the mutant was not noticed");
    println!("the mutant {mutant} was noticed: {}", error.lines().next().unwrap_or_default());
}

/// The scan reads an old page from the file. The page is written out and evicted before the only look at the buffer table.
#[test]
fn a_look_up_after_the_read_alone_is_noticed() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        let mut scene = Scene::new(installation, false);
        caught(&mut scene, "lookup_after", |scene, pair| {
            scene.prepare(Before::Dirty);
            scene.race(pair, Step::AfterRead, Scene::evict)
        });
    });
}

/// A scan joins a pool whose frames another scan had read before the second one began, and before the table was changed.
#[test]
fn frames_that_are_older_than_the_scan_are_noticed() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        let mut scene = Scene::with(installation, shared(settings(installation, Build::Faults)));
        let mut join = |setup: &str| {
            scene.prepare(Before::Absent);
            let Pair { plain: _, mut direct } = scene.pair("");
            let gate = Gate::close(&scene.gate(), Step::BeforeUse).unwrap();
            scene.cluster.give(&scene.gate().with_extension(Step::BeforeUse.name())).unwrap();
            let first = std::thread::spawn(move || rows(&mut direct, QUERY));
            gate.wait(|| if first.is_finished() { Err("the first scan has ended".into()) } else { Ok(()) })
                .unwrap();
            scene.change();
            scene.evict();
            let mut second = scene.pair(setup);
            second.begin(None).unwrap();
            let result = second.compare(QUERY);
            gate.open();
            first.join().unwrap().unwrap();
            result
        };
        join("").unwrap();
        let error = join("set bedplate_scan.mutant = 'stale_pool'").expect_err("the mutant was not noticed");
        println!("the mutant stale_pool was noticed: {}", error.lines().next().unwrap_or_default());
    });
}

/// Pages whose halves are of different versions. The test makes them, because the device never returns them here.
#[test]
fn torn_pages_are_noticed() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        for checksums in [false, true] {
            let mut scene = Scene::new(installation, checksums);
            scene.prepare(Before::Absent);
            let torn = "set bedplate_scan.fault_tear = 1";
            let mut pair = scene.pair(torn);
            pair.begin(None).unwrap();
            pair.compare(QUERY).unwrap();
            let seen = pair.counters(QUERY);
            assert!(seen.direct == 0 && seen.buffered > 0, "torn pages were used: {seen:?}");
            pair.end().unwrap();
            // Tears only some of the pages.
            execute(&mut pair.direct, "set bedplate_scan.fault_tear = 3").unwrap();
            pair.begin(None).unwrap();
            pair.compare(QUERY).unwrap();
            pair.end().unwrap();
            scene.evict();
            let mut pair = scene.pair(&format!("{torn}; set bedplate_scan.mutant = 'no_tear_test'"));
            pair.begin(None).unwrap();
            let error = pair.compare(QUERY).expect_err("the mutant was not noticed");
            println!("the mutant no_tear_test was noticed: {}", error.lines().next().unwrap_or_default());
        }
    });
}

/// A channel that fails in the middle of a scan leaves the rest to the buffer manager.
#[test]
fn a_channel_that_fails_does_not_show() {
    each_installation(|installation| {
        if is_stock() {
            return;
        }
        let mut scene = Scene::new(installation, false);
        for pages in [1, 5, 50] {
            scene.prepare(Before::Absent);
            let mut pair = scene.pair(&format!("set bedplate_scan.fault_channel = {pages}"));
            pair.begin(None).unwrap();
            pair.compare(QUERY).unwrap();
            let seen = counters(&mut pair.direct, "select count(*) from t").unwrap();
            assert!(seen.buffered > 0, "{seen:?}");
            pair.end().unwrap();
        }
    });
}
