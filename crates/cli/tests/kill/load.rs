//! Clients that write until the server has ended.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::model::{Attempt, Owner, Random, key, value};
use super::wire::{Reply, Wire, put};

/// Name of the owner of the shared pairs.
pub const SHARED: &str = "shared";
pub const PAIRS: usize = 3;
/// The attempts to write each pair.
pub type Attempts = [Mutex<Vec<Attempt>>; PAIRS];

/// The state that all clients of a round share.
#[derive(Default)]
pub struct Round {
    pub port: u16,
    /// Acknowledged units.
    pub acknowledged: AtomicU64,
    /// Errors that the server gave, where none is expected.
    pub unexpected: Mutex<Vec<String>>,
}

impl Round {
    fn count(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

/// Appends requests that do all changes or none; returns the number of replies.
fn encode(
    random: &mut Random,
    owner: &str,
    number: u64,
    changes: &[(usize, bool)],
    out: &mut Vec<u8>,
) -> usize {
    let change = |out: &mut Vec<u8>, &(slot, present): &(usize, bool)| {
        let key = key(owner, slot);
        match present {
            true => put(out, &[b"SET", &key, &value(owner, number, slot)]),
            false => put(out, &[b"DEL", &key]),
        }
    };
    if let [one] = changes {
        change(out, one);
        return 1;
    }
    // MSET is a command for user space only, whose order with the kernel's commands must be kept.
    if changes.iter().all(|(_, present)| *present) && random.below(3) == 0 {
        let mut args = vec![b"MSET".to_vec()];
        args.extend(changes.iter().flat_map(|&(slot, _)| [key(owner, slot), value(owner, number, slot)]));
        put(out, &args.iter().map(|a| &a[..]).collect::<Vec<_>>());
        return 1;
    }
    let (begin, end): (&[u8], &[u8]) = match random.below(2) {
        0 => (b"MULTI", b"EXEC"),
        _ => (b"BEGIN", b"COMMIT"),
    };
    put(out, &[begin]);
    changes.iter().for_each(|c| change(out, c));
    put(out, &[end]);
    changes.len() + 2
}

/// Pipelines units of an owner, reads in between, until the connection ends.
pub fn write_own(round: &Round, owner: &mut Owner, mut random: Random) -> io::Result<()> {
    let mut wire = Wire::connect(round.port)?;
    let mut out = Vec::new();
    if owner.may_lose {
        put(&mut out, &[b"BEDPLATE", b"DURABILITY", b"ASYNC"]);
        wire.send(&out)?;
        wire.reply()?;
    }
    loop {
        out.clear();
        // For each request, the number of replies, and whether they complete a unit.
        let mut replies = Vec::new();
        for _ in 0..1 + random.below(16) {
            if random.below(6) == 0 {
                put(&mut out, &[b"GET", &key(&owner.name, random.below(4) as usize)]);
                replies.push((1, false));
            }
            let most = [1, 1, 4, 8][random.below(4) as usize];
            let name = owner.name.clone();
            let unit = owner.next(&mut random, most);
            replies.push((encode(&mut random, &name, unit.number, &unit.changes, &mut out), true));
        }
        // The bytes are sent in pieces, so that requests also arrive incompletely.
        let cut = random.below(3) * random.below(out.len() as u64) / 2;
        let (first, second) = out.split_at(cut as usize);
        wire.send(first)?;
        wire.send(second)?;
        for (count, completes) in replies {
            for _ in 0..count {
                if let Reply::Error(text) = wire.reply()? {
                    round.unexpected.lock().unwrap().push(format!("{}: {text}", owner.name));
                }
            }
            if completes {
                owner.acknowledge();
                round.count();
            }
        }
    }
}

/// Writes pairs that others write, too, in transactions. Each transaction either succeeds or is refused as a whole.
pub fn write_pairs(round: &Round, attempts: &Attempts, writer: u64, mut random: Random) -> io::Result<()> {
    let mut wire = Wire::connect(round.port)?;
    let mut number = (random.next() & 0xffff_ffff) << 8 | writer;
    loop {
        number += 256;
        let pair = random.below(PAIRS as u64) as usize;
        let mut out = Vec::new();
        let changes = [(2 * pair, true), (2 * pair + 1, true)];
        let replies = encode(&mut random, SHARED, number, &changes, &mut out);
        let index = {
            let mut attempts = attempts[pair].lock().unwrap();
            attempts.push(Attempt { number, sent: Instant::now(), acknowledged: None, failed: false });
            attempts.len() - 1
        };
        wire.send(&out)?;
        let mut failed = false;
        for _ in 0..replies {
            failed |= matches!(wire.reply()?, Reply::Error(_));
        }
        let attempt = &mut attempts[pair].lock().unwrap()[index];
        attempt.acknowledged = Some(Instant::now());
        attempt.failed = failed;
        round.count();
    }
}

/// Asks for one checkpoint after the other.
pub fn take_checkpoints(port: u16) -> io::Result<()> {
    let mut wire = Wire::connect(port)?;
    let mut out = Vec::new();
    put(&mut out, &[b"BGSAVE"]);
    loop {
        wire.send(&out)?;
        // The reply is an error while a checkpoint is running.
        wire.reply()?;
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Rebuilds the database again and again.
pub fn change_options(round: &Round) -> io::Result<()> {
    let mut wire = Wire::connect(round.port)?;
    // With few versions, the snapshots of checkpoints and of reading clients leave none for a writer.
    for versions in [b"8", b"6", b"7"].iter().cycle() {
        let mut out = Vec::new();
        put(&mut out, &[b"CONFIG", b"SET", b"versions", &versions[..]]);
        wire.send(&out)?;
        match wire.reply()? {
            Reply::Error(text) if !text.starts_with("TRYAGAIN") => {
                round.unexpected.lock().unwrap().push(format!("CONFIG SET: {text}"));
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}
