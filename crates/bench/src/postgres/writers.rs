//! Writers of the table that is scanned: the latency of their updates, with and without the extension.
//!
//! Writers update rows of a twentieth of the table, which is in the page cache before they are measured, like frequently used
//! rows. That part is larger than shared buffers, so backends write its blocks to make room, and a client asks for checkpoints
//! all the time. Commits do not wait for the log. So the latencies show waits for blocks, which a scan's reads can prolong.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_postgres_suite::{execute, rows};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::failed;
use super::server::Server;
use crate::Result;
use crate::latency::Latencies;
use crate::tpch::engine::Side;

/// Clients that update.
const WRITERS: usize = 2;
/// They update rows of the first orders: the number of orders divided by this.
const PART: i64 = 20;
/// Time for which they update before the measurement.
const WARM_UP: Duration = Duration::from_secs(3);
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(500);

/// A measurement of writers and scans beside each other.
pub struct Writing {
    /// Latencies of updates.
    pub latencies: Latencies,
    pub scans: u64,
}

/// Updates rows for a time while a client scans the table repeatedly.
pub fn write(server: &mut Server, side: Side, scan: &str, time: Duration) -> Result<Writing> {
    server.start_writing(side)?;
    let mut scanner = server.session(0)?;
    let mut checkpointer = server.session(0)?;
    let mut writers = (0..WRITERS).map(|_| server.session(0)).collect::<Result<Vec<_>>>()?;
    let orders: i64 = rows(&mut scanner, "select max(l_orderkey) from lineitem").map_err(failed)?[0][0]
        .parse()
        .map_err(|_| failed("the largest order has no number".to_owned()))?;
    let hot = format!("select count(l_comment) from lineitem where l_orderkey <= {}", orders / PART);
    let settings = "set enable_seqscan = off; set enable_bitmapscan = off";
    execute(&mut writers[0], settings).and_then(|()| rows(&mut writers[0], &hot)).map_err(failed)?;
    let (is_over, all) = (AtomicBool::new(false), Mutex::new(Latencies::default()));
    let mut scans = 0;
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (number, client) in writers.iter_mut().enumerate() {
            let (is_over, all) = (&is_over, &all);
            running.push(scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(number as u64);
                let mut latencies = Latencies::default();
                let begin = Instant::now();
                while !is_over.load(Ordering::Relaxed) {
                    let order = random.random_range(1..=orders / PART);
                    let update =
                        format!("update lineitem set l_linestatus = l_linestatus where l_orderkey = {order}");
                    let start = Instant::now();
                    execute(client, &update).map_err(failed)?;
                    if begin.elapsed() > WARM_UP {
                        latencies.record(start.elapsed().as_nanos() as u64);
                    }
                }
                all.lock().expect("no writer panics with it").merge(&latencies);
                Ok(())
            }));
        }
        let is_over_now = &is_over;
        running.push(scope.spawn(move || {
            while !is_over_now.load(Ordering::Relaxed) {
                execute(&mut checkpointer, "checkpoint").map_err(failed)?;
                std::thread::sleep(CHECKPOINT_PAUSE);
            }
            Ok(())
        }));
        let start = Instant::now();
        let mut result = Ok(());
        while result.is_ok() && start.elapsed() < WARM_UP + time {
            result = rows(&mut scanner, scan).map(drop).map_err(failed);
            scans += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        for thread in running {
            result = result.and(thread.join().map_err(|_| failed("a client panicked".to_owned()))?);
        }
        result
    })?;
    Ok(Writing { latencies: all.into_inner().expect("no writer panicked"), scans })
}
