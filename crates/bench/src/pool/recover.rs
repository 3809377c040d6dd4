//! A tree as a crash left it, made whole: everything that its log has is repeated, then what transactions did that have
//! not committed is taken back, last change first.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bedplate_btree::{Error, Journal, Tree, redo};
use bedplate_bufpool::{PageId, Pool};

use super::log::{Log, Records, Said};

/// The tree of root slot 0.
pub fn recover(pool: Arc<Pool>, log: &Arc<Log>, records: &Records) -> Result<Tree<Arc<Pool>>, Error> {
    for (number, said) in records.iter() {
        if let Said::Tree(record) = said {
            redo(&pool, number, record)?;
        }
    }
    let tree = Tree::open_with(pool, 0, Arc::clone(log) as Arc<dyn Journal>)?;
    let mut pages: HashSet<PageId> = HashSet::new();
    tree.pages(|page| _ = pages.insert(page))?;
    tree.pool().reclaim(|page| pages.contains(&page));
    let all: Vec<Said<'_>> = records.iter().map(|(_, said)| said).collect();
    let (mut ended, mut open) = (HashSet::new(), BTreeSet::new());
    for said in all.iter().rev() {
        match *said {
            Said::End(transaction) => _ = ended.insert(transaction),
            Said::Undo(transaction, key, old) if !ended.contains(&transaction) => {
                open.insert(transaction);
                match old {
                    Some(old) => _ = tree.upsert(key, old)?,
                    None => _ = tree.remove(key)?,
                }
            }
            _ => {}
        }
    }
    for transaction in open {
        log.end(transaction);
    }
    Ok(tree)
}
