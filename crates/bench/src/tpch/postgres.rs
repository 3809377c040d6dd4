//! PostgreSQL, with the extension `bedplate_scan`.
//!
//! `scan-postgres` has the same server, and experiments that only PostgreSQL has.

use std::path::Path;

use bedplate_postgres_suite::Installation;

use super::Progress;
use super::engine::{Access, Candidate, Engine, Run, Side, Together};
use super::queries::{Q6, query};
use crate::postgres::VERSIONS;
use crate::postgres::server::Server;
use crate::{Error, Fields, Options, Result};

pub const CANDIDATE: Candidate =
    Candidate { name: "postgres", database: "PostgreSQL", scales: [0.1, 1.0], load };

/// Workers of a parallel query, at most: PostgreSQL's default.
const WORKERS: u32 = 2;
/// Shared buffers have a control group's memory divided by this.
const BUFFERS_OF_MEMORY: u64 = 4;

struct Postgres {
    server: Server,
    scale: f64,
    /// Whether the server runs with warm files, so that it serves both sides.
    is_warm: bool,
}

fn load(options: &Options, scale: f64, progress: &mut Progress<'_>) -> Result<Box<dyn Engine>> {
    let installation = VERSIONS.iter().find_map(|version| Installation::of_version(*version).ok());
    let installation = installation.ok_or(Error::Missing {
        what: "there is no PostgreSQL 15 or 18".to_owned(),
        hint: "run `make setup`",
    })?;
    let begin = |table: &str| progress.step(&format!("loading {table}"));
    let server = Server::load(options, &installation, scale, begin)?;
    Ok(Box::new(Postgres { server, scale, is_warm: false }))
}

impl Engine for Postgres {
    fn about(&self) -> Fields {
        Fields::new()
            .with("postgresql", self.server.version())
            .with("tables", "vacuumed, with the indexes that correlated subqueries need; JIT off")
            .with(
                "bedplate",
                "cache_share = 0, as for tables that do not fit into memory; defaults where a row says so",
            )
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::Vanilla, Side::Bedplate, Side::Shared, Side::Default]
    }

    fn folder(&self) -> &Path {
        self.server.folder()
    }

    fn scan_bytes(&mut self, _: usize) -> Result<u64> {
        self.is_warm = true;
        self.server.table_bytes("lineitem")
    }

    fn cold(&mut self, side: Side) -> Result<()> {
        self.is_warm = false;
        self.server.start_cold(side)
    }

    /// Both sides have one server, so that they have the same caches. Sessions without Bedplate switch the extension off.
    fn warm(&mut self, _: Side) -> Result<()> {
        if !self.is_warm {
            self.server.start_warm()?;
            self.is_warm = true;
        }
        Ok(())
    }

    fn query(&mut self, side: Side, index: usize) -> Result<Run> {
        self.server.query(&query(index, self.scale), WORKERS, self.is_warm.then_some(side))
    }

    fn access(&mut self, _: Side, index: usize) -> Result<Option<Access>> {
        self.server.access(&query(index, self.scale)).map(Some)
    }

    fn clients(&mut self, _: Side, lists: &[Vec<usize>]) -> Result<Together> {
        let texts: Vec<String> =
            (0..super::queries::QUERIES.len()).map(|index| query(index, self.scale)).collect();
        let of_list = |list: &Vec<usize>| list.iter().map(|index| (*index, texts[*index].as_str())).collect();
        self.server.together(&lists.iter().map(of_list).collect::<Vec<_>>())
    }

    fn serves(&mut self) -> Result<bool> {
        self.is_warm = false;
        let seen = self.server.counters(&query(Q6, self.scale), 0)?;
        Ok(seen.direct > seen.buffered)
    }

    fn limit_memory(&mut self, bytes: Option<u64>) {
        self.server.choose_buffers(bytes.map(|bytes| bytes / BUFFERS_OF_MEMORY));
    }
}
