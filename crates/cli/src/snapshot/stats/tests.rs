//! Tests of the output for arbitrary pages.

use bedplate_snapshot::Kind;
use bedplate_snapshot::statistics::Statistics;
use bedplate_snapshot::statistics::page::{MAGIC, Reading, VERSION, WORDS};
use bedplate_snapshot::statistics::processes::Process;
use proptest::prelude::*;

use super::{figures, prometheus, render};

#[path = "../../../tests/exposition/mod.rs"]
mod exposition;

fn process(engine: Option<Kind>, statistics: Statistics) -> Process {
    let page = Reading { pid: 7, engine, why: "it was \"asked\" for".into(), statistics };
    Process { pid: 7, name: "redis-server".into(), anonymous_bytes: 1 << 20, shared_bytes: 2 << 20, page }
}

/// Three pauses, one of them longer than any bound.
fn statistics() -> Statistics {
    let mut statistics = Statistics::default();
    (statistics.snapshots, statistics.active) = (3, 1);
    // The sum of both is the number of snapshots, as in `remap`.
    (statistics.instantaneous, statistics.copied_as_usual) = (2, 1);
    (statistics.latest_pause_ns, statistics.longest_pause_ns) = (300_000, 9_000_000_000);
    (statistics.pages_claimed, statistics.pages_private) = (1 << 18, 256);
    statistics.pauses.total_ns = 9_000_600_000;
    (statistics.pauses.counts[6], statistics.pauses.counts[21]) = (2, 1);
    statistics
}

#[test]
fn a_table_has_what_the_engine_has() {
    let text = render::table_text(&process(Some(Kind::Remap), statistics()));
    for line in [
        "engine                      remap (it was \"asked\" for)\n",
        "snapshots taken             3\n",
        "snapshots active            1\n",
        "snapshots in constant time  2\n",
        "latest pause                300 µs\n",
        "longest pause               9 s\n",
        "memory in use               1 GiB\n",
        "memory not merged yet       1 MiB\n",
        "pauses up to 524.3 µs       2\n",
        "pauses over 8.6 s           1\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert!(!text.contains("write faults"), "{text}");
    let text = render::table_text(&process(Some(Kind::Uffd), statistics()));
    assert!(text.contains("write faults") && !text.contains("merged"), "{text}");
    let text = render::table_text(&process(None, Statistics::default()));
    assert!(text.contains("none (") && !text.contains("snapshots"), "{text}");
}

#[test]
fn json_has_units_in_its_names() {
    let object = render::object(&process(Some(Kind::Remap), statistics()));
    assert_eq!((&object["pid"], &object["engine"]), (&7.into(), &"remap".into()));
    assert_eq!((&object["taken"], &object["latest_pause_ns"]), (&3.into(), &300_000.into()));
    assert_eq!(object["memory_bytes"], 1 << 30);
    let counts = object["pauses"]["counts"].as_array().unwrap();
    assert_eq!(counts[6], serde_json::json!({ "up_to_ns": 524_288, "count": 2 }));
    assert_eq!(counts[21], serde_json::json!({ "up_to_ns": null, "count": 1 }));
    assert_eq!(render::object(&process(None, statistics()))["engine"], serde_json::Value::Null);
}

#[test]
fn every_figure_has_a_name_of_its_own() {
    let mut names: Vec<_> = figures::FIGURES.iter().map(figures::Figure::key).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), figures::FIGURES.len());
    for figure in figures::FIGURES {
        assert!(!figure.label.is_empty() && figure.help.ends_with('.'), "{}", figure.name);
    }
}

#[test]
fn prometheus_finds_values_in_base_units() {
    let mut other = process(Some(Kind::Uffd), statistics());
    other.pid = 8;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshots.prom");
    std::fs::write(&file, "old").unwrap();
    prometheus::write(&file, &[process(Some(Kind::Remap), statistics()), other]).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let samples = exposition::check(&text);
    let value = |name: &str, pid: &str| {
        let is_it = |sample: &&exposition::Sample| sample.name == name && sample.labels["pid"] == pid;
        samples.iter().find(is_it).map(|sample| sample.value)
    };
    assert_eq!(value("bedplate_snapshot_taken_total", "7"), Some(3.0));
    assert_eq!(value("bedplate_snapshot_active", "8"), Some(1.0));
    assert_eq!(value("bedplate_snapshot_latest_pause_seconds", "7"), Some(0.0003));
    assert_eq!(value("bedplate_snapshot_memory_bytes", "8"), Some(f64::from(1 << 30)));
    assert_eq!(value("bedplate_snapshot_pause_seconds_sum", "7"), Some(9.0006));
    assert_eq!(value("bedplate_snapshot_pause_seconds_count", "7"), Some(3.0));
    assert_eq!(value("bedplate_snapshot_merges_total", "8"), None, "uffd does not merge");
    let info = samples.iter().find(|sample| sample.name == "bedplate_snapshot_engine_info").unwrap();
    assert_eq!(
        (info.labels["engine"].as_str(), info.labels["reason"].as_str()),
        ("remap", "it was \"asked\" for")
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the temporary file is still there");
}

#[test]
fn without_processes_the_file_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshots.prom");
    prometheus::write(&file, &[]).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
    assert!(prometheus::write(&folder.path().join("none/snapshots.prom"), &[]).is_err());
}

proptest! {
    #[test]
    fn anything_that_a_page_says_can_be_shown(
        mut words in prop::collection::vec(prop_oneof![any::<u64>(), Just(u64::MAX), 0u64..9], WORDS..=WORDS),
        engine in 0u64..5,
        len in 0u64..400,
    ) {
        words[..5].copy_from_slice(&[MAGIC, VERSION, 7, engine, len]);
        let page = Reading::of(&words.try_into().unwrap()).unwrap();
        let name = page.why.chars().take(15).collect();
        let process = Process { pid: 7, name, anonymous_bytes: u64::MAX, shared_bytes: 0, page };
        let table = render::table_text(&process);
        prop_assert!(table.chars().all(|letter| letter == '\n' || !letter.is_control()), "{}", table);
        render::object(&process);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("any.prom");
        prometheus::write(&file, &[process]).unwrap();
        exposition::check(&std::fs::read_to_string(file).unwrap());
    }
}
