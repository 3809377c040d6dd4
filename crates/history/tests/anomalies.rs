//! Hand-written histories: each anomaly is found and named, and histories that only look like one are accepted.

use bedplate_history::Outcome::{Aborted, Committed, Unknown};
use bedplate_history::{History, Key, Kind, Order, Outcome, Step, Summary, Transaction, Value, check};

const X: Key = 1;
const Y: Key = 2;

/// A read of a value; 0 = the key is absent.
fn r(key: Key, value: u64) -> Step {
    Step::Read { key, value: Value::new(value) }
}

/// A write of a value; 0 = the key is deleted.
fn w(key: Key, value: u64) -> Step {
    Step::Write { key, value: Value::new(value) }
}

fn transaction(begin: u64, end: u64, outcome: Outcome, steps: &[Step]) -> Transaction {
    Transaction { kind: "test", client: 0, begin, end, outcome, steps: steps.to_vec() }
}

/// Transactions that all run at the same time. X is 1 and Y is 2 before them.
fn concurrent(transactions: &[(Outcome, &[Step])]) -> History {
    let transactions =
        transactions.iter().map(|(outcome, steps)| transaction(0, 100, *outcome, steps)).collect();
    History { initial: [(X, Value::new(1).unwrap()), (Y, Value::new(2).unwrap())].into(), transactions }
}

/// Transactions that commit one after the other.
fn consecutive(transactions: &[&[Step]]) -> History {
    let mut history = concurrent(&transactions.iter().map(|steps| (Committed, *steps)).collect::<Vec<_>>());
    for (transaction, number) in history.transactions.iter_mut().zip(0..) {
        (transaction.begin, transaction.end) = (10 * number + 1, 10 * number + 9);
    }
    history
}

#[track_caller]
fn found(history: &History, kind: Kind, transactions: &[usize]) -> String {
    let anomaly = check(history, Order::RealTime).unwrap_err();
    let mut parties = anomaly.transactions.clone();
    parties.sort_unstable();
    assert_eq!((anomaly.kind, &parties[..]), (kind, transactions), "{anomaly}");
    anomaly.to_string()
}

#[track_caller]
fn accepted(history: &History) -> Summary {
    check(history, Order::RealTime).unwrap_or_else(|anomaly| panic!("{anomaly}"))
}

#[test]
fn an_empty_history_is_serializable() {
    assert_eq!(accepted(&History::default()), Summary::default());
}

#[test]
fn read_of_an_aborted_write() {
    let dirty = concurrent(&[(Aborted, &[r(X, 1), w(X, 10)]), (Committed, &[r(X, 10)])]);
    found(&dirty, Kind::AbortedRead, &[0, 1]);
    let intermediate = concurrent(&[(Aborted, &[w(X, 10), w(X, 11)]), (Committed, &[r(X, 10)])]);
    found(&intermediate, Kind::AbortedRead, &[0, 1]);
    let deletion = concurrent(&[(Aborted, &[w(X, 0)]), (Committed, &[r(X, 0)])]);
    found(&deletion, Kind::AbortedRead, &[0, 1]);
    // Aborted transactions may read anything.
    accepted(&concurrent(&[(Aborted, &[r(X, 1), w(X, 10)]), (Aborted, &[r(X, 10), r(Y, 99)])]));
}

#[test]
fn read_of_an_intermediate_write() {
    let steps = [r(X, 1), w(X, 10), w(X, 11)];
    found(&concurrent(&[(Committed, &steps), (Committed, &[r(X, 10)])]), Kind::IntermediateRead, &[0, 1]);
    found(&concurrent(&[(Unknown, &steps), (Committed, &[r(X, 10)])]), Kind::IntermediateRead, &[0, 1]);
    accepted(&concurrent(&[(Committed, &steps), (Committed, &[r(X, 11)])]));
}

#[test]
fn read_of_what_nobody_wrote() {
    found(&concurrent(&[(Committed, &[r(X, 77)])]), Kind::UnwrittenRead, &[0]);
    found(&concurrent(&[(Committed, &[r(X, 0)])]), Kind::UnwrittenRead, &[0]);
    // The value of another key.
    found(&concurrent(&[(Committed, &[r(X, 2)])]), Kind::UnwrittenRead, &[0]);
    let other = concurrent(&[(Committed, &[w(Y, 10)]), (Committed, &[r(X, 10)])]);
    found(&other, Kind::UnwrittenRead, &[1]);
}

