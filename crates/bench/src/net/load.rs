//! The load generator: a few threads, each with an epoll set and its share of the connections.
//!
//! *Closed loop*: every connection sends `pipeline` requests, waits for all replies, sends the next.
//! Latency counts from the sending. *Open loop*: requests are due at a fixed rate whatever the server
//! does, and latency counts from when a request was due. So a stalled server is charged for all the
//! requests that it kept waiting.
//!
//! Each thread owns its connections, histogram and counters; nothing is shared while it runs.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::wire::{Keys, Reply, Stream, Traffic, Wire};
use crate::cpu::CpuTime;
use crate::keys::{Distribution, KeyStream};
use crate::latency::Latencies;
use crate::{Error, Result};

/// Timing of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loop {
    /// The next requests follow the last replies.
    Closed,
    /// Requests are due at a rate, over all connections.
    Open {
        /// Requests per second.
        rate: f64,
    },
}

/// The extent and timing of a load, whatever its requests are.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Connections.
    pub connections: usize,
    /// Requests per batch (closed loop only).
    pub pipeline: usize,
    /// Generator threads, at most one per connection.
    pub threads: usize,
    /// Timing of requests.
    pub timing: Loop,
    /// Runs before the measurement begins.
    pub warm_up: Duration,
    /// Length of the measurement.
    pub window: Duration,
}

impl Schedule {
    /// A closed loop with a thread for each processor, at most two.
    pub fn closed(connections: usize, pipeline: usize, warm_up: Duration, window: Duration) -> Schedule {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(2);
        Schedule { connections, pipeline, threads, timing: Loop::Closed, warm_up, window }
    }
}

/// A workload of GETs and SETs on one server.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Its extent and timing.
    pub schedule: Schedule,
    /// Keys `0..keys` exist.
    pub keys: u64,
    /// Bytes of every value.
    pub value_len: usize,
    /// Share of SETs in 100 requests.
    pub set_percent: u32,
    /// Popularity of keys.
    pub distribution: Distribution,
    /// Seed of the key streams.
    pub seed: u64,
}

impl Load {
    /// The requests of one of its threads.
    pub fn traffic(&self, thread: usize) -> Keys {
        let seed = self.seed.wrapping_add(thread as u64);
        Keys {
            wire: Wire::new(self.value_len),
            stream: KeyStream::new(self.distribution, self.keys, seed),
            set_percent: self.set_percent,
        }
    }
}

/// Results of the generator in the window.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Right replies.
    pub replies: u64,
    /// Error replies.
    pub refused: u64,
    /// Latencies of all replies.
    pub latencies: Latencies,
    /// Open loop: how late requests were sent (the generator's own fault).
    pub lag: Latencies,
    /// The generator's CPU time.
    pub cpu: CpuTime,
    /// Length of the window in nanoseconds.
    pub wall_ns: u64,
}

impl Seen {
    /// Right replies per second.
    pub fn rate(&self) -> f64 {
        self.replies as f64 * 1e9 / self.wall_ns as f64
    }
}

/// Runs a load and returns its results, and those of `edge`, which it calls at the beginning and at the
/// end of the window.
pub fn run<T>(address: SocketAddr, load: &Load, edge: impl FnMut() -> Result<T>) -> Result<(Seen, [T; 2])> {
    let (seen, edges, _) = run_traffic(address, &load.schedule, |thread| load.traffic(thread), edge)?;
    Ok((seen, edges))
}

/// Does the same as [`run`] for any requests. `traffic` makes those of a thread; they are returned after the run.
pub fn run_traffic<T, R: Traffic>(
    address: SocketAddr,
    schedule: &Schedule,
    traffic: impl Fn(usize) -> R,
    mut edge: impl FnMut() -> Result<T>,
) -> Result<(Seen, [T; 2], Vec<R>)> {
    let threads = schedule.threads.clamp(1, schedule.connections);
    let mut workers = Vec::with_capacity(threads);
    for thread in 0..threads {
        workers.push(Worker::connect(address, *schedule, traffic(thread), thread, threads)?);
    }
    let start = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = workers.into_iter().map(|w| scope.spawn(move || w.run(start))).collect();
        let sleep_until = |t: Duration| std::thread::sleep(t.saturating_sub(start.elapsed()));
        sleep_until(schedule.warm_up);
        let begin = edge();
        sleep_until(schedule.warm_up + schedule.window);
        let end = edge();
        let mut seen = Seen::default();
        let mut traffics = Vec::with_capacity(threads);
        for worker in running {
            let (s, traffic) = worker.join().expect("a generator thread does not panic")?;
            traffics.push(traffic);
            seen.replies += s.replies;
            seen.refused += s.refused;
            seen.latencies.merge(&s.latencies);
            seen.lag.merge(&s.lag);
            seen.cpu = seen.cpu.plus(s.cpu);
            seen.wall_ns = seen.wall_ns.max(s.wall_ns);
        }
        Ok((seen, [begin?, end?], traffics))
    })
}

