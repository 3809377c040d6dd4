//! The initial population (clause 4.3.3), table by table in the order of their keys.

use super::keys;
use super::random::{Random, last_name};
use super::rows::{Customer, District, History, Item, Order, OrderLine, Row, Stock, Text, Warehouse};
use super::scale::{DISTRICTS, Database};
use crate::Result;
use crate::pool::store::{Access, Session, Verdict};

/// Rows of a transaction.
const BATCH: usize = 1000;
/// Every date of the population. Only the order of dates matters, and this one is before all later ones.
const LOADED: i64 = 1_600_000_000;

/// Fills an empty store.
pub fn load(session: &mut impl Session, database: &Database, seed: u64) -> Result<()> {
    let mut loader = Loader { session, rows: Vec::new(), seed };
    warehouses(&mut loader, database)?;
    customers(&mut loader, database)?;
    orders(&mut loader, database)?;
    goods(&mut loader, database)?;
    loader.flush()
}

struct Loader<'s, S> {
    session: &'s mut S,
    rows: Vec<(keys::Key, Vec<u8>)>,
    seed: u64,
}

impl<S: Session> Loader<'_, S> {
    fn add(&mut self, key: keys::Key, row: &impl Row) -> Result<()> {
        let mut bytes = Vec::new();
        row.encode(&mut bytes);
        self.add_bytes(key, bytes)
    }

    fn add_bytes(&mut self, key: keys::Key, bytes: Vec<u8>) -> Result<()> {
        self.rows.push((key, bytes));
        if self.rows.len() == BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        self.session.transaction(Access::Write, &mut |tx| {
            rows.iter().try_for_each(|(key, row)| tx.insert(key, row)).map(|()| Verdict::Commit)
        })?;
        Ok(())
    }

    /// Random values of a part of a district (or of a warehouse, whose district is 0), the same every time.
    fn random(&self, part: u64, w: u32, d: u8) -> Random {
        Random::new(self.seed ^ (part << 56) ^ (u64::from(w) << 8) ^ u64::from(d))
    }
}

/// All districts in the order of keys.
fn places(database: &Database) -> impl Iterator<Item = (u32, u8)> {
    (1..=database.scale.warehouses).flat_map(|w| (1..=DISTRICTS).map(move |d| (w, d)))
}

fn warehouses<S: Session>(loader: &mut Loader<'_, S>, database: &Database) -> Result<()> {
    // The payments of all customers of a district, in cents.
    let district_ytd = i64::from(database.scale.customers) * 1000;
    for w in 1..=database.scale.warehouses {
        let mut random = loader.random(1, w, 0);
        let row = Warehouse {
            name: random.letters(6, 10),
            street: [random.letters(10, 20), random.letters(10, 20)],
            city: random.letters(10, 20),
            state: random.letters(2, 2),
            zip: random.zip(),
            tax: random.within(0, 2000) as i32,
            ytd: district_ytd * i64::from(DISTRICTS),
        };
        loader.add(keys::warehouse(w), &row)?;
    }
    for (w, d) in places(database) {
        let mut random = loader.random(2, w, d);
        let row = District {
            name: random.letters(6, 10),
            street: [random.letters(10, 20), random.letters(10, 20)],
            city: random.letters(10, 20),
            state: random.letters(2, 2),
            zip: random.zip(),
            tax: random.within(0, 2000) as i32,
            ytd: district_ytd,
            next_order: database.scale.customers + 1,
        };
        loader.add(keys::district(w, d), &row)?;
    }
    Ok(())
}

fn customer(random: &mut Random, database: &Database, c: u32) -> Customer {
    let last = match c {
        1..=1000 => last_name(c - 1),
        _ => random.last_name(database.constants.load_name, 1000),
    };
    Customer {
        first: random.letters(8, 16),
        middle: Text::new(b"OE"),
        last,
        street: [random.letters(10, 20), random.letters(10, 20)],
        city: random.letters(10, 20),
        state: random.letters(2, 2),
        zip: random.zip(),
        phone: random.digits(16),
        since: LOADED,
        credit: Text::new(if random.chance(10) { b"BC" } else { b"GC" }),
        credit_limit: 5_000_000,
        discount: random.within(0, 5000) as i32,
        balance: -1000,
        ytd_payment: 1000,
        payments: 1,
        deliveries: 0,
        data: random.letters(300, 500),
    }
}

