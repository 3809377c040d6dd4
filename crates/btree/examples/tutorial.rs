//! The program of `docs/store-tutorial.md`, where it is explained.

use std::path::PathBuf;

use bedplate_btree::store::{NamedTree, Result, Store, WriteTransaction};

fn number(value: &[u8]) -> i64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Adds to the count of an item, which is 0 if the item is not there, unless it would become negative.
fn add(transaction: &mut WriteTransaction<'_>, tree: &NamedTree, item: &str, count: i64) -> Result<bool> {
    let old = transaction.get(tree, item.as_bytes())?.map_or(0, |value| number(&value));
    if old + count < 0 {
        return Ok(false);
    }
    transaction.put(tree, item.as_bytes(), (old + count).to_string().as_bytes())?;
    Ok(true)
}

/// Runs the program with the store in a directory, and returns the lines that it prints.
pub fn run(directory: PathBuf) -> anyhow::Result<String> {
    let store = Store::builder(directory).memory(64 << 20).open()?;
    let tree = store.tree("items").or_else(|_| store.create_tree("items"))?;
    for (item, count) in [("fruit/apple", 10), ("fruit/pear", 5), ("tea", 1)] {
        store.update(|transaction| add(transaction, &tree, item, count))?;
    }
    store.update(|transaction| add(transaction, &tree, "fruit/apple", -3))?;
    let mut printed = String::new();
    if !store.update(|transaction| add(transaction, &tree, "tea", -3))? {
        printed += "there are no 3 of tea\n";
    }
    let snapshot = store.read()?;
    for record in snapshot.prefix(&tree, b"fruit/")? {
        let (key, value) = record?;
        printed += &format!("{}: {}\n", String::from_utf8_lossy(&key), number(&value));
    }
    drop(snapshot);
    store.close()?;
    Ok(printed)
}

fn main() -> anyhow::Result<()> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "stock".to_owned());
    print!("{}", run(directory.into())?);
    Ok(())
}
