//! The event loop: one thread that accepts connections, executes the requests that the kernel passes to it, and cleans up.
//!
//! The listener, signals of the eBPF programs, connections, timers, commits that reach the disk, and [`Wake`]
//! wake it. It watches a connection for arriving data only while it has its turn there, so that a
//! request that the kernel answers does not wake it. It owns all user-space state of the connections, so
//! it needs no lock.
//!
//! The event loop does a bounded amount of work for a connection at a time ([`crate::limits`]). Connections
//! with more to do wait in `runnable`, in the order in which they came.

mod connections;
mod handover;
mod rebuild;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::activity::Activity;
use super::backend::Backend;
use super::client::{Awaiting, Client, Outcome};
use super::handover::Handover;
use super::kernel_side::KernelSide;
use super::listener::{self, Listener};
use super::signals::Signals;
use super::stats::Counters;
use super::table::Table;
use super::wake::Wake;
use super::workers::BatchWorkers;
use super::{Batching, ServerConfig};
use crate::command::Services;
use crate::limits::{SWEEP_INTERVAL, TURN_EVENTS, TURN_READ_BYTES, TURN_TIME};
use bedplate_kerneldb::wal::DurableWatch;
use bedplate_kerneldb::{Error, Result};

const LISTENER: u64 = u64::MAX;
const SIGNALS: u64 = u64::MAX - 1;
const WAKE: u64 = u64::MAX - 2;
const LOG: u64 = u64::MAX - 3;

/// Interval at which the event loop checks whether a shutdown has its checkpoint, and whether the database can be rebuilt.
const PENDING_POLL: Duration = Duration::from_millis(5);

pub(super) struct EventLoop {
    config: ServerConfig,
    kernel: KernelSide,
    table: Table,
    signals: Signals,
    /// Events that the kernel has reported; empty between rounds.
    events: Vec<epoll::Event>,
    /// Connections whose signals are raised; empty between turns.
    raised: Vec<u32>,
    listener: Arc<Listener>,
    listening: bool,
    epoll: OwnedFd,
    wake: Arc<Wake>,
    counters: Arc<Counters>,
    backend: Arc<Backend>,
    clients: Vec<Option<Client>>,
    free: Vec<u32>,
    /// Tells when the log's durable timestamp advances.
    log: Option<DurableWatch>,
    timers: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    /// Connections whose commits are not on disk yet.
    durable: Vec<(u32, u32)>,
    /// Connections that see every command (MONITOR).
    monitors: Vec<(u32, u32)>,
    /// Connections that can continue at once, by index and generation.
    runnable: VecDeque<(u32, u32)>,
    /// The buffer for one read from a connection.
    buffer: Box<[u8]>,
    next_sweep: Instant,
    /// Connections at and above this index were never in use.
    used: Arc<AtomicU32>,
    /// Keeps the kernel's workers in the batch class.
    _workers: Option<BatchWorkers>,
    stop: bool,
    /// The parts of this server for another program; the event loop has ended then.
    handover: Option<Handover>,
}

fn io(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |e| Error::io(what, e.into())
}

