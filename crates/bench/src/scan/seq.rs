//! `scan-seq`: all of a file, in order, by page sizes (paper 5.2.2, Figure 6).
//!
//! The device's own rate is measured in every round, too. A pass ends with the file, or when its time is over, which
//! only small reads past the page cache need. A row has the worker's time for a GiB in parts: consuming; its other work
//! (copies and calls); waiting. What threads beside it take is control: that of this project's service, the kernel's
//! polling thread, the kernel's workers for a loop device.

use std::time::Duration;

use super::data::Data;
use super::device::Judge;
use super::loops::Loop;
use super::meter::Pass;
use super::sides::{Kind, Question, Side, start};
use super::{directory, short};
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Fields, Options, Report, Result, Sink, Step};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-seq",
    about: "a file from begin to end, by page sizes, beside pread and io_uring (zicIO paper, Figure 6)",
    run,
};

/// Sides in processes of their own, the device last, which is none.
pub struct Sides {
    pub data: Data,
    pub judge: Judge,
    kinds: Vec<(Kind, Side)>,
    _device: Option<Loop>,
}

/// A side's passes by round, for one kind of question.
pub struct Seen {
    pub kind: Kind,
    pub passes: Vec<Pass>,
    pub counted: Pass,
}

impl Sides {
    /// Writes the file, and starts all sides that can be here; what cannot is said in the configuration.
    pub fn start(options: &Options, size: u64, config: &mut Fields) -> Result<Self> {
        let data = Data::write(&directory(options)?, size)?;
        let budget = size / 4;
        let device = Loop::over(&data.path());
        let judge = Judge::find();
        let mut kinds = Vec::new();
        let mut unlimited = None;
        for kind in Kind::ALL {
            if let (Kind::Device, Err(reason)) = (kind, &device) {
                config.set("no_device_file", format!("no loop device: {reason}"));
                continue;
            }
            let path = device.as_ref().ok().map(Loop::path);
            let (side, reason) = start(kind, &data.path(), path, budget)?;
            kinds.push((kind, side));
            unlimited = reason;
        }
        match unlimited {
            None => config.set("memory_limit_bytes", budget),
            Some(reason) => config.set("no_memory_limit", reason),
        }
        config.set("device", judge.name());
        Ok(Self { data, judge, kinds, _device: device.ok() })
    }

    /// Rates of the device and all sides' answers to all questions, by question.
    pub fn ask(
        &mut self,
        questions: &[Question],
        rounds: usize,
        sink: Sink<'_>,
    ) -> Result<(Samples, Vec<Vec<Seen>>)> {
        let (mut done, total) = (0, (rounds + 1) * self.kinds.len() + rounds);
        let mut step = |label: &str| {
            sink(Step { done, total, label });
            done += 1;
        };
        let mut counted = Vec::new();
        for (kind, side) in &mut self.kinds {
            step(&format!("{}: counting calls", kind.name()));
            let ask = |question: &Question| side.ask(&Question { count: true, ..*question });
            counted.push(questions.iter().map(ask).collect::<Result<Vec<_>>>()?);
        }
        let device = self.kinds.len();
        let mut rates = Vec::new();
        let answers = interleave(rounds, device + 1, |side, _| -> Result<Vec<Pass>> {
            if side == device {
                step("device");
                rates.push(self.judge.gib_per_s(&self.data.path(), self.data.size)?);
                return Ok(Vec::new());
            }
            let (kind, side) = &mut self.kinds[side];
            step(kind.name());
            questions
                .iter()
                .map(|question| {
                    let pass = side.ask(question)?;
                    question.check(*kind, &pass, &self.data)?;
                    Ok(pass)
                })
                .collect()
        })?;
        let seen = |index: usize| {
            let sides = self.kinds.iter().zip(&answers).zip(&counted);
            sides
                .map(|(((kind, _), passes), counted)| Seen {
                    kind: *kind,
                    passes: passes.iter().map(|round| round[index]).collect(),
                    counted: counted[index],
                })
                .collect()
        };
        Ok((rates.into_iter().collect(), (0..questions.len()).map(seen).collect()))
    }
}

impl Seen {
    pub fn rate(&self) -> Samples {
        samples(&self.passes, Pass::gib_per_s)
    }

    pub fn cpu(&self) -> Samples {
        samples(&self.passes, Pass::cpu)
    }

    /// A row of it.
    pub fn fields(&self, fields: Fields) -> Fields {
        let fields = fields
            .with("side", self.kind.name())
            .with("gib_per_s", self.rate().median())
            .with("spread", self.rate().spread())
            .with("cpu_s_per_gib", self.cpu().median());
        let fields = Pass::breakdown(&self.passes, fields);
        fields.with("calls_per_gib", self.counted.calls_per_gib())
    }
}

/// This project's side, and of the others the one of which `of` is the best.
pub fn against(seen: &[Seen], of: impl Fn(&Seen) -> f64) -> Option<(&Seen, &Seen)> {
    let ours = seen.iter().find(|seen| seen.kind == Kind::Scan)?;
    let others = seen.iter().filter(|seen| seen.kind != Kind::Scan);
    Some((ours, others.max_by(|a, b| of(a).total_cmp(&of(b)))?))
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let (rounds, size, most) = options.pick((3, 512 << 20, 700), (7, 4 << 30, 5000));
    let pages: Vec<usize> = match options.mode {
        crate::Mode::Quick => vec![4 << 10, 8 << 10, 64 << 10, 2 << 20],
        crate::Mode::Full => (12..=21).map(|shift| 1 << shift).collect(),
    };
    let config =
        Fields::new().with("mode", options.mode.name()).with("rounds", rounds).with("file_bytes", size);
    let mut report = Report::new(BENCH.name, config);
    sink(Step { done: 0, total: 1, label: "writing the file" });
    let mut sides = Sides::start(options, size, &mut report.config)?;
    let most = Duration::from_millis(most);
    let question = |page: &usize| Question { size, page: *page, batch: None, most, count: false };
    let questions: Vec<Question> = pages.iter().map(question).collect();
    let (device, seen) = sides.ask(&questions, rounds, sink)?;
    report.config.set("device_gib_per_s", device.median());
    for (page, seen) in pages.iter().zip(&seen) {
        let name = short(*page as u64);
        if let Some((ours, best)) = against(seen, |seen| seen.rate().median()) {
            report.ratio(&format!("rate_over_device_{name}"), ours.rate().over(&device));
            report.ratio(&format!("rate_over_best_{name}"), ours.rate().over(&best.rate()));
            report.ratio(&format!("calls_per_gib_{name}"), ours.counted.calls_per_gib().unwrap_or(f64::NAN));
        }
        if let Some((ours, best)) = against(seen, |seen| -seen.cpu().median()) {
            report.ratio(&format!("cpu_over_best_{name}"), ours.cpu().over(&best.cpu()));
        }
        for seen in seen {
            report.rows.push(seen.fields(Fields::new().with("page_bytes", *page)));
        }
    }
    Ok(report)
}
