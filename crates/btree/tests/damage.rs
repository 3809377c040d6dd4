//! Files with pages that have wrong content and valid checksums. Every operation of a tree must return a result, or an
//! error that describes the damage. It must end, and it must not use much memory.

mod common;

use std::fs;
use std::sync::mpsc;
use std::time::Duration;

use bedplate_btree::{Error, Tree};
use bedplate_bufpool::{PAGE, Pool};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

const HEADER: usize = 24;
const RECORDS: u64 = 1500;
/// Maximum time for all operations on one file.
const PATIENCE: Duration = Duration::from_secs(60);

fn key(n: u64) -> Vec<u8> {
    let mut key = common::mixed(n).to_be_bytes().to_vec();
    if n.is_multiple_of(4) {
        key.splice(0..0, vec![b'k'; 200]);
    }
    key
}

fn value(n: u64) -> Vec<u8> {
    let len = if n.is_multiple_of(50) { 9000 } else { 40 + n as usize % 100 };
    vec![n as u8; len]
}

/// The content of a file with a tree of three levels and some overflow values.
fn whole() -> Vec<u8> {
    let (directory, pool) = common::pool(1024);
    let tree = Tree::create(&pool, 0).unwrap();
    for n in 0..RECORDS {
        tree.insert(&key(n), &value(n)).unwrap();
    }
    assert_eq!(tree.check().unwrap().height, 3);
    pool.close().unwrap();
    drop(pool);
    let mut bytes = fs::read(directory.path().join("pool")).unwrap();
    // The rest of the file is zeros.
    let end = used(&bytes).last().unwrap() + 1;
    bytes.truncate(end as usize * PAGE);
    bytes
}

/// Makes the checksum of a changed page valid.
fn seal(image: &mut [u8]) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&image[..16]), &image[20..]);
    image[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// The numbers of the pages that are not all zeros.
fn used(bytes: &[u8]) -> Vec<u64> {
    let pages = bytes.chunks(PAGE).enumerate().skip(256);
    pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0)).map(|(number, _)| number as u64).collect()
}

/// Damages a page: a bit, a number in its header, a reference, or the whole content.
fn damage(bytes: &mut [u8], pages: &[u64], random: &mut SmallRng) {
    let page = pages[random.random_range(0..pages.len())];
    let other = pages[random.random_range(0..pages.len())];
    let from = |page: u64| page as usize * PAGE;
    let words = [0, 1, 8, 104, 4048, 4072, 0xffff, page, other, 1 << 24, 1 << 60, u64::MAX];
    let word = words[random.random_range(0..words.len())];
    match random.random_range(0..6) {
        0 => bytes[from(page) + random.random_range(HEADER..PAGE)] ^= 1 << random.random_range(0..8),
        1 => bytes[from(page) + HEADER + random.random_range(0..20)] = word as u8,
        2 => {
            let at = from(page) + HEADER + 2 * random.random_range(0..10);
            bytes[at..at + 2].copy_from_slice(&(word as u16).to_le_bytes());
        }
        // Children, the next page and the length of an overflow page, slots.
        3 | 4 => {
            let at = from(page) + HEADER + [8, 16, 24, 104, 112, 120, 128, 136][random.random_range(0..8)];
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        _ => {
            let (to, content) = (from(page) + HEADER, from(other) + HEADER);
            bytes.copy_within(content..content + PAGE - HEADER, to);
        }
    }
    seal(&mut bytes[from(page)..][..PAGE]);
}

/// Runs all operations. Any result is correct, but each operation must end.
fn use_it(pool: &Pool, seed: u64) -> Result<(), Error> {
    let tree = Tree::open(pool, 0)?;
    let _ = tree.check();
    let _ = tree.estimate_len();
    for n in 0..RECORDS {
        let _ = tree.get(&key(n), <[u8]>::len);
        let _ = tree.contains_key(&key(n));
    }
    for mut range in
        [tree.iter(), tree.range_rev::<&[u8]>(..), tree.range(key(3)..), tree.range_rev(..key(5))]
    {
        let mut seen = 0;
        while let Ok(Some(_)) = range.try_next() {
            seen += 1;
            assert!(seen < 100 * RECORDS, "a scan does not come to an end");
        }
    }
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..600 {
        let n = random.random_range(0..2 * RECORDS);
        let (key, value) = (key(n), value(random.next_u64()));
        let _ = match random.random_range(0..7) {
            0 | 1 => tree.upsert(&key, &value),
            2 => tree.insert(&key, &value),
            3 => tree.update(&key, |old, new| new.extend(old.iter().take(3000).chain(&value))),
            4 => tree.update_in_place(&key, |old| old.fill(1)).map(|done| done.is_some()),
            _ => tree.remove(&key),
        };
    }
    let _ = tree.pages(|_| ());
    let _ = tree.check();
    let _ = tree.destroy();
    Ok(())
}

#[test]
fn a_tree_in_damaged_pages_gives_errors_and_nothing_worse() {
    let whole = whole();
    let pages = used(&whole);
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("BEDPLATE_TEST_SEED").unwrap_or(1);
    for seed in first..first + number("BEDPLATE_TEST_FILES").unwrap_or(150) {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut bytes = whole.clone();
        for _ in 0..random.random_range(1..5) {
            damage(&mut bytes, &pages, &mut random);
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("pool"), &bytes).unwrap();
        let (say, done) = mpsc::channel();
        let path = directory.path().to_owned();
        let thread = std::thread::spawn(move || {
            let _ = use_it(&common::open(&path, 1024), seed);
            let _ = say.send(());
        });
        match done.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("BEDPLATE_TEST_SEED={seed} does not come to an end")
            }
            _ => thread.join().unwrap_or_else(|_| panic!("BEDPLATE_TEST_SEED={seed} panics")),
        }
    }
}
