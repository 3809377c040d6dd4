//! LATENCY: the commands of the event loop that have taken long, as events, and the distribution of the times of all of them.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::exec::{Ctx, Run};
use super::introspect::help;
use super::operators::Operators;
use super::request::Core;
use super::services::Services;
use super::spec::{self, Found, Resolved, Spec, flags};
use crate::limits::LATENCY_SAMPLES_MAX;
use crate::resp::Args;

/// The events: commands, and those of them that should be fast.
const EVENTS: [&str; 2] = ["command", "fast-command"];

/// One second in which an event has taken long, and its longest time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    time_s: u64,
    ms: u64,
}

/// The samples of one event.
#[derive(Debug, Default)]
struct Event {
    /// The oldest one first.
    samples: VecDeque<Sample>,
    max_ms: u64,
}

impl Event {
    fn add(&mut self, sample: Sample) {
        self.max_ms = self.max_ms.max(sample.ms);
        match self.samples.back_mut() {
            Some(last) if last.time_s == sample.time_s => last.ms = last.ms.max(sample.ms),
            _ => {
                if self.samples.len() == LATENCY_SAMPLES_MAX {
                    self.samples.pop_front();
                }
                self.samples.push_back(sample);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}

/// The events of a server that have taken long.
#[derive(Debug, Default)]
pub struct Latency(Mutex<[Event; EVENTS.len()]>);

impl Latency {
    fn with<R>(&self, f: impl FnOnce(&mut [Event; EVENTS.len()]) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a command that has taken long.
    pub(super) fn add(&self, resolved: Resolved, time_s: u64, took: Duration) {
        let event = usize::from(resolved.spec.has(flags::FAST));
        self.with(|events| events[event].add(Sample { time_s, ms: took.as_millis() as u64 }));
    }
}

pub(super) fn run<S: Operators, V: Services>(
    core: &Core,
    ctx: &mut Ctx<'_, S, V>,
    spec: &Spec,
    args: Args<'_>,
) -> Run {
    let latency = &core.server.latency;
    let out = &mut ctx.out;
    let event_of = |arg: &[u8]| EVENTS.iter().position(|name| name.as_bytes() == arg);
    match spec.name {
        "latest" => latency.with(|events| {
            out.array(events.iter().filter(|event| !event.is_empty()).count());
            for (name, event) in EVENTS.iter().zip(events) {
                let Some(last) = event.samples.back() else { continue };
                out.array(4);
                out.bulk(name.as_bytes());
                [last.time_s, last.ms, event.max_ms].iter().for_each(|n| out.integer(*n as i64));
            }
        }),
        "history" => latency.with(|events| {
            let samples =
                event_of(args.get(2)).map_or(&VecDeque::new(), |event| &events[event].samples).clone();
            out.array(samples.len());
            for sample in samples {
                out.array(2);
                [sample.time_s, sample.ms].iter().for_each(|n| out.integer(*n as i64));
            }
        }),
        "reset" => latency.with(|events| {
            let mut count = 0;
            for (name, event) in EVENTS.iter().zip(events) {
                let is_chosen = args.len() == 2 || args.from(2).any(|arg| arg == name.as_bytes());
                if is_chosen && !event.is_empty() {
                    *event = Event::default();
                    count += 1;
                }
            }
            out.integer(count);
        }),
        "histogram" => {
            let named: HashSet<Vec<u8>> = args.from(2).map(<[u8]>::to_ascii_lowercase).collect();
            let chosen = |(parent, found): Found| {
                args.len() == 2
                    || named.contains(parent.unwrap_or(found).name.as_bytes())
                    || named.contains(spec::full_name((parent, found)).as_bytes())
            };
            let found = core.server.counters.calls.histograms(chosen);
            out.map(found.len());
            for (name, buckets) in found {
                out.bulk(name.as_bytes());
                out.map(2);
                out.bulk(b"calls");
                out.integer(buckets.last().map_or(0, |(_, calls)| *calls as i64));
                out.bulk(b"histogram_usec");
                out.map(buckets.len());
                for (us, calls) in buckets {
                    out.integer(us as i64);
                    out.integer(calls as i64);
                }
            }
        }
        "doctor" => {
            let report = latency.with(|events| report(core, events));
            out.verbatim(report.as_bytes());
        }
        _ => help(
            out,
            "LATENCY",
            &[
                ("DOCTOR", "Return a report about the commands that have taken long."),
                (
                    "HISTOGRAM [<command> ...]",
                    "Return how many calls have taken at most so many microseconds.",
                ),
                ("HISTORY <event>", "Return the times of an event: Unix time, milliseconds."),
                ("LATEST", "Return the last and the longest time of each event."),
                ("RESET [<event> ...]", "Forget the times of these events, or of all."),
            ],
        ),
    }
    Ok(())
}

/// The report of LATENCY DOCTOR.
fn report(core: &Core, events: &[Event]) -> String {
    let Some(threshold) = core.server.settings.latency_threshold() else {
        return "Latency is not monitored. CONFIG SET latency-monitor-threshold <milliseconds> starts it.\n"
            .into();
    };
    let threshold = threshold.as_millis();
    if events.iter().all(Event::is_empty) {
        return format!("No command of the event loop has taken {threshold} ms.\n");
    }
    let mut report = String::new();
    for (name, event) in EVENTS.iter().zip(events).filter(|(_, event)| !event.is_empty()) {
        let count = event.samples.len() as u64;
        let mean_ms = event.samples.iter().map(|sample| sample.ms).sum::<u64>() / count;
        let _ = writeln!(
            report,
            "{name}: {count} seconds with commands of at least {threshold} ms. Their longest times are {mean_ms} ms on average and \
             {} ms at most.",
            event.max_ms
        );
    }
    report
        .push_str("SLOWLOG GET returns the commands that have taken longer than slowlog-log-slower-than.\n");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_one_sample_a_second_and_the_newest_ones() {
        let mut event = Event::default();
        for (time_s, ms) in [(1, 5), (1, 7), (1, 6), (2, 3)] {
            event.add(Sample { time_s, ms });
        }
        assert_eq!(event.samples, [Sample { time_s: 1, ms: 7 }, Sample { time_s: 2, ms: 3 }]);
        for time_s in 3..=LATENCY_SAMPLES_MAX as u64 {
            event.add(Sample { time_s, ms: 1 });
        }
        assert_eq!((event.samples.len(), event.samples[0].time_s), (LATENCY_SAMPLES_MAX, 1));
        event.add(Sample { time_s: 1000, ms: 1 });
        assert_eq!((event.samples.len(), event.samples[0].time_s), (LATENCY_SAMPLES_MAX, 2));
        assert_eq!(event.max_ms, 7);
    }
}
