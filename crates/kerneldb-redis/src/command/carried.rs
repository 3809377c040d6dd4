//! The state of a connection that another process continues, after an upgrade of the server.
//!
//! Both processes may be of different versions. A field that the other one does not know is left out or has its default, so fields are
//! only ever added.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::clients::{Client, Peer};
use super::connection::Connection;
use super::monitor;
use super::multi::{CarriedWatch, Multi};
use super::request::{PendingCommand, ReplyMode};
use super::services::{AdminTaskTicket, Services};
use super::users;
use crate::resp::{Protocol, Writer};
use bedplate_kerneldb::Durability;

/// The state of a connection without its session.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CarriedConnection {
    /// Number of the connection.
    pub(super) id: u64,
    /// Time at which it was accepted, in milliseconds since the Unix epoch.
    pub(super) created_ms: u64,
    /// Time of its last command in user space, likewise.
    active_ms: u64,
    name: String,
    lib_name: String,
    lib_ver: String,
    no_evict: bool,
    no_touch: bool,
    resp3: bool,
    authenticated: bool,
    /// The user for whom it acts; `None` from a program that has no users.
    user: Option<ByteBuf>,
    /// The durability that the client has chosen.
    durability: Option<ChosenDurability>,
    reply_mode: ReplyMode,
    watched: Vec<CarriedWatch>,
    multi: Option<CarriedMulti>,
    /// Bytes of requests that are not answered.
    input: ByteBuf,
    /// The client has asked for the upgrade, and is to be told how it ended.
    awaits_upgrade: bool,
    /// It is to be closed when its replies are sent.
    closing: bool,
    /// It sees every command of all clients.
    monitor: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum ChosenDurability {
    Off,
    Async,
    Sync,
}

/// A queue between MULTI and EXEC.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct CarriedMulti {
    /// The requests as a client sends them.
    requests: ByteBuf,
    broken: bool,
}

impl CarriedConnection {
    /// Whether it sees every command of all clients.
    pub fn is_monitor(&self) -> bool {
        self.monitor
    }
}

impl Connection {
    /// Whether the connection has to run once more before another process can continue it: a task has ended of which the client was not
    /// told yet.
    pub fn has_news(&self) -> bool {
        matches!(&self.core.pending, Some(PendingCommand::AdminTask(ticket)) if ticket.result().is_some())
    }

    /// Ends the connection here. Replies that waited for the disk are appended to `out`: the caller has made everything durable.
    /// `upgrade` is the task that the client may wait for. `None` if nobody can continue the connection, because a part of its input is
    /// gone, or because the outcome of another task is known here alone.
    pub fn into_carried(
        mut self,
        upgrade: &Arc<AdminTaskTicket>,
        out: &mut Vec<u8>,
    ) -> Option<CarriedConnection> {
        if self.has_news() || self.core.user.is_removed() {
            return None;
        }
        out.append(&mut self.held);
        let core = &mut self.core;
        core.server.monitors.take(core.client.id, out);
        let asked =
            matches!(&core.pending, Some(PendingCommand::AdminTask(ticket)) if Arc::ptr_eq(ticket, upgrade));
        let awaits_upgrade = asked && core.reply_mode == ReplyMode::On;
        if asked {
            self.parser.consume();
            if core.reply_mode == ReplyMode::SkipNext {
                core.reply_mode = ReplyMode::On;
            }
        }
        let input = match self.parser.unconsumed() {
            Some(input) => ByteBuf::from(input),
            None if self.closing => ByteBuf::new(),
            None => return None,
        };
        let text = core.client.text().clone();
        let chosen = core.has_chosen_durability.then_some(match core.durability {
            Durability::Off => ChosenDurability::Off,
            Durability::Async => ChosenDurability::Async,
            Durability::Sync => ChosenDurability::Sync,
        });
        Some(CarriedConnection {
            id: core.client.id,
            created_ms: core.client.created_ms,
            active_ms: core.client.state.active_ms.load(Relaxed),
            name: text.name,
            lib_name: text.lib_name,
            lib_ver: text.lib_ver,
            no_evict: core.client.state.no_evict.load(Relaxed),
            no_touch: core.client.state.no_touch.load(Relaxed),
            resp3: core.protocol == Protocol::Resp3,
            authenticated: core.authenticated,
            user: Some(core.user.name().to_vec().into()),
            durability: chosen,
            reply_mode: core.reply_mode,
            watched: core.watched.iter().map(CarriedWatch::of).collect(),
            multi: core
                .multi
                .as_ref()
                .map(|multi| CarriedMulti { requests: multi.to_requests().into(), broken: multi.broken }),
            input,
            awaits_upgrade,
            closing: self.closing,
            monitor: core.is_monitor(),
        })
    }

