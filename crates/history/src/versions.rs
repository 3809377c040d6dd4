//! Versions of keys: their writers, their readers, and their order.

use std::collections::HashMap;

use crate::anomaly::{Anomaly, Kind, shown};
use crate::history::{History, Key, Outcome, Step, Transaction, Value};

/// The number of a version in [`Versions::all`].
pub(crate) type VersionId = usize;

/// A value, or the absence, that a transaction left to others.
pub(crate) struct Version {
    pub key: Key,
    /// The transaction that wrote it; `None` = it was there at the beginning.
    pub writer: Option<usize>,
    /// The version that replaced it, if that is known.
    pub next: Option<VersionId>,
}

/// A write as its readers find it.
#[derive(Clone, Copy)]
enum Written {
    /// The last write of the key by its transaction, and the version that it made.
    Final(VersionId),
    /// The transaction wrote the key once more.
    Intermediate(usize),
}

/// The versions of a history and what is known about them.
pub(crate) struct Versions {
    pub all: Vec<Version>,
    /// Whether a transaction has committed: its client knows, or somebody has read its writes.
    pub committed: Vec<bool>,
    /// Versions with the transactions that read them, except for reads of the transaction's own writes.
    pub reads: Vec<(VersionId, usize)>,
    /// Number of versions whose predecessors are unknown.
    pub unordered: usize,
}

/// The first access to each key within a transaction, and the last write of each key.
struct Accesses {
    /// Keys that were read before the transaction wrote them, with the result.
    reads: Vec<(Key, Option<Value>)>,
    /// Keys that were written, with the last value.
    writes: Vec<(Key, Option<Value>)>,
    /// How the transaction contradicts itself, if it does.
    contradiction: Option<String>,
}

impl Accesses {
    fn of(transaction: &Transaction) -> Accesses {
        let mut accesses = Accesses { reads: Vec::new(), writes: Vec::new(), contradiction: None };
        let mut now: HashMap<Key, Option<Value>> = HashMap::new();
        for step in &transaction.steps {
            match *step {
                Step::Read { key, value } => match now.insert(key, value) {
                    None => accesses.reads.push((key, value)),
                    Some(expected) if expected == value => {}
                    Some(expected) => {
                        let reason = format!("k{key} was {} and then {}", shown(expected), shown(value));
                        accesses.contradiction = Some(reason);
                    }
                },
                Step::Write { key, value } => {
                    now.insert(key, value);
                    match accesses.writes.iter_mut().find(|write| write.0 == key) {
                        Some(write) => write.1 = value,
                        None => accesses.writes.push((key, value)),
                    }
                }
            }
        }
        accesses
    }
}

/// Finds the version that a read returned.
struct Index<'a> {
    history: &'a History,
    values: HashMap<Value, Written>,
    /// The versions that deletions made, except for those of aborted transactions.
    deletions: HashMap<Key, Vec<VersionId>>,
    /// Keys with a transaction that deleted them and was aborted.
    aborted_deletions: HashMap<Key, usize>,
    /// The versions that were there at the beginning, as far as they were read.
    first: HashMap<Key, VersionId>,
    /// For each transaction the version of its first write in [`Accesses::writes`]. The others follow it in their order.
    versions_of: Vec<VersionId>,
    all: Vec<Version>,
}

/// The result of the search for the version that a read returned.
enum Found {
    Version(VersionId),
    Intermediate(usize),
    /// Absence that several versions explain.
    Several,
    Nothing,
    AbortedDeletion(usize),
}

