//! The store that a command uses, and the way to open it.

use std::path::PathBuf;

use bedplate_btree::store::{Builder, Error, NamedTree, Store};

use crate::failure::hinted;
use crate::units::parse_size;

/// The largest capacity, because the commands do not limit a store.
const CAPACITY: u64 = 16 << 40;

/// The store of a command.
#[derive(clap::Args)]
pub struct Location {
    /// The directory of the store. No other process has it open.
    pub directory: PathBuf,
    /// Memory for pages.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    memory: u64,
}

impl Location {
    pub fn builder(&self) -> Builder {
        Store::builder(&self.directory).memory(self.memory as usize).capacity(CAPACITY)
    }

    /// Opens a store that exists. A store that was not closed is recovered.
    pub fn open(&self) -> anyhow::Result<Store> {
        Ok(self.builder().create_if_missing(false).open()?)
    }
}

/// A tree of a store.
pub fn tree(store: &Store, name: &str) -> anyhow::Result<NamedTree> {
    store.tree(name).map_err(|error| match error {
        Error::NoSuchTree(_) => {
            hinted(error.to_string(), "`bedplate store info` lists the trees, `create --tree` makes one")
        }
        error => error.into(),
    })
}
