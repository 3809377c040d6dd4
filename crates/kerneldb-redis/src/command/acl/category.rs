//! The categories of commands (`+@read`).

use crate::command::spec::Spec;

/// Names of all categories of Redis, in the order of ACL CAT. Some have no commands here.
const NAMES: [&str; 21] = [
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

/// Number of categories.
pub(super) const COUNT: usize = NAMES.len();

/// A category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) struct Category(u8);

impl Category {
    /// All categories, in the order of ACL CAT.
    pub(in crate::command) fn all() -> impl ExactSizeIterator<Item = Category> {
        (0..COUNT as u8).map(Category)
    }

    /// The category with this name, which is not case sensitive.
    pub(in crate::command) fn find(name: &[u8]) -> Option<Category> {
        Category::all().find(|category| name.eq_ignore_ascii_case(category.name().as_bytes()))
    }

    pub(in crate::command) fn name(self) -> &'static str {
        NAMES[self.index()]
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of categories.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::command) struct Categories(u32);

impl Categories {
    /// The categories of a command or subcommand.
    pub(super) fn of(spec: &Spec) -> Categories {
        let names = spec.acl.split_whitespace().filter_map(|name| Category::find(name.as_bytes()));
        Categories(names.fold(0, |set, category| set | 1 << category.0))
    }

    pub(in crate::command) fn has(self, category: Category) -> bool {
        self.0 >> category.0 & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::acl::commands;

    #[test]
    fn every_category_of_the_table_is_known() {
        for entry in commands::all() {
            let names: Vec<_> = entry.spec.acl.split_whitespace().collect();
            let known = Category::all().filter(|category| entry.categories.has(*category));
            assert_eq!(known.count(), names.len(), "{}: {names:?}", entry.full_name());
        }
        assert_eq!(Category::find(b"STRING").map(Category::name), Some("string"));
        assert!(Category::find(b"all").is_none());
    }
}
