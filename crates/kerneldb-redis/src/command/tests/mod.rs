//! Tests of the commands on a model of the database, and against a real Redis.

mod database;
mod differential;
mod dumps;
mod full_log_ring;
mod functions;
mod fuzz;
mod latency;
mod lcs;
mod model;
mod monitor;
mod redis;
mod replies;
mod script_libraries;
mod scripts;
mod slowlog;
mod states;
mod users;

use std::sync::Arc;

use super::{Connection, Next, Operators, Peer, Services, Startup};
use crate::resp::{Protocol, Writer};
use model::{Model, ModelSession};

/// A client with its connection and session.
struct Client<S = ModelSession, V = Arc<Model>> {
    connection: Connection,
    session: S,
    services: V,
    out: Vec<u8>,
}

impl Client {
    fn new(model: &Arc<Model>) -> Client {
        Client::with(model.session(), Arc::clone(model))
    }
}

impl<S: Operators, V: Services> Client<S, V> {
    fn with(session: S, services: V) -> Self {
        let peer = Peer { addr: "127.0.0.1:1".into(), local_addr: "127.0.0.1:6380".into(), fd: 7 };
        Client { connection: Connection::new(&services, peer), session, services, out: Vec::new() }
    }

    fn process(&mut self) -> Next {
        self.connection.process(&mut self.session, &self.services, &mut self.out, None)
    }

    fn feed(&mut self, input: &[u8]) -> Next {
        self.connection.feed(input);
        self.process()
    }

    fn take(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.out)).into_owned()
    }

    /// Sends an inline command and waits for its reply, through retries.
    fn send(&mut self, line: &str) -> String {
        self.connection.feed(format!("{line}\r\n").as_bytes());
        self.finish();
        self.take()
    }

    /// Runs the connection until it asks for no further retry.
    fn finish(&mut self) -> Next {
        loop {
            match self.process() {
                Next::RetryAfter(pause) => std::thread::sleep(pause),
                other => return other,
            }
        }
    }
}

fn one() -> Client {
    Client::new(&Model::new(Startup::default()))
}

fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, Protocol::Resp2);
    writer.array(args.len());
    args.iter().for_each(|arg| writer.bulk(arg.as_ref()));
    out
}
