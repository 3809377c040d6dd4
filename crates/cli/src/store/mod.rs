//! `bedplate store`: the commands around the transactional store of `bedplate-btree`, one file each.

mod backup;
mod compact;
mod create;
mod dump;
mod info;
mod load;
mod location;
mod records;
mod scan;
mod text;
mod verify;

use std::process::ExitCode;

use bedplate_btree::store::Progress;
use indicatif::ProgressBar;

use crate::kv::progress::bar;

/// Commands of `bedplate store`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Create a store, or trees in one.
    Create(create::Args),
    /// Show the size of a store and its trees.
    Info(info::Args),
    /// Print the value of a key.
    Get(records::GetArgs),
    /// Put a record.
    Put(records::PutArgs),
    /// Delete a record.
    Delete(records::DeleteArgs),
    /// Print the records of a tree, or of a range of keys, in their order.
    Scan(scan::Args),
    /// Copy a store to a directory where a store can be opened from.
    Backup(backup::Args),
    /// Check every page, tree and log record, without changing anything.
    Verify(verify::Args),
    /// Write all trees to a file or the standard output, in a format that checks itself.
    Dump(dump::Args),
    /// Make a store of a dump, or load a dump into a store.
    Load(load::Args),
    /// Rewrite a store into as few pages as possible, and shrink its file.
    Compact(compact::Args),
}

/// Runs a command.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(args) => create::run(args),
        Command::Info(args) => info::run(args),
        Command::Get(args) => records::get(args),
        Command::Put(args) => records::put(args),
        Command::Delete(args) => records::delete(args),
        Command::Scan(args) => scan::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Load(args) => load::run(args),
        Command::Compact(args) => compact::run(args),
    }
}

/// A bar that follows the progress of the store. The caller may know the total.
fn follow(what: &'static str, total: Option<u64>) -> (ProgressBar, impl FnMut(Progress)) {
    let shown = bar(what, 1);
    let target = shown.clone();
    let update = move |progress: Progress| {
        target.set_length(total.unwrap_or(progress.total).max(progress.done).max(1));
        target.set_position(progress.done);
    };
    (shown, update)
}
