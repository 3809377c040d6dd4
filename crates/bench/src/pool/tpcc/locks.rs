//! Isolation for stores that have none: conservative two-phase locking.
//!
//! The input of a transaction says which warehouses and districts it uses, so it takes all its locks before it
//! begins. It takes them in ascending order, so there are no deadlocks. It keeps them until it has ended and, if
//! commits are durable, is on disk. This is serializable, phantoms included, and coarser than locks on rows.
//! Terminals of different threads have different warehouses, so only transactions with remote lines or remote
//! customers wait.
//!
//! A warehouse has a lock for its own row, one for each district (the district's row, customers, orders, lines and
//! payments), and one for its stock. Items are never written.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::input::{Input, Place};
use super::scale::DISTRICTS;

/// Locks of a warehouse.
const PER_WAREHOUSE: usize = DISTRICTS as usize + 2;

/// The locks of a database.
pub struct Locks(Vec<RwLock<()>>);

/// The locks that a transaction holds until this is dropped.
pub struct Held<'l> {
    _guards: Vec<Guard<'l>>,
}

enum Guard<'l> {
    Shared(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'l, ()>),
    Exclusive(#[expect(dead_code, reason = "held, not read")] RwLockWriteGuard<'l, ()>),
}

/// A lock, and whether it is for this transaction alone.
type Want = (usize, bool);

impl Locks {
    /// The locks of `warehouses` warehouses.
    pub fn new(warehouses: u32) -> Self {
        Self((0..warehouses as usize * PER_WAREHOUSE).map(|_| RwLock::new(())).collect())
    }

    /// Takes the locks that a transaction needs.
    pub fn take(&self, input: &Input) -> Held<'_> {
        let guards = wanted(input)
            .into_iter()
            .map(|(lock, exclusive)| match exclusive {
                true => Guard::Exclusive(self.0[lock].write().unwrap_or_else(PoisonError::into_inner)),
                false => Guard::Shared(self.0[lock].read().unwrap_or_else(PoisonError::into_inner)),
            })
            .collect();
        Held { _guards: guards }
    }
}

fn warehouse(w: u32) -> usize {
    (w as usize - 1) * PER_WAREHOUSE
}

fn district(place: Place) -> usize {
    warehouse(place.w) + usize::from(place.d)
}

fn stock(w: u32) -> usize {
    warehouse(w) + PER_WAREHOUSE - 1
}

/// The locks that a transaction needs, in ascending order, each once, exclusive if the transaction writes anything
/// under it.
fn wanted(input: &Input) -> Vec<Want> {
    let mut all: Vec<Want> = Vec::with_capacity(PER_WAREHOUSE);
    match input {
        Input::NewOrder(order) => {
            all.extend([(warehouse(order.place.w), false), (district(order.place), true)]);
            all.extend(order.lines.iter().map(|line| (stock(line.supply_warehouse), true)));
        }
        Input::Payment(payment) => {
            all.extend([(warehouse(payment.place.w), true), (district(payment.place), true)]);
            all.push((district(payment.customers), true));
        }
        Input::OrderStatus(status) => all.push((district(status.place), false)),
        Input::Delivery(delivery) => {
            all.extend((1..=DISTRICTS).map(|d| (district(Place { w: delivery.w, d }), true)));
        }
        Input::StockLevel(level) => {
            all.extend([(district(level.place), false), (stock(level.place.w), false)])
        }
    }
    // If a lock is wanted in both modes, the exclusive one stays, because it comes first.
    all.sort_unstable_by_key(|&(lock, exclusive)| (lock, !exclusive));
    all.dedup_by_key(|want| want.0);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tpcc::input::{Delivery, Line, NewOrder, StockLevel};

    #[test]
    fn locks_are_taken_once_and_in_order() {
        let line = |w| Line { item: 1, supply_warehouse: w, quantity: 1 };
        let order = Input::NewOrder(NewOrder {
            place: Place { w: 2, d: 3 },
            customer: 1,
            lines: vec![line(2), line(3), line(1), line(2)],
            now: 0,
        });
        assert_eq!(wanted(&order), [(11, true), (12, false), (15, true), (23, true), (35, true)]);
    }

    #[test]
    fn writers_of_a_district_exclude_its_readers() {
        let locks = Locks::new(1);
        let level = Input::StockLevel(StockLevel { place: Place { w: 1, d: 10 }, threshold: 10 });
        let delivery = Input::Delivery(Delivery { w: 1, carrier: 1, now: 0 });
        let held = locks.take(&level);
        // Another reader gets the lock.
        drop(locks.take(&level));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| drop(locks.take(&delivery)));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!writer.is_finished());
            drop(held);
        });
    }
}
