//! Tests of sets of pages against the standard library's sets.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::sets::Pages;

const PAGES: usize = 1000;

proptest! {
    #[test]
    fn a_set_is_a_set(changes in prop::collection::vec((0..PAGES, 1..300usize, any::<bool>()), 1..30),
                      from in 0..PAGES, gap in 0..40usize) {
        let (set, mut model) = (Pages::new(PAGES, true).unwrap(), BTreeSet::new());
        for (start, len, insert) in changes {
            let range = start..PAGES.min(start + len);
            let before = model.len();
            if insert {
                let new = set.insert(range.clone());
                model.extend(range);
                prop_assert_eq!(new, model.len() - before);
            } else {
                let gone = set.remove(range.clone());
                model.retain(|page| !range.contains(page));
                prop_assert_eq!(gone, before - model.len());
            }
        }
        prop_assert_eq!((0..PAGES).filter(|&page| set.contains(page)).count(), model.len());
        let used = model.last().map_or(0, |last| last + 1);
        let fits = |start: usize| (start..=start + gap).all(|page| page < PAGES && !model.contains(&page));
        let first = (0..PAGES).step_by(4).find(|start| fits(*start)).map(|start| start..start + gap + 1);
        prop_assert_eq!(set.gap(used, PAGES, gap + 1, 4), first);
        for inside in [true, false] {
            let first = (from..PAGES).find(|page| model.contains(page) == inside);
            prop_assert_eq!(set.first(from..PAGES, inside), first);
            let run = first.map(|start| start..(start..PAGES).find(|page| model.contains(page) != inside).unwrap_or(PAGES));
            prop_assert_eq!(set.run(from..PAGES, inside), run);
        }
        // Runs with gaps cover exactly the members, in order, and no gap is longer than allowed.
        let (mut at, mut covered) = (0, BTreeSet::new());
        while let Some(run) = set.run_with_gaps(at..PAGES, gap) {
            prop_assert!(model.contains(&run.start) && model.contains(&(run.end - 1)));
            let members: Vec<_> = run.clone().filter(|page| model.contains(page)).collect();
            prop_assert!(members.windows(2).all(|pair| pair[1] - pair[0] - 1 <= gap));
            covered.extend(members);
            at = run.end;
        }
        prop_assert_eq!(covered, model);
    }
}
