//! How many pages one fault serves: policy only.
//!
//! A fault costs several times what copying a page costs. A writer that walks through memory, up or down, has the
//! pages ahead of it served with the one it faults on, twice as many each time; one that jumps about has one.

use std::ops::Range;

/// The most pages of one fault.
pub const MOST: usize = 32;
/// How many walks a handler can tell apart.
const WALKS: usize = 8;

#[derive(Clone, Copy)]
struct Walk {
    /// The page that it comes to next, upwards and downwards.
    up: usize,
    down: usize,
    pages: usize,
    /// When it was last seen.
    seen: u64,
}

/// A walk that comes to no page.
const NONE: Walk = Walk { up: usize::MAX, down: usize::MAX, pages: 1, seen: 0 };

/// What a handler knows of the faults it served before.
pub struct Window {
    walks: [Walk; WALKS],
    faults: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { walks: [NONE; WALKS], faults: 0 }
    }
}

impl Window {
    /// The pages to serve with `page`, of those that may be.
    pub fn choose(&mut self, page: usize, within: Range<usize>) -> Range<usize> {
        debug_assert!(within.contains(&page));
        self.faults += 1;
        let (walk, upwards) = match self.walks.iter_mut().find(|walk| walk.up == page || walk.down == page) {
            Some(walk) => {
                walk.pages = (walk.pages * 2).min(MOST);
                let upwards = walk.up == page;
                (walk, upwards)
            }
            None => {
                let oldest = self.walks.iter_mut().min_by_key(|walk| walk.seen).expect("there are some");
                *oldest = Walk { up: page, down: page, pages: 1, seen: 0 };
                (oldest, true)
            }
        };
        walk.seen = self.faults;
        let chosen = if upwards {
            page..within.end.min(page + walk.pages)
        } else {
            within.start.max((page + 1).saturating_sub(walk.pages))..page + 1
        };
        (walk.up, walk.down) = match (walk.pages, upwards) {
            (1, _) => (page + 1, page.wrapping_sub(1)),
            (_, true) => (chosen.end, usize::MAX),
            (_, false) => (usize::MAX, chosen.start.wrapping_sub(1)),
        };
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_followed_and_jumps_are_not() {
        let mut window = Window::default();
        let all = 0..100_000;
        let (mut up, mut down, mut faults) = (1000, 90_000, 0);
        let mut jump = 7;
        while up < 1500 {
            let chosen = window.choose(up, all.clone());
            assert_eq!(chosen.start, up);
            up = chosen.end;
            let chosen = window.choose(down, all.clone());
            assert_eq!(chosen.end, down + 1);
            down = chosen.start - 1;
            jump = (jump * 7919 + 13) % 50_000 + 10_000;
            assert_eq!(window.choose(jump, all.clone()).len(), 1);
            faults += 1;
        }
        assert!(faults < 25, "{faults}");
    }

    #[test]
    fn it_stays_within() {
        let mut window = Window::default();
        let mut page = 0;
        while page < 512 {
            let end = (page / 64 + 1) * 64;
            let chosen = window.choose(page, page / 64 * 64..end);
            assert!(chosen.contains(&page) && chosen.end <= end && chosen.len() <= MOST);
            page = chosen.end;
        }
    }
}
