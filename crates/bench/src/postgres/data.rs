//! Loading TPC-H into a server.

use std::fmt::Display;
use std::io::{BufWriter, Write};

use bedplate_postgres_suite::plan::text_of;
use bedplate_postgres_suite::postgres::Client;
use bedplate_postgres_suite::{Cluster, execute};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

use super::failed;
use super::queries::{INDEXES, TABLES};
use crate::{Error, Result};

/// Makes and fills the tables, with statistics, hint bits and visibility maps as after a vacuum.
pub fn load(cluster: &Cluster, scale: f64) -> Result<()> {
    let mut client = cluster.client().map_err(failed)?;
    for (table, columns) in TABLES {
        // Without `wal_level` above minimal, what a transaction copies into a table that it created is not logged.
        execute(&mut client, &format!("begin; create table {table}({columns})")).map_err(failed)?;
        match table {
            "region" => copy(&mut client, table, RegionGenerator::new(scale, 1, 1).iter()),
            "nation" => copy(&mut client, table, NationGenerator::new(scale, 1, 1).iter()),
            "supplier" => copy(&mut client, table, SupplierGenerator::new(scale, 1, 1).iter()),
            "customer" => copy(&mut client, table, CustomerGenerator::new(scale, 1, 1).iter()),
            "part" => copy(&mut client, table, PartGenerator::new(scale, 1, 1).iter()),
            "partsupp" => copy(&mut client, table, PartSuppGenerator::new(scale, 1, 1).iter()),
            "orders" => copy(&mut client, table, OrderGenerator::new(scale, 1, 1).iter()),
            _ => copy(&mut client, table, LineItemGenerator::new(scale, 1, 1).iter()),
        }?;
        execute(&mut client, "commit").map_err(failed)?;
    }
    for index in INDEXES {
        execute(&mut client, index).map_err(failed)?;
    }
    execute(&mut client, "vacuum (analyze)").map_err(failed)
}

/// Copies rows into a table. Their text has a bar behind every column, the last one too.
fn copy<T: Display>(client: &mut Client, table: &str, rows: impl Iterator<Item = T>) -> Result<()> {
    let statement = format!("copy {table} from stdin with (delimiter '|')");
    let writer =
        client.copy_in(statement.as_str()).map_err(|e| failed(format!("{statement}: {}", text_of(&e))))?;
    let mut writer = BufWriter::with_capacity(1 << 20, writer);
    for row in rows {
        let row = row.to_string();
        let line = row.strip_suffix('|').unwrap_or(&row);
        writeln!(writer, "{line}").map_err(Error::io(format!("copying into {table}")))?;
    }
    let writer = writer.into_inner().map_err(|e| failed(format!("copying into {table}: {e}")))?;
    writer.finish().map_err(|e| failed(format!("copying into {table}: {}", text_of(&e))))?;
    Ok(())
}
