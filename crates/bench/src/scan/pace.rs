//! `scan-pace`: one worker that is slower than the device, or as fast, and one that stops early (paper 3.4).
//!
//! Reading just in time has two goals. Pages are there when the worker wants them, so that it does not wait and makes no
//! calls. There are no more pages than that takes, so that a worker that ends early (`LIMIT`) leaves few pages unused.
//! The service publishes the watermark, the number of frames that may be unread. The worker compares both after each
//! rest, four times in a frame. When a worker ends, the bytes that were read but not consumed must be within the
//! watermark of that time plus the worker's current frame.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_scan::{Channel, FRAME, Scan, Service};
use serde::{Deserialize, Serialize};

use super::device::Judge;
use super::meter::{Pass, measure};
use super::pacer::Pacer;
use super::share::settle;
use super::{report, write};
use crate::pool::apart::{Apart, Serve};
use crate::sample::{Samples, interleave, samples};
use crate::{Benchmark, Error, Fields, Options, Report, Result, Sink, Step, Target};

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-pace",
    about: "what is read ahead of slow and fast workers, and for nothing if they stop early",
    run,
};

const PAGE: usize = 8 << 10;
const SLICE: u64 = FRAME as u64 / 4;
/// Paces, as parts of the device's.
const PACES: [f64; 3] = [0.1, 0.5, 1.0];
/// Bytes after which a worker has enough.
const STOPS: [u64; 4] = [64 << 10, 1 << 20, 8 << 20, 32 << 20];

/// The task of the worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Question {
    bytes_per_s: f64,
    /// The worker ends after this number of bytes, a multiple of a page's, or after `most`.
    bytes: u64,
    most: Duration,
    count: bool,
}

/// The results of the worker.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Walk {
    pass: Pass,
    rests: u64,
    /// Calls after the first page, as the worker's channel counts them.
    told: u64,
    starved_ns: u64,
    looks: u64,
    /// Looks that found more frames than the watermark, and the largest excess.
    above: u64,
    most_above: u64,
    unread: u64,
    watermark: u64,
    /// Bytes that the service read, until no read was in flight.
    read: u64,
    /// The watermark when the worker ended.
    last: u64,
}

impl Walk {
    fn look(&mut self, channel: &Channel) {
        let now = channel.statistics();
        let above = now.unread.saturating_sub(now.watermark);
        self.looks += 1;
        self.above += u64::from(above > 0);
        self.most_above = self.most_above.max(above);
        self.unread += now.unread;
        self.watermark += now.watermark;
    }

    fn over_read(&self) -> u64 {
        self.read.saturating_sub(self.pass.bytes)
    }

    fn window(&self) -> u64 {
        (self.last + 1) * FRAME as u64
    }

    /// Calls for the data, as the kernel counts them, without the worker's sleeps, which the benchmark causes.
    fn counted(&self) -> Option<f64> {
        let calls = self.pass.calls?.saturating_sub(self.rests);
        Pass { calls: Some(calls), ..self.pass }.calls_per_gib()
    }

    fn told(&self) -> f64 {
        Pass { calls: Some(self.told), ..self.pass }.calls_per_gib().unwrap_or(f64::NAN)
    }

    fn share_above(&self) -> f64 {
        self.above as f64 / self.looks as f64
    }

    /// Mean bytes at a look; `frames` is the sum over all looks.
    fn per_look(&self, frames: u64) -> f64 {
        (frames * FRAME as u64) as f64 / self.looks as f64
    }
}

type Side = Apart<Question, Walk>;

fn start(file: PathBuf) -> Result<Side> {
    let begin = || {
        let service = Service::start()?;
        Ok(Box::new(move |question| walk(&service, &file, question)) as Serve<Question, Walk>)
    };
    Apart::start("bedplate", None, begin)?.map_err(Error::engine)
}

