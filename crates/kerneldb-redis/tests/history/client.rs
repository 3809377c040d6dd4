//! A client that runs transactions and notes their reads, writes and outcomes.

use std::net::SocketAddr;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use bedplate_history::{Outcome, Step, Transaction};
use redis::{Connection, Value as Reply};

use super::plan::{Effect, Frame, Plan, Request};
use crate::server::words;

/// Longest time for which a client waits for a reply.
const PATIENCE: Duration = Duration::from_secs(60);

/// The state of the server that clients use at the same time.
pub struct Service {
    pub addr: SocketAddr,
    /// The clock of the history.
    pub clock: Instant,
    /// Set when the server's end begins: connections may break from now on, and replies that come later are not of
    /// the history. Clients note their outcomes under the lock, so none is noted in between.
    pub ending: RwLock<bool>,
}

impl Service {
    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    pub fn is_ending(&self) -> bool {
        *self.ending.read().unwrap()
    }
}

/// The connection is gone.
struct Lost;

pub struct Client<'a> {
    number: u32,
    service: &'a Service,
    connection: Option<Connection>,
}

impl Client<'_> {
    pub fn new(number: u32, service: &Service) -> Client<'_> {
        Client { number, service, connection: None }
    }

    /// Connects unless the client is connected; `false` if the server is ending.
    fn connect(&mut self) -> bool {
        if self.connection.is_some() {
            return true;
        }
        let client = redis::Client::open(format!("redis://{}/", self.service.addr)).unwrap();
        match client.get_connection() {
            Ok(connection) => {
                connection.set_read_timeout(Some(PATIENCE)).unwrap();
                self.connection = Some(connection);
                true
            }
            Err(error) => {
                assert!(self.service.is_ending(), "cannot connect: {error}");
                false
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        let connection = self.connection.as_mut().ok_or(Lost)?;
        connection.send_packed_command(bytes).map_err(|_| self.lost())
    }

    fn receive(&mut self) -> Result<Reply, Lost> {
        let connection = self.connection.as_mut().ok_or(Lost)?;
        connection.recv_response().map_err(|_| self.lost())
    }

    fn lost(&mut self) -> Lost {
        assert!(self.service.is_ending(), "the server has closed a connection");
        self.connection = None;
        Lost
    }

    /// Sends the requests of a transaction and receives the replies; returns the replies that were received, and
    /// whether the last request was sent completely, or perhaps.
    fn exchange(&mut self, plan: &Plan) -> (Vec<Reply>, bool) {
        let (mut replies, count) = (Vec::new(), plan.requests.len());
        let whole = plan.hang_up.unwrap_or(count);
        let part =
            plan.requests.get(whole).map_or(&[][..], |request| &request.bytes[..request.bytes.len() / 2]);
        let requests = &plan.requests[..whole];
        let is_complete = if plan.pipelined {
            // If sending fails, a part of the bytes may have arrived.
            let _ = self.exchange_at_once(requests, part, plan.hang_up.is_some(), &mut replies);
            whole == count
        } else {
            match self.exchange_one_by_one(plan, requests, &mut replies) {
                Ok(()) => {
                    if !part.is_empty() {
                        let _ = self.send(part);
                    }
                    whole == count
                }
                // The request without a reply may have arrived.
                Err(Lost) => replies.len() + 1 == count,
            }
        };
        if plan.hang_up.is_some() {
            self.connection = None;
        }
        (replies, is_complete)
    }

    /// Sends requests and a part of the next one in one piece, and receives the replies unless the client hangs up.
    fn exchange_at_once(
        &mut self,
        requests: &[Request],
        part: &[u8],
        hangs_up: bool,
        replies: &mut Vec<Reply>,
    ) -> Result<(), Lost> {
        let bytes: Vec<&[u8]> = requests.iter().map(|request| &request.bytes[..]).chain([part]).collect();
        self.send(&bytes.concat())?;
        while !hangs_up && replies.len() < requests.len() {
            replies.push(self.receive()?);
        }
        Ok(())
    }

    /// Sends each request after the reply to the one before. A client that hangs up does not receive the last reply.
    fn exchange_one_by_one(
        &mut self,
        plan: &Plan,
        requests: &[Request],
        replies: &mut Vec<Reply>,
    ) -> Result<(), Lost> {
        for (number, request) in requests.iter().enumerate() {
            std::thread::sleep(plan.pause);
            self.send(&request.bytes)?;
            if plan.hang_up.is_some() && number + 1 == requests.len() {
                break;
            }
            let reply = self.receive()?;
            let failed = matches!(reply, Reply::ServerError(_)) && plan.frame == Frame::Interactive;
            replies.push(reply);
            if failed {
                // Only ROLLBACK can follow. COMMIT would report the error that came before it.
                break;
            }
        }
        Ok(())
    }

    /// Runs a transaction; `None` if the server is ending and it did not begin.
    pub fn run(&mut self, plan: &Plan) -> Option<Transaction> {
        if self.service.is_ending() || !self.connect() {
            return None;
        }
        let begin = self.service.now();
        let (replies, is_complete) = self.exchange(plan);
        let ending = self.service.ending.read().unwrap();
        let end = self.service.now();
        let mut outcome = match replies.last() {
            _ if plan.rolls_back || !is_complete => Outcome::Aborted,
            Some(last) if replies.len() == plan.requests.len() => outcome(plan, last),
            // An error ended the transaction early.
            Some(Reply::ServerError(_)) if plan.frame == Frame::Interactive && !plan.pipelined => {
                Outcome::Aborted
            }
            _ => Outcome::Unknown,
        };
        if *ending && outcome == Outcome::Committed {
            outcome = Outcome::Unknown;
        }
        drop(ending);
        let failed = matches!(replies.last(), Some(Reply::ServerError(_)));
        if failed && plan.frame == Frame::Interactive && self.connection.is_some() {
            // If COMMIT has rolled back already, ROLLBACK is an error, which does no harm.
            if self.send(&words("ROLLBACK")).is_ok() {
                let _ = self.receive();
            }
        }
        let steps = steps(plan, &replies, outcome);
        Some(Transaction { kind: plan.kind, client: self.number, begin, end, outcome, steps })
    }
}

/// The outcome of a transaction whose last request, which commits it, has a reply.
fn outcome(plan: &Plan, last: &Reply) -> Outcome {
    match (plan.frame, last) {
        // The log cannot be written, so the commit may be lost or not.
        (_, Reply::ServerError(error)) if error.code() == "MISCONF" => Outcome::Unknown,
        (_, Reply::ServerError(_)) => Outcome::Aborted,
        // A key under WATCH has changed.
        (Frame::Multi, Reply::Nil) => Outcome::Aborted,
        _ => Outcome::Committed,
    }
}

/// The steps of a transaction, as far as its client knows them.
fn steps(plan: &Plan, replies: &[Reply], outcome: Outcome) -> Vec<Step> {
    let mut steps = Vec::new();
    // The queued requests of EXEC have their replies in that of EXEC.
    let is_multi = |request: &Request| request.bytes == words("MULTI");
    let multi = plan.requests.iter().position(is_multi).filter(|_| plan.frame == Frame::Multi);
    let queued = match replies.last() {
        Some(Reply::Array(queued)) if multi.is_some() && replies.len() == plan.requests.len() => &queued[..],
        _ => &[],
    };
    let failed = |reply: &Reply| matches!(reply, Reply::ServerError(_));
    let watches = !replies.iter().take(multi.unwrap_or(0)).any(failed);
    for (number, request) in plan.requests.iter().enumerate() {
        let reply = match multi {
            Some(multi) if number < multi && !watches => continue,
            Some(multi) if number > multi => queued.get(number - multi - 1),
            _ => replies.get(number),
        };
        match (&request.effect, reply) {
            (Effect::None, _) => {}
            // The call is refused, so its transaction is not committed: only `outcome` knows.
            (Effect::CallRefused(..), Some(Reply::ServerError(_))) => steps.extend(request.effect.writes()),
            (effect, Some(reply)) => steps.extend(effect.steps(reply)),
            (effect, None) if outcome != Outcome::Committed => steps.extend(effect.writes()),
            (effect, None) => panic!("committed without a reply to {effect:?}"),
        }
    }
    steps
}
