//! Progress bars on the standard error; nothing is drawn if that is not a terminal.

use bedplate_kerneldb::checkpoint::Progress;
use bedplate_kerneldb::recovery::{RecoveryPhase, RecoveryProgress};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar over work whose size is known (`total`), or a spinner if it is 0.
pub fn bar(what: &'static str, total: u64) -> ProgressBar {
    let template = if total == 0 {
        "{prefix} {spinner} {elapsed_precise} {msg}"
    } else {
        "{prefix} {wide_bar} {percent}% {eta_precise} {msg}"
    };
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    ProgressBar::new(total).with_style(style).with_prefix(what)
}

/// A bar that follows the progress reports of kerneldb.
pub fn follow(what: &'static str) -> (ProgressBar, impl FnMut(Progress)) {
    let shown = bar(what, 1);
    let target = shown.clone();
    let update = move |progress: Progress| {
        target.set_length(progress.total.max(progress.done).max(1));
        target.set_position(progress.done);
        target.set_message(format!("{} keys", crate::units::count(progress.entries)));
    };
    (shown, update)
}

/// Shows how far a recovery is. `checkpoint` is the name of its first phase.
pub fn recovered(bar: &ProgressBar, checkpoint: &'static str, progress: RecoveryProgress) {
    bar.set_prefix(match progress.phase {
        RecoveryPhase::Checkpoint => checkpoint,
        RecoveryPhase::Log => "log",
    });
    bar.set_length(progress.total_bytes.max(1));
    bar.set_position(progress.done_bytes);
    bar.set_message(crate::units::count(progress.applied));
}