impl Index<'_> {
    fn new<'a>(history: &'a History, accesses: &[Accesses]) -> Index<'a> {
        let (values, deletions, aborted_deletions, first) = Default::default();
        let (versions_of, all) = Default::default();
        let mut index = Index { history, values, deletions, aborted_deletions, first, versions_of, all };
        for (number, (transaction, accesses)) in history.transactions.iter().zip(accesses).enumerate() {
            for step in &transaction.steps {
                if let Step::Write { value: Some(value), .. } = *step {
                    let before = index.values.insert(value, Written::Intermediate(number));
                    assert!(before.is_none(), "the recorder wrote the value {value} twice");
                }
            }
            index.versions_of.push(index.all.len());
            for &(key, value) in &accesses.writes {
                let version = index.all.len();
                index.all.push(Version { key, writer: Some(number), next: None });
                match value {
                    Some(value) => {
                        index.values.insert(value, Written::Final(version));
                    }
                    None if transaction.outcome == Outcome::Aborted => {
                        index.aborted_deletions.insert(key, number);
                    }
                    None => index.deletions.entry(key).or_default().push(version),
                }
            }
        }
        index
    }

    /// The version of a key at the beginning.
    fn first(&mut self, key: Key) -> VersionId {
        let all = &mut self.all;
        *self.first.entry(key).or_insert_with(|| {
            all.push(Version { key, writer: None, next: None });
            all.len() - 1
        })
    }

    fn find(&mut self, key: Key, value: Option<Value>) -> Found {
        let initial = self.history.initial.get(&key).copied();
        let Some(value) = value else {
            let deletions = self.deletions.get(&key).map_or(&[][..], |deletions| deletions);
            return match (initial, deletions) {
                (None, []) => Found::Version(self.first(key)),
                (Some(_), [deletion]) => Found::Version(*deletion),
                (Some(_), []) => match self.aborted_deletions.get(&key) {
                    Some(&writer) => Found::AbortedDeletion(writer),
                    None => Found::Nothing,
                },
                _ => Found::Several,
            };
        };
        match self.values.get(&value) {
            Some(&Written::Final(version)) if self.all[version].key == key => Found::Version(version),
            Some(&Written::Intermediate(writer)) => Found::Intermediate(writer),
            None if initial == Some(value) => Found::Version(self.first(key)),
            _ => Found::Nothing,
        }
    }

    /// The version that a committed transaction read; `None` if several versions explain the read.
    fn read(&mut self, reader: usize, key: Key, value: Option<Value>) -> Result<Option<VersionId>, Anomaly> {
        let found = self.find(key, value);
        let writer = match found {
            Found::Version(version) => self.all[version].writer,
            Found::Intermediate(writer) => Some(writer),
            Found::Several | Found::Nothing | Found::AbortedDeletion(_) => None,
        };
        let is_aborted = |writer: &usize| self.history.transactions[*writer].outcome == Outcome::Aborted;
        let (kind, writer, reason) = match (found, writer.filter(is_aborted)) {
            (_, Some(writer)) => {
                (Kind::AbortedRead, Some(writer), format!("but T{writer}, which wrote it, was aborted"))
            }
            (Found::Version(version), None) => return Ok(Some(version)),
            (Found::Several, None) => return Ok(None),
            (Found::Intermediate(writer), None) => {
                (Kind::IntermediateRead, Some(writer), format!("which T{writer} replaced before it ended"))
            }
            (Found::AbortedDeletion(writer), None) => {
                (Kind::AbortedRead, Some(writer), format!("but T{writer}, which deleted it, was aborted"))
            }
            (Found::Nothing, None) => (Kind::UnwrittenRead, None, "which nobody wrote".to_owned()),
        };
        let reason = format!("T{reader} read k{key} = {}, {reason}", shown(value));
        Err(Anomaly::new(self.history, kind, [reader].into_iter().chain(writer).collect(), &reason))
    }

    /// The transaction that made a version.
    fn writer(&self, version: VersionId) -> usize {
        self.all[version].writer.expect("a transaction wrote it")
    }

    /// Links versions with those that replaced them.
    fn replace(&mut self, replaced: Vec<(VersionId, VersionId)>) -> Result<(), Anomaly> {
        for (before, version) in replaced {
            if let Some(other) = self.all[before].next.replace(version) {
                let (first, second, key) = (self.writer(other), self.writer(version), self.all[before].key);
                let reason = format!("T{first} and T{second} replaced the same version of k{key}");
                return Err(Anomaly::new(self.history, Kind::LostUpdate, vec![first, second], &reason));
            }
        }
        Ok(())
    }

    /// Links the only blind write of a key with the version that it replaced. Returns the number of versions of other blind
    /// writes, whose order is unknown.
    fn order_blind_writes(
        &mut self,
        blind: HashMap<Key, Vec<VersionId>>,
        reads: &[(VersionId, usize)],
    ) -> usize {
        let mut was_read = vec![false; self.all.len()];
        reads.iter().for_each(|&(version, _)| was_read[version] = true);
        let mut unordered = 0;
        for (key, mut versions) in blind {
            // A client that lost its connection does not know which of its writes have happened.
            versions.retain(|&version| {
                let outcome = self.history.transactions[self.writer(version)].outcome;
                was_read[version] || outcome == Outcome::Committed
            });
            if let [version] = versions[..] {
                let mut last = self.first(key);
                while let Some(next) = self.all[last].next {
                    last = next;
                }
                self.all[last].next = Some(version);
            } else {
                unordered += versions.len();
            }
        }
        unordered
    }
}

impl Versions {
    /// Finds all versions, and the anomalies that single reads show.
    pub(crate) fn find(history: &History) -> Result<Versions, Anomaly> {
        let transactions = &history.transactions;
        let all_accesses: Vec<Accesses> = transactions.iter().map(Accesses::of).collect();
        let mut index = Index::new(history, &all_accesses);

        // Transactions that are known to have committed, and whose reads are still to be looked at.
        let is_committed = |t: &Transaction| t.outcome == Outcome::Committed;
        let mut committed: Vec<bool> = transactions.iter().map(is_committed).collect();
        let mut pending: Vec<usize> =
            (0..committed.len()).rev().filter(|&number| committed[number]).collect();
        let mut reads = Vec::new();
        // The versions that were replaced, with those that replaced them; and the versions of blind writes.
        let (mut replaced, mut blind) = (Vec::new(), HashMap::<Key, Vec<VersionId>>::new());
        while let Some(reader) = pending.pop() {
            let accesses = &all_accesses[reader];
            if let Some(reason) = &accesses.contradiction {
                return Err(Anomaly::new(history, Kind::Internal, vec![reader], reason));
            }
            let mut versions_read = Vec::new();
            for &(key, value) in &accesses.reads {
                let Some(version) = index.read(reader, key, value)? else { continue };
                if let Some(writer) = index.all[version].writer
                    && !committed[writer]
                {
                    committed[writer] = true;
                    pending.push(writer);
                }
                versions_read.push((key, version));
                reads.push((version, reader));
            }
            for (&(key, _), version) in accesses.writes.iter().zip(index.versions_of[reader]..) {
                match versions_read.iter().find(|(read, _)| *read == key) {
                    Some(&(_, before)) => replaced.push((before, version)),
                    // A read of absence that several versions explain does not say which of them is replaced.
                    None => blind.entry(key).or_default().push(version),
                }
            }
        }
        index.replace(replaced)?;
        let unordered = index.order_blind_writes(blind, &reads);
        Ok(Versions { all: index.all, committed, reads, unordered })
    }
}
