//! Statistics in the exposition format of Prometheus, for the textfile collector of its node_exporter.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use bedplate_snapshot::statistics::PAUSE_BOUNDS;
use bedplate_snapshot::statistics::processes::Process;
use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::figures::{FIGURES, Figure, Unit};

const PREFIX: &str = "bedplate_snapshot";
const NANOSECONDS: f64 = 1e9;

/// Writes a file as a whole: a reader finds either the old file or the new one.
pub fn write(file: &Path, processes: &[Process]) -> anyhow::Result<()> {
    let text = text(processes)?;
    let file = std::path::absolute(file)?;
    let folder = file.parent().context("a file has a folder")?;
    // The collector only reads files whose names end with .prom, so it does not read this one.
    let mut temporary = tempfile::Builder::new();
    let temporary = temporary.prefix(".bedplate-snapshot-").suffix(".tmp");
    // Others may read it as far as the umask allows, because the collector is another user.
    let temporary = temporary.permissions(std::fs::Permissions::from_mode(0o666));
    let mut temporary =
        temporary.tempfile_in(folder).with_context(|| format!("making a file in {}", folder.display()))?;
    temporary.write_all(text.as_bytes()).with_context(|| format!("writing {}", file.display()))?;
    temporary.persist(&file).map_err(|error| error.error).with_context(|| file.display().to_string())?;
    Ok(())
}

/// The text of the file.
fn text(processes: &[Process]) -> anyhow::Result<String> {
    let mut families: Vec<MetricFamily> = FIGURES.iter().map(|figure| family_of(figure, processes)).collect();
    let pauses = processes.iter().filter(|process| process.page.engine.is_some()).map(pauses_of);
    families.push(family(
        format!("{PREFIX}_pause_seconds"),
        "How long snapshots held up writers.",
        MetricType::HISTOGRAM,
        pauses.collect(),
    ));
    let info = processes.iter().map(|process| {
        let mut labels = labels(process);
        labels.push(label("command", &process.name));
        labels.push(label("reason", &process.page.why));
        let mut metric = Metric::from_label(labels);
        metric.set_gauge(gauge(1.0));
        metric
    });
    let help = "The engine of a process, and why it is this one.";
    families.push(family(format!("{PREFIX}_engine_info"), help, MetricType::GAUGE, info.collect()));
    // A family without metrics would be an error.
    families.retain(|family| !family.get_metric().is_empty());
    Ok(TextEncoder::new().encode_to_string(&families)?)
}

fn family(name: String, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name);
    family.set_help(help.into());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn family_of(figure: &Figure, processes: &[Process]) -> MetricFamily {
    let unit = match figure.unit {
        Unit::Count => "",
        Unit::Bytes => "_bytes",
        Unit::Nanoseconds => "_seconds",
    };
    let total = if figure.is_counter { "_total" } else { "" };
    let metrics = processes.iter().filter(|process| (figure.is_of)(process.page.engine)).map(|process| {
        let value = (figure.get)(process) as f64;
        let value = if figure.unit == Unit::Nanoseconds { value / NANOSECONDS } else { value };
        let mut metric = Metric::from_label(labels(process));
        if figure.is_counter {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            metric.set_gauge(gauge(value));
        }
        metric
    });
    let kind = if figure.is_counter { MetricType::COUNTER } else { MetricType::GAUGE };
    family(format!("{PREFIX}_{}{unit}{total}", figure.name), figure.help, kind, metrics.collect())
}

fn gauge(value: f64) -> Gauge {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    gauge
}

fn pauses_of(process: &Process) -> Metric {
    let pauses = &process.page.statistics.pauses;
    let mut below = 0u64;
    let buckets = PAUSE_BOUNDS.iter().zip(pauses.counts).map(|(bound, count)| {
        below = below.saturating_add(count);
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*bound as f64 / NANOSECONDS);
        bucket.set_cumulative_count(below);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(pauses.count());
    histogram.set_sample_sum(pauses.total_ns as f64 / NANOSECONDS);
    let mut metric = Metric::from_label(labels(process));
    metric.set_histogram(histogram);
    metric
}

fn labels(process: &Process) -> Vec<LabelPair> {
    let engine = process.page.engine.map_or("none".into(), |engine| engine.to_string());
    vec![label("pid", &process.pid.to_string()), label("engine", &engine)]
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.into());
    label.set_value(value.into());
    label
}
