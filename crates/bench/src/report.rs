//! The result of a benchmark and its two forms: a table for people and one JSON object for
//! programs. Nothing here prints.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Machine;

/// The result of one benchmark; its JSON form is `{"bench", "machine", "config", "rows", "ratios"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the benchmark.
    pub bench: String,
    /// The machine it ran on.
    pub machine: Machine,
    /// Its configuration: the values that are the same for every row.
    pub config: Fields,
    /// One row per cell and side; units are in the keys (`_ns`, `_per_s`, `_bytes`, `_insns`).
    pub rows: Vec<Fields>,
    /// Headline numbers under stable names, medians over interleaved runs.
    pub ratios: BTreeMap<String, f64>,
}

/// Ordered fields of a row or of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field. Floating-point numbers are rounded to six significant digits (more would be noise);
    /// those that are not finite become `null`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    /// Adds or replaces a field, with the rounding of [`Fields::with`].
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = match value.into() {
            Value::Number(n) if n.is_f64() => n.as_f64().map_or(Value::Null, |f| round(f).into()),
            other => other,
        };
        self.0.insert(key.to_owned(), value);
    }

    /// Adds or replaces fields.
    pub fn extend(&mut self, more: Fields) {
        self.0.extend(more.0);
    }

    /// A field.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// A numeric field.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key).and_then(Value::as_f64)
    }

    /// Keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter()
    }
}

/// Target of a headline number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
}

/// Rounds to six significant digits.
fn round(f: f64) -> f64 {
    if f == 0.0 || !f.is_finite() {
        return f;
    }
    format!("{f:.5e}").parse().unwrap_or(f)
}

impl Report {
    /// An empty report of this machine.
    pub fn new(bench: &str, config: Fields) -> Self {
        Report {
            bench: bench.to_owned(),
            machine: Machine::detect(),
            config,
            rows: Vec::new(),
            ratios: BTreeMap::new(),
        }
    }

    /// Adds a headline number; one that is not finite is left out, so that a reader never mistakes it
    /// for a measurement.
    pub fn ratio(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.ratios.insert(name.to_owned(), round(value));
        }
    }

    /// Adds a headline number that has a target, and a row that says whether it was met.
    pub fn target(&mut self, name: &str, value: f64, target: Target) {
        self.ratio(name, value);
        let (wanted, met) = match target {
            Target::AtMost(most) => (format!("at most {most}"), value <= most),
            Target::AtLeast(least) => (format!("at least {least}"), value >= least),
        };
        let verdict = match met {
            _ if !value.is_finite() => "not measured",
            true => "met",
            false => "MISSED",
        };
        let row = Fields::new().with("target", name).with("wanted", wanted);
        self.rows.push(row.with("measured", value).with("verdict", verdict));
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("string keys and finite numbers always serialize")
    }

    /// Tables for people: configuration, rows (those with the same fields share a table), ratios. `width` is the terminal's width in columns.
    pub fn to_table(&self, width: Option<u16>) -> String {
        let mut text = format!("{}\n{}\n", self.bench, self.machine);
        let config: Vec<String> = self.config.iter().map(|(k, v)| format!("{k}={}", show(v))).collect();
        if !config.is_empty() {
            text += &format!("{}\n", config.join("  "));
        }
        let mut kinds: Vec<Vec<&Fields>> = Vec::new();
        for row in &self.rows {
            match kinds.iter_mut().find(|kind| kind[0].keys().eq(row.keys())) {
                Some(kind) => kind.push(row),
                None => kinds.push(vec![row]),
            }
        }
        for rows in kinds {
            let mut table = table(width);
            table.set_header(rows[0].keys().map(|c| c.replace('_', " ")));
            for row in &rows {
                table.add_row(row.iter().map(|(_, value)| show(value)));
            }
            for (i, column) in rows[0].keys().enumerate() {
                let numeric = !rows.iter().any(|r| r.get(column).is_some_and(Value::is_string));
                if let (true, Some(c)) = (numeric, table.column_mut(i)) {
                    c.set_cell_alignment(CellAlignment::Right);
                }
            }
            text += &format!("{table}\n");
        }
        if !self.ratios.is_empty() {
            let mut table = table(width);
            table.set_header(["ratio", "value"]);
            for (name, value) in &self.ratios {
                table.add_row([name.clone(), show(&Value::from(*value))]);
            }
            text += &format!("{table}\n");
        }
        text
    }
}

