//! Voter's tables and the generator of its votes, as VoltDB's benchmark defines them.

use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Most votes that a phone number may cast.
pub(super) const LIMIT: u64 = 2;

/// Number of contestants, which are numbered from 1.
pub(super) const CONTESTANTS: u64 = 12;

/// Numbers of phones in an area code.
const PHONES_OF_AREA: u64 = 10_000_000;

/// The area codes of the United States by state.
const AREAS: &[(&str, &[u16])] = &[
    ("AK", &[907]),
    ("AL", &[205, 251, 256, 334]),
    ("AR", &[479, 501, 870]),
    ("AZ", &[480, 520, 602, 623, 928]),
    (
        "CA",
        &[
            209, 213, 310, 323, 408, 415, 424, 442, 510, 530, 559, 562, 619, 626, 650, 661, 669, 707, 714,
            747, 760, 805, 818, 831, 858, 909, 916, 925, 949, 951,
        ],
    ),
    ("CO", &[303, 719, 720, 970]),
    ("CT", &[203, 475, 860, 959]),
    ("DC", &[202]),
    ("DE", &[302]),
    ("FL", &[239, 305, 321, 352, 386, 407, 561, 689, 727, 754, 772, 786, 813, 850, 863, 904, 941, 954]),
    ("GA", &[229, 404, 470, 478, 678, 706, 762, 770, 912]),
    ("HI", &[808]),
    ("IA", &[319, 515, 563, 641, 712]),
    ("ID", &[208]),
    ("IL", &[217, 224, 309, 312, 331, 464, 618, 630, 708, 773, 779, 815, 847, 872]),
    ("IN", &[219, 260, 317, 574, 765, 812]),
    ("KS", &[316, 620, 785, 913]),
    ("KY", &[270, 502, 606, 859]),
    ("LA", &[225, 318, 337, 504, 985]),
    ("MA", &[339, 351, 413, 508, 617, 774, 781, 857, 978]),
    ("MD", &[240, 301, 410, 443]),
    ("ME", &[207]),
    ("MI", &[231, 248, 269, 313, 517, 586, 616, 734, 810, 906, 947, 989]),
    ("MN", &[218, 320, 507, 612, 651, 763, 952]),
    ("MO", &[314, 417, 573, 636, 660, 816]),
    ("MS", &[228, 601, 662, 769]),
    ("MT", &[406]),
    ("NC", &[252, 336, 704, 828, 910, 919, 980, 984]),
    ("ND", &[701]),
    ("NE", &[308, 402]),
    ("NH", &[603]),
    ("NJ", &[201, 551, 609, 732, 848, 856, 862, 908, 973]),
    ("NM", &[505, 575]),
    ("NV", &[702, 775]),
    ("NY", &[212, 315, 347, 516, 518, 585, 607, 631, 646, 716, 718, 845, 914, 917]),
    ("OH", &[216, 234, 330, 419, 440, 513, 567, 614, 740, 937]),
    ("OK", &[405, 580, 918]),
    ("OR", &[503, 541, 971]),
    ("PA", &[215, 267, 412, 484, 570, 610, 717, 724, 814, 878]),
    ("RI", &[401]),
    ("SC", &[803, 843, 864]),
    ("SD", &[605]),
    ("TN", &[423, 615, 731, 865, 901, 931]),
    (
        "TX",
        &[
            210, 214, 254, 281, 325, 361, 409, 430, 432, 469, 512, 682, 713, 806, 817, 830, 832, 903, 915,
            936, 940, 956, 972, 979,
        ],
    ),
    ("UT", &[385, 435, 801]),
    ("VA", &[276, 434, 540, 571, 703, 757, 804]),
    ("VT", &[802]),
    ("WA", &[206, 253, 360, 425, 509]),
    ("WI", &[262, 414, 608, 715, 920]),
    ("WV", &[304]),
    ("WY", &[307]),
];

/// The area codes with their states.
pub(super) fn areas() -> impl Iterator<Item = (u64, &'static str)> {
    AREAS.iter().flat_map(|(state, codes)| codes.iter().map(|code| (u64::from(*code), *state)))
}

/// The contestants with their names.
pub(super) fn contestants() -> impl Iterator<Item = (u64, String)> {
    (1..=CONTESTANTS).map(|number| (number, format!("contestant {number:05}")))
}

/// The keys and values that the library and the Redis Function find their tables in, before the first vote.
pub(super) fn rows() -> impl Iterator<Item = (String, String)> {
    let areas = areas().map(|(code, state)| (format!("area:{code}"), state.to_owned()));
    areas.chain(contestants().map(|(number, name)| (format!("contestant:{number}"), name)))
}

/// The arguments of one vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ballot {
    pub(super) phone: u64,
    pub(super) contestant: u64,
}

impl Ballot {
    /// Whether the contestant exists.
    pub(super) fn is_valid(self) -> bool {
        (1..=CONTESTANTS).contains(&self.contestant)
    }
}

/// A reproducible stream of votes: all area codes, phones of an area code and contestants are equally likely, and about 1 % of
/// the votes are for a contestant that does not exist.
pub(super) struct Ballots {
    rng: SmallRng,
    areas: Vec<u64>,
    phones: u64,
}

impl Ballots {
    /// Equal seeds give equal streams.
    pub(super) fn new(seed: u64) -> Self {
        Self::of_phones(seed, PHONES_OF_AREA)
    }

    /// Votes of so few phones of each area code that many of them reach the limit.
    pub(super) fn of_phones(seed: u64, phones: u64) -> Self {
        Ballots { rng: SmallRng::seed_from_u64(seed), areas: areas().map(|(code, _)| code).collect(), phones }
    }

    /// The next vote.
    pub(super) fn draw(&mut self) -> Ballot {
        let area = self.areas[self.rng.random_range(0..self.areas.len())];
        let valid = self.rng.random_range(0..100) != 0;
        Ballot {
            phone: area * PHONES_OF_AREA + self.rng.random_range(0..self.phones),
            contestant: if valid { self.rng.random_range(1..=CONTESTANTS) } else { 999 },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The states that a vote can count for; XX is that of an unknown area code.
    fn states() -> impl Iterator<Item = &'static str> {
        AREAS.iter().map(|(state, _)| *state).chain(["XX"])
    }

    #[test]
    fn every_area_code_has_one_state() {
        let codes: HashSet<u64> = areas().map(|(code, _)| code).collect();
        assert_eq!(codes.len(), areas().count());
        assert!(codes.iter().all(|code| (200..1000).contains(code)));
        assert_eq!(states().count(), 52);
        assert_eq!(rows().count(), codes.len() + CONTESTANTS as usize);
    }

    /// The sources of the procedures have lists of their own.
    #[test]
    fn the_procedures_know_every_state() {
        let sources = [
            include_str!("voter.lua"),
            include_str!("../../../kerneldb/bpf/examples/voter_procedures.bpf.c"),
        ];
        for source in sources {
            for state in states() {
                assert!(source.contains(&format!("\"{state}\"")), "{state}");
            }
        }
    }

    #[test]
    fn a_hundredth_of_the_votes_is_for_nobody() {
        let mut ballots = Ballots::new(1);
        let drawn: Vec<Ballot> = (0..20_000).map(|_| ballots.draw()).collect();
        let invalid = drawn.iter().filter(|ballot| !ballot.is_valid()).count();
        assert!((100..300).contains(&invalid), "{invalid}");
        assert!(drawn.iter().all(|ballot| (2_000_000_000..10_000_000_000).contains(&ballot.phone)));
        let mut again = Ballots::new(1);
        assert!(drawn.iter().all(|ballot| *ballot == again.draw()));
    }
}
