//! `bedplate store get`, `put` and `delete`: single records.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;

use super::location::{Location, tree};
use super::text::Format;
use crate::failure::hinted;

/// The tree and the key of a command.
#[derive(clap::Args)]
struct Target {
    #[command(flatten)]
    location: Location,
    /// The tree.
    tree: String,
    /// The key.
    key: OsString,
    #[command(flatten)]
    format: Format,
}

impl Target {
    fn key(&self) -> anyhow::Result<Vec<u8>> {
        self.format.parse(&self.key)
    }

    /// The error of an absent key.
    fn absent(&self, key: &[u8]) -> anyhow::Error {
        hinted(
            format!("there is no key {} in tree {:?}", self.format.show(key), self.tree),
            "`bedplate store scan` prints the keys that there are",
        )
    }
}

/// Arguments of `bedplate store get`.
#[derive(clap::Args)]
pub struct GetArgs {
    #[command(flatten)]
    target: Target,
    /// Print the bytes of the value as they are, and nothing else.
    #[arg(long)]
    raw: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "raw")]
    json: bool,
}

/// Prints a value. An absent key is an error.
pub fn get(args: &GetArgs) -> anyhow::Result<ExitCode> {
    let target = &args.target;
    let key = target.key()?;
    let store = target.location.open()?;
    let value = store.read()?.get(&tree(&store, &target.tree)?, &key)?;
    store.close()?;
    let value = value.ok_or_else(|| target.absent(&key))?;
    let mut out = io::stdout().lock();
    if args.raw {
        out.write_all(&value)?;
    } else if args.json {
        let record = json!({ "key": target.format.show(&key), "value": target.format.show(&value) });
        writeln!(out, "{record}")?;
    } else {
        writeln!(out, "{}", target.format.show(&value))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Arguments of `bedplate store put`.
#[derive(clap::Args)]
pub struct PutArgs {
    #[command(flatten)]
    target: Target,
    /// The value; `-` for the bytes of the standard input.
    value: OsString,
    /// Create the tree if there is none.
    #[arg(long)]
    create: bool,
}

/// Puts a record, in place of the key's present one.
pub fn put(args: &PutArgs) -> anyhow::Result<ExitCode> {
    let target = &args.target;
    let key = target.key()?;
    let value = if args.value == "-" {
        let mut value = Vec::new();
        // A value with one byte more than the longest one is refused, so no more bytes are read.
        let most = bedplate_btree::MAX_VALUE as u64 + 1;
        io::stdin().lock().take(most).read_to_end(&mut value).context("reading the standard input")?;
        value
    } else {
        target.format.parse(&args.value)?
    };
    let store = target.location.open()?;
    if args.create && !store.trees().contains(&target.tree) {
        store.create_tree(&target.tree)?;
    }
    let tree = tree(&store, &target.tree)?;
    store.update(|transaction| transaction.put(&tree, &key, &value))?;
    store.close()?;
    Ok(ExitCode::SUCCESS)
}

/// Arguments of `bedplate store delete`.
#[derive(clap::Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    target: Target,
}

/// Deletes a record. An absent key is an error.
pub fn delete(args: &DeleteArgs) -> anyhow::Result<ExitCode> {
    let target = &args.target;
    let key = target.key()?;
    let store = target.location.open()?;
    let tree = tree(&store, &target.tree)?;
    let was_there = store.update(|transaction| transaction.remove(&tree, &key))?;
    store.close()?;
    if was_there { Ok(ExitCode::SUCCESS) } else { Err(target.absent(&key)) }
}
