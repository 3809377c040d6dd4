//! The limit on the descriptors that this process may have open. Shells and services start programs with a low one, 1024 as a rule,
//! because programs that call select() could not use more, and a high one up to which programs may raise it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the system allows. Returns the limit that holds afterwards.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::info!("the limit on descriptors stays as it is: {error}");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
