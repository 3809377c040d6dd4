//! Waits for a lock of a file that a forked child holds for a moment.
//!
//! The lock of a file lasts until the last descriptor of the open file is closed. A child that another thread of the process forks
//! has such a descriptor, until it executes a program or ends. So a file can be locked for a moment after its owner has closed
//! it, and a block device can be in use for a moment.

use std::thread;
use std::time::{Duration, Instant};

/// The time after which a lock counts as held by its owner.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Repeats `attempt` while it fails as busy, for up to [`PATIENCE`]. Returns the result of the last attempt.
pub fn outwait<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && begin.elapsed() < PATIENCE => thread::sleep(PAUSE),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_attempt_is_repeated_and_another_error_is_not() {
        let mut attempts = 0;
        let mut attempt = |until, error| {
            attempts += 1;
            if attempts < until { Err(error) } else { Ok(attempts) }
        };
        assert_eq!(outwait(|| attempt(4, "busy"), |error| *error == "busy"), Ok(4));
        assert_eq!(outwait(|| attempt(9, "broken"), |error| *error == "busy"), Err("broken"));
    }

    #[test]
    fn a_file_that_stays_busy_is_an_error_after_a_while() {
        let begin = Instant::now();
        assert_eq!(outwait(|| Err::<(), _>("busy"), |_| true), Err("busy"));
        assert!(begin.elapsed() >= PATIENCE);
    }
}
