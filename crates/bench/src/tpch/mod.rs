//! `scan-tpch`: TPC-H in several databases, as they are and with Bedplate's scans (zicIO paper 5.3, 5.5 and 5.6).
//!
//! [`engine`] has the trait that a database implements, and [`driver`] has everything else: rounds, comparisons and ratios.
//! [`ENGINES`] has the databases. Databases share `queries`, `rows`, `oracle`, `answers`, `cold` and `measure`; `scan-postgres`
//! uses them, too.

pub mod answers;
pub mod cold;
mod driver;
pub mod engine;
pub mod fresh;
mod mariadb;
pub mod measure;
pub mod oracle;
mod parquet;
mod postgres;
mod python;
pub mod queries;
pub mod read_ahead;
pub mod rows;

use crate::{Benchmark, Error, Options, Report, Result, Sink, Step};
use engine::Candidate;
pub use parquet::daemon;

pub(crate) const BENCH: Benchmark = Benchmark {
    name: "scan-tpch",
    about: "TPC-H in an engine (--engine), as it is and with Bedplate (zicIO paper 5.3, 5.5, 5.6)",
    run,
};

/// The engines. A new one is registered here and nowhere else.
const ENGINES: &[Candidate] =
    &[postgres::CANDIDATE, mariadb::CANDIDATE, parquet::duckdb::CANDIDATE, parquet::datafusion::CANDIDATE];

/// The names of the engines.
pub(crate) fn engines() -> Vec<&'static str> {
    ENGINES.iter().map(|engine| engine.name).collect()
}

fn run(options: &Options, sink: Sink<'_>) -> Result<Report> {
    let name = options.engine.clone().unwrap_or_default();
    let engine = ENGINES.iter().find(|engine| engine.name == name).ok_or(Error::Engine(name))?;
    driver::run(engine, options, sink)
}

/// The progress of a benchmark, whose steps have very different lengths.
pub struct Progress<'a> {
    sink: Sink<'a>,
    done: usize,
    total: usize,
}

impl<'a> Progress<'a> {
    /// Progress of `total` steps.
    pub fn new(sink: Sink<'a>, total: usize) -> Self {
        Self { sink, done: 0, total }
    }

    /// Reports the step that begins.
    pub fn step(&mut self, label: &str) {
        (self.sink)(Step { done: self.done, total: self.total, label });
        self.done += 1;
    }
}

/// The scale factor: the one that was asked for, or the benchmark's own.
pub fn scale(options: &Options, own: f64) -> Result<f64> {
    let scale = options.scale.unwrap_or(own);
    match (0.01..=100.0).contains(&scale) {
        true => Ok(scale),
        false => Err(Error::Scale(scale)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    #[test]
    fn a_scale_factor_has_bounds() {
        let of = |asked| scale(&Options { scale: asked, ..Options::new(Mode::Quick) }, 0.1);
        assert_eq!(
            (of(None).unwrap(), of(Some(0.01)).unwrap(), of(Some(100.0)).unwrap()),
            (0.1, 0.01, 100.0)
        );
        for wrong in [0.0, 0.009, 100.1, f64::NAN] {
            let error = of(Some(wrong)).unwrap_err().to_string();
            assert!(error.contains("0.01") && error.contains("100"), "{error}");
        }
    }
}
