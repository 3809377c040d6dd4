//! TPC-H's generator, as text, for engines that read no Parquet files.

use std::fmt::Display;

use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

use crate::Result;

/// Visits the rows of a table of [`super::queries::TABLES`]. A row is text with a bar between columns.
pub fn each(table: &str, scale: f64, visit: impl FnMut(&str) -> Result<()>) -> Result<()> {
    match table {
        "region" => lines(RegionGenerator::new(scale, 1, 1).iter(), visit),
        "nation" => lines(NationGenerator::new(scale, 1, 1).iter(), visit),
        "supplier" => lines(SupplierGenerator::new(scale, 1, 1).iter(), visit),
        "customer" => lines(CustomerGenerator::new(scale, 1, 1).iter(), visit),
        "part" => lines(PartGenerator::new(scale, 1, 1).iter(), visit),
        "partsupp" => lines(PartSuppGenerator::new(scale, 1, 1).iter(), visit),
        "orders" => lines(OrderGenerator::new(scale, 1, 1).iter(), visit),
        _ => lines(LineItemGenerator::new(scale, 1, 1).iter(), visit),
    }
}

/// The generator's text has a bar behind every column, the last one too.
fn lines<T: Display>(rows: impl Iterator<Item = T>, mut visit: impl FnMut(&str) -> Result<()>) -> Result<()> {
    for row in rows {
        let row = row.to_string();
        visit(row.strip_suffix('|').unwrap_or(&row))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::queries::TABLES;
    use super::*;

    #[test]
    fn every_table_has_rows_of_its_columns() {
        for (table, columns) in TABLES {
            // Commas also divide the digits of a number's type.
            let count = columns.split(", ").count();
            let mut rows = 0;
            each(table, 0.001, |row| {
                assert_eq!(row.split('|').count(), count, "{table}: {row}");
                rows += 1;
                Ok(())
            })
            .unwrap();
            assert!(rows >= 5, "{table}");
        }
    }
}
