//! The content that the stores of a folder must have after a child has died.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate_btree::store::{Error, Store, Verification};

use super::child::Operation;
use super::workload::{self, Dump, Model, THREADS};

/// A number for each thread that commits.
pub type Commits = [u64; THREADS as usize];

/// The report of a child.
#[derive(Debug, Default)]
pub struct Report {
    /// The last commit of each thread.
    pub committed: Commits,
    /// The same when the first phase began.
    pub committed_before: Commits,
    /// The trees that were created.
    pub created: Vec<String>,
    /// Whether the operation came to its end.
    pub is_done: bool,
}

/// The content of a folder.
pub struct Oracle {
    folder: PathBuf,
    /// The content of the store.
    model: Model,
    /// The commits in it.
    commits: Commits,
    /// The file of the pages.
    inode: u64,
    /// The dump that the next load of each kind uses.
    odd: [bool; 3],
}

/// The result of a check, for the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation has no effect.
    Nothing,
    /// A merge has some of its transactions.
    Partial,
    /// The operation has all of its effect.
    Whole,
}

fn verify(directory: &Path) -> Verification {
    let verified = Store::verify(directory, &mut |_| {}).unwrap();
    assert!(verified.is_sound(), "{}: {:?}", directory.display(), verified.damages);
    verified
}

/// Asserts that two models are equal, without printing megabytes.
fn compare(what: &str, found: &Model, expected: &Model) {
    let names = |model: &Model| model.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for (name, records) in expected {
        let found = &found[name];
        let differs = |key: &&Vec<u8>| found.get(*key) != records.get(*key);
        let first = records.keys().chain(found.keys()).find(differs);
        assert!(
            first.is_none(),
            "{what}: tree {name}, key {first:02x?}: lengths {:?} and {:?}",
            first.and_then(|key| found.get(key)).map(Vec::len),
            first.and_then(|key| records.get(key)).map(Vec::len),
        );
    }
}

impl Oracle {
    /// Makes a store in a folder, and the dumps that are loaded into it later.
    pub fn new(folder: &Path) -> Self {
        for dump in Dump::ALL {
            for odd in [false, true] {
                let store = workload::open(&folder.join("dumped")).unwrap();
                workload::put(&store, &dump.model(odd)).unwrap();
                let mut file = std::fs::File::create(folder.join(dump.file(odd))).unwrap();
                store.dump(&mut file, &mut |_| {}).unwrap();
                drop(store);
                std::fs::remove_dir_all(folder.join("dumped")).unwrap();
            }
        }
        let store = workload::open(&folder.join("store")).unwrap();
        let mut model: Model = workload::TREES.map(|name| (name.to_owned(), Default::default())).into();
        for dump in [Dump::Replace, Dump::Merge] {
            model.extend(dump.model(false));
        }
        workload::put(&store, &model).unwrap();
        store.close().unwrap();
        let mut oracle = Self {
            folder: folder.to_owned(),
            model,
            commits: Commits::default(),
            inode: 0,
            odd: [false, true, true],
        };
        oracle.inode = oracle.inode();
        oracle
    }

    fn inode(&self) -> u64 {
        self.folder.join("store/pages").metadata().unwrap().ino()
    }

    /// The dump that an operation loads.
    pub fn odd(&self, operation: Operation) -> bool {
        match operation {
            Operation::Load(dump) => self.odd[dump as usize],
            _ => false,
        }
    }

    /// The content with all commits that a store has. They are at least `least`, and at most one of each thread more than
    /// `reported`.
    fn advanced(&self, found: Commits, least: &Commits, reported: &Commits) -> Model {
        let mut model = self.model.clone();
        for thread in 0..THREADS {
            let at = thread as usize;
            let most = reported[at].max(self.commits[at]) + 1;
            assert!(
                (least[at]..=most).contains(&found[at]),
                "thread {thread} has {} commits, expected {} to {most}",
                found[at],
                least[at]
            );
            for n in self.commits[at] + 1..=found[at] {
                workload::apply(&mut model, thread, n);
            }
        }
        model
    }

    /// Checks the store itself. Afterwards it is closed, or needs recovery, as `closes` says.
    pub fn check(&mut self, operation: Operation, report: &Report, closes: bool) -> Outcome {
        verify(&self.folder.join("store"));
        let store = workload::open(&self.folder.join("store")).unwrap();
        assert!(!self.folder.join("store/pages.new").exists());
        let trees = workload::trees(&store).unwrap();
        let commits = std::array::from_fn(|at| workload::last(&store, &trees, at as u64).unwrap());
        let least = std::array::from_fn(|at| report.committed[at].max(self.commits[at]));
        let model = self.advanced(commits, &least, &report.committed);
        let found = workload::content(&store).unwrap();
        let outcome = self.check_operation(operation, report, &found, &model);
        (self.model, self.commits) = (found, commits);
        if self.model.contains_key("new0") {
            for name in Dump::Refuse.model(false).into_keys() {
                store.drop_tree(&name).unwrap();
                self.model.remove(&name);
            }
        }
        if closes {
            store.close().unwrap();
        }
        outcome
    }

