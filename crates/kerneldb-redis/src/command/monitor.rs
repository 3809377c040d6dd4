//! MONITOR: connections that see every command of all clients.
//!
//! A command becomes a line, which each monitor gets behind the replies that it has so far. The lines wait here until the event loop sends
//! them. A monitor for which too many bytes wait is closed.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clients::Clients;
use super::exec::{Ctx, Run};
use super::operators::Operators;
use super::request::Core;
use super::services::Services;
use crate::limits::{MONITOR_BACKLOG_BYTES_MAX, MONITORS_BACKLOG_BYTES_MAX};

/// The monitors of a server. The lock is held for a copy of lines.
#[derive(Debug, Default)]
pub struct Monitors {
    count: AtomicUsize,
    /// There are lines that the event loop does not know of.
    has_news: AtomicBool,
    list: Mutex<Vec<Monitor>>,
}

#[derive(Debug)]
struct Monitor {
    /// Number of the connection.
    id: u64,
    /// Lines that are not sent yet.
    backlog: Vec<u8>,
}

impl Monitors {
    /// Whether there is one.
    pub fn exist(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Whether there are new lines since the last call.
    pub fn take_news(&self) -> bool {
        self.has_news.swap(false, Relaxed)
    }

    /// Whether there are new lines since the last call of [`Monitors::take_news`].
    pub fn has_news(&self) -> bool {
        self.has_news.load(Relaxed)
    }

    fn list(&self) -> MutexGuard<'_, Vec<Monitor>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection that is not a monitor yet.
    pub(super) fn add(&self, id: u64) {
        let mut list = self.list();
        list.push(Monitor { id, backlog: Vec::new() });
        self.count.store(list.len(), Relaxed);
    }

    /// Removes a connection.
    pub(super) fn remove(&self, id: u64) {
        let mut list = self.list();
        list.retain(|monitor| monitor.id != id);
        self.count.store(list.len(), Relaxed);
    }

    /// Gives lines to all monitors. `None` are more lines than a monitor may have.
    pub(super) fn tell(&self, lines: Option<&[u8]>, clients: &Clients) {
        let mut list = self.list();
        list.retain_mut(|monitor| {
            let lines =
                lines.filter(|lines| monitor.backlog.len() + lines.len() <= MONITOR_BACKLOG_BYTES_MAX);
            match lines {
                Some(lines) => monitor.backlog.extend_from_slice(lines),
                None => Self::close(monitor.id, clients),
            }
            lines.is_some()
        });
        while list.iter().map(|monitor| monitor.backlog.len()).sum::<usize>() > MONITORS_BACKLOG_BYTES_MAX {
            let longest =
                (0..list.len()).max_by_key(|at| list[*at].backlog.len()).expect("there is a monitor");
            Self::close(list.swap_remove(longest).id, clients);
        }
        self.count.store(list.len(), Relaxed);
        self.has_news.store(true, Relaxed);
    }

    fn close(id: u64, clients: &Clients) {
        tracing::warn!(client = id, "closing: too many bytes of commands wait for a monitor");
        clients.kill(id);
    }

    /// Appends the lines of a monitor to its output.
    pub(super) fn take(&self, id: u64, out: &mut Vec<u8>) {
        if let Some(monitor) = self.list().iter_mut().find(|monitor| monitor.id == id) {
            out.append(&mut monitor.backlog);
        }
    }
}

/// Appends the line of a command. `source` is the address of the client, or `lua`.
pub(super) fn write_line(out: &mut Vec<u8>, now: Duration, source: &str, args: &[&[u8]]) {
    let _ = write!(out, "+{}.{:06} [0 {source}]", now.as_secs(), now.subsec_micros());
    for arg in args {
        out.extend_from_slice(b" \"");
        for byte in *arg {
            match byte {
                b'\\' | b'"' => out.extend_from_slice(&[b'\\', *byte]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                0x07 => out.extend_from_slice(b"\\a"),
                0x08 => out.extend_from_slice(b"\\b"),
                b' '..=b'~' => out.push(*byte),
                _ => drop(write!(out, "\\x{byte:02x}")),
            }
        }
        out.push(b'"');
    }
    out.extend_from_slice(b"\r\n");
}

/// MONITOR. A connection that is a monitor already gets no reply, as in Redis.
pub(super) fn run<S: Operators, V: Services>(core: &mut Core, ctx: &mut Ctx<'_, S, V>) -> Run {
    if core.in_exec {
        return Err("ERR MONITOR isn't allowed for DENY BLOCKING client".into());
    }
    if ctx.store.in_transaction() {
        return Err("ERR MONITOR inside BEGIN is not allowed".into());
    }
    if !core.is_monitor() {
        start(core);
        ctx.services.pauses_changed();
        ctx.out.ok();
    }
    Ok(())
}

/// Makes a connection a monitor. The caller tells the kernel ([`Services::pauses_changed`]).
pub(super) fn start(core: &Core) {
    core.client.state.monitor.store(true, Relaxed);
    core.server.monitors.add(core.client.id);
}

/// Makes a connection an ordinary one again. Returns whether it was a monitor; then the caller tells the kernel.
pub(super) fn end(core: &Core) -> bool {
    let was_monitor = core.client.state.monitor.swap(false, Relaxed);
    if was_monitor {
        core.server.monitors.remove(core.client.id);
    }
    was_monitor
}
