//! LCS: the longest common subsequence of two values.

use super::exec::{Ctx, Run, SYNTAX, integer, is};
use super::operators::Operators;
use super::services::Services;
use crate::limits::LCS_CELLS_MAX;
use crate::resp::Args;
use crate::subsequence;

const TOO_LONG: &str = "ERR String too long for LCS: the product of both lengths exceeds 134217728";
const _: () = assert!(LCS_CELLS_MAX == 134_217_728, "the error names the limit");

/// The options of LCS.
#[derive(Default)]
struct Options {
    length: bool,
    indexes: bool,
    match_lengths: bool,
    /// Shorter matches are left out.
    shortest: u64,
}

impl Options {
    fn parse(args: Args<'_>) -> Run<Options> {
        let mut options = Options::default();
        let mut i = 3;
        while i < args.len() {
            let arg = args.get(i);
            if is(arg, "len") {
                options.length = true;
            } else if is(arg, "idx") {
                options.indexes = true;
            } else if is(arg, "withmatchlen") {
                options.match_lengths = true;
            } else if is(arg, "minmatchlen") && i + 1 < args.len() {
                i += 1;
                options.shortest = integer(args.get(i))?.try_into().unwrap_or(0);
            } else {
                return Err(SYNTAX.into());
            }
            i += 1;
        }
        if options.length && options.indexes {
            return Err("ERR If you want both the length and indexes, please just use IDX.".into());
        }
        Ok(options)
    }
}

pub(super) fn run<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let [a, b] = [1, 2].map(|at| ctx.get(args.get(at)).map(|value| value.map_or_else(Vec::new, |v| v.data)));
    let (a, b) = (a?, b?);
    let options = Options::parse(args)?;
    ctx.lcs_cells += a.len() as u64 * b.len() as u64;
    if ctx.lcs_cells > LCS_CELLS_MAX {
        return Err(TOO_LONG.into());
    }
    if options.length {
        ctx.out.integer(subsequence::length(&a, &b) as i64);
        return Ok(());
    }
    let mut runs = subsequence::runs(&a, &b);
    if !options.indexes {
        let parts: Vec<&[u8]> = runs.iter().rev().map(|run| &a[run.a..run.a + run.len]).collect();
        ctx.out.bulk(&parts.concat());
        return Ok(());
    }
    let length: usize = runs.iter().map(|run| run.len).sum();
    runs.retain(|run| run.len as u64 >= options.shortest);
    let out = &mut ctx.out;
    out.map(2);
    out.bulk(b"matches");
    out.array(runs.len());
    for run in runs {
        out.array(if options.match_lengths { 3 } else { 2 });
        for start in [run.a, run.b] {
            out.array(2);
            out.integer(start as i64);
            out.integer((start + run.len - 1) as i64);
        }
        if options.match_lengths {
            out.integer(run.len as i64);
        }
    }
    out.bulk(b"len");
    out.integer(length as i64);
    Ok(())
}
