//! Sides that get the same questions in turns, and the device's own rate in every round.

use super::data::Data;
use super::device::Judge;
use super::loops::Loop;
use super::meter::Pass;
use super::sides::{Kind, Question, Side, start};
use super::write;
use crate::sample::{Samples, interleave, samples};
use crate::{Fields, Options, Result, Sink, Step};

/// Sides in processes of their own. The device comes last and has no process.
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

/// The answers of all sides to a question.
pub struct Answers {
    pub seen: Vec<Seen>,
    /// GiB per second of the device itself, by round.
    pub device: Samples,
}

impl Sides {
    /// Writes the file, and starts the sides that this machine supports. The configuration names the missing ones.
    pub fn start(options: &Options, wanted: &[Kind], size: u64, config: &mut Fields) -> Result<Self> {
        let data = write(options, size)?;
        let budget = size / 4;
        // Only the side that reads a device file needs it.
        let device = match wanted.contains(&Kind::Device) {
            true => Loop::over(&data.path()).map(Some),
            false => Ok(None),
        };
        let judge = Judge::find();
        let mut kinds = Vec::new();
        let mut unlimited = None;
        for &kind in wanted {
            if let (Kind::Device, Err(reason)) = (kind, &device) {
                config.set("no_device_file", format!("no loop device: {reason}"));
                continue;
            }
            let path = device.as_ref().ok().and_then(Option::as_ref).map(Loop::path);
            let (side, reason) = start(kind, &data.path(), path, budget)?;
            kinds.push((kind, side));
            unlimited = reason;
        }
        match unlimited {
            None => config.set("memory_limit_bytes", budget),
            Some(reason) => config.set("no_memory_limit", reason),
        }
        config.set("device", judge.name());
        Ok(Self { data, judge, kinds, _device: device.ok().flatten() })
    }

    /// All sides' answers by question, and the rate of the device between them. Sides take turns at each question, because
    /// the device's rate may change within seconds.
    pub fn ask(&mut self, questions: &[Question], rounds: usize, sink: Sink<'_>) -> Result<Vec<Answers>> {
        let device = self.kinds.len();
        let (mut done, total) = (0, questions.len() * ((rounds + 1) * device + rounds));
        let mut step = |label: &str| {
            sink(Step { done, total, label });
            done += 1;
        };
        let mut all = Vec::new();
        for question in questions {
            let mut counted = Vec::new();
            for (kind, side) in &mut self.kinds {
                step(&format!("{}: counting calls", kind.name()));
                counted.push(side.ask(&Question { count: true, ..*question })?);
            }
            let mut rates = Vec::new();
            let answers = interleave(rounds, device + 1, |side, _| -> Result<Option<Pass>> {
                if side == device {
                    step("device");
                    rates.push(self.judge.gib_per_s(&self.data.path(), self.data.size)?);
                    return Ok(None);
                }
                let (kind, side) = &mut self.kinds[side];
                step(kind.name());
                let pass = side.ask(question)?;
                question.check(*kind, &pass, &self.data)?;
                Ok(Some(pass))
            })?;
            let sides = self.kinds.iter().zip(answers).zip(counted);
            let seen = sides.map(|(((kind, _), passes), counted)| Seen {
                kind: *kind,
                passes: passes.into_iter().flatten().collect(),
                counted,
            });
            all.push(Answers { seen: seen.collect(), device: rates.into_iter().collect() });
        }
        Ok(all)
    }
}

impl Seen {
    pub fn rate(&self) -> Samples {
        samples(&self.passes, Pass::gib_per_s)
    }

    pub fn cpu(&self) -> Samples {
        samples(&self.passes, Pass::cpu)
    }

    /// A row with these passes.
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

/// This project's side, whose worker sleeps, and the other side with the largest value of `of`.
pub fn against(seen: &[Seen], of: impl Fn(&Seen) -> f64) -> Option<(&Seen, &Seen)> {
    let ours = seen.iter().find(|seen| seen.kind == Kind::Scan)?;
    let others = seen.iter().filter(|seen| !seen.kind.is_ours());
    Some((ours, others.max_by(|a, b| of(a).total_cmp(&of(b)))?))
}
