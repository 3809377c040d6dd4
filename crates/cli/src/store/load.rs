//! `bedplate store load`: a store from a dump.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use bedplate_btree::store::{Error, Load, LoadPolicy, Store};

use super::follow;
use super::location::Location;
use crate::failure::hinted;
use crate::units::count;

/// The treatment of a tree that the store has already.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Existing {
    /// Load nothing.
    Refuse,
    /// Put the tree of the dump in its place.
    Replace,
    /// Put the records of the dump into it.
    Merge,
}

/// Arguments of `bedplate store load`.
///
/// A damaged or incomplete dump changes nothing. Without a store in the directory, one is made, which appears when it is
/// complete.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    location: Location,
    /// The dump; `-` for the standard input.
    #[arg(default_value = "-")]
    file: PathBuf,
    /// The treatment of a tree of the dump that the store has already.
    #[arg(long, value_enum, default_value = "refuse")]
    existing: Existing,
}

/// Loads.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (input, total): (Box<dyn Read>, _) = if args.file == Path::new("-") {
        (Box::new(io::stdin().lock()), None)
    } else {
        let opening = || format!("opening {}", args.file.display());
        let file = File::open(&args.file).with_context(opening)?;
        let len = file.metadata().with_context(opening)?.len();
        (Box::new(file), Some(len))
    };
    let (bar, mut update) = follow("load", total);
    let loaded: Result<Load, Error> = match args.location.builder().create_if_missing(false).open() {
        Err(Error::NoStore(directory)) => Store::create_from_dump(directory, input, &mut update),
        Err(error) => Err(error),
        Ok(store) => {
            let policy = match args.existing {
                Existing::Refuse => LoadPolicy::Refuse,
                Existing::Replace => LoadPolicy::Replace,
                Existing::Merge => LoadPolicy::Merge,
            };
            store.load(input, policy, &mut update).and_then(|loaded| store.close().map(|()| loaded))
        }
    };
    bar.finish_and_clear();
    let loaded = loaded.map_err(|error| match error {
        Error::TreeExists(_) => {
            hinted(error.to_string(), "--existing replace or --existing merge says what to do with it")
        }
        error => error.into(),
    })?;
    writeln!(io::stdout(), "{} trees, {} records loaded", count(loaded.trees), count(loaded.records))?;
    Ok(ExitCode::SUCCESS)
}
