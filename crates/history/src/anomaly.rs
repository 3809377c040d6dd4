//! Anomalies and their reports.

use std::fmt::{self, Display, Formatter, Write};

use crate::graph::{Edge, Link};
use crate::history::{History, Outcome, Step, Value};

/// Kinds of anomalies. The names in brackets are Adya's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A transaction did not see its own write, or read one key twice with different results.
    Internal,
    /// A transaction read a value that no transaction wrote, or absence of a key that was never absent.
    UnwrittenRead,
    /// A transaction read what an aborted transaction wrote (G1a).
    AbortedRead,
    /// A transaction read a value that its writer replaced before it committed (G1b).
    IntermediateRead,
    /// Two transactions read one version, and both replaced it.
    LostUpdate,
    /// A cycle of write-write edges (G0).
    DirtyWrite,
    /// A cycle of write-write and write-read edges (G1c).
    CircularReads,
    /// A cycle with one read-write edge (G-single): a transaction saw a part of another one's effects.
    ReadSkew,
    /// A cycle with several read-write edges (G2): write skew, long fork, read-only anomaly.
    WriteSkew,
    /// A cycle that has real-time edges: there is a serial order, but it contradicts real time.
    RealTime,
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Internal => "a transaction contradicts itself",
            Kind::UnwrittenRead => "read of a value that nobody wrote",
            Kind::AbortedRead => "aborted read (G1a)",
            Kind::IntermediateRead => "intermediate read (G1b)",
            Kind::LostUpdate => "lost update",
            Kind::DirtyWrite => "dirty write (G0)",
            Kind::CircularReads => "circular reads (G1c)",
            Kind::ReadSkew => "read skew (G-single)",
            Kind::WriteSkew => "write skew or long fork (G2)",
            Kind::RealTime => "violation of the real-time order",
        })
    }
}

/// The reason why a history is not serializable. `Display` shows the transactions and what contradicts what.
#[derive(Clone, Debug)]
pub struct Anomaly {
    /// The kind.
    pub kind: Kind,
    /// The transactions that prove the anomaly: indices of [`History::transactions`], along the cycle if there is one.
    pub transactions: Vec<usize>,
    report: String,
}

impl Display for Anomaly {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report)
    }
}

impl std::error::Error for Anomaly {}

/// A value or absence, in words.
pub(crate) fn shown(value: Option<Value>) -> String {
    value.map_or("absent".into(), |value| value.to_string())
}

fn describe(history: &History, transaction: usize) -> String {
    let t = &history.transactions[transaction];
    let end = match t.outcome {
        Outcome::Committed => format!("committed at {}", t.end),
        Outcome::Aborted => "aborted".into(),
        Outcome::Unknown => "outcome unknown to its client".into(),
    };
    let mut text =
        format!("  T{transaction}: {} of client {}, begun at {}, {end}:", t.kind, t.client, t.begin);
    for step in &t.steps {
        let (verb, key, value) = match step {
            Step::Read { key, value } => ("read", key, value),
            Step::Write { key, value } => ("wrote", key, value),
        };
        write!(text, " {verb} k{key} = {},", shown(*value)).expect("strings take everything");
    }
    text.pop();
    text + "\n"
}

impl Anomaly {
    /// An anomaly with a sentence that explains it.
    pub(crate) fn new(history: &History, kind: Kind, transactions: Vec<usize>, reason: &str) -> Anomaly {
        let mut report = format!("{kind}: {reason}\n");
        for &transaction in &transactions {
            report += &describe(history, transaction);
        }
        Anomaly { kind, transactions, report }
    }

    /// A cycle; each edge begins at the transaction at which the one before ends.
    pub(crate) fn cycle(history: &History, edges: &[Edge]) -> Anomaly {
        let count = |wanted: fn(Link) -> bool| edges.iter().filter(|edge| wanted(edge.link)).count();
        let kind = match count(|link| matches!(link, Link::ReadWrite(_))) {
            _ if count(|link| link == Link::RealTime) > 0 => Kind::RealTime,
            0 if count(|link| matches!(link, Link::WriteRead(_))) == 0 => Kind::DirtyWrite,
            0 => Kind::CircularReads,
            1 => Kind::ReadSkew,
            _ => Kind::WriteSkew,
        };
        let transactions: Vec<usize> = edges.iter().map(|edge| edge.from as usize).collect();
        let reason = format!("each of these {} transactions must come before itself", transactions.len());
        let mut anomaly = Anomaly::new(history, kind, transactions, &reason);
        for Edge { from, to, link } in edges {
            let why = match link {
                Link::WriteRead(key) => format!("T{to} read the k{key} that T{from} wrote (write-read)"),
                Link::WriteWrite(key) => {
                    format!("T{to} replaced the k{key} that T{from} wrote (write-write)")
                }
                Link::ReadWrite(key) => format!("T{to} replaced the k{key} that T{from} read (read-write)"),
                Link::RealTime => format!("T{from} had ended before T{to} began (real-time)"),
            };
            writeln!(anomaly.report, "  T{from} before T{to}: {why}").expect("strings take everything");
        }
        anomaly
    }
}
