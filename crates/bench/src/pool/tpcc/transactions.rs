//! The five transactions (clauses 2.4.2 to 2.8.2), over any store.
//!
//! The values that a terminal would show are computed and added to [`Shown`], so that no work is
//! left out.

use super::input::{Delivery, Input, Line, NewOrder, OrderStatus, Payment, Place, StockLevel, Who};
use super::keys::{self, Key};
use super::rows::{Customer, District, History, Item, Order, OrderLine, Row, Stock, Text, Warehouse};
use super::scale::DISTRICTS;
use crate::pool::store::{Access, Session, Transaction, Verdict};
use crate::{Error, Result};

/// Sums of the values that transactions have shown to their terminals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Amounts of new orders with taxes and discounts, in cents.
    pub totals: i64,
    /// Balances, in cents.
    pub balances: i64,
    /// Quantities of the lines of last orders.
    pub quantities: u64,
    /// Orders delivered.
    pub delivered: u64,
    /// Districts that had no order to deliver.
    pub skipped: u64,
    /// Items whose stock was low.
    pub low: u64,
    /// Lines with an item and a stock that are original.
    pub brands: u64,
}

/// Lines that an order has on average.
const LINES_OF_ORDER: usize = 10;

/// Runs a transaction. A new order with an item that does not exist is rolled back.
pub fn execute(session: &mut impl Session, input: &Input, shown: &mut Shown) -> Result<Verdict> {
    let access = match input {
        Input::OrderStatus(_) | Input::StockLevel(_) => Access::Read,
        _ => Access::Write,
    };
    let before = *shown;
    session.transaction(access, &mut |tx| {
        // The terminal shows only the last attempt of a transaction that begins again.
        *shown = before;
        let mut work = Work { tx, value: Vec::new(), shown: &mut *shown };
        match input {
            Input::NewOrder(order) => work.new_order(order),
            Input::Payment(payment) => work.payment(payment),
            Input::OrderStatus(status) => work.order_status(status),
            Input::Delivery(delivery) => work.delivery(delivery),
            Input::StockLevel(level) => work.stock_level(level),
        }
    })
}

struct Work<'w> {
    tx: &'w mut dyn Transaction,
    value: Vec<u8>,
    shown: &'w mut Shown,
}

