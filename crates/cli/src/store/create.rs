//! `bedplate store create`: a store, or trees in one that exists.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use bedplate_btree::store::{Error, Store};

use super::location::Location;
use crate::units::{count, parse_size};

/// Arguments of `bedplate store create`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    location: Location,
    /// A tree to create. It can be given several times. With it, the store may exist already.
    #[arg(long, value_name = "NAME")]
    tree: Vec<String>,
    /// Bytes of a page: 4K, 8K, 16K, 32K or 64K. Default: 4K. Larger pages allow longer keys: an eighth of a page. A store keeps the
    /// size that it was created with.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    page_size: Option<u64>,
}

/// Creates.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let builder = || {
        let builder = args.location.builder();
        match args.page_size {
            // A number that does not fit into `usize` is no page size either.
            Some(bytes) => builder.page_size(usize::try_from(bytes).unwrap_or(usize::MAX)),
            None => builder,
        }
    };
    let existing = builder().create_if_missing(false).open();
    let store: Store = match existing {
        Err(Error::NoStore(_)) => builder().open()?,
        Ok(_) if args.tree.is_empty() => {
            bail!("there is a store in {} already", args.location.directory.display())
        }
        existing => existing?,
    };
    for name in &args.tree {
        store.create_tree(name)?;
    }
    let trees = store.trees().len() as u64;
    store.close()?;
    writeln!(io::stdout(), "a store with {} trees in {}", count(trees), args.location.directory.display())?;
    Ok(ExitCode::SUCCESS)
}
