//! `bedplate store scan`: records in their order, one a line.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::ops::Bound;
use std::process::ExitCode;

use serde_json::json;

use super::location::{Location, tree};
use super::text::Format;

/// Arguments of `bedplate store scan`.
///
/// A line has a key, a tab and the value.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    location: Location,
    /// The tree.
    tree: String,
    /// Only keys that are not below this one.
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    from: Option<OsString>,
    /// Only keys that are below this one.
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    to: Option<OsString>,
    /// Only keys that begin with this one.
    #[arg(long, value_name = "KEY")]
    prefix: Option<OsString>,
    /// From the last key to the first.
    #[arg(long)]
    reverse: bool,
    /// Stop after this number of records.
    #[arg(long, value_name = "RECORDS")]
    limit: Option<usize>,
    /// Print the keys only.
    #[arg(long)]
    keys: bool,
    #[command(flatten)]
    format: Format,
    /// Print a JSON object for each record, one a line.
    #[arg(long)]
    json: bool,
}

/// The bound before which the range of keys that begin with a prefix ends.
fn after(prefix: &[u8]) -> Bound<Vec<u8>> {
    match prefix.iter().rposition(|byte| *byte != u8::MAX) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    }
}

/// Prints records.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let parse = |key: &Option<OsString>| key.as_ref().map(|key| args.format.parse(key)).transpose();
    let (from, to, prefix) = (parse(&args.from)?, parse(&args.to)?, parse(&args.prefix)?);
    let range = match prefix {
        Some(prefix) => {
            let end = after(&prefix);
            (Bound::Included(prefix), end)
        }
        None => {
            (from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded))
        }
    };
    let store = args.location.open()?;
    let tree = tree(&store, &args.tree)?;
    let snapshot = store.read()?;
    let records =
        if args.reverse { snapshot.range_rev(&tree, range)? } else { snapshot.range(&tree, range)? };
    let mut out = BufWriter::new(io::stdout().lock());
    for record in records.take(args.limit.unwrap_or(usize::MAX)) {
        let (key, value) = record?;
        let (key, value) = (args.format.show(&key), (!args.keys).then(|| args.format.show(&value)));
        match value {
            Some(value) if args.json => writeln!(out, "{}", json!({ "key": key, "value": value }))?,
            None if args.json => writeln!(out, "{}", json!({ "key": key }))?,
            Some(value) => writeln!(out, "{key}\t{value}")?,
            None => writeln!(out, "{key}")?,
        }
    }
    out.flush()?;
    drop(snapshot);
    store.close()?;
    Ok(ExitCode::SUCCESS)
}
