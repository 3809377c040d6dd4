//! The file of `bedplate kv serve --config`: options as on the command line, one per line.
//!
//! ```text
//! # comment
//! memory 4G
//! durability sync
//! in-memory
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

/// The options of a file, as arguments.
pub fn read(path: &Path) -> anyhow::Result<Vec<OsString>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Vec<OsString>> {
    let mut args = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = match line.split_once(|c: char| c.is_whitespace() || c == '=') {
            Some((name, value)) => (name, value.trim_start_matches(['=', ' ', '\t'])),
            None => (line, ""),
        };
        if name == "config" {
            bail!("line {}: a configuration file cannot name another", index + 1);
        }
        if !name.chars().all(|c| c.is_ascii_lowercase() || c == '-') {
            bail!("line {}: {name} is not the name of an option", index + 1);
        }
        // Option and value are one word, so that a value that begins with a dash is not taken for an option.
        let separator = if value.is_empty() { "" } else { "=" };
        args.push(OsString::from(format!("--{name}{separator}{value}")));
    }
    Ok(args)
}

/// The command line with the file's options directly behind `serve`, before its own options, so that its own
/// take precedence.
pub fn merge(line: Vec<OsString>, file: Vec<OsString>) -> Vec<OsString> {
    let serve = line.iter().position(|word| word == "serve").map_or(line.len(), |at| at + 1);
    let (before, after) = line.split_at(serve);
    [before, &file, after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_arguments() {
        let args =
            parse("# a comment\n\nmemory 4G\n durability = sync \nin-memory\npassword a b=c\n").unwrap();
        assert_eq!(args, ["--memory=4G", "--durability=sync", "--in-memory", "--password=a b=c"]);
        assert!(parse("Memory 4G").unwrap_err().to_string().contains("line 1"));
        assert!(parse("\nconfig other").unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn the_command_line_comes_last() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let merged = merge(words("bedplate kv serve --memory 2G"), words("--memory=4G --port=7"));
        assert_eq!(merged, words("bedplate kv serve --memory=4G --port=7 --memory 2G"));
    }
}
