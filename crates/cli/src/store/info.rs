//! `bedplate store info`: the size of a store and of its trees.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::json;

use super::location::Location;
use crate::units::{count, size};

/// Arguments of `bedplate store info`.
///
/// Numbers of records are estimates from samples; `bedplate store verify` counts.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    location: Location,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Shows the sizes.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = args.location.open()?;
    let mut trees = Vec::new();
    for name in store.trees() {
        let records = store.estimate_len(&store.tree(&name)?)?;
        trees.push((name, records));
    }
    let space = store.space();
    let page_size = store.page_size();
    store.close()?;
    let out = &mut io::stdout().lock();
    if args.json {
        let trees: Vec<_> = trees
            .iter()
            .map(|(name, records)| json!({ "name": name, "estimated_records": records }))
            .collect();
        let object = json!({
            "directory": args.location.directory.to_string_lossy(),
            "page_size": page_size.bytes(),
            "page_bytes": space.bytes,
            "free_bytes": space.free_bytes,
            "trees": trees,
        });
        serde_json::to_writer_pretty(&mut *out, &object)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (all, free) = (size(space.bytes), size(space.free_bytes));
    writeln!(out, "{all} in pages of {page_size}, of which {free} are free")?;
    for (name, records) in trees {
        writeln!(out, "tree {name:?}: about {} records", count(records))?;
    }
    Ok(ExitCode::SUCCESS)
}