    /// Compares the content of the store with the expected content with and without the effect of an operation.
    fn check_operation(
        &mut self,
        operation: Operation,
        report: &Report,
        found: &Model,
        without: &Model,
    ) -> Outcome {
        let outcome = match operation {
            Operation::Load(dump) => {
                let mut with = without.clone();
                with.extend(dump.model(self.odd[dump as usize]));
                let outcome = self.check_load(dump, found, without, &with);
                if outcome == Outcome::Whole {
                    self.odd[dump as usize] ^= true;
                }
                outcome
            }
            Operation::Backup | Operation::Create | Operation::Build => {
                compare("the store", found, without);
                let outcome = self.check_new(operation, report);
                if outcome == Outcome::Whole { outcome } else { Outcome::Nothing }
            }
            Operation::Compact => {
                compare("the store", found, without);
                let new = self.inode();
                let inode = std::mem::replace(&mut self.inode, new);
                if inode == new { Outcome::Nothing } else { Outcome::Whole }
            }
            Operation::Commit | Operation::Recover => {
                compare("the store", found, without);
                Outcome::Whole
            }
        };
        assert!(!report.is_done || outcome == Outcome::Whole, "{operation:?} has ended, and is {outcome:?}");
        outcome
    }

    fn check_load(&self, dump: Dump, found: &Model, without: &Model, with: &Model) -> Outcome {
        let is_whole = match dump {
            Dump::Refuse => found.contains_key("new0"),
            Dump::Replace => found["replaced0"] == with["replaced0"],
            Dump::Merge => found["merged"] == with["merged"],
        };
        if is_whole {
            compare("after the load", found, with);
            return Outcome::Whole;
        }
        if dump != Dump::Merge {
            compare("before the load", found, without);
            return Outcome::Nothing;
        }
        // The transactions of a merge have 10,000 records each, in the order of keys.
        let (new, all) = (&with["merged"], &found["merged"]);
        let merged = all.iter().take_while(|(key, value)| new.get(*key) == Some(value)).count();
        let mut expected = without.clone();
        let records = expected.get_mut("merged").unwrap();
        records.extend(new.iter().take(merged).map(|(key, value)| (key.clone(), value.clone())));
        compare("in a merge", found, &expected);
        assert!(merged.is_multiple_of(10_000), "{merged} records are merged");
        // An interrupted merge may have begun before.
        if merged == 0 { Outcome::Nothing } else { Outcome::Partial }
    }

    /// Checks the store that an operation makes, and removes it.
    fn check_new(&self, operation: Operation, report: &Report) -> Outcome {
        let name = match operation {
            Operation::Backup => "backup",
            Operation::Build => "built",
            _ => "created",
        };
        let directory = self.folder.join(name);
        if !directory.exists() {
            return Outcome::Nothing;
        }
        let mut outcome = Outcome::Whole;
        if operation == Operation::Create {
            outcome = self.check_created(&directory, report);
        } else {
            verify(&directory);
            let store = workload::builder(&directory).create_if_missing(false).open().unwrap();
            let found = workload::content(&store).unwrap();
            if operation == Operation::Backup {
                let trees = workload::trees(&store).unwrap();
                let commits = std::array::from_fn(|at| workload::last(&store, &trees, at as u64).unwrap());
                let least = std::array::from_fn(|at| report.committed_before[at].max(self.commits[at]));
                compare("the backup", &found, &self.advanced(commits, &least, &report.committed));
            } else {
                compare("the new store", &found, &Dump::Replace.model(false));
            }
        }
        std::fs::remove_dir_all(&directory).unwrap();
        outcome
    }

    /// A directory in which a store was being created has a store without the last trees, or no store yet.
    fn check_created(&self, directory: &Path, report: &Report) -> Outcome {
        match Store::verify(directory, &mut |_| {}) {
            Ok(verified) => assert!(verified.is_sound(), "{:?}", verified.damages),
            Err(Error::NoStore(_)) => assert!(report.created.is_empty()),
            Err(error) => panic!("{error}"),
        }
        let store = workload::open(directory).unwrap();
        let found = store.trees();
        assert!(workload::TREES.iter().map(|name| name.to_string()).collect::<Vec<_>>().starts_with(&found));
        assert!(found.len() >= report.created.len() && found.len() <= report.created.len() + 1);
        for name in workload::TREES {
            let _ = store.create_tree(name);
        }
        drop(store);
        verify(directory);
        if found.len() == workload::TREES.len() { Outcome::Whole } else { Outcome::Nothing }
    }
}
