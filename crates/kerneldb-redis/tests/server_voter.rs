//! The Voter benchmark's procedures over the Redis port: clients that pipeline and clients that wait for each reply, and a
//! restart between their votes.

mod common;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

use bedplate_kerneldb::{Durability, Store, StoreConfig, VOTER_PROCEDURES};
use bedplate_kerneldb_redis::server::Server;
use common::{can_run, small};
use server::{Client, no_checkpoints, ways, words};

const PHONES: u64 = 60;
const CONTESTANTS: u64 = 12;

/// The replies to votes, by outcome: accepted, no such contestant, over the limit.
type Outcomes = [u64; 3];

/// Casts votes on a connection of its own, `pipeline` of them in each packet.
fn cast(address: SocketAddr, from: u64, votes: u64, pipeline: u64) -> Outcomes {
    let mut client = Client::new(address);
    let mut outcomes = Outcomes::default();
    for first in (from..from + votes).step_by(pipeline as usize) {
        let batch = first..(first + pipeline).min(from + votes);
        let request = |i: u64| {
            let phone = 2_120_000_000 + i.wrapping_mul(2_654_435_761) % PHONES;
            words(&format!("CALL voter_vote {phone} {} 2", 1 + i % (CONTESTANTS + 1)))
        };
        client.send(&batch.clone().flat_map(request).collect::<Vec<u8>>());
        for (i, reply) in batch.clone().zip(client.lines((batch.end - batch.start) as usize)) {
            let outcome = match reply.as_str() {
                ":0" => 0,
                ":1" => 1,
                ":2" => 2,
                other => panic!("{other}"),
            };
            assert_eq!(outcome == 1, i % (CONTESTANTS + 1) == CONTESTANTS, "the contestant does not exist");
            outcomes[outcome] += 1;
        }
    }
    assert_eq!(outcomes.iter().sum::<u64>(), votes);
    outcomes
}

/// Casts votes on three connections at once.
fn cast_by_clients(address: SocketAddr, votes: u64) -> Outcomes {
    let all = std::thread::scope(|scope| {
        let clients =
            [1, 7, 16].map(|pipeline| scope.spawn(move || cast(address, pipeline * 1000, votes, pipeline)));
        clients.map(|client| client.join().unwrap())
    });
    all.iter().fold(Outcomes::default(), |sum, one| [sum[0] + one[0], sum[1] + one[1], sum[2] + one[2]])
}

/// The votes in the database are those that were accepted, and no phone has too many.
fn check(client: &mut Client, accepted: u64) {
    let mut total = 0;
    for contestant in 1..=CONTESTANTS {
        client.send(&words(&format!("CALL voter_results {contestant}")));
        total += client.lines(1)[0].strip_prefix(':').unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(total, accepted);
    let phones: Vec<String> = (0..PHONES).map(|phone| format!("phone:{}", 2_120_000_000 + phone)).collect();
    let mut votes = 0;
    for phone in &phones {
        client.send(&words(&format!("GET {phone}")));
        if client.lines(1)[0] != "$-1" {
            let of_phone: u64 = client.lines(1)[0].parse().unwrap();
            assert!((1..=2).contains(&of_phone), "{phone} has {of_phone}");
            votes += of_phone;
        }
    }
    assert_eq!(votes, accepted);
}

#[test]
fn votes_keep_their_invariants_across_a_restart() {
    if !can_run() {
        return;
    }
    for way in ways() {
        let data = tempfile::tempdir().unwrap();
        let open = || {
            let wal =
                bedplate_kerneldb::wal::WalConfig { durability: Durability::Async, ..Default::default() };
            let store = StoreConfig {
                database: small(),
                wal: Some(wal),
                checkpoint: no_checkpoints(),
                ..StoreConfig::default()
            };
            let store = Arc::new(Store::open(store, data.path(), &mut |_| ()).unwrap().0);
            let server = Server::start(store.clone(), way.clone()).unwrap();
            (store, server)
        };
        let (store, server) = open();
        store.load_library("voter_procedures", VOTER_PROCEDURES, false).unwrap();
        let mut client = Client::new(server.local_addr());
        (1..=CONTESTANTS).for_each(|number| client.ask(&format!("SET contestant:{number} somebody"), "+OK"));
        client.ask("SET area:212 NY", "+OK");
        // So few votes that not all phones have reached their limit.
        let before = cast_by_clients(server.local_addr(), 26);
        check(&mut client, before[0]);
        drop(client);
        server.shutdown().unwrap();
        store.close(false).unwrap();
        drop(store);

        let (store, server) = open();
        let mut client = Client::new(server.local_addr());
        check(&mut client, before[0]);
        let after = cast_by_clients(server.local_addr(), 300);
        assert!(after[0] > 0 && after[1] > 0 && after[2] > 0, "{after:?}");
        assert_eq!(before[0] + after[0], 2 * PHONES, "each phone has cast all of its votes");
        check(&mut client, 2 * PHONES);
        drop(client);
        server.shutdown().unwrap();
        store.close(false).unwrap();
    }
}
