//! The counters of the extension's nodes in `EXPLAIN (ANALYZE, FORMAT JSON)`.

use postgres::Client;
use serde_json::Value;

use crate::Result;

/// The name of the extension's node in plans.
pub const NODE: &str = "BedplateScan";
/// The node's counters of blocks: used as they were read from the file; taken from the buffer manager.
const DIRECT: &str = "Blocks Direct";
const BUFFERED: &str = "Blocks From Buffer Manager";
/// Its counter of bytes that were read for another scan, too.
const SHARED: &str = "Bytes Shared";

/// Its reason for scanning as PostgreSQL does.
const ORDINARY: &str = "Ordinary Scan";

/// The sums of the counters of the extension's nodes in a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Nodes of the extension.
    pub nodes: u64,
    /// Nodes of the extension that several processes share.
    pub parallel_nodes: u64,
    /// Blocks that were used as they were read from the file.
    pub direct: u64,
    /// Blocks that were taken from the buffer manager.
    pub buffered: u64,
    /// Bytes that were read for another scan, too.
    pub shared_bytes: u64,
}

/// Runs a query by EXPLAIN, and returns its plan.
fn explain(client: &mut Client, query: &str) -> Result<Value> {
    let explain = format!("explain (analyze, buffers, costs off, timing off, format json) {query}");
    let rows = client.query(explain.as_str(), &[]).map_err(|e| format!("{explain}: {}", text_of(&e)))?;
    Ok(rows[0].get(0))
}

/// Runs a query by EXPLAIN, and returns the time for which it read blocks into shared buffers, or waited for them, in
/// nanoseconds. The session must have `track_io_timing` on.
pub fn read_ns(client: &mut Client, query: &str) -> Result<f64> {
    let plan = explain(client, query)?;
    let root = &plan[0]["Plan"];
    // The second name is that of versions before 17.
    let milliseconds = ["Shared I/O Read Time", "I/O Read Time"].iter().find_map(|name| root[*name].as_f64());
    milliseconds
        .map(|time| time * 1e6)
        .ok_or_else(|| format!("{query}: the plan has no time of reads: {root}"))
}

/// Runs a query by EXPLAIN, and adds up the counters of the extension's nodes.
pub fn counters(client: &mut Client, query: &str) -> Result<Counters> {
    let plan = explain(client, query)?;
    let mut counters = Counters::default();
    add(&plan, &mut counters);
    Ok(counters)
}

/// Runs a query by EXPLAIN, and returns the reasons of those of the extension's nodes that scanned as PostgreSQL does.
pub fn ordinary_scans(client: &mut Client, query: &str) -> Result<Vec<String>> {
    let mut reasons = Vec::new();
    add_reasons(&explain(client, query)?, &mut reasons);
    Ok(reasons)
}

fn add_reasons(part: &Value, reasons: &mut Vec<String>) {
    match part {
        Value::Array(parts) => parts.iter().for_each(|part| add_reasons(part, reasons)),
        Value::Object(fields) => {
            reasons.extend(fields.get(ORDINARY).and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|part| add_reasons(part, reasons));
        }
        _ => {}
    }
}

/// Adds the nodes of a part of a plan.
fn add(part: &Value, counters: &mut Counters) {
    match part {
        Value::Array(parts) => parts.iter().for_each(|part| add(part, counters)),
        Value::Object(fields) => {
            if fields.get("Custom Plan Provider").and_then(Value::as_str) == Some(NODE) {
                let number = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or(0);
                counters.nodes += 1;
                counters.parallel_nodes +=
                    u64::from(fields.get("Parallel Aware").and_then(Value::as_bool) == Some(true));
                counters.direct += number(DIRECT);
                counters.buffered += number(BUFFERED);
                counters.shared_bytes += number(SHARED);
            }
            fields.values().for_each(|part| add(part, counters));
        }
        _ => {}
    }
}

/// An error of the server in one line, because the client's own text does not have the message.
pub fn text_of(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{}: {}", db.severity(), db.message()),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_wherever_they_are() {
        let scan = |parallel: bool, direct: u64| {
            serde_json::json!({"Node Type": "Custom Scan", "Custom Plan Provider": NODE, "Parallel Aware": parallel,
                DIRECT: direct, BUFFERED: 2, SHARED: 3})
        };
        let plan = serde_json::json!([{"Plan": {"Node Type": "Append",
            "Plans": [scan(false, 5), {"Node Type": "Gather", "Plans": [scan(true, 7)]}, {"Node Type": "Seq Scan"}]}}]);
        let mut counters = Counters::default();
        add(&plan, &mut counters);
        assert_eq!(
            counters,
            Counters { nodes: 2, parallel_nodes: 1, direct: 12, buffered: 4, shared_bytes: 6 }
        );
    }
}
