//! TPC-C on a map: the conditions hold after any run, and each of them can fail.

use super::consistency::check;
use super::keys;
use super::load::load;
use super::rows::{Customer, District, History, Order, OrderLine, Row, Warehouse};
use super::run::{Until, run};
use super::scale::{Database, Scale};
use crate::pool::memory::{Map, Memory};
use crate::pool::store::Store;

const SCALE: Scale = Scale { warehouses: 3, customers: 60, items: 200 };

fn loaded() -> (Memory, Database) {
    let (store, database) = (Memory::new(Map::new()), Database::new(SCALE, 1));
    load(&mut store.session().unwrap(), &database, 1).unwrap();
    (store, database)
}

/// Loads a store, runs two threads on it, and checks.
pub fn runs_on(store: &impl Store, transactions: u64) {
    let database = Database::new(SCALE, 1);
    load(&mut store.session().unwrap(), &database, 1).unwrap();
    let done = run(store, &database, 2, Until::transactions(transactions), 9).unwrap();
    assert!(done.total() + 10 > 2 * transactions, "{done:?}");
    check(&mut store.session().unwrap(), SCALE).unwrap();
}

#[test]
fn a_map_is_a_store() {
    crate::pool::suite::behaves(&Memory::new(Map::new()));
}

#[test]
fn the_population_is_the_specifications() {
    let (store, _) = loaded();
    check(&mut store.session().unwrap(), SCALE).unwrap();
    let map = store.copy();
    let rows = |table: u8| map.keys().filter(|key| key[0] == table).count();
    let (districts, customers) = (30, 30 * 60);
    let of = [
        keys::warehouse(1),
        keys::district(1, 1),
        keys::customers(1, 1),
        keys::new_orders(1, 1),
        keys::item(1),
    ];
    let counts = of.map(|key| rows(key[0]));
    assert_eq!(counts, [3, districts, customers, districts * 18, 200]);
    assert_eq!(rows(keys::stock(1, 1)[0]), 600);
    let lines = rows(keys::order_lines(1, 1)[0]);
    assert!((customers * 9..customers * 11).contains(&lines), "{lines}");
    // The same seed gives the same database.
    assert!(map == loaded().0.copy());
}

#[test]
fn conditions_hold_after_a_run_of_one_thread_and_of_several() {
    for threads in [1, 4] {
        let (store, database) = loaded();
        let done = run(&store, &database, threads, Until::transactions(3000), 7).unwrap();
        check(&mut store.session().unwrap(), SCALE).unwrap();
        // Deliveries count when they are made, and the last may be made after the end.
        let all = done.total();
        assert!((2950..=3000).contains(&(all / u64::from(threads))), "{all} by {threads}");
        assert!(done.committed.iter().all(|kind| *kind > 0), "{:?}", done.committed);
        assert!((1..all / 100).contains(&done.rolled_back), "{}", done.rolled_back);
        assert_eq!(done.new_orders.count(), done.committed[0]);
    }
}

#[test]
fn a_rolled_back_order_leaves_nothing() {
    use super::input::{Input, Line, NewOrder, Place};
    use super::transactions::{Shown, execute};
    use crate::pool::store::Verdict;
    let (store, _) = loaded();
    let before = store.copy();
    let line = |item| Line { item, supply_warehouse: 2, quantity: 3 };
    let lines = vec![line(1), line(1), line(2), line(SCALE.items + 1)];
    let order = Input::NewOrder(NewOrder { place: Place { w: 1, d: 1 }, customer: 1, lines, now: 1 });
    let verdict = execute(&mut store.session().unwrap(), &order, &mut Shown::default()).unwrap();
    assert_eq!(verdict, Verdict::RollBack);
    assert!(before == store.copy());
}

/// Changes a row.
fn damage<R: Row>(map: &mut Map, key: keys::Key, change: impl FnOnce(&mut R)) {
    let bytes = map.get_mut(&key[..]).unwrap();
    let mut row = R::decode(bytes).unwrap();
    change(&mut row);
    row.encode(bytes);
}

#[test]
fn every_condition_can_fail() {
    let (store, database) = loaded();
    run(&store, &database, 2, Until::transactions(500), 7).unwrap();
    let good = store.copy();
    let fails = |condition: &str, change: &dyn Fn(&mut Map)| {
        let mut map = good.clone();
        change(&mut map);
        let store = Memory::new(map);
        let error = check(&mut store.session().unwrap(), SCALE).unwrap_err().to_string();
        assert!(error.contains(&format!("condition {condition}")), "{condition}: {error}");
    };
    let new = |map: &Map| {
        let key = map.range(keys::new_orders(1, 1).to_vec()..).nth(2).unwrap().0.clone();
        (keys::last_number(&key), key)
    };
    fails("1:", &|map| damage(map, keys::district(1, 1), |row: &mut District| row.ytd += 1));
    fails("2:", &|map| damage(map, keys::district(1, 1), |row: &mut District| row.next_order += 1));
    fails("3:", &|map| {
        map.remove(&new(map).1);
    });
    fails("4:", &|map| {
        map.remove(&keys::order_line(1, 1, 1, 1)[..]);
    });
    fails("5:", &|map| damage(map, keys::order(1, 1, new(map).0), |row: &mut Order| row.carrier = 1));
    fails("6:", &|map| {
        damage(map, keys::order(1, 1, 1), |row: &mut Order| row.lines += 1);
        damage(map, keys::order(1, 1, 2), |row: &mut Order| row.lines -= 1);
    });
    fails("7:", &|map| damage(map, keys::order_line(1, 1, 1, 1), |row: &mut OrderLine| row.delivered = 0));
    fails("8:", &|map| damage(map, keys::warehouse(1), |row: &mut Warehouse| row.ytd += 1));
    fails("8:", &|map| damage(map, keys::history(1, 1, 1), |row: &mut History| row.amount += 1));
    fails("9:", &|map| {
        damage(map, keys::district(1, 1), |row: &mut District| row.ytd += 1);
        damage(map, keys::district(1, 2), |row: &mut District| row.ytd -= 1);
    });
    fails("10:", &|map| damage(map, keys::customer(1, 1, 1), |row: &mut Customer| row.balance += 1));
    fails("11:", &|map| damage(map, keys::customer(1, 1, 1), |row: &mut Customer| row.deliveries += 1));
    fails("12:", &|map| damage(map, keys::customer(1, 1, 1), |row: &mut Customer| row.ytd_payment += 1));
}
