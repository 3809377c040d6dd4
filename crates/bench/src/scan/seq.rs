//! `scan-seq`: all of a file, in order, by page sizes (paper 5.2.2, Figure 6).
//!
//! The device's own rate is measured in every round, too. A pass ends with the file, or when its time is over, which
//! only small reads past the page cache need. A row has the worker's time for a GiB in parts: consuming; its other work
//! (copies and calls); waiting. The time of threads beside it is control: that of this project's service, the kernel's
//! polling thread, the kernel's workers for a loop device.
//!
//! A worker that is faster than the device has to wait for it. This project's worker can do so in two ways: it sleeps,
//! which takes system calls, or it polls, which takes its processor.

use std::time::Duration;

use super::compare::{Answers, Sides, against};
use super::sides::{Kind, Question};
use super::{report, short};
use crate::{Benchmark, Fields, Mode, Options, Report, Result, Sink, Step, Target};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-seq",
    about: "a file from begin to end, by page sizes, beside pread and io_uring (zicIO paper, Figure 6)",
    run,
};

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let (rounds, size, most) = options.pick((5, 512 << 20, 700), (7, 4 << 30, 5000));
    let pages: Vec<usize> = match options.mode {
        Mode::Quick => vec![4 << 10, 8 << 10, 64 << 10, 2 << 20],
        Mode::Full => (12..=21).map(|shift| 1 << shift).collect(),
    };
    let mut report = report(&BENCH, options, rounds, size);
    sink(Step { done: 0, total: 1, label: "writing the file" });
    let mut sides = Sides::start(options, &Kind::ALL, size, &mut report.config)?;
    let most = Duration::from_millis(most);
    let question = |page: &usize| Question { size, page: *page, batch: None, most, count: false };
    let questions: Vec<Question> = pages.iter().map(question).collect();
    for (page, Answers { seen, device }) in pages.iter().zip(sides.ask(&questions, rounds, sink)?) {
        let name = short(*page as u64);
        if let Some((ours, best)) = against(&seen, |seen| seen.rate().median()) {
            let over_device = ours.rate().over(&device);
            report.target(&format!("rate_over_device_{name}"), over_device, Target::AtLeast(0.97));
            report.ratio(&format!("rate_over_best_{name}"), ours.rate().over(&best.rate()));
            let calls = ours.counted.calls_per_gib().unwrap_or(f64::NAN);
            report.target(&format!("calls_per_gib_{name}"), calls, Target::AtMost(2.0));
        }
        if let Some((ours, best)) = against(&seen, |seen| -seen.cpu().median()) {
            let over_best = ours.cpu().over(&best.cpu());
            match *page {
                8192 => report.target("cpu_over_best_8k", over_best, Target::AtMost(0.5)),
                _ => report.ratio(&format!("cpu_over_best_{name}"), over_best),
            }
        }
        if let Some(polled) = seen.iter().find(|seen| seen.kind == Kind::Polled) {
            let calls = polled.counted.calls_per_gib().unwrap_or(f64::NAN);
            report.target(&format!("calls_per_gib_polled_{name}"), calls, Target::AtMost(2.0));
            report.ratio(&format!("rate_over_device_polled_{name}"), polled.rate().over(&device));
            if let Some((_, best)) = against(&seen, |seen| -seen.cpu().median()) {
                report.ratio(&format!("cpu_over_best_polled_{name}"), polled.cpu().over(&best.cpu()));
            }
        }
        for seen in seen {
            let fields = seen.fields(Fields::new().with("page_bytes", *page));
            report.rows.push(fields.with("device_gib_per_s", device.median()));
        }
    }
    Ok(report)
}