fn walk(service: &Service, file: &Path, question: Question) -> Result<Walk> {
    let (mut walk, before) = (Walk::default(), service.statistics().bytes_read);
    let pass = measure(question.bytes, question.most, question.count, |meter| {
        let mut pacer = Pacer::new(question.bytes_per_s, SLICE);
        let mut channel = service.open(Scan::of([file]).page_size(PAGE)?)?;
        let mut next = |channel: &mut Channel| {
            let Some(page) = channel.next_page()? else { return Ok(None) };
            pacer.begin();
            // The measurement ends with the last page.
            let more = meter.consume(&page);
            Ok::<_, Error>(more.then(|| pacer.end(page.len())))
        };
        let mut waited = None;
        while let Some(rested) = next(&mut channel)? {
            // Every worker waits for the first page.
            waited.get_or_insert_with(|| channel.statistics().calls);
            if rested {
                walk.look(&channel);
            }
        }
        let now = channel.statistics();
        (walk.last, walk.starved_ns) = (now.watermark, now.starved_ns);
        (walk.rests, walk.told) = (pacer.rests, now.calls - waited.unwrap_or(now.calls));
        Ok(())
    })?;
    walk.pass = pass;
    settle(service)?;
    walk.read = service.statistics().bytes_read - before;
    Ok(walk)
}

/// A pace, and where the worker stops before the end.
#[derive(Clone, Copy)]
struct Cell {
    pace: f64,
    stop: Option<u64>,
}

/// The results of a cell in each round, and in the pass that counts calls.
struct Seen {
    cell: Cell,
    walks: Vec<Walk>,
    counted: Option<Walk>,
}

impl Seen {
    fn of(&self, quantity: impl Fn(&Walk) -> f64) -> Samples {
        samples(&self.walks, quantity)
    }

    fn counted(&self) -> Option<f64> {
        self.counted.and_then(|walk| walk.counted())
    }

    fn told(&self) -> f64 {
        self.of(Walk::told).median()
    }

    fn row(&self) -> Fields {
        let fields = Fields::new().with("pace_over_device", self.cell.pace);
        if let Some(stop) = self.cell.stop {
            return fields
                .with("stopped_after_bytes", stop)
                .with("over_read_bytes", self.of(|walk| walk.over_read() as f64).max())
                .with("window_bytes", self.of(|walk| walk.window() as f64).median())
                .with("over_read_over_window", self.windows().max());
        }
        fields
            .with("gib_per_s", self.of(|walk| walk.pass.gib_per_s()).median())
            .with("waited", self.of(|walk| walk.starved_ns as f64 / walk.pass.wall_ns as f64).median())
            .with("cpu_s_per_gib", self.of(|walk| walk.pass.cpu()).median())
            .with("calls_per_gib", self.counted())
            .with("told_calls_per_gib", self.told())
            .with("unread_bytes", self.of(|walk| walk.per_look(walk.unread)).median())
            .with("watermark_bytes", self.of(|walk| walk.per_look(walk.watermark)).median())
            .with("looks", self.walks.iter().map(|walk| walk.looks).sum::<u64>())
            .with("looks_above", self.of(Walk::share_above).max())
            .with("most_above_bytes", self.above())
    }

    fn above(&self) -> f64 {
        self.of(|walk| (walk.most_above * FRAME as u64) as f64).max()
    }

