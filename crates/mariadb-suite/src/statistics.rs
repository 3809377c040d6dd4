//! The preloaded library's counters, which it appends to the file of `--statistics`.

use std::fs;
use std::path::Path;

use crate::Result;

/// A line of the file: the numbers of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// The name of the program.
    pub program: String,
    values: Vec<(String, u64)>,
}

impl Statistics {
    /// All lines of a file. A missing file has none, because no process has read a file that it could serve.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        match fs::read_to_string(path) {
            Ok(text) => text
                .lines()
                .map(|line| Self::parse(line).ok_or_else(|| format!("{}: {line}", path.display())))
                .collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// The sum of a number over lines.
    pub fn sum(lines: &[Self], name: &str) -> u64 {
        lines.iter().map(|line| line.get(name)).sum()
    }

    /// A number by its name; 0 if there is none of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.values.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
    }

    fn parse(line: &str) -> Option<Self> {
        // The program's name may have spaces, and all names behind it have none.
        let (_, rest) = line.split_once(" program=")?;
        let (program, numbers) = rest.split_once(" reads_served=")?;
        let mut values = Vec::new();
        for word in format!("reads_served={numbers}").split_whitespace() {
            let (name, value) = word.split_once('=')?;
            values.push((name.to_owned(), value.parse().ok()?));
        }
        Some(Self { program: program.to_owned(), values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read() {
        let line = "pid=7 program=a b reads_served=3 bytes_served=99 waits=1";
        let statistics = Statistics::parse(line).unwrap();
        assert_eq!(statistics.program, "a b");
        assert_eq!(["reads_served", "bytes_served", "waits", "x"].map(|n| statistics.get(n)), [3, 99, 1, 0]);
        assert_eq!(Statistics::sum(&[statistics.clone(), statistics], "waits"), 2);
        assert_eq!(Statistics::parse("pid=7 program=a reads_served=x"), None);
    }
}
