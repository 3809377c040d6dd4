//! The rows of TPC-C's nine tables (clause 1.3) and their bytes.
//!
//! Fields follow each other in their order; numbers are little-endian, texts have a length. Money is in cents, rates are
//! in ten-thousandths, times in seconds since 1970; a null time or carrier is 0, which no order has otherwise.

use crate::{Error, Result};

/// A text of at most `N` bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// The text, which is cut off after `N` bytes.
    pub fn new(text: &[u8]) -> Self {
        let mut new = Self { len: text.len().min(N) as u16, bytes: [0; N] };
        new.bytes[..text.len().min(N)].copy_from_slice(&text[..text.len().min(N)]);
        new
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// All `N` bytes, with zeros after the text. As a part of a key, they sort as texts do.
    pub fn padded(&self) -> &[u8; N] {
        &self.bytes
    }
}

/// A field of a row.
trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(rest: &mut &[u8]) -> Option<Self>;
}

macro_rules! number {
    ($($type:ty)*) => { $(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(rest: &mut &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(rest.split_off(..size_of::<Self>())?.try_into().ok()?))
            }
        }
    )* };
}
number!(u8 u16 u32 i32 i64);

impl<const N: usize> Field for Text<N> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len.put(out);
        out.extend_from_slice(self.bytes());
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        let len = u16::take(rest)?;
        let text = rest.split_off(..usize::from(len)).filter(|text| text.len() <= N)?;
        Some(Self::new(text))
    }
}

impl<T: Field + Copy, const N: usize> Field for [T; N] {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|field| field.put(out));
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        let mut all = [T::take(rest)?; N];
        for field in &mut all[1..] {
            *field = T::take(rest)?;
        }
        Some(all)
    }
}

/// A row of a table.
pub trait Row: Sized {
    /// The table's name, for messages.
    const TABLE: &'static str;

    /// Replaces the content of `out` by the row's bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// The row that these bytes encode, if they are exactly one row.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;

    /// Like [`Self::from_bytes`], with an error if the store has returned something else.
    fn decode(bytes: &[u8]) -> Result<Self> {
        Self::from_bytes(bytes)
            .ok_or_else(|| Error::engine(format!("{} bytes are no row of {}", bytes.len(), Self::TABLE)))
    }
}

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name { $(pub $field: $type,)* }

        impl Row for $name {
            const TABLE: &'static str = stringify!($name);

            fn encode(&self, out: &mut Vec<u8>) {
                out.clear();
                $(self.$field.put(out);)*
            }

            fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
                let row = Self { $($field: Field::take(&mut bytes)?,)* };
                bytes.is_empty().then_some(row)
            }
        }
    )* };
}

rows! {
    /// A warehouse.
    Warehouse {
        name: Text<10>,
        street: [Text<20>; 2],
        city: Text<20>,
        state: Text<2>,
        zip: Text<9>,
        tax: i32,
        ytd: i64,
    }
    /// A district of a warehouse.
    District {
        name: Text<10>,
        street: [Text<20>; 2],
        city: Text<20>,
        state: Text<2>,
        zip: Text<9>,
        tax: i32,
        ytd: i64,
        next_order: u32,
    }
    /// A customer of a district.
    Customer {
        first: Text<16>,
        middle: Text<2>,
        last: Text<16>,
        street: [Text<20>; 2],
        city: Text<20>,
        state: Text<2>,
        zip: Text<9>,
        phone: Text<16>,
        since: i64,
        credit: Text<2>,
        credit_limit: i64,
        discount: i32,
        balance: i64,
        ytd_payment: i64,
        payments: u32,
        deliveries: u32,
        data: Text<500>,
    }
    /// A payment.
    History {
        customer_warehouse: u32,
        customer_district: u8,
        customer: u32,
        date: i64,
        amount: i64,
        data: Text<24>,
    }
    /// An order.
    Order {
        customer: u32,
        entered: i64,
        carrier: u8,
        lines: u8,
        all_local: u8,
    }
    /// A line of an order.
    OrderLine {
        item: u32,
        supply_warehouse: u32,
        delivered: i64,
        quantity: u8,
        amount: i64,
        dist_info: Text<24>,
    }
    /// An item that all warehouses sell.
    Item {
        image: u32,
        name: Text<24>,
        price: i64,
        data: Text<50>,
    }
    /// A warehouse's stock of an item.
    Stock {
        quantity: i32,
        dist: [Text<24>; 10],
        ytd: u32,
        orders: u32,
        remotes: u32,
        data: Text<50>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_others_are_refused() {
        let order = Order { customer: 7, entered: -1, carrier: 3, lines: 15, all_local: 1 };
        let mut bytes = vec![9; 3];
        order.encode(&mut bytes);
        let back = Order::decode(&bytes).unwrap();
        assert_eq!((back.customer, back.entered, back.carrier, back.lines), (7, -1, 3, 15));
        assert!(Order::decode(&bytes[1..]).is_err());
        bytes.push(0);
        assert!(Order::decode(&bytes).err().unwrap().to_string().contains("Order"));
    }

    #[test]
    fn texts_are_cut_and_padded() {
        let text = Text::<4>::new(b"abcdef");
        assert_eq!(text.bytes(), b"abcd");
        assert_eq!(Text::<4>::new(b"a").padded(), b"a\0\0\0");
        // A length beyond the text's type is damage.
        let mut long = Vec::new();
        Text::<6>::new(b"abcdef").put(&mut long);
        assert!(Text::<4>::take(&mut long.as_slice()).is_none());
    }
}
