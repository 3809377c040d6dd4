//! The keys of rows in one ordered store. A table's number is first, and numbers are big-endian, so that a district's
//! orders, an order's lines and a name's customers are neighbours.

use std::ops::Deref;

use super::rows::Text;

const WAREHOUSE: u8 = 1;
const DISTRICT: u8 = 2;
const CUSTOMER: u8 = 3;
const CUSTOMER_BY_NAME: u8 = 4;
const HISTORY: u8 = 5;
const NEW_ORDER: u8 = 6;
const ORDER: u8 = 7;
const ORDER_BY_CUSTOMER: u8 = 8;
const ORDER_LINE: u8 = 9;
const ITEM: u8 = 10;
const STOCK: u8 = 11;

/// A key, or the beginning of keys.
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; 48],
    len: usize,
}

impl Key {
    fn new(table: u8) -> Self {
        Key { bytes: [0; 48], len: 0 }.and(&[table])
    }

    fn and(mut self, part: &[u8]) -> Self {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }

    fn number(self, number: u32) -> Self {
        self.and(&number.to_be_bytes())
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The big-endian number at the end of a key.
pub fn last_number(key: &[u8]) -> u32 {
    key.last_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The big-endian number some bytes before the end of a key.
pub fn number_before(key: &[u8], bytes_after: usize) -> u32 {
    last_number(&key[..key.len().saturating_sub(bytes_after)])
}

pub fn warehouse(w: u32) -> Key {
    Key::new(WAREHOUSE).number(w)
}

pub fn district(w: u32, d: u8) -> Key {
    Key::new(DISTRICT).number(w).and(&[d])
}

/// All customers of a district.
pub fn customers(w: u32, d: u8) -> Key {
    Key::new(CUSTOMER).number(w).and(&[d])
}

pub fn customer(w: u32, d: u8, c: u32) -> Key {
    customers(w, d).number(c)
}

/// All names of a district.
pub fn names(w: u32, d: u8) -> Key {
    Key::new(CUSTOMER_BY_NAME).number(w).and(&[d])
}

/// All customers of a name; their first names are in order.
pub fn customers_of_name(w: u32, d: u8, last: &Text<16>) -> Key {
    names(w, d).and(last.padded())
}

pub fn customer_by_name(w: u32, d: u8, last: &Text<16>, first: &Text<16>, c: u32) -> Key {
    customers_of_name(w, d, last).and(first.padded()).number(c)
}

/// All payments in a district.
pub fn payments(w: u32, d: u8) -> Key {
    Key::new(HISTORY).number(w).and(&[d])
}

pub fn history(w: u32, d: u8, number: u32) -> Key {
    payments(w, d).number(number)
}

/// All orders of a district that were not delivered.
pub fn new_orders(w: u32, d: u8) -> Key {
    Key::new(NEW_ORDER).number(w).and(&[d])
}

pub fn new_order(w: u32, d: u8, o: u32) -> Key {
    new_orders(w, d).number(o)
}

/// All orders of a district.
pub fn orders(w: u32, d: u8) -> Key {
    Key::new(ORDER).number(w).and(&[d])
}

pub fn order(w: u32, d: u8, o: u32) -> Key {
    orders(w, d).number(o)
}

/// The customers' orders of a district.
pub fn customers_orders(w: u32, d: u8) -> Key {
    Key::new(ORDER_BY_CUSTOMER).number(w).and(&[d])
}

/// All orders of a customer, the last one first.
pub fn orders_of(w: u32, d: u8, c: u32) -> Key {
    customers_orders(w, d).number(c)
}

pub fn order_by_customer(w: u32, d: u8, c: u32, o: u32) -> Key {
    orders_of(w, d, c).number(!o)
}

/// The order of a key of [`order_by_customer`].
pub fn order_of_customers_key(key: &[u8]) -> u32 {
    !last_number(key)
}

/// All lines of a district.
pub fn order_lines(w: u32, d: u8) -> Key {
    Key::new(ORDER_LINE).number(w).and(&[d])
}

/// All lines of an order.
pub fn lines_of(w: u32, d: u8, o: u32) -> Key {
    order_lines(w, d).number(o)
}

pub fn order_line(w: u32, d: u8, o: u32, line: u8) -> Key {
    lines_of(w, d, o).and(&[line])
}

pub fn item(i: u32) -> Key {
    Key::new(ITEM).number(i)
}

pub fn stock(w: u32, i: u32) -> Key {
    Key::new(STOCK).number(w).number(i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_in_order() {
        let anna = Text::new(b"ANNA");
        let (ab, abc) = (Text::new(b"AB"), Text::new(b"ABC"));
        assert!(customer_by_name(1, 2, &ab, &anna, 9)[..] < customers_of_name(1, 2, &abc)[..]);
        assert!(order_line(1, 2, 255, 9)[..] < order_line(1, 2, 256, 1)[..]);
        assert!(order_by_customer(1, 2, 3, 8)[..] < order_by_customer(1, 2, 3, 7)[..]);
        assert_eq!(order_of_customers_key(&order_by_customer(1, 2, 3, 8)), 8);
        assert_eq!(number_before(&order_line(1, 2, 300, 4), 1), 300);
    }

    #[test]
    fn tables_do_not_mix() {
        let all = [
            warehouse(1),
            district(1, 1),
            customer(1, 1, 1),
            names(1, 1),
            payments(1, 1),
            new_orders(1, 1),
            orders(1, 1),
            customers_orders(1, 1),
            order_lines(1, 1),
            item(1),
            stock(1, 1),
        ];
        let mut tables: Vec<u8> = all.iter().map(|key| key[0]).collect();
        tables.dedup();
        assert_eq!(tables.len(), all.len());
    }
}
