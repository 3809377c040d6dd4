//! Threads transfer money between accounts, and the sum stays the same: `transfer DIRECTORY`.

use bedplate_btree::store::{Result, Store};

fn amount(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn main() -> anyhow::Result<()> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "transfer-store".into());
    let store = Store::builder(directory).open()?;
    let accounts = store.tree("accounts").or_else(|_| store.create_tree("accounts"))?;
    store.update(|transaction| {
        for account in 0..100u8 {
            transaction.insert(&accounts, &[account], &1000u64.to_le_bytes())?;
        }
        Ok(())
    })?;
    let transfer = |from: u8, to: u8| {
        store.update(|transaction| {
            let giver = transaction.get(&accounts, &[from])?.map_or(0, |found| amount(&found));
            let taker = transaction.get(&accounts, &[to])?.map_or(0, |found| amount(&found));
            if from != to && giver > 0 {
                transaction.put(&accounts, &[from], &(giver - 1).to_le_bytes())?;
                transaction.put(&accounts, &[to], &(taker + 1).to_le_bytes())?;
            }
            Ok(())
        })
    };
    let work = |thread: u8| (0..100).try_for_each(|n| transfer((n * 2 + thread) % 100, n));
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let mut sum = 0;
    for record in store.read()?.range::<&[u8]>(&accounts, ..)? {
        sum += amount(&record?.1);
    }
    println!("{sum} in all accounts; {:?}", store.statistics());
    store.close()?;
    Ok(())
}
