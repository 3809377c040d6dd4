//! The soft limit on the descriptors of this process. Shells and services usually set it to 1024, because programs that call
//! `select` cannot use more. A process may raise it to its hard limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::info!("the limit on open files stays as it is: {error}");
    }
}
