//! BEDPLATE VERIFY: the checks that are possible while clients continue.
//!
//! It reads one snapshot completely. Then, with a data directory, it takes a checkpoint, reads it back and
//! checks it. [`Database::verify`] checks the invariants that hold only while nothing runs.

use bedplate_kerneldb::{Database, Error, KEY_MAX, Result, Store, VALUE_MAX, checkpoint};

/// Checks a database in use; the text reports the checks that succeeded.
pub(super) fn running(database: &Database, store: Option<&Store>) -> Result<String> {
    let (keys, ts) = snapshot(database)?;
    let memory = format!("sound: {keys} keys at timestamp {ts}");
    let Some(store) = store.filter(|store| store.data_dir().is_some()) else { return Ok(memory) };
    let taken = store.checkpoint()?;
    let read = checkpoint::verify(&taken.path, &mut |_| {})?;
    if (read.ts, read.entries) != (taken.ts, taken.entries) {
        return Err(Error::Corrupt(format!("{} does not hold what was written", taken.path.display())));
    }
    Ok(format!("{memory}; a checkpoint of {} keys at timestamp {} reads back", read.entries, read.ts))
}

/// Number of keys, and the timestamp of the snapshot that they were read in.
fn snapshot(database: &Database) -> Result<(u64, u64)> {
    let snapshot = database.snapshot()?;
    let ts = snapshot.timestamp();
    let (mut keys, mut wrong) = (0, None);
    let mut position = 0;
    while position < snapshot.positions() {
        position = snapshot.scan(position, position + 1, &mut |item| {
            keys += 1;
            let problem = if !(1..=KEY_MAX).contains(&item.key.len()) {
                "a key has an impossible length"
            } else if item.value.len() > VALUE_MAX {
                "a value has an impossible length"
            } else if item.commit_ts == 0 || item.commit_ts > ts {
                "a version is not one that the snapshot may see"
            } else {
                return;
            };
            wrong.get_or_insert((problem, position));
        })?;
    }
    match wrong {
        None => Ok((keys, ts)),
        Some((problem, position)) => Err(Error::Corrupt(format!("{problem} (position {position})"))),
    }
}