/// The longest wait for the last replies of a run, after the end of its window.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

struct Connection<R> {
    socket: TcpStream,
    stream: Stream<R>,
    /// Whether epoll also reports writability.
    watches_out: bool,
}

struct Worker<R: Traffic> {
    schedule: Schedule,
    traffic: R,
    epoll: OwnedFd,
    connections: Vec<Connection<R::Request>>,
    /// Nanoseconds between two due requests of this thread.
    interval_ns: f64,
    start: Instant,
    seen: Seen,
    recording: bool,
}

impl<R: Traffic> Worker<R> {
    fn connect(
        address: SocketAddr,
        schedule: Schedule,
        traffic: R,
        thread: usize,
        threads: usize,
    ) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::io("epoll_create"))?;
        let mut connections = Vec::new();
        for _ in (thread..schedule.connections).step_by(threads) {
            let mut socket =
                TcpStream::connect(address).map_err(Error::io(format!("connect to {address}")))?;
            socket.set_nodelay(true).map_err(Error::io("TCP_NODELAY"))?;
            traffic.greet(&mut socket).map_err(Error::io("greet the server"))?;
            socket.set_nonblocking(true).map_err(Error::io("O_NONBLOCK"))?;
            let token = epoll::EventData::new_u64(connections.len() as u64);
            epoll::add(&epoll, &socket, token, epoll::EventFlags::IN).map_err(Error::io("epoll_ctl"))?;
            connections.push(Connection { socket, stream: Stream::default(), watches_out: false });
        }
        let interval_ns = match schedule.timing {
            Loop::Closed => f64::INFINITY,
            Loop::Open { rate } => 1e9 * threads as f64 / rate,
        };
        Ok(Worker {
            schedule,
            traffic,
            epoll,
            connections,
            interval_ns,
            start: Instant::now(),
            seen: Seen::default(),
            recording: false,
        })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn run(mut self, start: Instant) -> Result<(Seen, R)> {
        self.start = start;
        let Schedule { timing, warm_up, window, .. } = self.schedule;
        let (warm, end) = (warm_up.as_nanos() as u64, (warm_up + window).as_nanos() as u64);
        let open = timing != Loop::Closed;
        if open {
            // Sleeping until a request is due must not be rounded up to the default slack of 50 µs.
            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).ok();
        } else {
            for c in 0..self.connections.len() {
                self.send_batch(c)?;
            }
        }
        let mut due = 0.0f64;
        let mut next = 0usize;
        let mut cpu = CpuTime::default();
        let mut began = 0;
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        loop {
            let now = self.now();
            if !self.recording && now >= warm {
                self.recording = true;
                began = now;
                cpu = CpuTime::of_thread();
            }
            if now >= end {
                self.seen.cpu = CpuTime::of_thread().since(cpu);
                self.seen.wall_ns = now - began;
                self.recording = false;
                if R::ANSWERS_ALL {
                    self.receive_rest()?;
                }
                return Ok((self.seen, self.traffic));
            }
            let mut until = end;
            if open {
                while due <= now as f64 {
                    let since = due as u64;
                    if self.recording {
                        self.seen.lag.record(now - since);
                    }
                    self.request(next, since);
                    self.flush(next)?;
                    next = (next + 1) % self.connections.len();
                    due += self.interval_ns;
                }
                until = until.min(due as u64);
            }
            let wait = Duration::from_nanos(until.saturating_sub(self.now()));
            let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
            let ready = match epoll::wait(&self.epoll, &mut events, Some(&wait)) {
                Ok((ready, _)) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(Error::io("epoll_wait")(e)),
            };
            for event in ready {
                let (flags, token) = (event.flags, event.data.u64() as usize);
                if flags.contains(epoll::EventFlags::OUT) {
                    self.flush(token)?;
                }
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.receive(token)?;
                    if !open && self.connections[token].stream.pending() == 0 {
                        self.send_batch(token)?;
                    }
                }
            }
        }
    }

    /// Sends the unsent bytes of each connection and receives its missing replies.
    fn receive_rest(&mut self) -> Result<()> {
        let late = Instant::now() + ANSWER_LIMIT;
        for c in 0..self.connections.len() {
            while self.connections[c].stream.pending() > 0 {
                if Instant::now() > late {
                    let problem = format!("no reply within {} s", ANSWER_LIMIT.as_secs());
                    return Err(Error::Protocol { server: "the server".to_owned(), problem });
                }
                let mut events = rustix::event::PollFlags::IN;
                if !self.connections[c].stream.unsent().is_empty() {
                    events |= rustix::event::PollFlags::OUT;
                }
                let socket = &self.connections[c].socket;
                let mut polled = [rustix::event::PollFd::new(socket, events)];
                let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
                match rustix::event::poll(&mut polled, Some(&wait)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(Error::io("poll")(e)),
                }
                self.flush(c)?;
                self.receive(c)?;
            }
        }
        Ok(())
    }

    fn request(&mut self, connection: usize, since_ns: u64) {
        let traffic = &mut self.traffic;
        self.connections[connection].stream.append(since_ns, |out| traffic.request(out));
    }

    fn send_batch(&mut self, connection: usize) -> Result<()> {
        let now = self.now();
        for _ in 0..self.schedule.pipeline {
            self.request(connection, now);
        }
        self.flush(connection)
    }

    /// Sends as many bytes as the socket takes; watches for writability if some are left.
    fn flush(&mut self, connection: usize) -> Result<()> {
        let c = &mut self.connections[connection];
        while !c.stream.unsent().is_empty() {
            match c.socket.write(c.stream.unsent()) {
                Ok(n) => c.stream.was_sent(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("send to the server")(e)),
            }
        }
        let watch = !c.stream.unsent().is_empty();
        if watch != c.watches_out {
            c.watches_out = watch;
            let flags =
                if watch { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            let token = epoll::EventData::new_u64(connection as u64);
            epoll::modify(&self.epoll, &c.socket, token, flags).map_err(Error::io("epoll_ctl"))?;
        }
        Ok(())
    }

    /// Receives the available bytes and checks the replies.
    fn receive(&mut self, connection: usize) -> Result<()> {
        let mut buffer = [0u8; 65536];
        loop {
            let c = &mut self.connections[connection];
            let n = match c.socket.read(&mut buffer) {
                Ok(0) => return Err(Error::io("receive")(io::Error::from(io::ErrorKind::UnexpectedEof))),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Error::io("receive from the server")(e)),
            };
            c.stream.received(&buffer[..n]);
            let now = self.start.elapsed().as_nanos() as u64;
            let traffic = &mut self.traffic;
            while let Some((reply, since)) = c.stream.checked(|request, rest| traffic.reply(request, rest))? {
                if !self.recording {
                    continue;
                }
                match reply {
                    Reply::Right => self.seen.replies += 1,
                    Reply::Refused => self.seen.refused += 1,
                }
                self.seen.latencies.record(now.saturating_sub(since));
            }
            if n < buffer.len() {
                return Ok(());
            }
        }
    }
}

