//! The inputs of terminals (clauses 2.4.1 to 2.8.1), and the order of their transactions (clause 5.2.4).

use super::random::Random;
use super::rows::Text;
use super::scale::{DISTRICTS, Database};

/// A line of a new order.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub item: u32,
    pub supply_warehouse: u32,
    pub quantity: u8,
}

/// The way in which a customer is found.
#[derive(Clone)]
pub enum Who {
    /// By number.
    Number(u32),
    /// By last name: the middle one of the customers with this name, by first name.
    Name(Text<16>),
}

/// A district.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub w: u32,
    pub d: u8,
}

pub struct NewOrder {
    pub place: Place,
    pub customer: u32,
    pub lines: Vec<Line>,
    pub now: i64,
}

pub struct Payment {
    pub place: Place,
    /// The district of the customer.
    pub customers: Place,
    pub who: Who,
    pub amount: i64,
    pub now: i64,
    pub number: u32,
}

pub struct OrderStatus {
    pub place: Place,
    pub who: Who,
}

/// A delivery of the oldest order of each of a warehouse's districts.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub w: u32,
    pub carrier: u8,
    pub now: i64,
}

pub struct StockLevel {
    pub place: Place,
    pub threshold: i32,
}

/// A transaction.
pub enum Input {
    NewOrder(NewOrder),
    Payment(Payment),
    OrderStatus(OrderStatus),
    Delivery(Delivery),
    StockLevel(StockLevel),
}

/// The kinds of transactions, in the order of their counts in reports.
pub const KINDS: [&str; 5] = ["new_order", "payment", "order_status", "delivery", "stock_level"];

impl Input {
    /// Index into [`KINDS`].
    pub fn kind(&self) -> usize {
        match self {
            Input::NewOrder(_) => 0,
            Input::Payment(_) => 1,
            Input::OrderStatus(_) => 2,
            Input::Delivery(_) => 3,
            Input::StockLevel(_) => 4,
        }
    }
}

/// Number of cards of each kind in a deck of 23 (clause 5.2.4.2): 43.5 % payments, 4.3 % of each of the others, and new orders for the
/// rest.
const DECK: [usize; 5] = [10, 10, 1, 1, 1];

/// The terminals of some warehouses, which one thread simulates.
pub struct Terminals<'d> {
    database: &'d Database,
    homes: Vec<u32>,
    random: Random,
    deck: Vec<usize>,
}

impl<'d> Terminals<'d> {
    /// The terminals of the thread's share of the warehouses: each warehouse belongs to one thread, unless there are
    /// more threads than warehouses.
    pub fn new(database: &'d Database, thread: u32, threads: u32, seed: u64) -> Self {
        let count = database.scale.warehouses;
        let mut homes: Vec<u32> = (1..=count).filter(|w| w % threads == thread % threads).collect();
        if homes.is_empty() {
            homes.push(thread % count + 1);
        }
        Self { database, homes, random: Random::new(seed), deck: Vec::new() }
    }

    /// The next input of a terminal, at the time `now`.
    pub fn next(&mut self, now: i64) -> Input {
        if self.deck.is_empty() {
            self.deck =
                DECK.iter().enumerate().flat_map(|(kind, &cards)| std::iter::repeat_n(kind, cards)).collect();
            self.random.shuffle(&mut self.deck);
        }
        let w = self.homes[self.random.within(0, self.homes.len() as u32 - 1) as usize];
        let place = Place { w, d: self.random.within(1, DISTRICTS.into()) as u8 };
        match self.deck.pop() {
            Some(0) => Input::NewOrder(self.new_order(place, now)),
            Some(1) => Input::Payment(self.payment(place, now)),
            Some(2) => Input::OrderStatus(OrderStatus { place, who: self.who() }),
            Some(3) => Input::Delivery(Delivery { w, carrier: self.random.within(1, 10) as u8, now }),
            _ => Input::StockLevel(StockLevel { place, threshold: self.random.within(10, 20) as i32 }),
        }
    }

    fn new_order(&mut self, place: Place, now: i64) -> NewOrder {
        let (scale, random) = (self.database.scale, &mut self.random);
        let customer = random.customer(&self.database.constants, scale.customers);
        let count = random.within(5, 15);
        // One order in a hundred has an item that does not exist, and is rolled back.
        let fails = random.chance(1);
        let lines = (1..=count)
            .map(|line| Line {
                item: match fails && line == count {
                    true => scale.items + 1,
                    false => random.item(&self.database.constants, scale.items),
                },
                supply_warehouse: match random.chance(1) {
                    true => another(random, place.w, scale.warehouses),
                    false => place.w,
                },
                quantity: random.within(1, 10) as u8,
            })
            .collect();
        NewOrder { place, customer, lines, now }
    }

    fn payment(&mut self, place: Place, now: i64) -> Payment {
        let customers = match self.random.chance(85) {
            true => place,
            false => Place {
                w: another(&mut self.random, place.w, self.database.scale.warehouses),
                d: self.random.within(1, DISTRICTS.into()) as u8,
            },
        };
        let amount = self.random.within(100, 500_000).into();
        Payment { place, customers, who: self.who(), amount, now, number: self.database.payment() }
    }

    fn who(&mut self) -> Who {
        let (constants, customers) = (&self.database.constants, self.database.scale.customers);
        match self.random.chance(60) {
            true => Who::Name(self.random.last_name(constants.run_name, customers)),
            false => Who::Number(self.random.customer(constants, customers)),
        }
    }
}

/// Another warehouse, if there is one.
fn another(random: &mut Random, home: u32, warehouses: u32) -> u32 {
    if warehouses == 1 {
        return home;
    }
    let other = random.within(1, warehouses - 1);
    other + u32::from(other >= home)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tpcc::scale::Scale;

    #[test]
    fn the_mix_and_its_exceptions_have_their_shares() {
        let database = Database::new(Scale::of(4), 1);
        let mut terminals = Terminals::new(&database, 0, 2, 5);
        let (mut kinds, mut fails, mut lines, mut remote_lines) = ([0; 5], 0, 0, 0);
        let (mut remote_payments, mut by_name) = (0, 0);
        for _ in 0..23_000 {
            let input = terminals.next(0);
            kinds[input.kind()] += 1;
            match input {
                Input::NewOrder(order) => {
                    assert!(order.place.w % 2 == 0, "the other thread's terminal");
                    fails += usize::from(order.lines.iter().any(|line| line.item > 100_000));
                    lines += order.lines.len();
                    remote_lines +=
                        order.lines.iter().filter(|l| l.supply_warehouse != order.place.w).count();
                }
                Input::Payment(payment) => {
                    remote_payments += usize::from(payment.customers.w != payment.place.w);
                    by_name += usize::from(matches!(payment.who, Who::Name(_)));
                }
                _ => {}
            }
        }
        assert_eq!(kinds, [10_000, 10_000, 1000, 1000, 1000]);
        assert!((60..150).contains(&fails), "{fails}");
        assert!((98_000..102_000).contains(&lines), "{lines}");
        assert!((800..1200).contains(&remote_lines), "{remote_lines}");
        assert!((1350..1650).contains(&remote_payments), "{remote_payments}");
        assert!((5800..6200).contains(&by_name), "{by_name}");
    }

    #[test]
    fn another_is_never_the_same() {
        let mut random = Random::new(1);
        let mut seen = [false; 4];
        for _ in 0..100 {
            seen[another(&mut random, 2, 3) as usize] = true;
        }
        assert_eq!(seen, [false, true, false, true]);
        assert_eq!(another(&mut random, 1, 1), 1);
    }
}
