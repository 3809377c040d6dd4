//! An engine in a control group whose memory, page cache included, is smaller than the data (`small` in Figure 11). Also the
//! effect of its scans on the page cache of a neighbour there.
//!
//! The benchmark enters the group before it starts the engine, whose processes inherit the group, and leaves it afterwards. So pages that
//! they read are counted there.

use std::time::Duration;

use super::neighbour::Neighbour;
use super::{COLD_QUICK, Driver, Plan, row, time_over, worst};
use crate::pool::budget::Group;
use crate::sample::{interleave, samples};
use crate::tpch::cold;
use crate::tpch::engine::Side;
use crate::{Error, Fields, Options, Result};

const SIDES: [Side; 2] = [Side::Vanilla, Side::Bedplate];
/// The memory is the size of the data divided by this, if that is enough for the engine.
const PART: u64 = 2;
/// A neighbour's file has the size of the memory divided by this. The group gets as much memory in addition.
const NEIGHBOUR_PART: u64 = 8;
/// Time for which a neighbour is measured without a scan.
const ALONE: Duration = Duration::from_secs(1);

/// Largest number of steps of the experiments.
pub fn steps(plan: &Plan) -> usize {
    2 * (COLD_QUICK.len() * plan.share_rounds + plan.share_rounds)
}

/// The memory for data, or the reason why an experiment would show nothing.
fn memory_for(data: u64, least: u64) -> std::result::Result<u64, String> {
    let memory = least.max(data / PART);
    match memory < data {
        true => Ok(memory),
        false => {
            Err(format!("skipped: the data has {data} bytes, and the engine needs {least} bytes of memory"))
        }
    }
}

/// A control group that the benchmark is a member of, as long as this is there.
struct Inside<'a>(&'a Group);

impl<'a> Inside<'a> {
    fn enter(group: &'a Group) -> Result<Self> {
        group.enter().map_err(Error::io("enter a control group"))?;
        Ok(Self(group))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.leave() {
            tracing::warn!("the benchmark does not leave the control group: {error}");
        }
    }
}

impl Driver<'_, '_> {
    pub fn memory(&mut self, options: &Options) -> Result<()> {
        let data = cold::bytes(self.engine.folder())?;
        let found = memory_for(data, self.engine.least_memory())
            .and_then(|memory| Ok((memory, Group::create("tpch").map_err(|e| format!("skipped: {e}"))?)));
        let (memory, group) = match found {
            Ok(found) => found,
            Err(reason) => {
                self.report.config.set("small_memory", reason);
                return Ok(());
            }
        };
        self.report.config.set("small_memory_bytes", memory);
        self.report.config.set("data_bytes", data);
        self.engine.limit_memory(Some(memory));
        let measured = self.small(&group, memory).and_then(|()| self.neighbour(&group, memory, options));
        // The engine's processes are members of the group until it is started outside.
        self.engine.limit_memory(None);
        let left = self.engine.cold(Side::Vanilla);
        measured.and(left)
    }

    /// Queries that run cold in little memory.
    fn small(&mut self, group: &Group, memory: u64) -> Result<()> {
        group.limit(memory).map_err(Error::io("limit the memory"))?;
        let mut cells = Vec::new();
        for index in COLD_QUICK {
            let results = interleave(self.plan.share_rounds, SIDES.len(), |side, _| {
                let side = SIDES[side];
                self.progress.step(&format!("query {} in little memory, {}", index + 1, side.name()));
                let _inside = Inside::enter(group)?;
                self.cold_run(side, index)
            })?;
            for (side, runs) in SIDES.iter().zip(&results) {
                self.report.rows.push(row("11, small", index, "cold", *side, runs));
            }
            cells.push((format!("{} cold", index + 1), time_over(&results[1], &results[0])));
        }
        let (name, ratio) = worst(cells);
        self.report.config.set("worst_query_small_memory", name);
        self.report.ratio("worst_query_small_memory_of_vanilla", ratio);
        Ok(())
    }

    /// The share of a neighbour's reads that the page cache answers while queries run cold, over the share without
    /// queries.
    fn neighbour(&mut self, group: &Group, memory: u64, options: &Options) -> Result<()> {
        let bytes = memory / NEIGHBOUR_PART;
        group.limit(memory + bytes).map_err(Error::io("limit the memory"))?;
        let folder = crate::scan::directory(options)?;
        let results = interleave(self.plan.share_rounds, SIDES.len(), |side, _| {
            let side = SIDES[side];
            self.progress.step(&format!("a neighbour of scans, {}", side.name()));
            let _inside = Inside::enter(group)?;
            let mut neighbour = Neighbour::start(&folder, bytes)?;
            self.engine.cold(side)?;
            neighbour.warm()?;
            let ((), alone) = neighbour.beside(|| {
                std::thread::sleep(ALONE);
                Ok(())
            })?;
            let (_, beside) = neighbour.beside(|| {
                for index in COLD_QUICK {
                    let run = self.engine.query(side, index)?;
                    self.answers.check(index, side.name(), &run.rows)?;
                }
                Ok(())
            })?;
            Ok::<_, Error>((alone, beside))
        })?;
        for (side, counts) in SIDES.iter().zip(&results) {
            let row = Fields::new()
                .with("side", side.name())
                .with("neighbour_file_bytes", bytes)
                .with("hits_alone", samples(counts, |(alone, _)| alone.share()).median())
                .with("hits_beside_scans", samples(counts, |(_, beside)| beside.share()).median())
                .with("reads_beside_scans", samples(counts, |(_, beside)| beside.reads as f64).median());
            self.report.rows.push(row);
        }
        for (name, counts) in
            [("vanilla_neighbour_hits_of_alone", &results[0]), ("neighbour_hits_of_alone", &results[1])]
        {
            let share = samples(counts, |(alone, beside)| beside.share() / alone.share());
            self.report.ratio(name, share.min());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_less_than_the_data_and_enough_for_the_engine() {
        assert_eq!(memory_for(1000, 100), Ok(500));
        assert_eq!(memory_for(1000, 900), Ok(900));
        assert!(memory_for(1000, 1000).unwrap_err().contains("1000"));
    }
}
