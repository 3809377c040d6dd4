//! A hash map in memory with snapshots, read in the two possible ways.
//!
//! A *child* sees the memory at its own address. So it can read any structure, including pointers. A *thread* sees the snapshot
//! at another address, and reads flat data by the owner's address of it.
//!
//! `cargo run --release -p bedplate-snapshot --example heap`

use std::error::Error;

use allocator_api2::vec::Vec;
use bedplate_snapshot::{Heap, Memory};
use hashbrown::{DefaultHashBuilder, HashMap};

/// An account's number and its amount.
type Accounts = HashMap<u64, u64, DefaultHashBuilder, Heap>;

const ACCOUNTS: u64 = 100_000;
const EACH: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    // This reserves addresses for 1 GiB, and uses memory as needed.
    let heap = Memory::builder(1 << 20).reserve(1 << 30).build()?.into_heap();
    println!("engine {}", heap.kind());
    let mut accounts: Accounts = HashMap::with_hasher_in(DefaultHashBuilder::default(), heap.clone());
    accounts.extend((0..ACCOUNTS).map(|number| (number, EACH)));

    // In a child the map is the map.
    let task = heap.spawn_in_child(|_| {
        let sum: u64 = accounts.values().sum();
        sum.to_le_bytes().to_vec()
    })?;
    let pause = task.pause();
    // Meanwhile the owner continues. The child does not see its changes.
    accounts.values_mut().for_each(|held| *held = 0);
    let bytes = task.join()?;
    let sum = u64::from_le_bytes(bytes.try_into().map_err(|_| "a child returned something else")?);
    assert_eq!(sum, ACCOUNTS * EACH);
    println!("a child counted {sum} in {ACCOUNTS} accounts (pause {pause:?})");

    // The map's own pointers lead a thread to the live memory. Data for a thread must be flat: a column.
    let mut column: Vec<u64, Heap> = Vec::new_in(heap.clone());
    column.extend((0..ACCOUNTS).map(|_| EACH));
    let (at, bytes) = (column.as_ptr().cast::<u8>(), size_of_val(&column[..]));
    let snapshot = heap.snapshot()?;
    let address = at as usize;
    let reader = std::thread::spawn({
        let snapshot = snapshot.clone();
        move || {
            snapshot.read(|view| {
                let column = view.bytes_at(std::ptr::without_provenance(address), bytes).unwrap_or_default();
                column.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).sum::<u64>()
            })
        }
    });
    column.fill(0);
    let sum = reader.join().map_err(|_| "the reader panicked")??;
    assert_eq!(sum, ACCOUNTS * EACH);
    println!("a thread counted {sum} in the column (pause {:?})", snapshot.pause());
    Ok(())
}
