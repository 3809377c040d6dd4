//! The twelve consistency conditions (clause 3.3.2), which hold in a database at rest, before a run and after it.
//!
//! Condition 11 is stated for the initial population (2100 orders in each district are not new). Here the district's
//! deliveries are added, so that it holds at any time. Beyond the conditions, every customer and every order has its
//! entry in its index.

use std::collections::HashMap;

use super::keys::{self, Key};
use super::rows::{Customer, District, History, Order, OrderLine, Row, Warehouse};
use super::scale::{DISTRICTS, Scale};
use crate::pool::store::Session;
use crate::{Error, Result};

/// Checks all of them; an error says which condition fails where.
pub fn check(session: &mut impl Session, scale: Scale) -> Result<()> {
    let mut check = Check { session, paid_by: HashMap::new(), delivered_to: HashMap::new() };
    let mut customers = HashMap::new();
    for w in 1..=scale.warehouses {
        check.warehouse(w, scale, &mut customers)?;
    }
    check.customers(&customers)
}

/// A customer: warehouse, district, number.
type Id = (u32, u8, u32);

struct Check<'c, S> {
    session: &'c mut S,
    /// Payments of each customer, wherever they were made.
    paid_by: HashMap<Id, i64>,
    /// Amounts of each customer's delivered lines.
    delivered_to: HashMap<Id, i64>,
}

/// The values of a customer that the conditions need.
struct Account {
    balance: i64,
    ytd_payment: i64,
}

