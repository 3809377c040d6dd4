//! Reads the lines of an ACL file: `user NAME RULE…`.

use std::collections::BTreeMap;

use super::User;
use super::rule::{RuleError, merge_selectors};
use super::selector::has_spaces;

/// The end of every error, as in Redis.
pub(in crate::command) const UNCHANGED: &str =
    "WARNING: ACL errors detected, no change to the previously active ACL rules was performed";

/// The users of a file. The error describes every bad line; `file` is the name in it.
pub(super) fn parse(text: &[u8], file: &str, all_channels: bool) -> Result<BTreeMap<Vec<u8>, User>, String> {
    let mut users = BTreeMap::new();
    let mut errors = String::new();
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r');
        let from = line.iter().position(|byte| !blank(byte)).unwrap_or(line.len());
        let to = line.iter().rposition(|byte| !blank(byte)).map_or(from, |at| at + 1);
        if let Err(error) = parse_line(&line[from..to], all_channels, &mut users) {
            errors += &match error {
                LineError::Head => {
                    format!("{file}:{number} should start with user keyword followed by the username. ")
                }
                LineError::Name(name) => {
                    format!("{file}:{number}: username '{name}' contains invalid characters. ")
                }
                LineError::Duplicate(name) => {
                    format!("WARNING: Duplicate user '{name}' found on line {number}. ")
                }
                LineError::Selector => {
                    format!("{file}:{number}: Unmatched parenthesis in selector definition.")
                }
                LineError::Rule(rule, error @ RuleError::UnknownCommand) => {
                    format!("{file}:{number}: Error in applying operation '{rule}': {error}. ")
                }
                LineError::Rule(_, error) => format!("{file}:{number}: {error}. "),
            };
        }
    }
    if errors.is_empty() { Ok(users) } else { Err(errors + UNCHANGED) }
}

/// The first mistake of a line.
enum LineError {
    Head,
    Name(String),
    Duplicate(String),
    Selector,
    Rule(String, RuleError),
}

fn parse_line(line: &[u8], all_channels: bool, users: &mut BTreeMap<Vec<u8>, User>) -> Result<(), LineError> {
    if line.is_empty() {
        return Ok(());
    }
    let shown = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let (Some(b"user"), Some(name)) = (words.next(), words.next()) else { return Err(LineError::Head) };
    if has_spaces(name) {
        return Err(LineError::Name(shown(name)));
    }
    if users.contains_key(name) {
        return Err(LineError::Duplicate(shown(name)));
    }
    let rules = merge_selectors(words).map_err(|_| LineError::Selector)?;
    let mut user = User::new(all_channels);
    for rule in rules {
        user.apply(&rule, all_channels).map_err(|error| LineError::Rule(shown(&rule), error))?;
    }
    users.insert(name.to_vec(), user);
    Ok(())
}
