//! What commands need: the tables of a folder, and rows as text.

use std::path::Path;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::{ParquetReadOptions, SessionContext};

/// The tables of a folder: the name of each sub-folder, and of each file `NAME.parquet`, with its place in the folder. They are
/// sorted by name.
///
/// # Errors
/// The folder cannot be read, or has no table.
pub fn tables(folder: &Path) -> Result<Vec<(String, String)>> {
    let failed = |error| DataFusionError::Execution(format!("{}: {error}", folder.display()));
    let mut tables = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // The type of what a link leads to.
        let is_folder = std::fs::metadata(entry.path()).map_err(failed)?.is_dir();
        match name.strip_suffix(".parquet") {
            _ if is_folder => tables.push((name.clone(), format!("{name}/"))),
            Some(table) => tables.push((table.to_owned(), name.clone())),
            None => {}
        }
    }
    tables.sort();
    if tables.is_empty() {
        return Err(DataFusionError::Execution(format!(
            "{} has neither a file NAME.parquet nor a sub-folder of Parquet files",
            folder.display()
        )));
    }
    Ok(tables)
}

/// Registers the [tables] of a folder.
///
/// # Errors
/// Likewise; a table cannot be read.
pub async fn register(context: &SessionContext, folder: &Path) -> Result<()> {
    let folder = std::path::absolute(folder)?;
    for (table, place) in tables(&folder)? {
        let path = folder.join(place.trim_end_matches('/'));
        let Some(path) = path.to_str() else {
            return Err(DataFusionError::Execution(format!("{} is not UTF-8", path.display())));
        };
        let path = if place.ends_with('/') { format!("{path}/") } else { path.to_owned() };
        context.register_parquet(table, path, ParquetReadOptions::default()).await?;
    }
    Ok(())
}

/// Rows as text: numbers with all their digits, dates as `1995-03-15`, and JSON's null for no value.
///
/// # Errors
/// A value has no text.
pub fn rows(batches: &[RecordBatch]) -> Result<Vec<Vec<Option<String>>>> {
    let options = FormatOptions::default();
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column.as_ref(), &options))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let text = |(at, column): (usize, &ArrayFormatter<'_>)| match batch.column(at).is_null(row) {
                true => Ok(None),
                false => column.value(row).try_to_string().map(Some),
            };
            rows.push(columns.iter().enumerate().map(text).collect::<std::result::Result<_, _>>()?);
        }
    }
    Ok(rows)
}
