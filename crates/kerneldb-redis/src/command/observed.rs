//! The commands that a request has executed, for the slow log and for monitors.
//!
//! EXEC and scripts execute several commands, and may execute them again from the beginning, because their transaction was rolled back. So
//! the commands are collected here, and are told to the server when the request is answered.

use std::collections::VecDeque;
use std::time::Duration;

use super::clients::Client;
use super::monitor;
use super::redact;
use super::services::{ServerState, unix_time};
use super::slowlog::{self, Entry};
use super::spec::{Resolved, flags};
use crate::limits::MONITOR_BACKLOG_BYTES_MAX;
use crate::resp::Args;

/// The commands that the present request has executed so far.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Lines for monitors.
    lines: Vec<u8>,
    /// There are more lines than a monitor may have.
    has_too_many_lines: bool,
    /// Entries for the slow log, as many as it keeps.
    slow: VecDeque<Entry>,
    /// Number of older entries that are left out, because the slow log does not keep as many.
    slow_left_out: u64,
}

impl Observed {
    /// Forgets the commands, because they will be executed again.
    pub fn clear(&mut self) {
        self.lines.clear();
        self.has_too_many_lines = false;
        self.slow.clear();
        self.slow_left_out = 0;
    }

    /// Takes a command that was executed, by the client or by its script.
    pub fn add(
        &mut self,
        server: &ServerState,
        client: &Client,
        resolved: Resolved,
        args: Args<'_>,
        took: Duration,
        in_script: bool,
    ) {
        if server.monitors.exist() && !resolved.spec.has(flags::SKIP_MONITOR | flags::ADMIN) {
            let source = if in_script { "lua" } else { &client.peer.addr };
            self.add_line(source, &redact::shown(resolved.cmd, args));
        }
        let is_slow = server.settings.slow_log_threshold().is_some_and(|threshold| took >= threshold);
        if is_slow && !resolved.spec.has(flags::SKIP_SLOWLOG) {
            let shown = redact::shown(resolved.cmd, args);
            let (addr, name) = (client.peer.addr.clone(), slowlog::shorten_name(&client.text().name));
            let took_us = took.as_micros() as u64;
            self.slow.push_back(Entry::new(unix_time().as_secs(), took_us, &shown, addr, name));
            if self.slow.len() > server.settings.slow_log_length_max() {
                self.slow.pop_front();
                self.slow_left_out += 1;
            }
        }
    }

    /// Takes a command that runs a script. Monitors see it before the commands of the script.
    pub fn add_script(&mut self, server: &ServerState, client: &Client, args: Args<'_>) {
        if server.monitors.exist() {
            self.add_line(&client.peer.addr, &args.from(0).collect::<Vec<_>>());
        }
    }

    fn add_line(&mut self, source: &str, args: &[&[u8]]) {
        if !self.has_too_many_lines {
            monitor::write_line(&mut self.lines, unix_time(), source, args);
        }
        if self.lines.len() > MONITOR_BACKLOG_BYTES_MAX {
            self.has_too_many_lines = true;
            self.lines = Vec::new();
        }
    }

    /// Tells the server about the commands of a request that is answered.
    pub fn tell(&mut self, server: &ServerState) {
        if !self.lines.is_empty() || self.has_too_many_lines {
            let lines = (!self.has_too_many_lines).then_some(&self.lines[..]);
            server.monitors.tell(lines, &server.clients);
            self.has_too_many_lines = false;
            self.lines = Vec::new();
        }
        if !self.slow.is_empty() || self.slow_left_out > 0 {
            let length_max = server.settings.slow_log_length_max();
            server.slow_log.push(self.slow_left_out, self.slow.drain(..), length_max);
            self.slow_left_out = 0;
        }
    }
}
