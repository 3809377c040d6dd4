//! Votes without a network: threads of this process call the procedure by system calls (paper 6.5, Figure 10b).
//!
//! Each side has a database of its own, and all sides get the same votes. A turn begins with tables that have no votes, in
//! memory that earlier turns have touched. After the turn, the votes in the database are compared with the outcomes that the
//! threads have counted.

use std::io::{Cursor, Write};
use std::time::{Duration, Instant};

use bedplate_kerneldb::{
    Application, Config, Database, EngineKind, FoundProcedure, Procedure, Reply, Session, SetOptions, VOTER,
    VOTER_HASHMAP, VOTER_PROCEDURES, VOTER_STEPS,
};

use super::tables::{Ballot, Ballots, LIMIT, areas, contestants, rows};
use super::tally::{Stored, Tally};
use crate::cpu::thread_cpu_ns;
use crate::{Error, Result};

/// Memory limit of each database in bytes.
const MEMORY: u64 = 1 << 30;

/// The way in which votes are cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// An application in continuation-passing style: eight programs and their tail calls (the paper's).
    TailCalls,
    /// An application in direct style: one program.
    Direct,
    /// One call per operator, eight for each vote.
    UserSpace,
    /// The procedure of the library, called by its name. It also counts the votes by contestant and state, so it runs one GET
    /// and one SET more than the others.
    ByName,
}

impl Way {
    /// The name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::TailCalls => "procedure, tail calls",
            Way::Direct => "procedure, direct style",
            Way::UserSpace => "one call per operator",
            Way::ByName => "procedure by name",
        }
    }
}

/// The votes that threads cast within a window, and their cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) tally: Tally,
    /// Time of the threads on processors, in nanoseconds.
    pub(super) cpu_ns: u64,
    /// Length of the window in nanoseconds.
    pub(super) wall_ns: u64,
}

impl Window {
    /// Votes per second of processor time.
    pub(super) fn per_cpu_s(&self) -> f64 {
        self.tally.processed() as f64 * 1e9 / self.cpu_ns as f64
    }

    /// Votes per second.
    pub(super) fn per_s(&self) -> f64 {
        self.tally.processed() as f64 * 1e9 / self.wall_ns as f64
    }
}

/// The tables that votes do not change, of the applications and of the library.
const LOADED_TABLES: [&[u8]; 4] = [b"a", b"c", b"area", b"contestant"];

/// The code that casts a vote.
enum Caster {
    Application {
        /// Keeps the programs loaded that tail calls reach.
        _application: Application,
        procedure: Procedure,
    },
    Operators,
    Library(FoundProcedure),
}

/// A database with the tables of Voter, and one way to vote.
pub(super) struct Hall {
    database: Database,
    caster: Caster,
}

/// Key of a row in the tables of the applications: the table's letter and `bytes` bytes of the row's number.
fn key(table: u8, number: u64, bytes: usize) -> Vec<u8> {
    (u64::from(table) | number << 8).to_le_bytes()[..1 + bytes].to_vec()
}

impl Hall {
    /// A database with its tables and its code. `prefault` bytes of its memory are touched, if the engine can do that.
    pub(super) fn open(engine: EngineKind, way: Way, prefault: u64) -> Result<Hall> {
        let config = Config { engine, memory_bytes: MEMORY, key_bytes: 16, ..Config::default() };
        let database = Database::create(config)?;
        database.prefault(prefault);
        let application = || {
            let elf = match engine {
                EngineKind::Arena => VOTER,
                EngineKind::HashMap => VOTER_HASHMAP,
            };
            database.load_application(elf, 0)
        };
        let caster = match way {
            Way::TailCalls => {
                let application = application()?;
                for (index, step) in (0..).zip(VOTER_STEPS) {
                    application.set_program("voter_programs", index, &application.procedure(step)?)?;
                }
                let procedure = application.procedure("voter_begin")?;
                Caster::Application { _application: application, procedure }
            }
            Way::Direct => {
                let application = application()?;
                let procedure = application.procedure("voter_direct")?;
                Caster::Application { _application: application, procedure }
            }
            Way::UserSpace => Caster::Operators,
            Way::ByName => {
                database.load_library("voter_procedures", VOTER_PROCEDURES, false)?;
                Caster::Library(database.session()?.find_procedure("voter_vote")?)
            }
        };
        let hall = Hall { database, caster };
        hall.load()?;
        Ok(hall)
    }

