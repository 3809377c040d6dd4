//! Numbers of commands and subcommands, and sets of them.

use std::sync::OnceLock;

use super::category::{self, Categories, Category};
use crate::command::spec::{self, Found, Spec};

/// Words of a set.
const WORDS: usize = 4;

/// The number of a command or subcommand in the table. It is not kept anywhere: another version has other numbers.
pub(super) type Number = u16;

/// An entry of the table.
#[derive(Debug)]
pub(in crate::command) struct Entry {
    pub(in crate::command) spec: &'static Spec,
    /// The command of a subcommand.
    pub(in crate::command) parent: Option<&'static Spec>,
    pub(in crate::command) categories: Categories,
}

impl Entry {
    /// `command` or `command|subcommand`.
    pub(in crate::command) fn full_name(&self) -> String {
        spec::full_name((self.parent, self.spec))
    }
}

/// All commands, each followed by its subcommands. The position of an entry is its number.
pub(in crate::command) fn all() -> &'static [Entry] {
    static ALL: OnceLock<Vec<Entry>> = OnceLock::new();
    ALL.get_or_init(|| {
        let entry = |(parent, spec)| Entry { spec, parent, categories: Categories::of(spec) };
        let all: Vec<Entry> = spec::all().map(entry).collect();
        assert!(all.len() + category::COUNT <= WORDS * 64, "a set of commands has too few bits");
        all
    })
}

/// The number of a command or subcommand.
pub(super) fn number(found: Found) -> Number {
    spec::number(found) as Number
}

/// The number that stands for the commands of a category that has none here. So a user keeps the right to them, or the lack of it, for a
/// version that has such commands.
pub(super) fn stand_in(category: Category) -> Option<Number> {
    static EMPTY: OnceLock<[bool; category::COUNT]> = OnceLock::new();
    let empty = EMPTY.get_or_init(|| {
        let mut empty = [true; category::COUNT];
        Category::all()
            .for_each(|one| empty[one.index()] = !all().iter().any(|entry| entry.categories.has(one)));
        empty
    });
    empty[category.index()].then(|| (all().len() + category.index()) as Number)
}

/// Finds `command` or `command|subcommand`, which are not case sensitive.
pub(super) fn find(name: &[u8]) -> Option<&'static Entry> {
    Some(&all()[spec::number(spec::find_by_full_name(name)?)])
}

/// A set of commands and subcommands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandSet([u64; WORDS]);

impl CommandSet {
    /// The set of all commands.
    pub(super) fn full() -> CommandSet {
        CommandSet([u64::MAX; WORDS])
    }

    pub(super) fn has(&self, number: Number) -> bool {
        self.0[usize::from(number / 64)] >> (number % 64) & 1 == 1
    }

    pub(super) fn put(&mut self, number: Number, is_in: bool) {
        let (word, bit) = (&mut self.0[usize::from(number / 64)], 1 << (number % 64));
        if is_in { *word |= bit } else { *word &= !bit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_number_and_a_name() {
        for (at, entry) in all().iter().enumerate() {
            assert_eq!(usize::from(number((entry.parent, entry.spec))), at);
            let found = find(entry.full_name().to_ascii_uppercase().as_bytes()).unwrap();
            assert!(std::ptr::eq(found.spec, entry.spec));
        }
        assert!(find(b"nosuch").is_none() && find(b"config|nosuch").is_none() && find(b"get|x").is_none());
    }

    #[test]
    fn a_set_keeps_its_members_apart() {
        let mut set = CommandSet::default();
        for number in 0..(WORDS as Number * 64) {
            assert!(!set.has(number));
            set.put(number, true);
            assert!(set.has(number) && (number == 0 || set.has(number - 1)));
        }
        assert_eq!(set, CommandSet::full());
        set.put(100, false);
        assert!(!set.has(100) && set.has(99) && set.has(101));
    }
}
