//! Tests that every store must pass.

use super::store::{Access, Session, Store, Verdict};
use super::tpcc;

fn keys(session: &mut impl Session, from: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    session
        .scan(from, None, &mut |key, _| {
            all.push(key.to_vec());
            all.len() < 4
        })
        .unwrap();
    all
}

/// Operations and transactions, with results; leaves some data.
pub fn behaves(store: &impl Store) {
    let mut session = store.session().unwrap();
    let mut value = vec![1, 2, 3];
    assert!(!session.get(b"a", &mut value).unwrap());
    for key in [b"b", b"d", b"a", b"c", b"e"] {
        session.put(key, &[key[0]; 120]).unwrap();
    }
    assert!(session.get(b"c", &mut value).unwrap());
    assert_eq!(value, [b'c'; 120]);
    session.put(b"c", b"short").unwrap();
    assert!(session.get(b"c", &mut value).unwrap());
    assert_eq!(value, b"short");
    let mut lens = [None; 4];
    let several = [&b"e"[..], b"x", b"c", b"e"];
    session.get_many(&several, &mut |index, value| lens[index] = Some(value.map(<[u8]>::len))).unwrap();
    assert_eq!(lens, [Some(Some(120)), Some(None), Some(Some(5)), Some(Some(120))]);
    session.put_many(&[(b"g", b"7"), (b"h", b"8"), (b"g", b"77")]).unwrap();
    assert!(session.get(b"h", &mut value).unwrap() && value == b"8");
    assert!(session.get(b"g", &mut value).unwrap() && value == b"77");
    let mut both = |tx: &mut dyn super::store::Transaction| {
        assert!(tx.remove(b"g")? && tx.remove(b"h")?);
        Ok(Verdict::Commit)
    };
    session.transaction(Access::Write, &mut both).unwrap();
    assert_eq!(keys(&mut session, b"aa"), [b"b", b"c", b"d", b"e"]);
    assert_eq!(keys(&mut session, b""), [b"a", b"b", b"c", b"d"]);

    // A transaction sees its own changes, and others see them after it has committed.
    let changes = |verdict| {
        move |tx: &mut dyn super::store::Transaction| {
            tx.insert(b"f", b"")?;
            assert!(tx.update(b"c", &mut |value| value.extend_from_slice(b"er"))?);
            assert!(tx.update(b"c", &mut |value| value.push(b'!'))?);
            assert!(!tx.update(b"x", &mut |value| value.push(b'!'))?);
            assert!(tx.remove(b"a")?);
            assert!(!tx.remove(b"a")?);
            let (mut value, mut seen) = (Vec::new(), Vec::new());
            assert!(tx.get(b"c", &mut value)?);
            assert_eq!(value, b"shorter!");
            tx.scan(b"", Some(3), &mut |key, _| {
                seen.push(key[0]);
                true
            })?;
            assert_eq!(seen, b"bcdef");
            Ok(verdict)
        }
    };
    let before = keys(&mut session, b"");
    let verdict = session.transaction(Access::Write, &mut changes(Verdict::RollBack)).unwrap();
    assert_eq!(verdict, Verdict::RollBack);
    assert_eq!(keys(&mut session, b""), before);
    assert!(session.get(b"c", &mut value).unwrap() && value == b"short");
    assert!(!session.get(b"f", &mut value).unwrap());
    // A body that fails has no effect, either.
    let failed = session.transaction(Access::Write, &mut |tx| {
        tx.remove(b"b")?;
        Err(crate::Error::engine("on purpose".to_owned()))
    });
    assert!(failed.unwrap_err().to_string().contains("on purpose"));
    assert!(session.get(b"b", &mut value).unwrap());
    session.transaction(Access::Write, &mut changes(Verdict::Commit)).unwrap();
    let reading = session.transaction(Access::Read, &mut |tx| {
        assert!(tx.get(b"c", &mut value)? && value == b"shorter!");
        Ok(Verdict::Commit)
    });
    assert_eq!(reading.unwrap(), Verdict::Commit);
    store.settle().unwrap();
    remembers(store);
}

/// Checks that the data of [`behaves`] are there.
pub fn remembers(store: &impl Store) {
    let mut session = store.session().unwrap();
    let mut value = Vec::new();
    assert_eq!(keys(&mut session, b"c"), [b"c", b"d", b"e", b"f"]);
    assert!(!session.get(b"a", &mut value).unwrap());
    assert!(session.get(b"c", &mut value).unwrap() && value == b"shorter!");
    assert!(session.get(b"f", &mut value).unwrap() && value.is_empty());
}

/// Runs TPC-C in two threads, with `transactions` transactions each, and checks its conditions.
pub fn runs_tpcc(store: &impl Store, transactions: u64) {
    tpcc::tests::runs_on(store, transactions);
}