/// Writes keys `0..keys` with values of `value_len` bytes through one pipelined connection.
pub fn fill(address: SocketAddr, keys: u64, value_len: usize) -> Result<()> {
    each_key(address, keys, value_len, true)
}

/// Reads keys `0..keys` that [`fill`] wrote, and checks their values, through one pipelined connection.
pub fn read_back(address: SocketAddr, keys: u64, value_len: usize) -> Result<()> {
    each_key(address, keys, value_len, false)
}

/// Sends one SET or one GET for each of the keys `0..keys`.
fn each_key(address: SocketAddr, keys: u64, value_len: usize, set: bool) -> Result<()> {
    let verb = if set { "to store" } else { "to return" };
    let wire = Wire::new(value_len);
    let mut stream = Stream::default();
    let mut socket = TcpStream::connect(address).map_err(Error::io(format!("connect to {address}")))?;
    socket.set_nodelay(true).map_err(Error::io("TCP_NODELAY"))?;
    let mut buffer = [0u8; 65536];
    let batch = (32_768 / value_len as u64).clamp(1, 256);
    let mut key = 0;
    while key < keys {
        for k in key..(key + batch).min(keys) {
            stream.request(&wire, k, set, 0);
        }
        key = (key + batch).min(keys);
        socket.write_all(stream.unsent()).map_err(Error::io("send to the server"))?;
        stream.was_sent(stream.unsent().len());
        while stream.pending() > 0 {
            match stream.reply(&wire)? {
                Some((Reply::Right, _)) => {}
                Some((Reply::Refused, _)) => {
                    return Err(Error::Protocol {
                        server: address.to_string(),
                        problem: format!("it refused {verb} one of the {keys} keys of the workload"),
                    });
                }
                None => match socket.read(&mut buffer).map_err(Error::io("receive from the server"))? {
                    0 => return Err(Error::io("receive")(io::Error::from(io::ErrorKind::UnexpectedEof))),
                    n => stream.received(&buffer[..n]),
                },
            }
        }
    }
    Ok(())
}
