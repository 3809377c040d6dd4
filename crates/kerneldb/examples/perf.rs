//! Quick look at the engine's speed.
use bedplate_kerneldb::*;
use std::time::Duration;
#[derive(Clone, Copy)]
struct Instant(Duration);
impl Instant {
    fn now() -> Self {
        let mut t: libc::timespec = unsafe { std::mem::zeroed() };
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
        Instant(Duration::new(t.tv_sec as u64, t.tv_nsec as u32))
    }
    fn elapsed(&self) -> Duration {
        Self::now().0 - self.0
    }
}
fn main() {
    let wal = std::env::args().nth(1).is_some();
    let db = Database::create(Config {
        memory_bytes: 2 << 30,
        max_sessions: 64,
        wal_ring_bytes: if wal { 64 << 20 } else { 0 },
        ..Config::default()
    })
    .unwrap();
    let t = Instant::now();
    db.prefault(1 << 30);
    println!("prefault {:?}", t.elapsed());
    let mut s = db.session().unwrap();
    let mut tr = db.trace().unwrap();
    let n = 1_000_000u64;
    let key = |i: u64| {
        let mut k = [0u8; 16];
        k[..8].copy_from_slice(&i.to_le_bytes());
        k[8..].copy_from_slice(&(i ^ 0x5555).to_le_bytes());
        k
    };
    let val = [7u8; 1024];
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|sc| {
        if wal {
            sc.spawn(|| {
                let mut r = db.log_reader().unwrap();
                let mut c = 0usize;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let n = r.drain(1 << 20, &mut |_t| {});
                    c += n;
                    if n == 0 {
                        std::thread::sleep(std::time::Duration::from_micros(200));
                    }
                }
                println!("drained {c}");
            });
        }
        for vlen in [16usize, 1024] {
            for round in 0..3 {
                let t = Instant::now();
                let mut i = 0;
                let mut err = 0;
                while i < n {
                    tr.clear();
                    for _ in 0..TRACE_OPS {
                        tr.set(&key(i % n), vlen);
                        i += 1;
                    }
                    err += tr.run(&mut s, &val).unwrap().errors;
                }
                println!(
                    "load {vlen} round {round}: {:.1} ns/op err {err}",
                    t.elapsed().as_nanos() as f64 / i as f64
                );
            }
            for pct in [0u64, 10, 50, 90] {
                let mut x = 88172645463325252u64;
                let mut busy = std::time::Duration::ZERO;
                let mut ops = 0;
                let mut found = 0;
                let mut errors = 0;
                for _ in 0..500 {
                    tr.clear();
                    for _ in 0..TRACE_OPS {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        let k = key(x % n);
                        if (x >> 40) % 100 < pct { tr.set(&k, vlen) } else { tr.get(&k) }
                    }
                    let t = Instant::now();
                    let o = tr.run(&mut s, &val).unwrap();
                    busy += t.elapsed();
                    ops += TRACE_OPS;
                    found += o.found;
                    errors += o.errors;
                }
                println!(
                    "{vlen} B {pct}% set: {:.1} ns/op found {found} errors {errors}",
                    busy.as_nanos() as f64 / ops as f64
                );
            }
        }
        let t = Instant::now();
        for _ in 0..200000 {
            tr.noop().unwrap();
        }
        println!("noop call {:.0} ns", t.elapsed().as_nanos() as f64 / 200000.0);
        let t = Instant::now();
        for i in 0..200000u64 {
            s.get(&key(i % n)).unwrap();
        }
        println!("session get {:.0} ns", t.elapsed().as_nanos() as f64 / 200000.0);
        let t = Instant::now();
        let snap = db.snapshot().unwrap();
        let mut c = 0u64;
        let mut b = 0usize;
        snap.scan(0, snap.positions(), &mut |i| {
            c += 1;
            b += i.value.len();
        });
        println!("scan {c} keys {b} in {:?}", t.elapsed());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    println!("{:?}", db.stats());
}
