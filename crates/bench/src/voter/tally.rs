//! Counts of votes, and the invariants that a database has to keep.

use super::tables::LIMIT;
use crate::{Error, Result};

/// Outcomes of votes, as a client counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) accepted: u64,
    /// Votes for a contestant that does not exist.
    pub(super) no_contestant: u64,
    /// Votes from a phone number that has cast all of its votes.
    pub(super) over_limit: u64,
    /// Votes that were rolled back, without effects.
    pub(super) failed: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: Tally) {
        self.requests += other.requests;
        self.accepted += other.accepted;
        self.no_contestant += other.no_contestant;
        self.over_limit += other.over_limit;
        self.failed += other.failed;
    }

    /// Votes that were accepted or rejected by the procedure.
    pub(super) fn processed(self) -> u64 {
        self.accepted + self.no_contestant + self.over_limit
    }
}

impl FromIterator<Tally> for Tally {
    fn from_iter<I: IntoIterator<Item = Tally>>(tallies: I) -> Self {
        let mut sum = Tally::default();
        tallies.into_iter().for_each(|tally| sum.add(tally));
        sum
    }
}

/// The votes that are in a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// Records of votes.
    pub(super) records: u64,
    /// Sum of the phone numbers' votes.
    pub(super) of_phones: u64,
    /// The most votes of one phone number.
    pub(super) most_of_phone: u64,
    /// Sum of the contestants' votes; `None` for a database that does not count them.
    pub(super) of_contestants: Option<u64>,
}

impl Stored {
    /// Counts the votes of one phone number.
    pub(super) fn add_phone(&mut self, votes: u64) {
        self.of_phones += votes;
        self.most_of_phone = self.most_of_phone.max(votes);
    }

    /// Compares with what the clients have counted.
    ///
    /// # Errors
    ///
    /// A vote was lost, was counted twice, or was accepted although it is one too many.
    pub(super) fn check(self, tally: Tally) -> Result<()> {
        let Tally { requests, accepted, .. } = tally;
        let wrong = |problem: String| Err(Error::engine(problem));
        if tally.processed() + tally.failed != requests {
            return wrong(format!("{requests} votes were cast, and their outcomes are {tally:?}"));
        }
        let sums = [self.records, self.of_phones, self.of_contestants.unwrap_or(accepted)];
        if sums.iter().any(|sum| *sum != accepted) {
            return wrong(format!("{accepted} votes were accepted, and the database has {self:?}"));
        }
        if self.most_of_phone > LIMIT {
            return wrong(format!(
                "a phone number has {} votes, and the limit is {LIMIT}",
                self.most_of_phone
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_broken_invariant_is_noticed() {
        let tally = Tally { requests: 10, accepted: 6, no_contestant: 1, over_limit: 2, failed: 1 };
        let stored = Stored { records: 6, of_phones: 6, most_of_phone: 2, of_contestants: Some(6) };
        stored.check(tally).unwrap();
        Stored { of_contestants: None, ..stored }.check(tally).unwrap();
        for wrong in [
            Stored { records: 5, ..stored },
            Stored { of_phones: 7, ..stored },
            Stored { of_contestants: Some(5), ..stored },
            Stored { most_of_phone: LIMIT + 1, ..stored },
        ] {
            assert!(wrong.check(tally).is_err(), "{wrong:?}");
        }
        assert!(stored.check(Tally { requests: 11, ..tally }).is_err());
        assert!(stored.check(Tally { accepted: 5, over_limit: 3, ..tally }).is_err());
    }
}
