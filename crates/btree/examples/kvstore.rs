//! A small persistent store: `kvstore FILE set KEY VALUE`, `get`, `add`, `delete`, `list`, `import`, `check`.
//!
//! One tree in a file, opened and closed by every command. `import` reads lines of a key, a tab and a value from standard
//! input, so a larger store is one command away:
//!
//! ```text
//! seq 1000000 | awk '{ printf "%08d\tnumber %d\n", $1, $1 }' | kvstore FILE import
//! kvstore FILE list 00000010 00000020
//! ```

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use bedplate_btree::Tree;
use bedplate_bufpool::Pool;
use clap::{Parser, Subcommand};

/// The tree's root slot in the pool.
const SLOT: usize = 0;

#[derive(Parser)]
struct Options {
    /// The file of the store. It is created if it does not exist.
    file: PathBuf,
    /// Memory, in MiB.
    #[arg(long, default_value_t = 64)]
    memory: usize,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Stores a value.
    Set { key: String, value: String },
    /// Prints a value.
    Get { key: String },
    /// Adds to a number, which is 0 at first.
    Add { key: String, number: i64 },
    /// Removes a key.
    Delete { key: String },
    /// Prints keys and values from a key on, before another one.
    List {
        #[arg(default_value = "")]
        from: String,
        to: Option<String>,
        /// From the last to the first.
        #[arg(long)]
        reverse: bool,
        #[arg(long, default_value_t = usize::MAX)]
        limit: usize,
    },
    /// Stores lines of standard input: key, tab, value.
    Import,
    /// Verifies the whole store.
    Check,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let pool = Pool::builder(&options.file)
        .memory(options.memory << 20)
        .capacity(64 << 30)
        .open()
        .with_context(|| format!("cannot open {}", options.file.display()))?;
    let tree = Tree::open_or_create(&pool, SLOT)?;
    let result = run(&tree, options.command);
    // Changes before an error are kept too.
    pool.close()?;
    result
}

fn run(tree: &Tree<&Pool>, command: Command) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match command {
        Command::Set { key, value } => {
            tree.upsert(key.as_bytes(), value.as_bytes())?;
        }
        Command::Get { key } => {
            let found = tree.get(key.as_bytes(), |value| print(&mut out, value))?;
            found.with_context(|| format!("there is no {key}"))??;
        }
        Command::Add { key, number } => {
            tree.insert(key.as_bytes(), b"0")?;
            let mut sum = None;
            tree.update(key.as_bytes(), |old, new| {
                sum = std::str::from_utf8(old)
                    .ok()
                    .and_then(|old| old.parse::<i64>().ok())
                    .and_then(|old| old.checked_add(number));
                match sum {
                    Some(sum) => new.extend_from_slice(sum.to_string().as_bytes()),
                    None => new.extend_from_slice(old),
                }
            })?;
            let sum = sum.with_context(|| format!("{key} is no number, or would be too large a one"))?;
            writeln!(out, "{sum}")?;
        }
        Command::Delete { key } => {
            if !tree.remove(key.as_bytes())? {
                bail!("there is no {key}");
            }
        }
        Command::List { from, to, reverse, limit } => {
            use std::ops::Bound;
            let from = Bound::Included(from.as_str());
            let to = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let mut range =
                if reverse { tree.range_rev::<&str>((from, to)) } else { tree.range::<&str>((from, to)) };
            for _ in 0..limit {
                let Some((key, value)) = range.try_next()? else { break };
                out.write_all(key)?;
                out.write_all(b"\t")?;
                print(&mut out, value)?;
            }
        }
        Command::Import => {
            let mut count = 0;
            for line in io::stdin().lock().split(b'\n') {
                let line = line?;
                let tab = line.iter().position(|&byte| byte == b'\t').context("a line without a tab")?;
                tree.upsert(&line[..tab], &line[tab + 1..])?;
                count += 1;
            }
            writeln!(out, "{count} lines")?;
        }
        Command::Check => {
            let shape = tree.check()?;
            writeln!(
                out,
                "sound: {} records, {} levels, {} pages, leaves {} % full",
                shape.records,
                shape.height,
                shape.pages(),
                100 * shape.leaf_bytes / shape.leaf_capacity()
            )?;
        }
    }
    out.flush()?;
    Ok(())
}

fn print(out: &mut impl Write, value: &[u8]) -> io::Result<()> {
    out.write_all(value)?;
    out.write_all(b"\n")
}
