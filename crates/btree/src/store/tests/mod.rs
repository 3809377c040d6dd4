//! Tests that need failing devices, or access to the inside of a store.

mod backup;
#[path = "../../../tests/common/blocking.rs"]
mod blocking;
mod compact;
mod crashes;
mod devices;
mod failures;
#[path = "../../../../bufpool/tests/common/faulty.rs"]
mod faulty;
mod load;
mod reservations;
mod space;
mod waiting;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bedplate_bufpool::PAGE;

use self::devices::Devices;
use super::{Builder, Durability, Result, Store};

/// The records of each tree.
type Model = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// A store with little memory on devices.
fn builder(lock: &Path, devices: &Devices, durability: Durability) -> Builder {
    Store::builder(lock)
        .memory(32 * PAGE)
        .capacity(64 << 20)
        .durability(durability)
        .devices(Box::new(devices.pages.clone()), Arc::new(devices.log.clone()))
}

/// The content of a store.
fn content(store: &Store) -> Result<Model> {
    let snapshot = store.write()?;
    let mut model = Model::new();
    for name in store.trees() {
        let tree = store.tree(&name)?;
        let records: Result<_> = snapshot.range::<&[u8]>(&tree, ..)?.collect();
        model.insert(name, records?);
    }
    Ok(model)
}
