//! The flags of scripts and functions.

/// The names in the order of Redis. Only the first flag means something here.
const NAMES: [&str; 5] = ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

/// A set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    /// Adds the flag of this name; false if there is none.
    pub fn add(&mut self, name: &[u8]) -> bool {
        let position = NAMES.iter().position(|known| known.as_bytes() == name);
        position.is_some_and(|position| {
            self.0 |= 1 << position;
            true
        })
    }

    /// The names of the flags in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        (0..).zip(NAMES).filter(move |(position, _)| self.0 >> position & 1 == 1).map(|(_, name)| name)
    }

    /// Whether it has `no-writes`.
    pub fn is_read_only(self) -> bool {
        self.0 & 1 == 1
    }
}

#[test]
fn a_set_has_the_flags_that_were_added() {
    let mut flags = Flags::default();
    assert!(flags.add(b"no-cluster") && !flags.is_read_only());
    assert!(flags.add(b"no-writes") && flags.is_read_only());
    assert!(!flags.add(b"no-write") && !flags.add(b""));
    assert_eq!(flags.names().collect::<Vec<_>>(), ["no-writes", "no-cluster"]);
}
