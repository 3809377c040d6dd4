//! The categories of commands (`+@read`).

use crate::command::spec::Spec;

/// Names of all categories of Redis, in the order of ACL CAT. Some have no commands here.
pub(in crate::command) const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// The category with this name, which is not case sensitive.
pub(in crate::command) fn find(name: &[u8]) -> Option<&'static str> {
    CATEGORIES.iter().find(|category| name.eq_ignore_ascii_case(category.as_bytes())).copied()
}

/// Whether a command or subcommand belongs to the category.
pub(in crate::command) fn has(category: &str, spec: &Spec) -> bool {
    spec.acl.split_whitespace().any(|name| name == category)
}