#[test]
fn a_transaction_that_contradicts_itself() {
    found(&concurrent(&[(Committed, &[w(X, 10), r(X, 1)])]), Kind::Internal, &[0]);
    found(&concurrent(&[(Committed, &[w(X, 10)]), (Committed, &[r(X, 1), r(X, 10)])]), Kind::Internal, &[1]);
    accepted(&concurrent(&[(Committed, &[r(X, 1), w(X, 10), r(X, 10), w(X, 0), r(X, 0)])]));
}

#[test]
fn lost_update() {
    let both = concurrent(&[(Committed, &[r(X, 1), w(X, 10)]), (Committed, &[r(X, 1), w(X, 11)])]);
    found(&both, Kind::LostUpdate, &[0, 1]);
    // A key that both found absent.
    let both = concurrent(&[(Committed, &[r(3, 0), w(3, 10)]), (Committed, &[r(3, 0), w(3, 11)])]);
    found(&both, Kind::LostUpdate, &[0, 1]);
    accepted(&concurrent(&[(Committed, &[r(X, 1), w(X, 10)]), (Aborted, &[r(X, 1), w(X, 11)])]));
}

#[test]
fn write_skew() {
    let steps: [(Outcome, &[Step]); 2] =
        [(Committed, &[r(X, 1), r(Y, 2), w(X, 10)]), (Committed, &[r(X, 1), r(Y, 2), w(Y, 11)])];
    let report = found(&concurrent(&steps), Kind::WriteSkew, &[0, 1]);
    assert_eq!(
        report,
        "write skew or long fork (G2): each of these 2 transactions must come before itself\n  \
         T0: test of client 0, begun at 0, committed at 100: read k1 = 1, read k2 = 2, wrote k1 = 10\n  \
         T1: test of client 0, begun at 0, committed at 100: read k1 = 1, read k2 = 2, wrote k2 = 11\n  \
         T0 before T1: T1 replaced the k2 that T0 read (read-write)\n  \
         T1 before T0: T0 replaced the k1 that T1 read (read-write)\n"
    );
    let history = concurrent(&[
        (Committed, &[r(X, 1), r(Y, 2), w(X, 10)]),
        (Committed, &[r(X, 10), r(Y, 2), w(Y, 11)]),
    ]);
    let summary = accepted(&history);
    assert_eq!((summary.write_read, summary.write_write, summary.read_write), (1, 0, 1));
}

#[test]
fn long_fork() {
    let steps: [(Outcome, &[Step]); 4] = [
        (Committed, &[r(X, 1), w(X, 10)]),
        (Committed, &[r(Y, 2), w(Y, 11)]),
        (Committed, &[r(X, 10), r(Y, 2)]),
        (Committed, &[r(X, 1), r(Y, 11)]),
    ];
    found(&concurrent(&steps), Kind::WriteSkew, &[0, 1, 2, 3]);
    accepted(&concurrent(&steps[..3]));
}

/// Fekete, O'Neil and O'Neil: two writers that are serializable, until a reader sees one of them only.
#[test]
fn read_only_anomaly() {
    let steps: [(Outcome, &[Step]); 3] = [
        (Committed, &[r(X, 1), r(Y, 2), w(X, 10)]),
        (Committed, &[r(Y, 2), w(Y, 11)]),
        (Committed, &[r(X, 1), r(Y, 11)]),
    ];
    found(&concurrent(&steps), Kind::WriteSkew, &[0, 1, 2]);
    accepted(&concurrent(&steps[..2]));
}

#[test]
fn half_of_a_transaction_is_seen() {
    let writer = [r(X, 1), r(Y, 2), w(X, 10), w(Y, 11)];
    let half: [Step; 2] = [r(X, 10), r(Y, 2)];
    found(&concurrent(&[(Committed, &writer), (Committed, &half)]), Kind::ReadSkew, &[0, 1]);
    found(&concurrent(&[(Unknown, &writer), (Committed, &half)]), Kind::ReadSkew, &[0, 1]);
    accepted(&concurrent(&[(Committed, &writer), (Committed, &[r(X, 10), r(Y, 11)])]));
}

#[test]
fn cycles_of_writes() {
    let circular = concurrent(&[(Committed, &[r(X, 10), w(Y, 11)]), (Committed, &[r(Y, 11), w(X, 10)])]);
    found(&circular, Kind::CircularReads, &[0, 1]);
    // Blind writes of both keys, in different orders.
    let history = concurrent(&[
        (Committed, &[r(X, 1), w(X, 10), w(Y, 12)]),
        (Committed, &[w(X, 11), r(Y, 2), w(Y, 13)]),
    ]);
    found(&history, Kind::DirtyWrite, &[0, 1]);
}

