//! Measures the gain of the page provider on this machine. Half of the operations change a page, and memory has room for a quarter of the
//! pages. `cargo run --release -p bedplate-bufpool --example updates -- DIRECTORY [SECONDS [THREADS]]`

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_bufpool::{PAGE, PageId, Pool, Statistics};

const FRAMES: usize = 16 << 10;
const PAGES: usize = 4 * FRAMES;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: updates DIRECTORY [SECONDS [THREADS]]";
    let directory = Path::new(arguments.first().ok_or(usage)?);
    let number = |index: usize, default| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let (seconds, threads) = (number(1, 5)?, number(2, 2)?);
    let file = directory.join("updates.pool");
    for round in 0..6 {
        // In turns, because a disk's speed changes while it is used.
        let provider_threads = round % 2;
        let (rate, before, after) = measure(&file, provider_threads, Duration::from_secs(seconds), threads)?;
        println!(
            "{provider_threads} provider threads: {rate:.0} operations/s, {} pages written, {} by the provider, \
             {} waits for a frame, {} wake-ups",
            after.written - before.written,
            after.provider_written - before.provider_written,
            after.frame_waits - before.frame_waits,
            after.provider_wakeups - before.provider_wakeups,
        );
        std::fs::remove_file(&file)?;
    }
    Ok(())
}

fn measure(
    file: &Path,
    provider_threads: usize,
    time: Duration,
    threads: u64,
) -> Result<(f64, Statistics, Statistics), bedplate_bufpool::Error> {
    let builder = Pool::builder(file).memory(FRAMES * PAGE).capacity(1 << 30);
    let pool = builder.provider_threads(provider_threads).open()?;
    let mut ids: Vec<PageId> = Vec::with_capacity(PAGES);
    for _ in 0..PAGES {
        ids.push(pool.allocate()?.page());
    }
    pool.close()?;
    let (stop, operations, before) = (AtomicBool::new(false), AtomicU64::new(0), pool.statistics());
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for seed in 0..threads {
            let (pool, ids, stop, operations) = (&pool, &ids, &stop, &operations);
            scope.spawn(move || {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    // xorshift
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let page = ids[(random >> 33) as usize % PAGES];
                    let result = if random & 1 == 0 {
                        pool.pin_exclusive(page).map(|mut page| page.write(0, &random.to_ne_bytes()))
                    } else {
                        pool.optimistic_read(page, |page| page.read::<8>(0)).map(drop)
                    };
                    if let Err(error) = result {
                        eprintln!("{error}");
                        break;
                    }
                    count += 1;
                }
                operations.fetch_add(count, Ordering::Relaxed);
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    let rate = operations.into_inner() as f64 / begin.elapsed().as_secs_f64();
    Ok((rate, before, pool.statistics()))
}