    /// Writes the tables of area codes and contestants.
    fn load(&self) -> Result<()> {
        let mut session = self.database.session()?;
        let mut put = |key: &[u8], value: &str| {
            session.set(key, value.as_bytes(), SetOptions::default()).map(|_| ()).map_err(Error::from)
        };
        if self.is_by_name() {
            return rows().try_for_each(|(key, value)| put(key.as_bytes(), &value));
        }
        areas().try_for_each(|(code, state)| put(&key(b'a', code, 4), state))?;
        contestants().try_for_each(|(number, name)| put(&key(b'c', number, 4), &name))
    }

    /// Casts votes in threads for a window of time.
    pub(super) fn vote_in_threads(&self, threads: usize, round: usize, length: Duration) -> Result<Window> {
        let results: Vec<Result<Window>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|t| scope.spawn(move || self.vote_for((round << 8 | t) as u64, length)))
                .collect();
            running.into_iter().map(|t| t.join().expect("a voting thread does not panic")).collect()
        });
        let mut sum = Window::default();
        for result in results {
            let one = result?;
            sum.tally.add(one.tally);
            sum.cpu_ns += one.cpu_ns;
            sum.wall_ns = sum.wall_ns.max(one.wall_ns);
        }
        Ok(sum)
    }

    fn vote_for(&self, seed: u64, length: Duration) -> Result<Window> {
        let mut session = self.database.session()?;
        let mut ballots = Ballots::new(seed);
        let mut tally = Tally::default();
        let (start, cpu) = (Instant::now(), thread_cpu_ns());
        while start.elapsed() < length {
            self.vote(&mut session, ballots.draw(), &mut tally)?;
        }
        let cpu_ns = thread_cpu_ns() - cpu;
        Ok(Window { tally, cpu_ns, wall_ns: start.elapsed().as_nanos() as u64 })
    }

    /// Casts one vote.
    fn vote(&self, session: &mut Session, ballot: Ballot, tally: &mut Tally) -> Result<()> {
        tally.requests += 1;
        let outcome = match &self.caster {
            Caster::Application { procedure, .. } => {
                match procedure.run(session, &[ballot.phone, ballot.contestant, LIMIT])? {
                    0 => &mut tally.accepted,
                    2 => &mut tally.no_contestant,
                    3 => &mut tally.over_limit,
                    // 1 is an unknown area code, which the generator does not make; Error states begin at 16.
                    status @ ..16 => return Err(Error::engine(format!("the procedure returned {status}"))),
                    _ => &mut tally.failed,
                }
            }
            Caster::Operators => return vote_by_operators(session, ballot, tally),
            Caster::Library(procedure) => {
                let mut text = Cursor::new([0; 32]);
                write!(text, "{}{}", ballot.phone, ballot.contestant).expect("30 digits have room");
                let (phone, contestant) = text.get_ref()[..text.position() as usize].split_at(10);
                match session.call_found(procedure, &[phone, contestant, LIMIT_TEXT]) {
                    Ok(Reply::Integer(0)) => &mut tally.accepted,
                    Ok(Reply::Integer(1)) => &mut tally.no_contestant,
                    Ok(Reply::Integer(2)) => &mut tally.over_limit,
                    Ok(reply) => return Err(Error::engine(format!("the procedure replied {reply:?}"))),
                    Err(error) if error.is_transient() => &mut tally.failed,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        *outcome += 1;
        Ok(())
    }

    /// Whether the keys and values are those of the library, and not those of the applications.
    fn is_by_name(&self) -> bool {
        matches!(self.caster, Caster::Library(_))
    }

    /// The table of a row: the part of its key before the colon, or the applications' letter.
    fn table<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        match self.is_by_name() {
            true => key.split(|byte| *byte == b':').next().unwrap_or_default(),
            false => &key[..1],
        }
    }

    /// Compares the votes in the database with the outcomes.
    pub(super) fn check(&self, tally: Tally) -> Result<()> {
        let mut stored = Stored::default();
        let by_name = self.is_by_name();
        let mut of_contestants = 0;
        let number = |value: &[u8]| match by_name {
            true => std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()),
            false => value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        };
        let mut unreadable = 0u64;
        let snapshot = self.database.snapshot()?;
        snapshot.scan(0, snapshot.positions(), &mut |item| {
            let table = self.table(item.key);
            match (table, number(item.value)) {
                (b"v" | b"vote", _) => stored.records += 1,
                (b"p" | b"phone", Some(votes)) => stored.add_phone(votes),
                (b"count", Some(votes)) => of_contestants += votes,
                _ if LOADED_TABLES.contains(&table) => {}
                _ => unreadable += 1,
            }
        })?;
        if unreadable > 0 {
            return Err(Error::engine(format!("{unreadable} keys are not Voter's")));
        }
        stored.of_contestants = by_name.then_some(of_contestants);
        stored.check(tally)?;
        if by_name {
            self.check_results(tally)?;
        }
        Ok(())
    }

    /// Compares the results that the library's procedure reads with the outcomes.
    fn check_results(&self, tally: Tally) -> Result<()> {
        let mut session = self.database.session()?;
        let mut total = 0;
        for (number, _) in contestants() {
            match session.call("voter_results", &[number.to_string().as_bytes()])? {
                Reply::Integer(votes) => total += votes as u64,
                reply => return Err(Error::engine(format!("the procedure replied {reply:?}"))),
            }
        }
        if total != tally.accepted {
            let problem = format!("{} votes were accepted, and the results have {total}", tally.accepted);
            return Err(Error::engine(problem));
        }
        Ok(())
    }

    /// Deletes all votes, and keeps the other tables.
    pub(super) fn clear(&self) -> Result<()> {
        let snapshot = self.database.snapshot()?;
        let mut keys = Vec::new();
        snapshot.scan(0, snapshot.positions(), &mut |item| {
            if !LOADED_TABLES.contains(&self.table(item.key)) {
                keys.push(item.key.to_vec());
            }
        })?;
        drop(snapshot);
        let mut session = self.database.session()?;
        for key in keys {
            while let Err(error) = session.delete(&key) {
                if !error.is_transient() {
                    return Err(error.into());
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

/// The limit as the library's procedure takes it.
const LIMIT_TEXT: &[u8] = b"2";
const _: () = assert!(LIMIT == 2);

/// VOTE from user space: the same operators as the procedure's, one call each.
fn vote_by_operators(session: &mut Session, ballot: Ballot, tally: &mut Tally) -> Result<()> {
    let Ballot { phone, contestant } = ballot;
    let mut transaction = || -> bedplate_kerneldb::Result<Tally> {
        session.begin()?;
        session.get(&key(b'a', phone / 10_000_000, 4))?;
        if session.get(&key(b'c', contestant, 4))?.is_none() {
            session.rollback()?;
            return Ok(Tally { no_contestant: 1, ..Tally::default() });
        }
        let count = session.get(&key(b'p', phone, 7))?;
        let count = count.and_then(|v| v.data.first_chunk().map(|b| u64::from_le_bytes(*b))).unwrap_or(0);
        if count >= LIMIT {
            session.rollback()?;
            return Ok(Tally { over_limit: 1, ..Tally::default() });
        }
        session.set(&key(b'p', phone, 7), &(count + 1).to_le_bytes(), SetOptions::default())?;
        let mut record = key(b'v', phone, 7);
        record.extend_from_slice(&(count + 1).to_le_bytes());
        session.set(&record, &contestant.to_le_bytes(), SetOptions::default())?;
        session.commit()?;
        Ok(Tally { accepted: 1, ..Tally::default() })
    };
    match transaction() {
        Ok(outcome) => tally.add(outcome),
        Err(error) if error.is_transient() => {
            session.rollback()?;
            tally.failed += 1;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::voter::SIDES;

    /// Each way decides the same about the same votes, and keeps the invariants; with one of its votes lost, it does not.
    #[test]
    fn each_way_accepts_the_same_votes() {
        let mut tallies = Vec::new();
        for (engine, way) in SIDES {
            let hall = Hall::open(engine, way, 16 << 20).unwrap();
            let mut session = hall.database.session().unwrap();
            // One phone in each area code: the third vote of a phone is over the limit.
            let mut ballots = Ballots::of_phones(1, 1);
            let mut tally = Tally::default();
            (0..2000).for_each(|_| hall.vote(&mut session, ballots.draw(), &mut tally).unwrap());
            hall.check(tally).unwrap();
            let more = Tally { requests: tally.requests + 1, accepted: tally.accepted + 1, ..tally };
            assert!(hall.check(more).is_err(), "{engine:?} {way:?}");
            tallies.push(tally);
            // A turn begins anew.
            hall.clear().unwrap();
            hall.check(Tally::default()).unwrap();
            let window = hall.vote_in_threads(2, 7, Duration::from_millis(50)).unwrap();
            assert!(window.tally.accepted > 0, "{engine:?} {way:?}");
            hall.check(window.tally).unwrap();
        }
        assert!(tallies.iter().all(|tally| *tally == tallies[0]), "{tallies:?}");
        assert!(tallies[0].over_limit > 1000 && tallies[0].no_contestant > 0, "{:?}", tallies[0]);
        assert_eq!(tallies[0].failed, 0);
    }
}
