//! Votes as requests of the Redis protocol, and the check of their replies.

use std::io::Write;

use super::tables::{Ballot, Ballots, LIMIT};
use super::tally::Tally;
use crate::Result;
use crate::net::wire::{Reply, Traffic, error_reply, wrong};

/// The command that calls the procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// kerneldb's CALL.
    Call,
    /// FCALL of Redis Functions.
    Function,
}

impl Dialect {
    /// The request up to the phone number.
    fn head(self) -> &'static [u8] {
        match self {
            Dialect::Call => b"*5\r\n$4\r\nCALL\r\n$10\r\nvoter_vote\r\n",
            Dialect::Function => b"*6\r\n$5\r\nFCALL\r\n$10\r\nvoter_vote\r\n$1\r\n1\r\n",
        }
    }
}

/// The votes of one thread of the load generator, and their outcomes.
pub(super) struct Votes {
    dialect: Dialect,
    ballots: Ballots,
    pub(super) tally: Tally,
}

impl Votes {
    pub(super) fn new(dialect: Dialect, ballots: Ballots) -> Self {
        Votes { dialect, ballots, tally: Tally::default() }
    }
}

impl Traffic for Votes {
    type Request = Ballot;
    const ANSWERS_ALL: bool = true;

    fn request(&mut self, out: &mut Vec<u8>) -> Ballot {
        let ballot = self.ballots.draw();
        let Ballot { phone, contestant } = ballot;
        out.extend_from_slice(self.dialect.head());
        let digits = contestant.checked_ilog10().unwrap_or(0) + 1;
        write!(out, "$10\r\n{phone}\r\n${digits}\r\n{contestant}\r\n$1\r\n{LIMIT}\r\n")
            .expect("a vector takes all bytes");
        self.tally.requests += 1;
        ballot
    }

    fn reply(&mut self, ballot: Ballot, received: &[u8]) -> Result<Option<(usize, Reply)>> {
        if received[0] == b'-' {
            let reply = error_reply(received);
            self.tally.failed += u64::from(reply.is_some());
            return Ok(reply);
        }
        let Some(reply) = received.first_chunk::<4>() else {
            return match b":0\r\n".starts_with(&received[..1]) {
                true => Ok(None),
                false => Err(wrong(received, "an unexpected reply")),
            };
        };
        // The procedure looks at the contestant first.
        let outcome = match (reply, ballot.is_valid()) {
            (b":0\r\n", true) => &mut self.tally.accepted,
            (b":1\r\n", false) => &mut self.tally.no_contestant,
            (b":2\r\n", true) => &mut self.tally.over_limit,
            _ => return Err(wrong(received, "an unexpected reply")),
        };
        *outcome += 1;
        Ok(Some((reply.len(), Reply::Right)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::wire::Stream;

    #[test]
    fn votes_are_resp() {
        let mut votes = Votes::new(Dialect::Call, Ballots::new(1));
        let mut out = Vec::new();
        let Ballot { phone, contestant } = votes.request(&mut out);
        let length = contestant.to_string().len();
        let call = format!(
            "*5\r\n$4\r\nCALL\r\n$10\r\nvoter_vote\r\n$10\r\n{phone}\r\n${length}\r\n{contestant}\r\n$1\r\n2\r\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), call);
        // The same votes in the other dialect.
        let mut out = Vec::new();
        assert_eq!(
            Votes::new(Dialect::Function, Ballots::new(1)).request(&mut out),
            Ballot { phone, contestant }
        );
        let function = call.replace("*5\r\n$4\r\nCALL", "*6\r\n$5\r\nFCALL");
        let function = function.replace("voter_vote\r\n", "voter_vote\r\n$1\r\n1\r\n");
        assert_eq!(String::from_utf8(out).unwrap(), function);
    }

    #[test]
    fn outcomes_are_counted_in_any_fragmentation_and_wrong_ones_are_noticed() {
        let mut votes = Votes::new(Dialect::Call, Ballots::new(1));
        let mut stream = Stream::default();
        let (valid, invalid) = (
            Ballot { phone: 2_120_000_000, contestant: 1 },
            Ballot { phone: 2_120_000_000, contestant: 999 },
        );
        [valid, invalid, valid, valid].iter().for_each(|ballot| stream.append(0, |_| *ballot));
        let mut replies = Vec::new();
        for byte in b":0\r\n:1\r\n-TRYAGAIN locked\r\n:2\r\n" {
            stream.received(&[*byte]);
            let reply = stream.checked(|ballot, rest| votes.reply(ballot, rest)).unwrap();
            replies.extend(reply.map(|(reply, _)| reply));
        }
        assert_eq!(replies, [Reply::Right, Reply::Right, Reply::Refused, Reply::Right]);
        let expected = Tally { requests: 0, accepted: 1, no_contestant: 1, over_limit: 1, failed: 1 };
        assert_eq!(votes.tally, expected);
        for (ballot, reply) in [(valid, ":1\r\n"), (invalid, ":0\r\n"), (valid, ":3\r\n"), (valid, "+OK\r\n")]
        {
            assert!(votes.reply(ballot, reply.as_bytes()).is_err(), "{reply}");
        }
        assert!(votes.reply(valid, b"$").is_err());
        assert_eq!(votes.tally, expected);
    }
}
