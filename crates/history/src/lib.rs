//! Histories of transactions as clients see them, and a checker of their serializability.
//!
//! A recorder runs clients against a database and notes what each transaction read and wrote, when it ran, and how it
//! ended ([`History`]). [`check()`] decides whether some serial order of the transactions explains the history. It knows
//! nothing of the database, so it cannot share a mistake with it.
//!
//! ```
//! use bedplate_history::{History, Kind, Order, Outcome, Step, Transaction, Value, check};
//!
//! let value = |n| Value::new(n);
//! // Two transactions read the first version of key 7, and both replace it.
//! let add = |client, written| Transaction {
//!     kind: "add",
//!     client,
//!     begin: 10,
//!     end: 20,
//!     outcome: Outcome::Committed,
//!     steps: vec![
//!         Step::Read { key: 7, value: value(1) },
//!         Step::Write { key: 7, value: value(written) },
//!     ],
//! };
//! let history =
//!     History { initial: [(7, Value::MIN)].into(), transactions: vec![add(0, 2), add(1, 3)] };
//! let anomaly = check(&history, Order::Any).unwrap_err();
//! assert_eq!(anomaly.kind, Kind::LostUpdate);
//! println!("{anomaly}");
//! ```
//!
//! # What the check rests on
//!
//! The definition is Adya's ("Weak Consistency", 1999): a history is serializable if no committed transaction reads what
//! an aborted one wrote, none reads an intermediate value, and the *direct serialization graph* has no cycle. The nodes
//! of the graph are the committed transactions, and its edges say which of two transactions must come first:
//!
//! | Edge | Meaning |
//! |---|---|
//! | write-read | the second read a version that the first wrote |
//! | write-write | the second replaced a version that the first wrote |
//! | read-write | the second replaced a version that the first read (anti-dependency) |
//! | real-time | the first had ended before the second began ([`Order::RealTime`] only) |
//!
//! The checker guesses neither versions nor their order, because the recorder makes both observable:
//!
//! - **Versions.** Every write of a history writes another value, so a value that is read names its writer.
//! - **Absence** is not unique. It is the first version of each key without a value in [`History::initial`], and every
//!   deletion makes another version of it. A read of absence counts if exactly one version explains it, and yields
//!   no edges if several do. Recorders therefore delete only keys that exist at first, and each of them once.
//! - **The order of versions.** A transaction that reads a key before it writes the key replaces the version that it
//!   read. Two transactions that replace the same version are an anomaly (lost update). So the versions of a key form
//!   chains. One chain begins with the first version, and each other one with a *blind* write, which was made without
//!   a read. The first version precedes all others. With one blind write the order is therefore known, too: it replaced
//!   the end of the first chain. Several blind writes of one key stay without order, which can hide anomalies but
//!   cannot invent any. [`Summary::unordered`] counts them, and a recorder's test should demand that there are few.
//! - **Unknown outcomes.** A client that loses its connection during COMMIT does not learn the outcome. The transaction
//!   has committed if a committed transaction read one of its writes; then its reads count as well, and may show that
//!   others have committed. If nobody read its writes, it is left out: removing a transaction whose writes
//!   nobody read leaves every other result explained. So are blind writes that nobody read of such a transaction. It
//!   has no end in real time, because it may take effect at any time after its begin.
//!
//! Every conclusion is thus forced by the history: a reported anomaly is one. Conversely, a history without unordered
//! versions that is accepted is serializable, since a serial order is a topological order of the graph. The tests compare
//! the checker with a search through all serial orders.
//!
//! # Cost
//!
//! Time and memory are linear in the number of steps, apart from one sort of the transactions' ends, and from a search among
//! the keys of a transaction for each of its writes. Real-time edges between all pairs would be quadratic. Instead, each end is a node of its own (an *instant*), the instants form one
//! path in the order of time, each transaction leads to its end, and the last end before a transaction's begin leads to
//! that transaction. Three edges for each transaction have the same paths between transactions as all pairs.

mod anomaly;
mod check;
mod graph;
mod history;
mod versions;

pub use anomaly::{Anomaly, Kind};
pub use check::{Order, Summary, check};
pub use history::{History, Key, Outcome, Step, Transaction, Value};