fn table(width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    // Without a width, the library must not look for one, because a serial line is a terminal of 0 columns.
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    if let Some(width) = width {
        table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
        table.set_width(width);
    }
    table
}

/// A value for people: thousands separated, three decimals below 100.
fn show(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Null => "-".to_owned(),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => group(i),
            (None, Some(f)) if f.abs() >= 1000.0 => group(f.round() as i64),
            (None, Some(f)) if f.abs() >= 100.0 => format!("{f:.1}"),
            (None, Some(f)) => format!("{f:.3}"),
            (None, None) => n.to_string(),
        },
        other => other.to_string(),
    }
}

fn group(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut out = String::from(if n < 0 { "-" } else { "" });
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{2009}');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let mut r = Report::new("kv-x", Fields::new().with("keys", 1_000_000u64));
        r.rows.push(Fields::new().with("side", "redis").with("rate_per_s", 123_456.789_012).with("n", -5));
        r.rows.push(Fields::new().with("side", "bedplate").with("p50_ns", 7u64).with("bad_ns", f64::NAN));
        r.ratio("a_over_b", 1.23456789);
        r.ratio("not_measured", f64::INFINITY);
        r
    }

    #[test]
    fn json_has_exactly_the_documented_shape() {
        let json: Value = serde_json::from_str(&sample().to_json()).unwrap();
        let object = json.as_object().unwrap();
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        assert_eq!(keys, ["bench", "machine", "config", "rows", "ratios"]);
        assert_eq!(object["bench"], "kv-x");
        for key in ["cpu", "cores", "kernel", "memory_bytes", "virtualisation"] {
            assert!(object["machine"].get(key).is_some(), "machine lacks {key}");
        }
        assert_eq!(object["rows"][0]["rate_per_s"], 123_457.0);
        assert_eq!(object["rows"][1]["bad_ns"], Value::Null);
        assert_eq!(object["ratios"]["a_over_b"], 1.23457);
        assert!(object["ratios"].get("not_measured").is_none());
    }

    #[test]
    fn json_round_trips() {
        let report = sample();
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }

    #[test]
    fn table_shows_every_row_column_and_ratio() {
        let text = sample().to_table(Some(200));
        for part in
            ["kv-x", "redis", "bedplate", "rate per s", "p50 ns", "a_over_b", "1.235", "123\u{2009}457"]
        {
            assert!(text.contains(part), "{part} not in\n{text}");
        }
    }

    #[test]
    fn a_target_is_met_or_missed_and_never_by_what_was_not_measured() {
        let mut report = sample();
        report.rows.clear();
        report.target("small", 1.1, Target::AtMost(1.1));
        report.target("large", 0.9, Target::AtLeast(1.0));
        report.target("nothing", f64::NAN, Target::AtMost(1.0));
        let verdicts: Vec<_> = report.rows.iter().map(|row| row.get("verdict").unwrap().clone()).collect();
        assert_eq!(verdicts, ["met", "MISSED", "not measured"]);
        assert_eq!((report.ratios["small"], report.ratios.get("nothing")), (1.1, None));
        assert!(report.to_table(None).contains("at least 1"));
    }

    #[test]
    fn rounding_keeps_six_digits_at_any_scale() {
        assert_eq!(round(0.000_012_345_678), 0.000_012_345_7);
        assert_eq!(round(-98_765_432.1), -98_765_400.0);
        assert_eq!(round(0.0), 0.0);
    }
}
