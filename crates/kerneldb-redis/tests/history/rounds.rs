//! Records a history over several runs of a server.

use std::net::SocketAddr;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use bedplate_history::{History, Key, Order, Outcome, Step, Summary, Transaction, check};

use super::client::{Client, Service};
use super::keys::{Keys, Values, encode, name};
use super::plan::{Frame, Mix, Plan, Planner, Request};
use crate::server::{Client as RawClient, Random, request};

/// Number of clients at the same time.
const CLIENTS: u32 = 6;

/// The number by which reports show the client that reads all keys between two runs.
const AUDITOR: u32 = CLIENTS;

pub struct Recorder {
    pub history: History,
    pub random: Random,
    mix: Mix,
    clock: Instant,
    values: Values,
    next_key: Key,
    keys: Keys,
}

impl Recorder {
    pub fn new(seed: u64, mix: Mix) -> Recorder {
        let mut next_key = 0;
        let keys = Keys::new(&mut next_key);
        let clock = Instant::now();
        let values = Values::default();
        Recorder { history: History::default(), random: Random(seed | 1), mix, clock, values, next_key, keys }
    }

    /// A server that runs from now on.
    pub fn service(&self, addr: SocketAddr) -> Service {
        Service { addr, clock: self.clock, ending: RwLock::new(false) }
    }

    /// From now on clients use new keys. Writes those that are there at first.
    pub fn take_new_keys(&mut self, addr: SocketAddr) {
        self.keys = Keys::new(&mut self.next_key);
        let initial = self.keys.initial(&self.values);
        let mut client = RawClient::new(addr);
        for (&key, &value) in &initial {
            client.send(&request(&[b"SET", name(key).as_bytes(), &encode(value)]));
            client.expect(b"+OK\r\n");
        }
        self.history.initial.extend(initial);
    }

    /// Reads all keys that clients use, in one transaction.
    pub fn read_all(&mut self, service: &Service) {
        let plan = Plan {
            kind: "MGET of all keys",
            frame: Frame::Single,
            requests: vec![Request::get_many(self.keys.all().collect())],
            rolls_back: false,
            pipelined: false,
            pause: Default::default(),
            hang_up: None,
            once: Vec::new(),
        };
        let transaction = Client::new(AUDITOR, service).run(&plan).expect("the server is not ending");
        assert_eq!(transaction.outcome, Outcome::Committed);
        self.history.transactions.push(transaction);
    }

    /// Lets clients run transactions until there are `limit` of them or the server is ending. Meanwhile the caller's
    /// thread runs `meanwhile`, which gets the number of transactions that have begun.
    pub fn run(
        &mut self,
        service: &Service,
        limit: usize,
        meanwhile: impl FnOnce(&AtomicUsize, &mut Random),
    ) {
        let begun = AtomicUsize::new(0);
        let (keys, values, mix) = (&self.keys, &self.values, self.mix);
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| self.random.next()).collect();
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .zip(seeds)
                .map(|(number, seed)| {
                    let (begun, planner) = (&begun, Planner::new(keys, values, mix, seed));
                    scope.spawn(move || run_client(number, service, planner, begun, limit))
                })
                .collect();
            meanwhile(&begun, &mut self.random);
            for client in clients {
                self.history.transactions.extend(client.join().unwrap());
            }
        });
    }

    /// Checks the history; panics with a report if there is no serial order in real time.
    pub fn check(&self) -> Summary {
        let start = Instant::now();
        match check(&self.history, Order::RealTime) {
            Ok(summary) => {
                println!(
                    "{} transactions checked in {:?}: {summary:?}",
                    self.history.transactions.len(),
                    start.elapsed()
                );
                summary
            }
            Err(anomaly) => panic!("{anomaly}"),
        }
    }
}

/// Ends a run when a client ends, also by a panic, so that nobody waits for it.
struct EndOfRun<'a> {
    begun: &'a AtomicUsize,
    limit: usize,
}

impl Drop for EndOfRun<'_> {
    fn drop(&mut self) {
        self.begun.fetch_max(self.limit, SeqCst);
    }
}

fn run_client(
    number: u32,
    service: &Service,
    mut planner: Planner<'_>,
    begun: &AtomicUsize,
    limit: usize,
) -> Vec<Transaction> {
    let _end = EndOfRun { begun, limit };
    let mut client = Client::new(number, service);
    let mut transactions = Vec::new();
    while begun.fetch_add(1, SeqCst) < limit {
        let plan = planner.plan();
        let Some(transaction) = client.run(&plan) else { break };
        if transaction.outcome == Outcome::Aborted {
            plan.once.iter().for_each(|&(key, once)| planner.keys.give_back(key, once));
        }
        if let (Frame::Single, Outcome::Committed, &[Step::Read { key, value: Some(value) }]) =
            (plan.frame, transaction.outcome, &transaction.steps[..])
        {
            planner.last_read = Some((key, value));
        }
        transactions.push(transaction);
    }
    transactions
}