fn customers<S: Session>(loader: &mut Loader<'_, S>, database: &Database) -> Result<()> {
    let scale = database.scale;
    for (w, d) in places(database) {
        let mut random = loader.random(3, w, d);
        for c in 1..=scale.customers {
            loader.add(keys::customer(w, d, c), &customer(&mut random, database, c))?;
        }
    }
    for (w, d) in places(database) {
        let mut random = loader.random(3, w, d);
        let mut names: Vec<_> = (1..=scale.customers)
            .map(|c| {
                let row = customer(&mut random, database, c);
                keys::customer_by_name(w, d, &row.last, &row.first, c)
            })
            .collect();
        names.sort_unstable_by(|a, b| a[..].cmp(&b[..]));
        names.into_iter().try_for_each(|key| loader.add_bytes(key, Vec::new()))?;
    }
    for (w, d) in places(database) {
        let mut random = loader.random(4, w, d);
        for c in 1..=scale.customers {
            let row = History {
                customer_warehouse: w,
                customer_district: d,
                customer: c,
                date: LOADED,
                amount: 1000,
                data: random.letters(12, 24),
            };
            loader.add(keys::history(w, d, c), &row)?;
        }
    }
    Ok(())
}

/// A district's orders and their lines; the same each time.
fn orders_of(random: &mut Random, database: &Database, w: u32) -> Vec<(Order, Vec<OrderLine>)> {
    let scale = database.scale;
    let mut customers: Vec<u32> = (1..=scale.customers).collect();
    random.shuffle(&mut customers);
    let mut all = Vec::with_capacity(customers.len());
    for (o, customer) in (1..).zip(customers) {
        let delivered = o <= scale.delivered();
        let lines = random.within(5, 15) as u8;
        let carrier = if delivered { random.within(1, 10) as u8 } else { 0 };
        let order = Order { customer, entered: LOADED, carrier, lines, all_local: 1 };
        let lines = (0..lines)
            .map(|_| OrderLine {
                item: random.within(1, scale.items),
                supply_warehouse: w,
                delivered: if delivered { LOADED } else { 0 },
                quantity: 5,
                amount: if delivered { 0 } else { random.within(1, 999_999).into() },
                dist_info: random.letters(24, 24),
            })
            .collect();
        all.push((order, lines));
    }
    all
}

fn orders<S: Session>(loader: &mut Loader<'_, S>, database: &Database) -> Result<()> {
    let scale = database.scale;
    for (w, d) in places(database) {
        (scale.delivered() + 1..=scale.customers)
            .try_for_each(|o| loader.add_bytes(keys::new_order(w, d, o), Vec::new()))?;
    }
    for (w, d) in places(database) {
        for (o, (order, _)) in (1..).zip(orders_of(&mut loader.random(5, w, d), database, w)) {
            loader.add(keys::order(w, d, o), &order)?;
        }
    }
    for (w, d) in places(database) {
        let orders = orders_of(&mut loader.random(5, w, d), database, w);
        let mut of: Vec<_> = (1..)
            .zip(orders)
            .map(|(o, (order, _))| keys::order_by_customer(w, d, order.customer, o))
            .collect();
        of.sort_unstable_by(|a, b| a[..].cmp(&b[..]));
        of.into_iter().try_for_each(|key| loader.add_bytes(key, Vec::new()))?;
    }
    for (w, d) in places(database) {
        for (o, (_, lines)) in (1..).zip(orders_of(&mut loader.random(5, w, d), database, w)) {
            for (number, line) in (1..).zip(lines) {
                loader.add(keys::order_line(w, d, o, number), &line)?;
            }
        }
    }
    Ok(())
}

fn goods<S: Session>(loader: &mut Loader<'_, S>, database: &Database) -> Result<()> {
    let scale = database.scale;
    let mut random = loader.random(6, 0, 0);
    for i in 1..=scale.items {
        let row = Item {
            image: random.within(1, 10_000),
            name: random.letters(14, 24),
            price: random.within(100, 10_000).into(),
            data: random.data(),
        };
        loader.add(keys::item(i), &row)?;
    }
    for w in 1..=scale.warehouses {
        let mut random = loader.random(7, w, 0);
        for i in 1..=scale.items {
            let row = Stock {
                quantity: random.within(10, 100) as i32,
                dist: std::array::from_fn(|_| random.letters(24, 24)),
                ytd: 0,
                orders: 0,
                remotes: 0,
                data: random.data(),
            };
            loader.add(keys::stock(w, i), &row)?;
        }
    }
    Ok(())
}