#[test]
fn real_time() {
    let stale = consecutive(&[&[r(X, 1), w(X, 10)], &[r(X, 1)]]);
    let report = found(&stale, Kind::RealTime, &[0, 1]);
    assert!(report.contains("T0 before T1: T0 had ended before T1 began (real-time)"), "{report}");
    check(&stale, Order::Any).unwrap();
    // Other transactions end between the two.
    let stale = consecutive(&[&[r(X, 1), w(X, 10)], &[r(Y, 2)], &[r(Y, 2), w(Y, 11)], &[], &[r(X, 1)]]);
    found(&stale, Kind::RealTime, &[0, 4]);
    // Two real-time edges in one cycle.
    let mut stale = consecutive(&[&[r(X, 1), w(X, 10)], &[r(Y, 2)], &[r(Y, 2), w(Y, 11)], &[r(X, 1)]]);
    stale.transactions[1].steps[0] = r(Y, 11);
    (stale.transactions[1].begin, stale.transactions[1].end) = (0, 15);
    found(&stale, Kind::RealTime, &[0, 3]);
    let mut overlapping = consecutive(&[&[r(X, 1), w(X, 10)], &[r(X, 1)]]);
    overlapping.transactions[1].begin = overlapping.transactions[0].end;
    accepted(&overlapping);
}

#[test]
fn an_acknowledged_write_that_a_restart_lost() {
    let lost = consecutive(&[&[r(X, 1), w(X, 10)], &[r(X, 1), r(Y, 2)]]);
    found(&lost, Kind::RealTime, &[0, 1]);
    let lost = consecutive(&[&[r(X, 1), w(X, 10)], &[r(X, 1), w(X, 11)]]);
    found(&lost, Kind::LostUpdate, &[0, 1]);
}

#[test]
fn unknown_outcomes() {
    // It may have committed or not, and late.
    let mut history = consecutive(&[&[r(X, 1), w(X, 10)], &[r(X, 1)], &[r(X, 10)]]);
    history.transactions[0].outcome = Unknown;
    assert_eq!(accepted(&history).found_committed, 1);
    history.transactions[2].steps[0] = r(X, 1);
    assert_eq!(accepted(&history).found_committed, 0);
    // Once it was seen, it stays.
    history.transactions[1].steps[0] = r(X, 10);
    found(&history, Kind::RealTime, &[0, 1, 2]);
    // The transactions whose writes it has read have committed, too.
    let chain = concurrent(&[
        (Unknown, &[r(X, 1), w(X, 10)]),
        (Unknown, &[r(X, 10), w(X, 11)]),
        (Committed, &[r(X, 11)]),
    ]);
    assert_eq!(accepted(&chain).found_committed, 2);
    // Its reads count when it has committed.
    let history = concurrent(&[
        (Unknown, &[r(X, 1), r(Y, 2), w(Y, 10)]),
        (Committed, &[r(X, 1), w(X, 11), r(Y, 2)]),
        (Committed, &[r(X, 11), r(Y, 10)]),
    ]);
    found(&history, Kind::WriteSkew, &[0, 1]);
    let mut history = history;
    history.transactions[2].steps[1] = r(Y, 2);
    accepted(&history);
}

#[test]
fn deletions() {
    let summary = accepted(&consecutive(&[&[r(X, 1), w(X, 0)], &[r(X, 0), w(X, 10)], &[r(X, 10)]]));
    assert_eq!((summary.write_write, summary.read_write, summary.write_read), (1, 0, 2));
    found(&consecutive(&[&[r(X, 1), w(X, 0)], &[r(X, 1)]]), Kind::RealTime, &[0, 1]);
    let seen = concurrent(&[(Unknown, &[r(X, 1), w(X, 0)]), (Committed, &[r(X, 0)])]);
    assert_eq!(accepted(&seen).found_committed, 1);
    // Absence that two versions explain proves nothing.
    accepted(&consecutive(&[&[r(3, 0), w(3, 10)], &[r(3, 10), w(3, 0)], &[r(3, 0)]]));
}

#[test]
fn blind_writes() {
    // One of them is the last one.
    let summary = accepted(&consecutive(&[&[r(X, 1), w(X, 10)], &[w(X, 11)], &[r(X, 11), w(X, 12)]]));
    assert_eq!((summary.write_write, summary.unordered), (2, 0));
    found(&consecutive(&[&[r(X, 1), w(X, 10)], &[w(X, 11)], &[r(X, 10)]]), Kind::RealTime, &[1, 2]);
    // The order of two blind writes is unknown.
    let history = consecutive(&[&[w(X, 10)], &[w(X, 11)], &[r(X, 10)]]);
    assert_eq!(accepted(&history).unordered, 2);
}
