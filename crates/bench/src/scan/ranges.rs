//! `scan-ranges`: every second batch of a file, by sizes of batches (paper 5.2.3, Figure 7).
//!
//! Batches with odd numbers are read, so gaps are as large as the batches between them. All sides know all ranges
//! beforehand: io_uring reads the next ones ahead, and the scan has them in its plan. A request is a batch, or 2 MiB of it,
//! which is the best size for sides that make the requests themselves. The kernel counts the bytes that the device reads for
//! a side, so reads between ranges are seen, too.

use std::time::Duration;

use bedplate_scan::FRAME;

use super::compare::{Answers, Sides, against};
use super::meter::Pass;
use super::sides::{Kind, Question};
use super::{report, short};
use crate::sample::Samples;
use crate::{Benchmark, Fields, Mode, Options, Report, Result, Sink, Step, Target};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-ranges",
    about: "every second batch of a file, by sizes, beside pread and io_uring (zicIO paper, Figure 7)",
    run,
};

const SIDES: [Kind; 4] = [Kind::Buffered, Kind::Direct, Kind::Uring, Kind::Scan];

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let (rounds, size, most) = options.pick((7, 512 << 20, 1500), (9, 4 << 30, 10_000));
    let batches: Vec<u64> = match options.mode {
        Mode::Quick => vec![64 << 10, 256 << 10, 1 << 20, 4 << 20],
        Mode::Full => (16..=22).map(|shift| 1 << shift).collect(),
    };
    let mut report = report(&BENCH, options, rounds, size);
    sink(Step { done: 0, total: 1, label: "writing the file" });
    let mut sides = Sides::start(options, &SIDES, size, &mut report.config)?;
    let most = Duration::from_millis(most);
    let question = |batch: &u64| {
        let page = FRAME.min(*batch as usize);
        Question { size, page, batch: Some(*batch), most, count: false }
    };
    let questions: Vec<Question> = batches.iter().map(question).collect();
    let answers = sides.ask(&questions, rounds, sink)?;
    let (mut least, mut most_over) = (f64::INFINITY, f64::NAN);
    for (batch, Answers { seen, device }) in batches.iter().zip(&answers) {
        let name = short(*batch);
        for seen in seen {
            let over = seen.passes.iter().filter_map(Pass::over_read).collect::<Samples>().median();
            if seen.kind == Kind::Scan {
                most_over = most_over.max(over);
            }
            let fields = seen.fields(Fields::new().with("batch_bytes", *batch));
            report.rows.push(fields.with("over_read_bytes", over).with("device_gib_per_s", device.median()));
        }
        if let Some((ours, best)) = against(seen, |seen| seen.rate().median()) {
            let over_best = ours.rate().over(&best.rate());
            least = least.min(over_best);
            report.target(&format!("rate_over_best_{name}"), over_best, Target::AtLeast(1.0));
        }
        if let Some((ours, best)) = against(seen, |seen| -seen.cpu().median()) {
            report.ratio(&format!("cpu_over_best_{name}"), ours.cpu().over(&best.cpu()));
        }
    }
    report.ratio("of_best_baseline_min", least);
    report.target("over_read_bytes", most_over, Target::AtMost(0.0));
    Ok(report)
}
