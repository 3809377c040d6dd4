//! `bedplate store verify`: all damage of a store.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bedplate_btree::store::{Damage, Store, Verification};
use serde_json::json;

use super::follow;
use crate::failure::hinted;
use crate::units::{count, size};

/// Arguments of `bedplate store verify`.
///
/// Nothing in the directory is changed. A store that was not closed is verified in the state that recovery would make; for that,
/// changed pages are written to the directory for temporary files.
#[derive(clap::Args)]
pub struct Args {
    /// The directory of the store. No other process has it open.
    directory: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Verifies; fails if anything is damaged.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (bar, mut update) = follow("verify", None);
    let found = Store::verify(&args.directory, &mut update);
    bar.finish_and_clear();
    let found = found?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &object(&found))?;
        writeln!(out)?;
    } else {
        out.write_all(text(&found).as_bytes())?;
    }
    if found.is_sound() {
        return Ok(ExitCode::SUCCESS);
    }
    let what = format!(
        "the store in {} is damaged in {} places",
        args.directory.display(),
        count(found.damage_count)
    );
    Err(hinted(what, "restore it from a backup or a dump; `bedplate store dump` writes what can be read"))
}

fn text(found: &Verification) -> String {
    let log = &found.log;
    let mut text = format!(
        "{} pages, {} free; {} segments of the log with {} records ({})\n",
        count(found.pages),
        count(found.free_pages),
        count(log.segments),
        count(log.records),
        size(log.bytes),
    );
    if !found.is_closed {
        text += "the store was not closed: this is what its log makes of it\n";
    }
    if log.torn_bytes > 0 {
        text += &format!("{} at the end of the log are no record\n", size(log.torn_bytes));
    }
    for tree in &found.trees {
        let (records, pages) = (count(tree.shape.records), count(tree.shape.pages()));
        text += &format!("tree {:?}: {records} records in {pages} pages\n", tree.name);
    }
    for damage in &found.damages {
        text += &format!("damaged: {damage}\n");
    }
    let unlisted = found.damage_count - found.damages.len() as u64;
    if unlisted > 0 {
        text += &format!("and {} more\n", count(unlisted));
    }
    if found.is_sound() {
        text += "sound\n";
    }
    text
}

fn object(found: &Verification) -> serde_json::Value {
    let trees: Vec<_> = found
        .trees
        .iter()
        .map(|tree| {
            json!({
                "name": tree.name,
                "records": tree.shape.records,
                "pages": tree.shape.pages(),
                "height": tree.shape.height,
                "damages": tree.damages,
            })
        })
        .collect();
    let damage = |damage: &Damage| {
        json!({
            "tree": damage.tree,
            "page": damage.page.map(|page| page.0),
            "segment": damage.segment,
            "what": damage.what,
        })
    };
    json!({
        "sound": found.is_sound(),
        "closed": found.is_closed,
        "pages": found.pages,
        "free_pages": found.free_pages,
        "log": {
            "segments": found.log.segments,
            "records": found.log.records,
            "commits": found.log.commits,
            "bytes": found.log.bytes,
            "torn_bytes": found.log.torn_bytes,
        },
        "trees": trees,
        "damage_count": found.damage_count,
        "damages": found.damages.iter().map(damage).collect::<Vec<_>>(),
    })
}
