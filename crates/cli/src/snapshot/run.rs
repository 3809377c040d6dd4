//! `bedplate snapshot run`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::preload::{self, reach};
use crate::{failure, units};

const LIBRARY: &str = "libbedplate_snapshot_preload.so";
const MALLOC: &str = "libbedplate_snapshot_malloc.so";
/// The exit status if the program must not run without snapshots. Shells use it for a command that cannot be executed.
const CANNOT_EXECUTE: u8 = 126;

/// Mechanisms that give a program snapshots by `fork`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Engine {
    /// Remap where it works, else uffd.
    Auto,
    /// A snapshot detaches page tables, which takes constant time.
    Remap,
    /// Write protection by userfaultfd.
    Uffd,
    /// Page tables of the program's own: it runs in ring 0 of its processors, by KVM.
    Ring0,
}

/// The allocator whose `malloc` the program calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Malloc {
    /// The bundled one in the place of the C library's, and the program's if it brings another one.
    Auto,
    /// The bundled one, even if the program brings another one.
    Bundled,
    /// The program's. Memory of the C library's malloc is copied by fork as usual.
    Own,
}

#[derive(clap::Args)]
pub struct Args {
    /// The mechanism that makes snapshots.
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    engine: Engine,
    /// Append statistics to a file, a line when the program ends.
    #[arg(long, value_name = "FILE")]
    statistics: Option<PathBuf>,
    /// Do not run the program if the engine is not available; by default it runs as usual, after a warning.
    #[arg(long)]
    required: bool,
    /// Do not have the kernel back the program's memory with huge pages. It takes less memory where the program uses it
    /// sparsely, but snapshots pause the program for longer.
    #[arg(long)]
    small_pages: bool,
    /// For ring0: the amount of memory that has snapshots, by default all of the machine's; fork copies the rest as
    /// usual.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    memory: Option<u64>,
    /// Fork copies memory that the program maps in pieces smaller than this as usual.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = units::parse_size)]
    minimum: u64,
    /// The allocator of the program, and of the programs that it starts.
    #[arg(long, value_enum, default_value_t = Malloc::Auto)]
    malloc: Malloc,
    #[command(flatten)]
    program: preload::Args,
}

/// Becomes the program; returns only if that fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some((program, obstacle)) = reach::obstacle(args.program.name()) {
        let reason = format!("{} {obstacle}", program.display());
        if args.required {
            return Ok(failure::report_as(&anyhow::Error::msg(reason), CANNOT_EXECUTE));
        }
        eprintln!("bedplate snapshot: running without snapshots: {reason}");
        return args.program.run_as_it_is([]);
    }
    let mut environment = vec![("BEDPLATE_SNAPSHOT_MINIMUM", args.minimum.to_string().into())];
    let engine = match args.engine {
        Engine::Auto => None,
        Engine::Remap => Some("remap"),
        Engine::Uffd => Some("uffd"),
        Engine::Ring0 => Some("ring0"),
    };
    environment.extend(engine.map(|name| ("BEDPLATE_SNAPSHOT_ENGINE", name.into())));
    if let Some(bytes) = args.memory {
        environment.push(("BEDPLATE_SNAPSHOT_BYTES", bytes.to_string().into()));
    }
    if let Some(file) = &args.statistics {
        environment.push(("BEDPLATE_SNAPSHOT_STATISTICS", std::path::absolute(file)?.into()));
    }
    if args.required {
        environment.push(("BEDPLATE_SNAPSHOT_REQUIRED", "1".into()));
    }
    if args.small_pages {
        environment.push(("BEDPLATE_SNAPSHOT_HUGE_PAGES", "0".into()));
    }
    let others: &[&str] = match args.malloc {
        Malloc::Auto | Malloc::Bundled => &[MALLOC],
        Malloc::Own => &[],
    };
    let malloc = if args.malloc == Malloc::Bundled { "bundled" } else { "auto" };
    environment.push(("BEDPLATE_SNAPSHOT_MALLOC", malloc.into()));
    args.program.run(LIBRARY, others, &environment)
}
