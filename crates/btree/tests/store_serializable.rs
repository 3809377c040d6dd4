//! Isolation between threads: anomalies that weaker isolation levels allow, small histories that must have a serial
//! order, and transfers that must not change the total.

use std::collections::{BTreeMap, HashSet};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_btree::store::{Durability, Error, NamedTree, Store, UPDATE_ATTEMPTS};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

fn open(durability: Durability) -> (tempfile::TempDir, Store, NamedTree) {
    let directory = tempfile::tempdir().unwrap();
    let builder = Store::builder(directory.path()).memory(48 * 4096).capacity(64 << 20);
    let store = builder.durability(durability).open().unwrap();
    let tree = store.create_tree("t").unwrap();
    (directory, store, tree)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn of_two_transactions_that_skew_writes_one_conflicts() {
    let (_directory, store, tree) = open(Durability::Async);
    store.update(|t| t.put(&tree, b"x", b"1").and_then(|()| t.put(&tree, b"y", b"1"))).unwrap();
    let (mut first, mut second) = (store.write().unwrap(), store.write().unwrap());
    for (transaction, key) in [(&mut first, b"x"), (&mut second, b"y")] {
        // Each transaction may remove one record as long as both exist.
        assert!(transaction.contains(&tree, b"x").unwrap() && transaction.contains(&tree, b"y").unwrap());
        transaction.remove(&tree, key).unwrap();
    }
    first.commit().unwrap();
    assert!(matches!(second.commit(), Err(Error::Conflict)));
    assert_eq!(store.statistics().conflicts, 1);
}

#[test]
fn phantoms_conflict_and_other_ranges_do_not() {
    let (_directory, store, tree) = open(Durability::Async);
    let insert = |key: &[u8]| store.update(|t| t.put(&tree, key, b"")).unwrap();
    insert(b"b1");
    let counting = || {
        let mut transaction = store.write().unwrap();
        let count = transaction.prefix(&tree, b"b").unwrap().count();
        transaction.put(&tree, b"count", &[count as u8]).unwrap();
        transaction
    };
    for (inserted, conflicts) in [(&b"b2"[..], true), (b"a", false), (b"c", false), (b"b", true)] {
        let transaction = counting();
        insert(inserted);
        assert_eq!(matches!(transaction.commit(), Err(Error::Conflict)), conflicts, "{inserted:?}");
    }
    // An empty range causes a conflict too, and so does a range up to the position where the cursor stopped.
    let mut transaction = store.write().unwrap();
    assert_eq!(transaction.range(&tree, "x".."y").unwrap().count(), 0);
    transaction.put(&tree, b"z", b"").unwrap();
    insert(b"x5");
    assert!(matches!(transaction.commit(), Err(Error::Conflict)));
    for (inserted, conflicts) in [(&b"a0"[..], true), (b"b9", false)] {
        let mut transaction = store.write().unwrap();
        let mut cursor = transaction.cursor::<&[u8]>(&tree, ..).unwrap();
        cursor.seek(b"a");
        assert_eq!(cursor.try_next().unwrap().unwrap().0, b"a");
        assert!(cursor.try_next().unwrap().unwrap().0 <= &b"b"[..]);
        drop(cursor);
        transaction.put(&tree, b"z", b"").unwrap();
        insert(inserted);
        assert_eq!(matches!(transaction.commit(), Err(Error::Conflict)), conflicts, "{inserted:?}");
    }
}

#[test]
fn each_key_of_a_lookup_of_several_is_read_also_if_it_is_absent() {
    let (_directory, store, tree) = open(Durability::Async);
    for (other, conflicts) in [(&b"absent"[..], true), (b"present", true), (b"written", false), (b"x", false)]
    {
        store.update(|t| t.remove(&tree, b"absent").and_then(|_| t.put(&tree, b"present", b"1"))).unwrap();
        let mut transaction = store.write().unwrap();
        transaction.put(&tree, b"written", b"2").unwrap();
        let values = transaction.get_many(&tree, &[&b"absent"[..], b"present", b"written"]).unwrap();
        assert_eq!(values, [None, Some(b"1".to_vec()), Some(b"2".to_vec())]);
        store.update(|t| t.put(&tree, other, b"3")).unwrap();
        assert_eq!(matches!(transaction.commit(), Err(Error::Conflict)), conflicts, "{other:?}");
    }
}

#[test]
fn update_comes_to_an_end_although_others_always_conflict() {
    let (_directory, store, tree) = open(Durability::Async);
    let mut attempts = 0;
    store
        .update(|transaction| {
            attempts += 1;
            transaction.get(&tree, b"k")?;
            if attempts <= UPDATE_ATTEMPTS {
                let mut other = store.write()?;
                other.put(&tree, b"k", &attempts.to_le_bytes())?;
                other.commit()?;
            }
            transaction.put(&tree, b"k", b"done")
        })
        .unwrap();
    assert_eq!((attempts, store.statistics().conflicts), (UPDATE_ATTEMPTS + 1, u64::from(UPDATE_ATTEMPTS)));
    assert_eq!(store.read().unwrap().get(&tree, b"k").unwrap().unwrap(), b"done");
}

/// The error of a body that has errors of its own.
#[derive(Debug)]
enum Refused {
    Funds,
    Store(#[expect(dead_code, reason = "shown when the test fails")] Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

#[test]
fn a_body_with_an_error_of_its_own_undoes_the_transaction() {
    let (_directory, store, tree) = open(Durability::Async);
    let refused = store.try_update(|transaction| {
        transaction.put(&tree, b"k", b"v")?;
        Err::<(), _>(Refused::Funds)
    });
    assert!(matches!(refused, Err(Refused::Funds)));
    assert_eq!(store.read().unwrap().get(&tree, b"k").unwrap(), None);
    let mut attempts = 0;
    store
        .try_update(|transaction| {
            attempts += 1;
            transaction.get(&tree, b"k")?;
            if attempts == 1 {
                store.update(|other| other.put(&tree, b"k", b"other"))?;
            }
            transaction.put(&tree, b"k", b"v").map_err(Refused::Store)
        })
        .unwrap();
    assert_eq!((attempts, store.statistics().conflicts), (2, 1));
}

/// The body hides why it failed, so that only the store can know that another attempt may succeed.
#[test]
fn a_body_that_fails_because_its_snapshot_became_too_old_runs_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::builder(directory.path()).version_bytes(0).open().unwrap();
    let tree = store.create_tree("tree").unwrap();
    let mut attempts = 0;
    store
        .try_update(|transaction| {
            attempts += 1;
            if attempts == 1 {
                for value in [b"1", b"2"] {
                    store.update(|other| other.put(&tree, b"k", value))?;
                }
            }
            let value = transaction.get(&tree, b"k").map_err(|_| Refused::Funds)?;
            assert_eq!(value.as_deref(), Some(&b"2"[..]));
            transaction.put(&tree, b"k", b"3").map_err(Refused::Store)
        })
        .unwrap();
    assert_eq!(attempts, 2);
}

/// Keys and values.
type Records = Vec<(u8, u64)>;

/// The reads and writes of a transaction, with its start and end times.
#[derive(Clone, Debug, Default)]
struct Seen {
    began: u64,
    ended: u64,
    keys: Vec<(u8, Option<u64>)>,
    /// Ranges of keys, with all records in them.
    ranges: Vec<(u8, u8, Records)>,
    writes: BTreeMap<u8, Option<u64>>,
}

/// Whether there is a serial order of the transactions that explains their reads and agrees with real time.
fn is_serializable(history: &[Seen]) -> bool {
    fn search(
        history: &[Seen],
        done: u32,
        state: &BTreeMap<u8, u64>,
        tried: &mut HashSet<(u32, Records)>,
    ) -> bool {
        if done.count_ones() as usize == history.len() {
            return true;
        }
        if !tried.insert((done, state.iter().map(|(key, value)| (*key, *value)).collect())) {
            return false;
        }
        let left = |at: &usize| done & 1 << at == 0;
        let earliest_end = (0..history.len()).filter(left).map(|at| history[at].ended).min();
        (0..history.len()).filter(left).any(|at| {
            let seen = &history[at];
            let explains = seen.keys.iter().all(|(key, value)| state.get(key) == value.as_ref())
                && seen.ranges.iter().all(|(low, high, records)| {
                    state.range(low..high).map(|(key, value)| (*key, *value)).eq(records.iter().copied())
                });
            if Some(seen.began) > earliest_end || !explains {
                return false;
            }
            let mut after = state.clone();
            for (key, value) in &seen.writes {
                match value {
                    Some(value) => _ = after.insert(*key, *value),
                    None => _ = after.remove(key),
                }
            }
            search(history, done | 1 << at, &after, tried)
        })
    }
    search(history, 0, &BTreeMap::new(), &mut HashSet::new())
}

fn decode(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// Three threads run some transactions each, on a few keys.
fn history(seed: u64, durability: Durability) -> Vec<Seen> {
    const KEYS: u8 = 5;
    let (_directory, store, tree) = open(durability);
    let (clock, barrier) = (AtomicU64::new(1), Barrier::new(3));
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let (store, tree, barrier, tick) = (&store, &tree, &barrier, &tick);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed << 2 | thread);
                    let mut done = Vec::new();
                    barrier.wait();
                    while done.len() < 6 {
                        let mut seen = Seen { began: tick(), ..Seen::default() };
                        if random.random_range(0..4) == 0 {
                            let snapshot = store.read().unwrap();
                            let all = snapshot.range::<&[u8]>(tree, ..).unwrap().map(Result::unwrap);
                            let records = all.map(|(key, value)| (key[0], decode(&value))).collect();
                            seen.ranges.push((0, KEYS, records));
                            let key = random.random_range(0..KEYS);
                            let value = snapshot.get(tree, &[key]).unwrap();
                            seen.keys.push((key, value.map(|value| decode(&value))));
                            seen.ended = tick();
                            done.push(seen);
                            continue;
                        }
                        let mut transaction = store.write().unwrap();
                        for _ in 0..random.random_range(1..5) {
                            let key = random.random_range(0..KEYS);
                            match random.random_range(0..5) {
                                0 if seen.writes.is_empty() => {
                                    let high = random.random_range(key..=KEYS);
                                    let range = transaction.range(tree, [key]..[high]).unwrap();
                                    let records = range.map(Result::unwrap);
                                    let records = records.map(|(key, value)| (key[0], decode(&value)));
                                    seen.ranges.push((key, high, records.collect()));
                                }
                                1 | 2 if !seen.writes.contains_key(&key) => {
                                    let value = transaction.get(tree, &[key]).unwrap();
                                    seen.keys.push((key, value.map(|value| decode(&value))));
                                }
                                3 => {
                                    transaction.remove(tree, &[key]).unwrap();
                                    seen.writes.insert(key, None);
                                }
                                _ => {
                                    let value = tick();
                                    // Long values are in overflow pages, which are used again.
                                    let mut bytes = vec![0; if value % 3 == 0 { 3000 } else { 8 }];
                                    bytes[..8].copy_from_slice(&value.to_le_bytes());
                                    transaction.put(tree, &[key], &bytes).unwrap();
                                    seen.writes.insert(key, Some(value));
                                }
                            }
                        }
                        match transaction.commit() {
                            Ok(()) => {
                                seen.ended = tick();
                                done.push(seen);
                            }
                            Err(Error::Conflict) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    done
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn small_histories_have_a_serial_order() {
    let first = number("BEDPLATE_TEST_SEED", 1);
    for seed in first..first + number("BEDPLATE_TEST_STORE_HISTORIES", 80) {
        println!("BEDPLATE_TEST_SEED={seed}");
        let durability = if seed % 2 == 0 { Durability::Sync } else { Durability::Async };
        let history = history(seed, durability);
        assert!(is_serializable(&history), "{history:#?}");
    }
}

#[test]
fn the_checker_finds_write_skew_and_stale_reads() {
    let put = |at, keys: &[(u8, Option<u64>)], writes: &[(u8, Option<u64>)]| Seen {
        began: at,
        ended: at + 1,
        keys: keys.to_vec(),
        writes: writes.iter().copied().collect(),
        ..Seen::default()
    };
    let begin = put(1, &[], &[(0, Some(1)), (1, Some(1))]);
    let mut skew = [
        begin.clone(),
        put(4, &[(0, Some(1)), (1, Some(1))], &[(0, None)]),
        put(4, &[(0, Some(1)), (1, Some(1))], &[(1, None)]),
    ];
    assert!(!is_serializable(&skew));
    skew[2].keys[0] = (0, None);
    assert!(is_serializable(&skew));
    let stale = [begin, put(4, &[], &[(0, Some(2))]), put(6, &[(0, Some(1))], &[])];
    assert!(!is_serializable(&stale));
    let phantom = Seen { ranges: vec![(0, 5, vec![(0, 1)])], ..put(6, &[], &[]) };
    assert!(!is_serializable(&[stale[0].clone(), phantom]));
}

/// Accounts move between keys. Their total and number stay the same in each snapshot, in both scan directions.
#[test]
fn snapshots_of_transfers_are_of_one_moment() {
    const ACCOUNTS: u64 = 200;
    let (_directory, store, tree) = open(Durability::Async);
    let seed = number("BEDPLATE_TEST_SEED", 1);
    println!("BEDPLATE_TEST_SEED={seed}");
    let balance = |amount: u64| [&amount.to_le_bytes()[..], &vec![7; (amount % 400) as usize]].concat();
    let key = |n: u64| (n * 0x9e37_79b9 % 10_000).to_be_bytes();
    let free: Vec<u64> = (0..ACCOUNTS).map(|n| u64::from_be_bytes(key(n))).collect();
    for n in &free {
        store.update(|t| t.put(&tree, &n.to_be_bytes(), &balance(1000))).unwrap();
    }
    let (stop, total) = (AtomicBool::new(false), free.iter().collect::<HashSet<_>>().len() as u64);
    let rounds = number("BEDPLATE_TEST_STORE_ROUNDS", 1500);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|thread| {
                let (store, tree) = (&store, &tree);
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(seed << 1 | thread);
                    for _ in 0..rounds {
                        let (from, to) =
                            (random.random_range(0..10_000u64), random.random_range(0..10_000u64));
                        store
                            .update(|t| {
                                // The first account at or after `from` gives money to its predecessor, and moves to
                                // another key.
                                let mut cursor = t.cursor::<&[u8]>(tree, ..)?;
                                cursor.seek(&from.to_be_bytes());
                                let Some((giver, value)) = cursor.try_next()? else { return Ok(()) };
                                let (giver, value) = (giver.to_vec(), decode(value));
                                cursor.seek(&giver);
                                let Some((taker, old)) = cursor.try_prev()? else { return Ok(()) };
                                let (taker, old) = (taker.to_vec(), decode(old));
                                drop(cursor);
                                let amount = value / 3;
                                t.put(tree, &taker, &balance(old + amount))?;
                                t.remove(tree, &giver)?;
                                let free = if t.contains(tree, &to.to_be_bytes())? {
                                    giver
                                } else {
                                    to.to_be_bytes().to_vec()
                                };
                                t.put(tree, &free, &balance(value - amount))
                            })
                            .unwrap();
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..2)
            .map(|thread| {
                let (store, tree, stop) = (&store, &tree, &stop);
                scope.spawn(move || {
                    let mut checked = 0;
                    while !stop.load(Ordering::Relaxed) || checked == 0 {
                        let snapshot = store.read().unwrap();
                        let all = if thread == 0 {
                            snapshot.range::<&[u8]>(tree, ..).unwrap()
                        } else {
                            snapshot.range_rev::<&[u8]>(tree, ..).unwrap()
                        };
                        let records: Vec<_> = all.map(Result::unwrap).collect();
                        let sum: u64 = records.iter().map(|(_, value)| decode(value)).sum();
                        assert_eq!((records.len() as u64, sum), (total, total * 1000));
                        // Later point reads return the same values.
                        for (key, value) in records.iter().step_by(37) {
                            assert_eq!(snapshot.get(tree, key).unwrap().as_ref(), Some(value));
                        }
                        checked += 1;
                    }
                })
            })
            .collect();
        let done: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        done.into_iter().for_each(|done| done.unwrap());
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(store.statistics().version_bytes, 0);
}

/// In each snapshot, all keys have the same value while a thread changes them together. A wrong order of reads of the
/// tree and of the versions would break this.
#[test]
fn point_reads_of_a_snapshot_are_of_one_moment() {
    let (_directory, store, tree) = open(Durability::Async);
    let put = |n: u64| {
        let put = |t: &mut bedplate_btree::store::WriteTransaction<'_>| {
            (0..20u8).try_for_each(|key| t.put(&tree, &[key], &n.to_le_bytes()))
        };
        store.update(put).unwrap();
    };
    put(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let snapshot = store.read().unwrap();
                        let get = |key: u8| decode(&snapshot.get(&tree, &[key]).unwrap().unwrap());
                        let first = get(0);
                        (1..20).for_each(|key| assert_eq!(get(key), first));
                    }
                })
            })
            .collect();
        let rounds = number("BEDPLATE_TEST_STORE_ROUNDS", 1500);
        (1..20 * rounds).take_while(|_| readers.iter().all(|reader| !reader.is_finished())).for_each(put);
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
