//! The check: builds the graph of a history and looks for a cycle.

use crate::anomaly::Anomaly;
use crate::graph::{Edge, Graph, Link};
use crate::history::{History, Outcome};
use crate::versions::Versions;

/// The serial orders that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any: serializability.
    Any,
    /// Those in which a transaction that ended before another one began comes first: strict serializability.
    RealTime,
}

/// Counts of a check. A test compares them with the counts that it needs, because a history with few edges proves little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Transactions whose clients know that they committed.
    pub committed: usize,
    /// Transactions that were aborted.
    pub aborted: usize,
    /// Transactions whose clients do not know the outcome.
    pub unknown: usize,
    /// Those of them that have committed, because somebody has read their writes.
    pub found_committed: usize,
    /// Number of write-read edges.
    pub write_read: usize,
    /// Number of write-write edges.
    pub write_write: usize,
    /// Number of read-write edges.
    pub read_write: usize,
    /// Versions whose predecessors are unknown, so that edges are missing.
    pub unordered: usize,
}

/// Decides whether a history is serializable.
///
/// # Errors
///
/// The first anomaly that was found. A cycle is reported with few transactions.
///
/// # Panics
///
/// If two writes have the same value. Such a history is a mistake of its recorder.
pub fn check(history: &History, order: Order) -> Result<Summary, Anomaly> {
    let versions = Versions::find(history)?;
    let mut edges = dependencies(&versions);
    let count = |wanted: fn(Link) -> bool| edges.iter().filter(|edge| wanted(edge.link)).count();
    let outcomes = |outcome| history.transactions.iter().filter(|t| t.outcome == outcome).count();
    let committed = outcomes(Outcome::Committed);
    let summary = Summary {
        committed,
        aborted: outcomes(Outcome::Aborted),
        unknown: outcomes(Outcome::Unknown),
        found_committed: versions.committed.iter().filter(|&&committed| committed).count() - committed,
        write_read: count(|link| matches!(link, Link::WriteRead(_))),
        write_write: count(|link| matches!(link, Link::WriteWrite(_))),
        read_write: count(|link| matches!(link, Link::ReadWrite(_))),
        unordered: versions.unordered,
    };
    let transactions = history.transactions.len();
    let mut nodes = transactions;
    if order == Order::RealTime {
        nodes += real_time(history, &versions.committed, &mut edges);
    }
    match Graph::new(transactions, nodes, edges).cycle() {
        None => Ok(summary),
        Some(cycle) => Err(Anomaly::cycle(history, &cycle)),
    }
}

/// The edges between transactions that read and wrote the same keys.
fn dependencies(versions: &Versions) -> Vec<Edge> {
    let mut edges = Vec::new();
    let mut link = |from: Option<usize>, to: Option<usize>, link| {
        if let (Some(from), Some(to)) = (from, to)
            && from != to
        {
            edges.push(Edge { from: from as u32, to: to as u32, link });
        }
    };
    let next_writer = |next: Option<usize>| next.and_then(|next| versions.all[next].writer);
    for version in &versions.all {
        link(version.writer, next_writer(version.next), Link::WriteWrite(version.key));
    }
    for &(version, reader) in &versions.reads {
        let version = &versions.all[version];
        link(version.writer, Some(reader), Link::WriteRead(version.key));
        link(Some(reader), next_writer(version.next), Link::ReadWrite(version.key));
    }
    edges
}

/// Adds the edges of the real-time order; returns the number of instants.
fn real_time(history: &History, committed: &[bool], edges: &mut Vec<Edge>) -> usize {
    let transactions = &history.transactions;
    let counted = || (0..transactions.len()).filter(|&number| committed[number]);
    let mut ends: Vec<(u64, usize)> = counted()
        .filter(|&number| transactions[number].outcome == Outcome::Committed)
        .map(|number| (transactions[number].end, number))
        .collect();
    ends.sort_unstable();
    let mut link = |from: usize, to: usize| {
        edges.push(Edge { from: from as u32, to: to as u32, link: Link::RealTime });
    };
    let instant = |index: usize| transactions.len() + index;
    for (index, &(_, number)) in ends.iter().enumerate() {
        link(number, instant(index));
        if index > 0 {
            link(instant(index - 1), instant(index));
        }
    }
    for number in counted() {
        let before = ends.partition_point(|&(end, _)| end < transactions[number].begin);
        if before > 0 {
            link(instant(before - 1), number);
        }
    }
    ends.len()
}