    /// Continues a connection of another process. [`Connection::enter_database`] has to follow. `upgraded` is the outcome of the upgrade,
    /// which is appended to `out` if the client has asked for it.
    pub fn continued(
        services: &impl Services,
        peer: Peer,
        carried: CarriedConnection,
        upgraded: Result<(), &str>,
        out: &mut Vec<u8>,
    ) -> Connection {
        let server = services.server();
        let client = server.clients.register_again(carried.id, carried.created_ms, peer);
        let mut connection = Connection::of_client(Arc::clone(server), client);
        let core = &mut connection.core;
        core.client.describe_itself(carried.name, carried.lib_name, carried.lib_ver);
        core.client.state.active_ms.store(carried.active_ms, Relaxed);
        core.client.state.no_evict.store(carried.no_evict, Relaxed);
        core.client.state.no_touch.store(carried.no_touch, Relaxed);
        core.protocol = if carried.resp3 { Protocol::Resp3 } else { Protocol::Resp2 };
        let user = match &carried.user {
            Some(name) => server.acl.get(name),
            None => Some(server.acl.default_user().clone()),
        };
        let is_unknown = user.is_none();
        match user {
            Some(user) => core.become_user(user, carried.authenticated),
            None => tracing::error!(client = carried.id, "closing: its user does not exist here"),
        }
        if let Some(durability) = carried.durability {
            core.has_chosen_durability = true;
            core.durability = match durability {
                ChosenDurability::Off => Durability::Off,
                ChosenDurability::Async => Durability::Async,
                ChosenDurability::Sync => Durability::Sync,
            };
        }
        core.reply_mode = carried.reply_mode;
        core.watched = carried.watched.into_iter().map(CarriedWatch::into_watched).collect();
        if carried.awaits_upgrade {
            let mut writer = Writer::new(out, core.protocol);
            match upgraded {
                Ok(()) => writer.ok(),
                Err(message) => writer.error(message.as_bytes()),
            }
        }
        // The queue may have what only an authenticated client may send.
        connection.update_limits();
        if let Some(multi) = &carried.multi {
            connection.import_multi(&multi.requests, multi.broken);
        }
        if !is_unknown {
            connection.parser.feed(&carried.input);
            if carried.monitor && users::may_monitor(&connection.core.user) {
                monitor::start(&connection.core);
            }
        }
        connection.closing = carried.closing || is_unknown;
        connection
    }
}

impl Client {
    /// Sets the client's description of itself.
    fn describe_itself(&self, name: String, lib_name: String, lib_ver: String) {
        let mut text = self.text();
        (text.name, text.lib_name, text.lib_ver) = (name, lib_name, lib_ver);
    }
}

impl Multi {
    /// The queued requests as a client sends them.
    fn to_requests(&self) -> Vec<u8> {
        let mut requests = Vec::new();
        let mut writer = Writer::new(&mut requests, Protocol::Resp2);
        for args in self.requests() {
            writer.array(args.len());
            args.from(0).for_each(|arg| writer.bulk(arg));
        }
        requests
    }
}
