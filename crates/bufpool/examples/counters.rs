//! Counters in a file, more than memory has room for, that several threads count up.
//!
//! `cargo run -p bedplate-bufpool --example counters [FILE]`; with a file, they continue from their stored values.

use std::time::Instant;

use bedplate_bufpool::{PAYLOAD, PageId, Pool};

const COUNTERS: u64 = 4_000_000;
const IN_A_PAGE: u64 = PAYLOAD as u64 / 8;
const THREADS: u64 = 2;
const STEPS: u64 = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = std::env::args_os().nth(1).map_or_else(|| folder.path().join("counters"), Into::into);
    let pool = Pool::builder(file).memory(8 << 20).capacity(1 << 30).open()?;
    println!("engine: {} ({})", pool.kind(), pool.reason());
    if pool.root(0) == 0 {
        create(&pool)?;
    }
    let first = pool.root(0);
    let begin = Instant::now();
    std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        let pool = &pool;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || count(pool, first, thread))).collect();
        for thread in threads {
            thread.join().expect("a thread that counts")?;
        }
        Ok(())
    })?;
    println!("{} steps in {:?}", THREADS * STEPS, begin.elapsed());
    let mut sum = 0;
    for page in 0..COUNTERS.div_ceil(IN_A_PAGE) {
        // The counting threads are not disturbed by this.
        sum += pool.optimistic_read(PageId(first + page), |page| {
            (0..IN_A_PAGE as usize).map(|at| u64::from_le_bytes(page.read(8 * at))).sum::<u64>()
        })?;
    }
    pool.close()?;
    println!("all counters together: {sum}");
    println!("{:?}", pool.statistics());
    Ok(())
}

/// The pages of a new pool have consecutive numbers.
fn create(pool: &Pool) -> Result<(), bedplate_bufpool::Error> {
    let first = pool.allocate()?.page();
    for _ in 1..COUNTERS.div_ceil(IN_A_PAGE) {
        drop(pool.allocate()?);
    }
    pool.set_root(0, first.0);
    Ok(())
}

fn count(pool: &Pool, first: u64, thread: u64) -> Result<(), bedplate_bufpool::Error> {
    let mut state = thread + 1;
    for _ in 0..STEPS {
        // A generator of numbers that look random (SplitMix64's increment and a multiplication).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let counter = (state ^ state >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) % COUNTERS;
        let mut page = pool.pin_exclusive(PageId(first + counter / IN_A_PAGE))?;
        let at = 8 * (counter % IN_A_PAGE) as usize;
        let count = u64::from_le_bytes(*page[at..].first_chunk().expect("inside the page"));
        page.write(at, &(count + 1).to_le_bytes());
    }
    Ok(())
}
