//! Loading TPC-H into a server.

use std::io::{BufWriter, Write};

use bedplate_postgres_suite::plan::text_of;
use bedplate_postgres_suite::postgres::Client;
use bedplate_postgres_suite::{Cluster, execute};

use super::failed;
use crate::tpch::queries::{INDEXES, TABLES};
use crate::tpch::rows;
use crate::{Error, Result};

/// Creates and fills the tables, with statistics, hint bits and visibility maps as after a vacuum. Calls `begin` with
/// each table's name.
pub fn load(cluster: &Cluster, scale: f64, mut begin: impl FnMut(&str)) -> Result<()> {
    let mut client = cluster.client().map_err(failed)?;
    for (table, columns) in TABLES {
        begin(table);
        // With `wal_level` minimal, PostgreSQL does not log rows that a transaction copies into a table that it
        // created.
        execute(&mut client, &format!("begin; create table {table}({columns})")).map_err(failed)?;
        copy(&mut client, table, scale)?;
        execute(&mut client, "commit").map_err(failed)?;
    }
    for index in INDEXES {
        execute(&mut client, index).map_err(failed)?;
    }
    execute(&mut client, "vacuum (analyze)").map_err(failed)
}

/// Copies the rows of a table into the server.
fn copy(client: &mut Client, table: &str, scale: f64) -> Result<()> {
    let statement = format!("copy {table} from stdin with (delimiter '|')");
    let writer =
        client.copy_in(statement.as_str()).map_err(|e| failed(format!("{statement}: {}", text_of(&e))))?;
    let mut writer = BufWriter::with_capacity(1 << 20, writer);
    rows::each(table, scale, |row| {
        writeln!(writer, "{row}").map_err(Error::io(format!("copying into {table}")))
    })?;
    let writer = writer.into_inner().map_err(|e| failed(format!("copying into {table}: {e}")))?;
    writer.finish().map_err(|e| failed(format!("copying into {table}: {}", text_of(&e))))?;
    Ok(())
}