impl EventLoop {
    pub(super) fn new(
        mut config: ServerConfig,
        kernel: KernelSide,
        listener: Arc<Listener>,
        wake: Arc<Wake>,
        counters: Arc<Counters>,
        backend: Arc<Backend>,
    ) -> Result<Self> {
        config.kernel_path &= kernel.programs.is_some();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("create the event queue"))?;
        let signals = kernel.maps.signals()?;
        let add = |fd, token| {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)
                .map_err(io("watch a descriptor"))
        };
        add(listener.fd(), LISTENER)?;
        add(signals.fd(), SIGNALS)?;
        add(wake.fd(), WAKE)?;
        let used = Arc::new(AtomicU32::new(0));
        let workers = match config.batch_workers {
            Batching::Never => None,
            Batching::UnderLoad if !config.kernel_path => None,
            // Without programs, the event loop sends the replies.
            Batching::Always if kernel.programs.is_none() => None,
            Batching::UnderLoad => {
                let activity = Activity::new(kernel.maps.connections()?, Arc::clone(&used));
                Some(BatchWorkers::while_busy(activity)?)
            }
            Batching::Always => Some(BatchWorkers::new()?),
        };
        let store = backend.store();
        let mut event_loop = EventLoop {
            table: kernel.maps.table()?,
            clients: (0..config.max_clients).map(|_| None).collect(),
            free: (0..config.max_clients).rev().collect(),
            used,
            _workers: workers,
            config,
            kernel,
            signals,
            events: Vec::with_capacity(TURN_EVENTS),
            raised: Vec::new(),
            listener,
            listening: true,
            epoll,
            wake,
            counters,
            backend,
            log: None,
            timers: BinaryHeap::new(),
            durable: Vec::new(),
            monitors: Vec::new(),
            runnable: VecDeque::new(),
            buffer: vec![0; TURN_READ_BYTES].into_boxed_slice(),
            next_sweep: Instant::now() + SWEEP_INTERVAL,
            stop: false,
            handover: None,
        };
        if let Some(store) = store {
            event_loop.watch_log(&store)?;
        }
        Ok(event_loop)
    }

    /// Runs until [`Wake::stop`], a client's SHUTDOWN, or an upgrade. Returns the parts for the next program then.
    pub(super) fn run(&mut self) -> Result<Option<Handover>> {
        while !self.stop && !self.wake.stopped() {
            self.run_once()?;
        }
        // A stop that came meanwhile wins, and closes the connections.
        Ok(self.handover.take().filter(|_| !self.wake.stopped()))
    }

    /// Waits for events, and does a bounded amount of work.
    fn run_once(&mut self) -> Result<()> {
        let timeout = self.timeout();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(e) => return Err(Error::io("wait for events", e.into())),
        }
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event.data.u64() {
                LISTENER => self.accept(),
                SIGNALS => {}
                WAKE => self.wake.clear(),
                LOG => self.log.iter().for_each(DurableWatch::clear),
                token => self.socket_event(token as u32, (token >> 32) as u32, event.flags),
            }
        }
        self.events = events;
        self.take_signals();
        self.run_timers();
        self.run_durable();
        self.run_runnable();
        self.restrict_clients();
        self.run_rebuild()?;
        self.run_monitors();
        self.stop |= self.backend.poll_shutdown();
        self.sweep();
        Ok(())
    }

    fn timeout(&self) -> Timespec {
        if !self.runnable.is_empty() || self.backend.server().monitors.has_news() {
            return Timespec { tv_sec: 0, tv_nsec: 0 };
        }
        let now = Instant::now();
        let mut until = self.next_sweep;
        if let Some(Reverse((at, ..))) = self.timers.peek() {
            until = until.min(*at);
        }
        let server = self.backend.server();
        if server.shutdown.is_under_way() || self.backend.rebuild_requests().is_busy() {
            until = until.min(now + PENDING_POLL);
        }
        let wait = until.saturating_duration_since(now);
        Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
    }

    fn socket_event(&mut self, index: u32, generation: u32, flags: EventFlags) {
        let Some(client) = self.client(index, generation) else { return };
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            self.close(index, "disconnected");
            return;
        }
        if flags.contains(EventFlags::RDHUP) && !client.half_closed {
            client.half_closed = true;
            // No more data arrives. The kick makes sure that the verdict sees all data that did.
            let _ = listener::kick(&client.stream);
        }
        self.advance(index);
        // The kernel has answered the data, so the event loop need not watch for it any longer.
        if flags.contains(EventFlags::IN)
            && let Some(client) = self.client(index, generation)
            && client.is_with_kernel()
        {
            self.watch(index, EventFlags::empty());
        }
    }

    fn client(&mut self, index: u32, generation: u32) -> Option<&mut Client> {
        self.clients.get_mut(index as usize)?.as_mut().filter(|c| c.generation == generation)
    }

    fn take_signals(&mut self) {
        let mut raised = std::mem::take(&mut self.raised);
        self.signals.take(&mut raised);
        for index in raised.drain(..) {
            // A signal may be older than the connection that has the index now; then there is nothing to do.
            if (index as usize) < self.clients.len() {
                self.advance(index);
            }
        }
        self.raised = raised;
    }

    /// Lets connections continue that have more to do, for a bounded time.
    fn run_runnable(&mut self) {
        let start = Instant::now();
        for _ in 0..self.runnable.len() {
            let Some((index, generation)) = self.runnable.pop_front() else { return };
            if let Some(client) = self.client(index, generation) {
                client.runnable = false;
                self.advance(index);
            }
            if start.elapsed() >= TURN_TIME {
                return;
            }
        }
    }

    /// Takes the connections of users who have lost rights from the kernel. The gate has been closed since before the rights changed.
    fn restrict_clients(&mut self) {
        if !self.backend.restricts() {
            return;
        }
        for (index, client) in (0..).zip(&mut self.clients) {
            if let Some(client) = client {
                client.restrict(self.table.conn(index));
            }
        }
        self.backend.end_restriction();
    }

    /// Lets a connection work, and watches for the event that it then waits for.
    fn advance(&mut self, index: u32) {
        let Some(client) = self.clients[index as usize].as_mut() else { return };
        if client.runnable {
            return;
        }
        let slot = self.table.conn(index);
        let before = client.awaiting;
        match client.advance(slot, &mut self.buffer) {
            Outcome::Fine => {}
            Outcome::Killed => self.close_killed(index),
            Outcome::Shutdown => {
                tracing::info!("a client asked for shutdown");
                self.stop = true;
            }
        }
        let Some(client) = self.clients[index as usize].as_mut() else { return };
        let slot = self.table.conn(index);
        let (generation, awaiting) = (client.generation, client.awaiting);
        if client.is_monitor() && !client.is_listed_monitor {
            client.is_listed_monitor = true;
            self.monitors.push((index, generation));
        }
        match awaiting {
            Awaiting::Close => {
                let why = slot.broken();
                let reason = if why == 0 { "done" } else { connections::broken_reason(why) };
                return self.close(index, reason);
            }
            Awaiting::Until(at) if awaiting != before => self.timers.push(Reverse((at, index, generation))),
            Awaiting::Durable(_) if !client.waits_for_disk => {
                client.waits_for_disk = true;
                self.durable.push((index, generation));
            }
            Awaiting::Others => {
                client.runnable = true;
                self.runnable.push_back((index, generation));
            }
            _ => {}
        }
        if client.half_closed && client.is_idle(slot) {
            return self.close(index, "closed by the client");
        }
        // A connection that is watched for data stays so until an event comes for data that the kernel has answered.
        let watched = client.interest & (EventFlags::IN | EventFlags::ET);
        match awaiting {
            Awaiting::Write => self.watch(index, EventFlags::OUT),
            _ if client.is_with_kernel() => self.watch(index, watched),
            _ => self.watch(index, EventFlags::IN | EventFlags::ET),
        }
    }

    /// Closes the connections that the client at `killer` has killed, before it gets the reply: the kernel would go on answering
    /// their requests. The killer itself ends after the reply if it is one of them.
    fn close_killed(&mut self, killer: u32) {
        for index in 0..self.clients.len() as u32 {
            if index != killer && self.clients[index as usize].as_ref().is_some_and(Client::killed) {
                self.close(index, "killed by another client");
            }
        }
    }

    /// Sets the events for which epoll watches a connection, beside the end of its data. Data is reported on edges,
    /// because the number of passed bytes says whether there is any.
    fn watch(&mut self, index: u32, what: EventFlags) {
        let Some(client) = self.clients[index as usize].as_mut() else { return };
        let mut interest = what;
        interest.set(EventFlags::RDHUP, !client.half_closed);
        if interest == client.interest {
            return;
        }
        client.interest = interest;
        let token = EventData::new_u64(u64::from(client.generation) << 32 | u64::from(index));
        if let Err(e) = epoll::modify(&self.epoll, &client.stream, token, interest) {
            tracing::warn!(error = %e, "watching a connection failed");
            self.close(index, "cannot be watched");
        }
    }

    fn run_timers(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, index, generation))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            if self.client(index, generation).is_some_and(|c| c.awaiting == Awaiting::Until(at)) {
                self.advance(index);
            }
        }
    }

    /// Lets connections continue whose commits are on disk by now.
    fn run_durable(&mut self) {
        if !self.durable.is_empty() {
            let reached = self.backend.durable_ts();
            for (index, generation) in std::mem::take(&mut self.durable) {
                let Some(client) = self.client(index, generation) else { continue };
                match client.awaiting {
                    Awaiting::Durable(ts) if ts > reached => self.durable.push((index, generation)),
                    awaiting => {
                        client.waits_for_disk = false;
                        if matches!(awaiting, Awaiting::Durable(_)) {
                            self.advance(index);
                        }
                    }
                }
            }
        }
    }

    /// Sends the commands of all clients to the monitors. When a monitor is gone, the kernel may answer again.
    fn run_monitors(&mut self) {
        let (has_news, before) = (self.backend.server().monitors.take_news(), self.monitors.len());
        let mut monitors = std::mem::take(&mut self.monitors);
        monitors.retain(|&(index, generation)| {
            if has_news && self.client(index, generation).is_some() {
                self.advance(index);
            }
            self.client(index, generation).is_some_and(|client| {
                client.is_listed_monitor = client.is_monitor();
                client.is_listed_monitor
            })
        });
        let gone = monitors.len() < before;
        self.monitors.append(&mut monitors);
        if gone {
            self.backend.pauses_changed();
        }
    }

    /// Checks every connection for changes that no event announces.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP_INTERVAL;
        self.backend.sample();
        if !self.listening {
            self.listen(true);
        }
        let timeout = self.backend.server().settings.timeout_s();
        let limit = (timeout > 0).then(|| Duration::from_secs(timeout));
        let clock = clock_gettime(ClockId::Monotonic);
        let clock_ns = clock.tv_sec as u64 * 1_000_000_000 + clock.tv_nsec as u64;
        for index in 0..self.clients.len() as u32 {
            let Some(client) = self.clients[index as usize].as_ref() else { continue };
            let slot = self.table.conn(index);
            // A client that has killed itself ends when its reply is sent. This one does not read the reply.
            if client.killed() && !client.runnable {
                self.close(index, "killed by itself");
                continue;
            }
            if slot.broken() != 0 || client.awaiting == Awaiting::Drain || client.half_closed {
                self.advance(index);
                continue;
            }
            let Some(limit) = limit.filter(|_| !client.is_monitor()) else { continue };
            let silent = Duration::from_nanos(clock_ns.saturating_sub(slot.last_ns()));
            if client.awaiting == Awaiting::Input && client.heard.elapsed() > limit && silent > limit {
                self.close(index, "idle for too long");
            }
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        for index in 0..self.clients.len() as u32 {
            self.close(index, "the server stops");
        }
        let buffers = self.table.claimed_buffers();
        debug_assert_eq!(buffers, 0, "buffers leaked");
        if buffers != 0 {
            tracing::error!(buffers, "buffers leaked");
        }
    }
}
