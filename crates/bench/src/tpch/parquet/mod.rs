//! Engines whose tables are Parquet files, and whose processes run one query, or one client's queries, each.

mod daemon;
pub mod datafusion;
pub mod duckdb;
mod process;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use super::queries::{QUERIES, TABLES};
use super::{Progress, python};
use crate::{Error, Options, Result};

const LOAD: &str = include_str!("load.py");

/// An error of DuckDB, or of the program that runs it.
fn failed(problem: impl ToString) -> Error {
    Error::Store { store: "DuckDB", problem: problem.to_string() }
}

/// A folder with the tables. It is removed with this.
struct Files {
    folder: TempDir,
    path: PathBuf,
    /// Bytes of each column of each table.
    columns: BTreeMap<String, u64>,
    /// The version of DuckDB that made the files.
    duckdb: String,
}

impl Files {
    /// Makes the tables by DuckDB's generator.
    fn make(options: &Options, scale: f64, progress: &mut Progress<'_>) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bedplate-tpch-")
            .tempdir_in(crate::scan::directory(options)?)
            .map_err(Error::io("create a folder for the tables"))?;
        let path = folder.path().canonicalize().map_err(Error::io("find the folder of the tables"))?;
        let mut python = python::with_generator().map_err(|reason| Error::Missing {
            what: format!("there is no Python with DuckDB: {reason}"),
            hint: "run `make setup`",
        })?;
        python.args(["-c", LOAD]).arg(&path).arg(scale.to_string()).args(TABLES.map(|(table, _)| table));
        python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = python.spawn().map_err(Error::io("run Python"))?;
        let output = child.stdout.take().ok_or_else(|| failed("Python has no output"))?;
        let (mut columns, mut duckdb) = (BTreeMap::new(), String::new());
        for line in BufReader::new(output).lines() {
            let line = line.map_err(Error::io("read what Python says"))?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["table", table] => progress.step(&format!("making {table}.parquet")),
                ["column", name, bytes] => {
                    _ = columns.insert(name.to_owned(), bytes.parse().map_err(failed)?)
                }
                ["version", version] => version.clone_into(&mut duckdb),
                _ => {}
            }
        }
        process::finish(child)?;
        Ok(Self { folder, path, columns, duckdb })
    }

    fn path(&self) -> &Path {
        debug_assert!(self.folder.path().exists());
        &self.path
    }

    /// The file of a table.
    fn table_bytes(&self, table: &str) -> Result<u64> {
        let path = self.path.join(format!("{table}.parquet"));
        path.metadata().map(|found| found.len()).map_err(Error::io(format!("{}", path.display())))
    }

    /// Bytes of the columns of `lineitem` that a query names.
    fn scan_bytes(&self, query: usize) -> u64 {
        let named = |name: &&String| name.starts_with("l_") && names(QUERIES[query], name);
        self.columns.keys().filter(named).map(|name| self.columns[name]).sum()
    }
}

/// Whether a query names a column.
fn names(query: &str, column: &str) -> bool {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpch::queries::Q6;

    #[test]
    fn the_columns_of_a_query_are_found() {
        let columns = ["l_shipdate", "l_discount", "l_quantity", "l_extendedprice"];
        assert!(columns.iter().all(|column| names(QUERIES[Q6], column)));
        assert!(!names(QUERIES[Q6], "l_tax") && !names(QUERIES[Q6], "l_ship"));
    }
}
