//! User space's view of the hash-map engine: sizing and loading its maps, reading them by system calls,
//! and consuming its log. Only the operators write (`bpf/engine/hashmap/`).

mod candidates;
mod dump;
mod expired;
mod format;
mod log;
mod scan;
mod store;
mod verify;

pub(crate) use store::HashStore;
