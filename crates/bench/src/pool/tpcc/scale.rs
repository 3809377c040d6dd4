//! The size of a TPC-C database (clause 1.2.1), and the state that all its users share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use super::input::Delivery;
use super::locks::Locks;
use super::random::Constants;

/// Districts of a warehouse.
pub const DISTRICTS: u8 = 10;

/// More payments than are made in a run.
const PAYMENTS: u32 = 1 << 28;

/// Cardinalities.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: u32,
    /// Customers of a district, each of whom has placed one order.
    pub customers: u32,
    /// Items.
    pub items: u32,
}

impl Scale {
    /// The specification's.
    pub fn of(warehouses: u32) -> Self {
        Self { warehouses, customers: 3000, items: 100_000 }
    }

    /// The last of a district's first orders that was delivered.
    pub fn delivered(self) -> u32 {
        self.customers / 10 * 7
    }
}

/// The state that the users of a database share outside of it.
pub struct Database {
    /// Its size.
    pub scale: Scale,
    /// Constants of its random values.
    pub constants: Constants,
    /// For stores that do not isolate transactions.
    pub locks: Locks,
    /// Number of the next payment, because payments have no key of their own.
    payments: AtomicU32,
    /// Deliveries that were deferred and not made yet.
    queue: Mutex<VecDeque<Delivery>>,
}

impl Database {
    /// The state of a database that is loaded with this seed.
    pub fn new(scale: Scale, seed: u64) -> Self {
        Self {
            scale,
            constants: Constants::new(seed),
            locks: Locks::new(scale.warehouses),
            payments: AtomicU32::new(scale.customers + 1),
            queue: Mutex::default(),
        }
    }

    /// The state of a database that has been run already, so that payments get new numbers.
    pub fn again(mut self) -> Self {
        *self.payments.get_mut() += PAYMENTS;
        self
    }

    /// A number for a payment that no other has.
    pub fn payment(&self) -> u32 {
        self.payments.fetch_add(1, Ordering::Relaxed)
    }

    /// Defers a delivery.
    pub fn defer(&self, delivery: Delivery) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(delivery);
    }

    /// The delivery that has waited longest.
    pub fn deferred(&self) -> Option<Delivery> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}
