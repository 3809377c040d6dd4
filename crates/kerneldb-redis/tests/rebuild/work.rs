//! Clients that work while options change, and check that no request fails and no data is lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::counter;
use crate::server::{Client, words};

/// A client's requests, with the number of times that it has sent them before.
type Step = fn(&mut Client, u64);

/// Clients that count what they have done, until they are told to stop. Each checks every reply.
pub struct Work {
    stop: Arc<AtomicBool>,
    threads: Vec<(&'static str, thread::JoinHandle<u64>)>,
}

impl Work {
    pub fn begin(addr: SocketAddr) -> Work {
        let stop = Arc::new(AtomicBool::new(false));
        let step: [(&'static str, Step); 5] = [
            ("single", single),
            ("pipeline", pipeline),
            ("multi", multi),
            ("interactive", interactive),
            ("resp3", resp3),
        ];
        let threads = step
            .into_iter()
            .map(|(name, step)| {
                let stop = stop.clone();
                let body = move || {
                    let mut client = Client::new(addr);
                    if name == "resp3" {
                        client.hello(3);
                    }
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        step(&mut client, done);
                        done += 1;
                    }
                    done
                };
                (name, thread::spawn(body))
            })
            .collect();
        Work { stop, threads }
    }

    /// Ends the work; returns how often each kind was done.
    pub fn end(self) -> Vec<(&'static str, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|(name, thread)| (name, thread.join().unwrap())).collect()
    }
}

/// The kernel answers all of these, one at a time.
fn single(c: &mut Client, i: u64) {
    if i > 0 {
        c.ask("GET single", &format!("${}\r\n{i}", i.to_string().len()));
    }
    c.ask(&format!("SET single {}", i + 1), "+OK");
}

/// The kernel answers some of these, and the event loop answers others.
fn pipeline(c: &mut Client, i: u64) {
    let mut input = Vec::new();
    let mut output = Vec::new();
    for n in 0..8 {
        input.extend(words("INCR pipeline8"));
        output.extend(format!(":{}\r\n", 8 * i + n + 1).bytes());
        input.extend(words(&format!("SET p{n} {i}")));
        output.extend(b"+OK\r\n");
    }
    input.extend(words("INCR pipeline"));
    output.extend(format!(":{}\r\n", i + 1).bytes());
    c.send(&input);
    c.expect(&output);
}

fn multi(c: &mut Client, i: u64) {
    c.ask("WATCH multi", "+OK");
    c.ask("MULTI", "+OK");
    c.ask(&format!("SET multi {}", i + 1), "+QUEUED");
    c.ask("INCR multi2", "+QUEUED");
    c.ask("EXEC", &format!("*2\r\n+OK\r\n:{}", i + 1));
}

fn interactive(c: &mut Client, i: u64) {
    c.ask("BEGIN", "+OK");
    c.ask("INCR interactive", &format!(":{}", i + 1));
    thread::sleep(Duration::from_millis(1));
    c.ask("INCR interactive2", &format!(":{}", i + 1));
    c.ask("COMMIT", "+OK");
}

fn resp3(c: &mut Client, i: u64) {
    c.ask("GET never", "_");
    c.ask("INCR resp3", &format!(":{}", i + 1));
}

/// Checks what the work has left.
pub fn check(client: &mut Client, done: &[(&'static str, u64)]) {
    for &(name, count) in done {
        assert!(count > 0, "{name} did nothing");
        assert_eq!(counter(client, name), count, "{name}");
        match name {
            "multi" => assert_eq!(counter(client, "multi2"), count),
            "interactive" => assert_eq!(counter(client, "interactive2"), count),
            "pipeline" => assert_eq!(counter(client, "pipeline8"), 8 * count),
            _ => {}
        }
    }
}
