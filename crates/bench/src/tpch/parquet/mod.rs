//! Engines whose tables are Parquet files, and whose processes run one query, or one client's queries, each.

pub mod daemon;
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
use crate::{Error, Fields, Options, Result};

const LOAD: &str = include_str!("load.py");
/// Rows of each row group that DuckDB writes by default.
const GROUP_ROWS: u32 = 122_880;
/// Rows of a vector of DuckDB. A row group has whole vectors.
const VECTOR_ROWS: u32 = 2048;

/// The name in errors.
const DUCKDB: &str = "DuckDB";

/// An error of DuckDB, or of the program that runs it.
fn failed(problem: impl ToString) -> Error {
    Error::Store { store: DUCKDB, problem: problem.to_string() }
}

/// A folder with the tables. Dropping this removes it.
struct Files {
    folder: TempDir,
    path: PathBuf,
    /// Bytes of each column of each table.
    columns: BTreeMap<String, u64>,
    /// The version of DuckDB that made the files.
    duckdb: String,
    /// Rows of each row group.
    group_rows: u32,
}

/// Rows of each row group of tables at a scale factor. Below 1 they are fewer, so that `lineitem` has as many row groups as at 1:
/// Bedplate does not serve a scan that is one read.
fn group_rows(scale: f64) -> u32 {
    let rows = (f64::from(GROUP_ROWS) * scale) as u32;
    (rows / VECTOR_ROWS * VECTOR_ROWS).clamp(VECTOR_ROWS, GROUP_ROWS)
}

impl Files {
    /// Makes the tables with DuckDB's generator.
    fn make(options: &Options, scale: f64, progress: &mut Progress<'_>) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bedplate-tpch-")
            .tempdir_in(crate::scan::directory(options)?)
            .map_err(Error::io("create a folder for the tables"))?;
        let path = folder.path().canonicalize().map_err(Error::io("find the folder of the tables"))?;
        let mut python = python::with_generator().map_err(python::missing)?;
        let group_rows = group_rows(scale);
        python.args(["-c", LOAD]).arg(&path).args([scale.to_string(), group_rows.to_string()]);
        python.args(TABLES.map(|(table, _)| table));
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
        process::finish(DUCKDB, child)?;
        // Bedplate serves no file that has just been changed.
        std::thread::sleep(bedplate_scan::SETTLING_TIME);
        Ok(Self { folder, path, columns, duckdb, group_rows })
    }

    /// The report's fields about the tables, after those about the engine.
    fn about(&self, engine: Fields) -> Fields {
        let tables = format!("Parquet files by DuckDB (Snappy, row groups of {} rows)", self.group_rows);
        engine.with("parquet_by_duckdb", self.duckdb.clone()).with("tables", tables)
    }

    fn path(&self) -> &Path {
        debug_assert!(self.folder.path().exists());
        &self.path
    }

    /// The smallest size of files that Bedplate is to serve: `usual`, or less if `lineitem` is smaller.
    fn minimum(&self, usual: u64) -> Result<u64> {
        Ok(usual.min(self.table_bytes("lineitem")? / 2))
    }

    /// The bytes of a table's file.
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
    fn small_tables_have_as_many_row_groups_as_large_ones() {
        assert_eq!((group_rows(1.0), group_rows(100.0)), (GROUP_ROWS, GROUP_ROWS));
        assert_eq!((group_rows(0.1), group_rows(0.01)), (12_288, 2048));
    }

    #[test]
    fn the_columns_of_a_query_are_found() {
        let columns = ["l_shipdate", "l_discount", "l_quantity", "l_extendedprice"];
        assert!(columns.iter().all(|column| names(QUERIES[Q6], column)));
        assert!(!names(QUERIES[Q6], "l_tax") && !names(QUERIES[Q6], "l_ship"));
    }
}