impl Work<'_> {
    fn find<R: Row>(&mut self, key: Key) -> Result<Option<R>> {
        if !self.tx.get(&key, &mut self.value)? {
            return Ok(None);
        }
        R::decode(&self.value).map(Some)
    }

    /// A row that must be there.
    fn get<R: Row>(&mut self, key: Key) -> Result<R> {
        self.find(key)?.ok_or_else(|| missing::<R>(&key))
    }

    fn insert(&mut self, key: Key, row: &impl Row) -> Result<()> {
        row.encode(&mut self.value);
        self.tx.insert(&key, &self.value)
    }

    /// Changes a row that must be there. Returns the changed row and the result of `change`.
    fn update<R: Row, T>(&mut self, key: Key, mut change: impl FnMut(&mut R) -> T) -> Result<(R, T)> {
        let mut done = None;
        let found = self.tx.update(&key, &mut |bytes| {
            done = Some(R::decode(bytes).map(|mut row| {
                let result = change(&mut row);
                row.encode(bytes);
                (row, result)
            }));
        })?;
        done.filter(|_| found).unwrap_or_else(|| Err(missing::<R>(&key)))
    }

    /// Passes the rows whose keys begin with a prefix to `take`, until it has enough.
    fn each<R: Row>(&mut self, prefix: Key, mut take: impl FnMut(&[u8], R) -> bool) -> Result<()> {
        let mut failed = None;
        self.tx.scan(&prefix, None, &mut |key, bytes| {
            key.starts_with(&prefix)
                && R::decode(bytes).map_err(|error| failed = Some(error)).is_ok_and(|row| take(key, row))
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// The first key that begins with a prefix.
    fn first(&mut self, prefix: Key) -> Result<Option<Vec<u8>>> {
        let mut first = None;
        self.tx.scan(&prefix, Some(1), &mut |key, _| {
            first = key.starts_with(&prefix).then(|| key.to_vec());
            false
        })?;
        Ok(first)
    }

    /// The customer's number. For a name, it is the middle one of its customers by first name,
    /// rounded up.
    fn customer(&mut self, place: Place, who: &Who) -> Result<u32> {
        let name = match who {
            Who::Number(number) => return Ok(*number),
            Who::Name(name) => keys::customers_of_name(place.w, place.d, name),
        };
        let mut numbers = Vec::new();
        self.tx.scan(&name, None, &mut |key, _| {
            let same = key.starts_with(&name);
            if same {
                numbers.push(keys::last_number(key));
            }
            same
        })?;
        let middle = numbers.len().saturating_sub(1) / 2;
        numbers.get(middle).copied().ok_or_else(|| missing::<Customer>(&name))
    }

    fn new_order(&mut self, order: &NewOrder) -> Result<Verdict> {
        let Place { w, d } = order.place;
        let warehouse: Warehouse = self.get(keys::warehouse(w))?;
        let (district, o) = self.update(keys::district(w, d), |district: &mut District| {
            let o = district.next_order;
            district.next_order += 1;
            o
        })?;
        let customer: Customer = self.get(keys::customer(w, d, order.customer))?;
        let all_local = order.lines.iter().all(|line| line.supply_warehouse == w);
        let row = Order {
            customer: order.customer,
            entered: order.now,
            carrier: 0,
            lines: order.lines.len() as u8,
            all_local: all_local.into(),
        };
        self.insert(keys::order(w, d, o), &row)?;
        self.tx.insert(&keys::order_by_customer(w, d, order.customer, o), &[])?;
        self.tx.insert(&keys::new_order(w, d, o), &[])?;
        let mut total = 0;
        for (number, line) in (1..).zip(&order.lines) {
            match self.order_line(order.place, o, number, line)? {
                Some(amount) => total += amount,
                None => return Ok(Verdict::RollBack),
            }
        }
        let taxes = i64::from(10_000 + warehouse.tax + district.tax);
        self.shown.totals += total * i64::from(10_000 - customer.discount) / 10_000 * taxes / 10_000;
        Ok(Verdict::Commit)
    }

    /// The line's amount; `None` if the item does not exist.
    fn order_line(&mut self, place: Place, o: u32, number: u8, line: &Line) -> Result<Option<i64>> {
        let Some(item) = self.find::<Item>(keys::item(line.item))? else { return Ok(None) };
        let quantity = i32::from(line.quantity);
        let (stock, ()) =
            self.update(keys::stock(line.supply_warehouse, line.item), |stock: &mut Stock| {
                stock.quantity -= quantity;
                if stock.quantity < 10 {
                    stock.quantity += 91;
                }
                stock.ytd += quantity as u32;
                stock.orders += 1;
                stock.remotes += u32::from(line.supply_warehouse != place.w);
            })?;
        self.shown.brands += u64::from(original(&item.data) && original(&stock.data));
        let amount = i64::from(line.quantity) * item.price;
        let row = OrderLine {
            item: line.item,
            supply_warehouse: line.supply_warehouse,
            delivered: 0,
            quantity: line.quantity,
            amount,
            dist_info: stock.dist[usize::from(place.d) - 1],
        };
        self.insert(keys::order_line(place.w, place.d, o, number), &row)?;
        Ok(Some(amount))
    }

    fn payment(&mut self, payment: &Payment) -> Result<Verdict> {
        let (place, at, amount) = (payment.place, payment.customers, payment.amount);
        let (warehouse, ()) =
            self.update(keys::warehouse(place.w), |warehouse: &mut Warehouse| warehouse.ytd += amount)?;
        let (district, ()) =
            self.update(keys::district(place.w, place.d), |district: &mut District| district.ytd += amount)?;
        let c = self.customer(at, &payment.who)?;
        let (customer, ()) = self.update(keys::customer(at.w, at.d, c), |customer: &mut Customer| {
            customer.balance -= amount;
            customer.ytd_payment += amount;
            customer.payments += 1;
            if customer.credit.bytes() == b"BC" {
                let Place { w, d } = place;
                let mut data = format!("{c} {} {} {d} {w} {amount} ", at.d, at.w).into_bytes();
                data.extend_from_slice(customer.data.bytes());
                customer.data = Text::new(&data);
            }
        })?;
        self.shown.balances += customer.balance;
        let row = History {
            customer_warehouse: at.w,
            customer_district: at.d,
            customer: c,
            date: payment.now,
            amount,
            data: Text::new(&[warehouse.name.bytes(), b"    ", district.name.bytes()].concat()),
        };
        self.insert(keys::history(place.w, place.d, payment.number), &row)?;
        Ok(Verdict::Commit)
    }

    fn order_status(&mut self, status: &OrderStatus) -> Result<Verdict> {
        let Place { w, d } = status.place;
        let c = self.customer(status.place, &status.who)?;
        let customer: Customer = self.get(keys::customer(w, d, c))?;
        self.shown.balances += customer.balance;
        // Every customer has ordered something.
        let last = self
            .first(keys::orders_of(w, d, c))?
            .ok_or_else(|| missing::<Order>(&keys::orders_of(w, d, c)))?;
        let o = keys::order_of_customers_key(&last);
        let order: Order = self.get(keys::order(w, d, o))?;
        let (mut lines, mut quantities) = (0, 0);
        self.each(keys::lines_of(w, d, o), |_, line: OrderLine| {
            lines += 1;
            quantities += u64::from(line.quantity);
            true
        })?;
        if lines != order.lines {
            return Err(Error::engine(format!(
                "order {w}/{d}/{o} has {lines} lines instead of {}",
                order.lines
            )));
        }
        self.shown.quantities += quantities;
        Ok(Verdict::Commit)
    }

    fn delivery(&mut self, delivery: &Delivery) -> Result<Verdict> {
        let w = delivery.w;
        for d in 1..=DISTRICTS {
            let Some(oldest) = self.first(keys::new_orders(w, d))? else {
                self.shown.skipped += 1;
                continue;
            };
            let o = keys::last_number(&oldest);
            self.tx.remove(&oldest)?;
            let (order, ()) =
                self.update(keys::order(w, d, o), |order: &mut Order| order.carrier = delivery.carrier)?;
            let mut amount = 0;
            for number in 1..=order.lines {
                let (line, ()) = self.update(keys::order_line(w, d, o, number), |line: &mut OrderLine| {
                    line.delivered = delivery.now;
                })?;
                amount += line.amount;
            }
            self.update(keys::customer(w, d, order.customer), |customer: &mut Customer| {
                customer.balance += amount;
                customer.deliveries += 1;
            })?;
            self.shown.delivered += 1;
        }
        Ok(Verdict::Commit)
    }

    fn stock_level(&mut self, level: &StockLevel) -> Result<Verdict> {
        let Place { w, d } = level.place;
        let district: District = self.get(keys::district(w, d))?;
        let next = district.next_order;
        let (district_lines, mut items) = (keys::order_lines(w, d), Vec::new());
        let mut failed = None;
        let first = keys::lines_of(w, d, next.saturating_sub(20));
        self.tx.scan(&first, Some(20 * LINES_OF_ORDER), &mut |key, bytes| {
            if !key.starts_with(&district_lines) || keys::number_before(key, 1) >= next {
                return false;
            }
            OrderLine::decode(bytes)
                .map(|line| items.push(line.item))
                .map_err(|error| failed = Some(error))
                .is_ok()
        })?;
        failed.map_or(Ok(()), Err)?;
        items.sort_unstable();
        items.dedup();
        for item in items {
            let stock: Stock = self.get(keys::stock(w, item))?;
            self.shown.low += u64::from(stock.quantity < level.threshold);
        }
        Ok(Verdict::Commit)
    }
}

fn original(data: &Text<50>) -> bool {
    data.bytes().windows(8).any(|part| part == b"ORIGINAL")
}

fn missing<R: Row>(key: &[u8]) -> Error {
    Error::engine(format!("there is no {} with key {key:02x?}", R::TABLE))
}
