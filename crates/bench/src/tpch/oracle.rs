//! DuckDB's answers to TPC-H. It has them for some scale factors (`tpch_answers()`).
//!
//! DuckDB's generator draws other random text than TPC-H's. So with data of TPC-H's generator, addresses and comments are not
//! compared, and neither are the two queries that select by comments.

use std::process::Stdio;

use super::engine::Rows;
use super::python;

/// Prints the answers to the 22 queries, each after a line of its number. A line that is empty is a row without a value.
const SCRIPT: &str = r#"
import sys, pathlib, duckdb, duckdb_extension_tpch
connection = duckdb.connect()
file = next(pathlib.Path(duckdb_extension_tpch.__file__).parent.rglob('tpch.duckdb_extension'))
connection.execute(f"load '{file}'")
query = 'select query_nr, answer from tpch_answers() where scale_factor = ? order by 1'
for number, answer in connection.execute(query, [float(sys.argv[1])]).fetchall():
    print('@', number)
    print(answer[:-1] if answer.endswith('\n') else answer)
"#;

/// A value that is not compared.
const ANY: &str = "*";

/// The generator of the queried data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// TPC-H's, or one with the same rows.
    Tpch,
    /// DuckDB's.
    DuckDb,
}

/// DuckDB's answers for a scale factor.
pub struct Oracle {
    generator: Generator,
    scale: f64,
    answers: Vec<Rows>,
}

impl Oracle {
    /// Asks DuckDB, or returns the reason why there are no answers.
    pub fn ask(generator: Generator, scale: f64) -> Result<Self, String> {
        let mut command = python::with_generator()?;
        let output = command.args(["-c", SCRIPT, &scale.to_string()]).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("python3: {error}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = text.trim().lines().next_back().unwrap_or_default().to_owned();
            return Err(format!("{last}; `make setup` fetches DuckDB"));
        }
        let answers = parse(&String::from_utf8_lossy(&output.stdout), generator == Generator::Tpch);
        match answers.len() {
            22 => Ok(Self { generator, scale, answers }),
            _ => Err(format!("DuckDB has no answers for scale factor {scale}")),
        }
    }

    /// The answer to a query, if it is one to the same question. With TPC-H's data, answers to queries 13 and 16 depend on random text.
    /// DuckDB's query 11 has the fraction of scale factor 1 at every scale.
    pub fn answer(&self, index: usize) -> Option<&Rows> {
        let is_same_question = match index {
            12 | 15 => self.generator == Generator::DuckDb,
            10 => self.scale == 1.0,
            _ => true,
        };
        self.answers.get(index).filter(|_| is_same_question)
    }

    /// A description of the values that are compared with DuckDB's answers.
    pub fn about(&self) -> &'static str {
        match self.generator {
            Generator::Tpch => {
                "DuckDB's answers, but for random text: addresses, comments, queries 13 and 16"
            }
            Generator::DuckDb => "DuckDB's known answers",
        }
    }

    /// An oracle with given answers.
    #[cfg(test)]
    pub fn of(generator: Generator, scale: f64, answers: Vec<Rows>) -> Self {
        Self { generator, scale, answers }
    }
}

/// The rows behind each line that begins with `@`, without their header. `any_text`: addresses and comments are not compared.
fn parse(text: &str, any_text: bool) -> Vec<Rows> {
    let mut all: Vec<Rows> = Vec::new();
    let mut is_header = false;
    let mut is_text = Vec::new();
    for line in text.lines() {
        if line.starts_with("@ ") {
            all.push(Vec::new());
            is_header = true;
        } else if is_header {
            is_header = false;
            is_text = line
                .split('|')
                .map(|name| any_text && (name.ends_with("_address") || name.ends_with("_comment")))
                .collect();
        } else if let Some(rows) = all.last_mut() {
            let value =
                |(value, is_text): (&str, &bool)| if *is_text { ANY } else { value.trim() }.to_owned();
            rows.push(line.split('|').zip(&is_text).map(value).collect());
        }
    }
    all
}

/// The first difference between two answers, if there is one. [`is_same_value`] decides about values, and rows may be in another
/// order.
pub fn difference(ours: &[Vec<String>], theirs: &[Vec<String>]) -> Option<String> {
    if ours.len() != theirs.len() {
        return Some(format!("{} rows instead of {}", ours.len(), theirs.len()));
    }
    let mut left: Vec<&Vec<String>> = theirs.iter().collect();
    for row in ours {
        // The same row is mostly the first one that is left.
        let Some(at) = left.iter().position(|other| is_same_row(row, other)) else {
            let other = left.first().map_or(String::new(), |other| other.join("|"));
            return Some(format!("{} instead of {other}", row.join("|")));
        };
        left.remove(at);
    }
    None
}

fn is_same_row(a: &[String], b: &[String]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_value(a.trim(), b.trim()))
}

/// Whether two values are the same. `NULL` is an empty text in DuckDB's answers. Numbers may differ by as much as TPC-H
/// allows for sums and averages, other values by spaces around them.
fn is_same_value(a: &str, b: &str) -> bool {
    let [a, b] = [a, b].map(|value| if value == "NULL" { "" } else { value });
    match (a.parse::<f64>(), b.parse::<f64>()) {
        // At most a cent, or one part in ten thousand of a number below a hundred.
        (Ok(a), Ok(b)) => (a - b).abs() <= f64::max(0.0001 * a.abs().min(100.0), 1e-9),
        _ => a == b || b == ANY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_same(ours: &[Vec<String>], theirs: &[Vec<String>]) -> bool {
        difference(ours, theirs).is_none()
    }

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|s| s.to_string()).collect()).collect()
    }

    #[test]
    fn answers_are_parsed() {
        let text = "@ 1\na|b|s_comment\n1|x |p\n2|y|q\n@ 2\nc\n";
        assert_eq!(parse(text, true), [rows(&[&["1", "x", ANY], &["2", "y", ANY]]), rows(&[])]);
        assert!(is_same(&rows(&[&["1", "x", "any"], &["2", "y", ""]]), &parse(text, true)[0]));
        assert_eq!(parse(text, false)[0], rows(&[&["1", "x", "p"], &["2", "y", "q"]]));
    }

    #[test]
    fn answers_to_other_questions_are_not_compared() {
        let of = |generator, scale| Oracle::of(generator, scale, vec![Vec::new(); 22]);
        let tpch = of(Generator::Tpch, 1.0);
        assert!(tpch.answer(12).is_none() && tpch.answer(15).is_none() && tpch.answer(10).is_some());
        let own = of(Generator::DuckDb, 0.1);
        assert!(own.answer(12).is_some() && own.answer(15).is_some() && own.answer(10).is_none());
    }

    #[test]
    fn answers_differ_by_more_than_rounding() {
        let ours = rows(&[&["A", "37734107.00", "25.5220058532573370"], &["B", "1", "2"]]);
        let theirs = rows(&[&["B ", "1.0", "2"], &["A", "37734107", "25.522005853257337"]]);
        assert!(is_same(&ours, &theirs));
        for (row, column, value) in [(0, 0, "C"), (0, 1, "2"), (1, 1, "37734108"), (1, 2, "25.6")] {
            let mut wrong = theirs.clone();
            wrong[row][column] = value.to_owned();
            assert!(!is_same(&ours, &wrong), "{wrong:?}");
        }
        assert!(
            is_same(&rows(&[&["NULL"]]), &rows(&[&[""]])) && !is_same(&rows(&[&["NULL"]]), &rows(&[&["0"]]))
        );
        assert!(!is_same(&ours, &theirs[..1]) && !is_same(&ours[..1], &theirs));
    }
}
