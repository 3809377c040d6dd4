//! The answers that all runs must give.

use std::collections::BTreeMap;

use super::engine::Rows;
use super::oracle::{self, Oracle};
use crate::{Error, Result};

/// The known answers to the queries at a scale factor.
pub struct Answers {
    /// The database that answers, for errors.
    database: &'static str,
    scale: f64,
    /// DuckDB's answers, if there are any.
    oracle: Option<Oracle>,
    vanilla: BTreeMap<usize, Rows>,
}

impl Answers {
    /// Without any answer of the database itself yet.
    pub fn new(database: &'static str, scale: f64, oracle: Option<Oracle>) -> Self {
        Self { database, scale, oracle, vanilla: BTreeMap::new() }
    }

    /// Checks the rows that a side gave to a query. The first ones are those of the database as it is.
    pub fn check(&mut self, index: usize, side: &str, rows: &[Vec<String>]) -> Result<()> {
        let check = |known: &[Vec<String>], whose: &str| {
            let Some(how) = oracle::difference(rows, known) else { return Ok(()) };
            let (number, scale) = (index + 1, self.scale);
            let problem =
                format!("{side} answers query {number} at scale factor {scale} unlike {whose}: {how}");
            Err(Error::Store { store: self.database, problem })
        };
        if let Some(known) = self.vanilla.get(&index) {
            // Rows that compare equal in the query's order may come in any order.
            return check(known, &format!("{} as it is", self.database));
        }
        if let Some(answer) = self.oracle.as_ref().and_then(|oracle| oracle.answer(index)) {
            check(answer, "DuckDB's known answer")?;
        }
        self.vanilla.insert(index, rows.to_vec());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpch::oracle::Generator;

    #[test]
    fn an_answer_unlike_the_known_one_is_an_error() {
        let rows = |value: &str| vec![vec![value.to_owned()]];
        let oracle = Oracle::of(Generator::Tpch, 1.0, vec![rows("1.00"); 22]);
        let mut answers = Answers::new("PostgreSQL", 1.0, Some(oracle));
        let error = answers.check(5, "bedplate", &rows("2")).unwrap_err().to_string();
        assert!(error.contains("query 6") && error.contains("DuckDB"), "{error}");
        answers.check(5, "vanilla", &rows("1")).unwrap();
        let error = answers.check(5, "bedplate", &rows("3")).unwrap_err().to_string();
        assert!(error.contains("bedplate") && error.contains("PostgreSQL as it is"), "{error}");
    }
}