    fn windows(&self) -> Samples {
        self.of(|walk| walk.over_read() as f64 / walk.window() as f64)
    }
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let (rounds, size, most) = options.pick((3, 512 << 20, 1500), (7, 4 << 30, 10_000));
    let most = Duration::from_millis(most);
    let stops = || std::iter::once(None).chain(STOPS.map(Some));
    let cells: Vec<Cell> =
        PACES.iter().flat_map(|pace| stops().map(|stop| Cell { pace: *pace, stop })).collect();
    let mut report = report(&BENCH, options, rounds, size);
    let total = (rounds + 1) * cells.len() + 1;
    let mut done = 0;
    let mut step = |label: &str| {
        sink(Step { done, total, label });
        done += 1;
    };
    step("writing the file");
    let data = write(options, size)?;
    let mut side = start(data.path())?;
    let judge = Judge::find();
    let device = (0..3).map(|_| judge.gib_per_s(&data.path(), size)).collect::<Result<Samples>>()?;
    report.config.set("device", judge.name());
    report.config.set("device_gib_per_s", device.median());
    let speed = device.median() * super::GIB;
    let mut ask = |cell: Cell, count: bool| -> Result<Walk> {
        let Cell { pace, stop } = cell;
        step(&format!("{pace} of the device's pace{}", if count { ": counting calls" } else { "" }));
        // A worker must not run out of time before its stop.
        let most = if stop.is_some() { Duration::from_secs(3600) } else { most };
        let walk =
            side.ask(&Question { bytes_per_s: pace * speed, bytes: stop.unwrap_or(size), most, count })?;
        let right = walk.pass.sum == data.sum(0..walk.pass.bytes);
        let checked = !walk.pass.whole || right && walk.pass.bytes == stop.unwrap_or(size);
        if checked {
            Ok(walk)
        } else {
            Err(Error::engine("the worker had other bytes than the file's".into()))
        }
    };
    let count = |cell: &Cell| if cell.stop.is_none() { ask(*cell, true).map(Some) } else { Ok(None) };
    let counted = cells.iter().map(count).collect::<Result<Vec<_>>>()?;
    let walks = interleave(rounds, cells.len(), |index, _| ask(cells[index], false))?;
    let seen: Vec<Seen> = (cells.into_iter().zip(walks).zip(counted))
        .map(|((cell, walks), counted)| Seen { cell, walks, counted })
        .collect();
    report.rows.extend(seen.iter().map(Seen::row));
    conclude(&mut report, &seen);
    Ok(report)
}

fn conclude(report: &mut Report, all: &[Seen]) {
    let (whole, stopped): (Vec<&Seen>, Vec<&Seen>) = all.iter().partition(|seen| seen.cell.stop.is_none());
    let most =
        |of: &dyn Fn(&Seen) -> f64, seen: &[&Seen]| seen.iter().map(|seen| of(seen)).fold(f64::NAN, f64::max);
    report.target("watermark_exceeded_bytes", most(&Seen::above, &whole), Target::AtMost(0.0));
    report.ratio("looks_above_watermark", most(&|seen| seen.of(Walk::share_above).max(), &whole));
    let windows = most(&|seen| seen.windows().max(), &stopped);
    report.target("over_read_after_stop_windows", windows, Target::AtMost(1.0));
    for seen in whole {
        let name = format!("calls_per_gib_{}", seen.cell.pace);
        // If the kernel does not count the calls, the channel's own count is used.
        let calls = seen.counted().unwrap_or_else(|| seen.told());
        match seen.cell.pace < 1.0 {
            // A worker that is slower than the device does not wait.
            true => report.target(&name, calls, Target::AtMost(2.0)),
            false => report.ratio(&name, calls),
        }
    }
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::super::data::Data;
    use super::*;

    rusty_fork_test! {
    #[test]
    fn a_worker_is_watched_and_what_is_read_for_nothing_is_counted() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let data = Data::write(folder.path(), 32 << 20).unwrap();
        let mut side = start(data.path()).unwrap();
        let question = Question {
            bytes_per_s: 200e6,
            bytes: data.size,
            most: Duration::from_secs(60),
            count: true,
        };
        let walk = side.ask(&question).unwrap();
        assert!(walk.pass.whole && walk.pass.sum == data.sum(0..data.size));
        assert_eq!((walk.looks, walk.over_read()), (data.size / SLICE - 1, 0), "{walk:?}");
        assert!(walk.pass.wall_ns >= 150_000_000 && walk.rests > 0, "{walk:?}");
        let walk = side.ask(&Question { bytes: 64 << 10, ..question }).unwrap();
        assert_eq!((walk.pass.bytes, walk.pass.sum), (64 << 10, data.sum(0..64 << 10)));
        // At least the frame that the worker had begun was read for it alone.
        assert!(walk.over_read() >= FRAME as u64 - (64 << 10), "{walk:?}");
        assert!(walk.over_read() < data.size && walk.window() > 0);
    }
    }
}
