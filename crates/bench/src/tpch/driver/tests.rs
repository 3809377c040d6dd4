//! The driver on an engine that runs nothing, with rounds as in quick mode.

use std::path::{Path, PathBuf};

use super::*;
use crate::Error;
use crate::tpch::engine::{Access, Answer, Together};

/// An engine that answers every query with its number, and takes a time that depends on the side.
struct Toy {
    /// The side and the query whose answer is wrong.
    wrong: Option<(Side, usize)>,
    folder: PathBuf,
    is_cold: bool,
}

impl Toy {
    fn run(&self, side: Side, index: usize) -> Run {
        let is_wrong = self.wrong == Some((side, index));
        let wall_ns = match side {
            Side::Vanilla => 100.0,
            // Query 3 is the slowest one with Bedplate.
            _ => {
                if index == 2 {
                    110.0
                } else {
                    50.0
                }
            }
        };
        let number = if is_wrong { 1000 } else { index };
        let device_bytes = Some(if self.is_cold { 1000.0 } else { 0.0 });
        Run { wall_ns, cpu_ns: 2.0 * wall_ns, device_bytes, rows: vec![vec![number.to_string()]] }
    }
}

impl Engine for Toy {
    fn about(&self) -> Fields {
        Fields::new().with("toy", "yes")
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::Vanilla, Side::Bedplate, Side::Shared]
    }

    fn folder(&self) -> &Path {
        &self.folder
    }

    fn scan_bytes(&mut self, _: usize) -> Result<u64> {
        Ok(800)
    }

    fn cold(&mut self, _: Side) -> Result<()> {
        self.is_cold = true;
        Ok(())
    }

    fn warm(&mut self, _: Side) -> Result<()> {
        self.is_cold = false;
        Ok(())
    }

    fn query(&mut self, side: Side, index: usize) -> Result<Run> {
        Ok(self.run(side, index))
    }

    fn access(&mut self, side: Side, index: usize) -> Result<Option<Access>> {
        let wall_ns = self.run(side, index).wall_ns;
        let access_ns = if side == Side::Vanilla { 80.0 } else { 20.0 };
        Ok(Some(Access { access_ns, wall_ns }))
    }

    fn clients(&mut self, side: Side, lists: &[Vec<usize>]) -> Result<Together> {
        let answer = |query: &usize| {
            let run = self.run(side, *query);
            Answer { query: *query, wall_ns: run.wall_ns, rows: run.rows }
        };
        let answers: Vec<_> = lists.iter().flatten().map(answer).collect();
        let wall_ns = answers.iter().map(|answer| answer.wall_ns).sum();
        Ok(Together { wall_ns, cpu_ns: wall_ns, device_bytes: Some(1000.0), answers })
    }

    fn serves(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn limit_memory(&mut self, _: Option<u64>) {}
}

/// Runs the driver with a scale factor that DuckDB does not know, so that only the toy's own answers
/// exist.
fn run_toy(
    load: fn(&Options, f64, &mut Progress<'_>) -> Result<Box<dyn Engine>>,
) -> Result<(Report, Vec<String>)> {
    let candidate = Candidate { name: "toy", database: "Toy", scales: [0.07, 0.07], load };
    let mut labels = Vec::new();
    let report = run(&candidate, &Options::new(Mode::Quick), &mut |step| {
        assert!(step.done < step.total, "{step:?}");
        labels.push(step.label.to_owned());
    })?;
    Ok((report, labels))
}

fn toy(wrong: Option<(Side, usize)>) -> Result<Box<dyn Engine>> {
    let folder = std::env::temp_dir().join(format!("bedplate-no-folder-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(Error::io("a folder"))?;
    Ok(Box::new(Toy { wrong, folder, is_cold: false }))
}

#[test]
fn ratios_are_of_the_sides_and_the_worst_query_is_found() {
    let (report, labels) = run_toy(|_, _, _| toy(None)).unwrap();
    let ratio = |name: &str| report.ratios[name];
    assert_eq!((ratio("cpu_of_vanilla"), ratio("time_of_vanilla")), (0.5, 0.5));
    assert_eq!(ratio("q6_sequential_of_vanilla"), 0.25);
    assert_eq!((ratio("device_over_files_8"), ratio("time_of_vanilla_8")), (1.25, 0.5));
    assert_eq!((ratio("q12_time_of_vanilla_8"), ratio("mixed_time_of_vanilla")), (0.5, 0.5));
    // Query 3 runs warm only in quick mode.
    assert_eq!(ratio("worst_query_of_vanilla"), 1.1);
    assert_eq!(report.config.get("worst_query").unwrap(), "3 warm");
    assert!(report.config.get("small_memory").unwrap().as_str().unwrap().contains("skipped"));
    for figure in ["1, 8, 9", "8", "11", "12", "13"] {
        assert!(report.rows.iter().any(|row| row.get("figure").is_some_and(|f| f == figure)), "{figure}");
    }
    assert!(labels.iter().any(|label| label.contains("8 clients")));
}

#[test]
fn a_wrong_answer_of_any_side_is_an_error() {
    let error = |load| match run_toy(load) {
        Ok(_) => panic!("a wrong answer was accepted"),
        Err(error) => error.to_string(),
    };
    let cold = error(|_, _, _| toy(Some((Side::Bedplate, Q6))));
    assert!(cold.contains("bedplate answers query 6") && cold.contains("1000"), "{cold}");
    let warm = error(|_, _, _| toy(Some((Side::Bedplate, 20))));
    assert!(warm.contains("query 21"), "{warm}");
    let shared = error(|_, _, _| toy(Some((Side::Shared, Q12))));
    assert!(shared.contains("shared answers query 12"), "{shared}");
}