impl<S: Session> Check<'_, S> {
    fn warehouse(&mut self, w: u32, scale: Scale, customers: &mut HashMap<Id, Account>) -> Result<()> {
        let warehouse: Warehouse = self.get(keys::warehouse(w))?;
        let districts =
            (1..=DISTRICTS).map(|d| self.get(keys::district(w, d))).collect::<Result<Vec<District>>>()?;
        let paid = (1..=DISTRICTS).map(|d| self.payments(w, d)).collect::<Result<Vec<i64>>>()?;
        equal("8: W_YTD = sum(H_AMOUNT)", (w, 0), warehouse.ytd, paid.iter().sum())?;
        equal("1: W_YTD = sum(D_YTD)", (w, 0), warehouse.ytd, districts.iter().map(|d| d.ytd).sum())?;
        for ((d, district), paid) in (1..=DISTRICTS).zip(districts).zip(paid) {
            let at = |condition, left, right| equal(condition, (w, d), left, right);
            at("9: D_YTD = sum(H_AMOUNT)", district.ytd, paid)?;
            let deliveries = self.accounts(w, d, scale, customers)?;
            let new = self.new_orders(w, d)?;
            let next = i64::from(district.next_order);
            if let (Some(first), Some(last)) = (new.first(), new.last()) {
                at("2: D_NEXT_O_ID - 1 = max(NO_O_ID)", next - 1, i64::from(*last))?;
                at("3: new orders without a gap", i64::from(last - first) + 1, new.len() as i64)?;
            }
            let orders = self.orders(w, d)?;
            at("2: D_NEXT_O_ID - 1 = max(O_ID)", next - 1, orders.last().map_or(0, |(o, _)| i64::from(*o)))?;
            let delivered = i64::from(scale.delivered()) + i64::from(deliveries);
            at("11: delivered orders", orders.len() as i64 - new.len() as i64, delivered)?;
            self.lines(w, d, &orders, &new)?;
            self.indexes(w, d, scale, &orders)?;
        }
        Ok(())
    }

    /// Notes the accounts of a district's customers. Returns the number of their deliveries.
    fn accounts(&mut self, w: u32, d: u8, scale: Scale, customers: &mut HashMap<Id, Account>) -> Result<u32> {
        let (mut count, mut deliveries) = (0, 0);
        self.each(keys::customers(w, d), |key, row: Customer| {
            count += 1;
            deliveries += row.deliveries;
            let account = Account { balance: row.balance, ytd_payment: row.ytd_payment };
            customers.insert((w, d, keys::last_number(key)), account);
        })?;
        equal("customers of a district", (w, d), count, i64::from(scale.customers))?;
        Ok(deliveries)
    }

    fn payments(&mut self, w: u32, d: u8) -> Result<i64> {
        let (mut sum, mut paid_by) = (0, std::mem::take(&mut self.paid_by));
        self.each(keys::payments(w, d), |_, row: History| {
            sum += row.amount;
            *paid_by.entry((row.customer_warehouse, row.customer_district, row.customer)).or_default() +=
                row.amount;
        })?;
        self.paid_by = paid_by;
        Ok(sum)
    }

    fn new_orders(&mut self, w: u32, d: u8) -> Result<Vec<u32>> {
        let mut all = Vec::new();
        self.keys(keys::new_orders(w, d), |key| all.push(keys::last_number(key)))?;
        Ok(all)
    }

    fn orders(&mut self, w: u32, d: u8) -> Result<Vec<(u32, Order)>> {
        let mut all = Vec::new();
        self.each(keys::orders(w, d), |key, row: Order| all.push((keys::last_number(key), row)))?;
        Ok(all)
    }

    /// Checks conditions 4 to 7, and collects the values for 10 and 12.
    fn lines(&mut self, w: u32, d: u8, orders: &[(u32, Order)], new: &[u32]) -> Result<()> {
        #[derive(Default)]
        struct Lines {
            count: i64,
            delivered: i64,
            amount: i64,
        }
        let mut of: HashMap<u32, Lines> = HashMap::new();
        let mut count = 0;
        self.each(keys::order_lines(w, d), |key, line: OrderLine| {
            let lines = of.entry(keys::number_before(key, 1)).or_default();
            lines.count += 1;
            count += 1;
            if line.delivered != 0 {
                lines.delivered += 1;
                lines.amount += line.amount;
            }
        })?;
        let promised = orders.iter().map(|(_, order)| i64::from(order.lines)).sum();
        equal("4: sum(O_OL_CNT) = number of lines", (w, d), promised, count)?;
        for (o, order) in orders {
            let lines = of.remove(o).unwrap_or_default();
            let is_new = new.binary_search(o).is_ok();
            equal(
                "5: an order has no carrier if it is new",
                (w, d),
                (order.carrier == 0).into(),
                is_new.into(),
            )?;
            equal("6: O_OL_CNT = number of the order's lines", (w, d), order.lines.into(), lines.count)?;
            let delivered = if is_new { 0 } else { lines.count };
            equal("7: lines are delivered with their order", (w, d), lines.delivered, delivered)?;
            *self.delivered_to.entry((w, d, order.customer)).or_default() += lines.amount;
        }
        equal("lines without an order", (w, d), of.len() as i64, 0)
    }

    fn indexes(&mut self, w: u32, d: u8, scale: Scale, orders: &[(u32, Order)]) -> Result<()> {
        let (mut names, mut entries) = (0, Vec::new());
        self.keys(keys::names(w, d), |_| names += 1)?;
        equal("names of customers", (w, d), names, scale.customers.into())?;
        self.keys(keys::customers_orders(w, d), |key| {
            entries.push((keys::order_of_customers_key(key), keys::number_before(key, 4)));
        })?;
        entries.sort_unstable();
        let differ = !entries.iter().copied().eq(orders.iter().map(|(o, order)| (*o, order.customer)));
        equal("customers' orders that differ from the orders", (w, d), differ.into(), 0)
    }

    fn customers(&self, customers: &HashMap<Id, Account>) -> Result<()> {
        for (id, account) in customers {
            let delivered = self.delivered_to.get(id).copied().unwrap_or(0);
            let paid = self.paid_by.get(id).copied().unwrap_or(0);
            let place = (id.0, id.1);
            equal(
                "10: C_BALANCE = sum(OL_AMOUNT) - sum(H_AMOUNT)",
                place,
                account.balance,
                delivered - paid,
            )?;
            let sum = account.balance + account.ytd_payment;
            equal("12: C_BALANCE + C_YTD_PAYMENT = sum(OL_AMOUNT)", place, sum, delivered)?;
        }
        Ok(())
    }

    fn get<R: Row>(&mut self, key: Key) -> Result<R> {
        let mut value = Vec::new();
        self.session.get(&key, &mut value)?;
        R::decode(&value)
    }

    fn each<R: Row>(&mut self, prefix: Key, mut take: impl FnMut(&[u8], R)) -> Result<()> {
        let mut failed = None;
        self.session.scan(&prefix, None, &mut |key, bytes| {
            let more = key.starts_with(&prefix);
            if more {
                match R::decode(bytes) {
                    Ok(row) => take(key, row),
                    Err(error) => failed = Some(error),
                }
            }
            more && failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn keys(&mut self, prefix: Key, mut take: impl FnMut(&[u8])) -> Result<()> {
        self.session.scan(&prefix, None, &mut |key, _| {
            let more = key.starts_with(&prefix);
            if more {
                take(key);
            }
            more
        })
    }
}

fn equal(condition: &str, (w, d): (u32, u8), left: i64, right: i64) -> Result<()> {
    match left == right {
        true => Ok(()),
        false => Err(Error::engine(format!(
            "consistency condition {condition} fails in warehouse {w}, district {d}: {left} and {right}"
        ))),
    }
}
