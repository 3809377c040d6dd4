//! Logging to the standard error. `BEDPLATE_LOG` selects the messages, in the syntax of tracing's filters.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts logging; `info` and above by default.
pub fn init() {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var("BEDPLATE_LOG")
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // Such an error would be reported on the standard error as well, and the macro for that panics when the reader of
        // a pipe there is gone.
        .log_internal_errors(false)
        .init();
}
