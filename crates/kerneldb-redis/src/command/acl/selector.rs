//! A selector: commands, and the keys and channels on which they may be used. A user has one or several.

use std::collections::BTreeMap;

use super::category::Category;
use super::commands::{self, CommandSet, Entry, Number};
use super::rule::RuleError;
use super::{Denied, Request};
use crate::command::glob::glob_match;
use crate::command::spec::{KeyUse, flags};

/// A pattern of keys, and the uses that it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyPattern {
    pattern: Vec<u8>,
    allowed: KeyUse,
}

/// A set of rights. It starts without any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    /// Every command is allowed. Without this, `commands` counts.
    all_commands: bool,
    /// Commands of later versions are allowed, unless they are taken away one by one. It is how `+@all` differs from all commands of today.
    future_commands: bool,
    commands: CommandSet,
    /// First arguments with which a command is allowed that is not in `commands` (`+select|0`).
    first_arguments: BTreeMap<Number, Vec<Vec<u8>>>,
    all_keys: bool,
    keys: Vec<KeyPattern>,
    all_channels: bool,
    channels: Vec<Vec<u8>>,
}

/// Whether a word cannot be in a line of the file.
pub(super) fn has_spaces(word: &[u8]) -> bool {
    word.iter().any(|byte| byte.is_ascii_whitespace() || matches!(byte, 0 | 0x0b))
}

impl Selector {
    /// All rights.
    pub(super) fn unrestricted() -> Selector {
        let mut selector = Selector::default();
        selector.allow_all_commands(true);
        selector.all_keys = true;
        selector.all_channels = true;
        selector
    }

    /// Whether every command may be used on every key.
    pub(super) fn is_unrestricted(&self) -> bool {
        self.all_commands && self.all_keys
    }

    /// Number of patterns and first arguments.
    pub(super) fn rules(&self) -> usize {
        self.keys.len() + self.channels.len() + self.first_arguments.values().map(Vec::len).sum::<usize>()
    }

    /// Applies one rule.
    pub(super) fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("allkeys") || is("~*") {
            self.all_keys = true;
            self.keys.clear();
        } else if is("resetkeys") {
            self.all_keys = false;
            self.keys.clear();
        } else if is("allchannels") || is("&*") {
            self.set_all_channels(true);
        } else if is("resetchannels") {
            self.set_all_channels(false);
        } else if is("allcommands") || is("+@all") {
            self.allow_all_commands(true);
        } else if is("nocommands") || is("-@all") {
            self.allow_all_commands(false);
        } else {
            match rule {
                [b'~', pattern @ ..] => self.add_keys(pattern, KeyUse::READ_WRITE)?,
                [b'%', rest @ ..] => {
                    let (pattern, allowed) = key_permission(rest).ok_or(RuleError::Syntax)?;
                    self.add_keys(pattern, allowed)?;
                }
                [b'&', pattern @ ..] => self.add_channels(pattern)?,
                [sign @ (b'+' | b'-'), b'@', name @ ..] => {
                    let category = Category::find(name).ok_or(RuleError::UnknownCommand)?;
                    self.allow_category(category, *sign == b'+');
                }
                [b'+', name @ ..] => self.allow_named(name)?,
                [b'-', name @ ..] => {
                    let entry = commands::find(name).ok_or(RuleError::UnknownCommand)?;
                    self.allow(entry, false);
                }
                _ => return Err(RuleError::Syntax),
            }
        }
        Ok(())
    }

    pub(super) fn set_all_channels(&mut self, all: bool) {
        self.all_channels = all;
        self.channels.clear();
    }

    fn allow_all_commands(&mut self, all: bool) {
        self.all_commands = all;
        self.future_commands = all;
        self.commands = if all { CommandSet::full() } else { CommandSet::default() };
        self.first_arguments.clear();
    }

    fn add_keys(&mut self, pattern: &[u8], allowed: KeyUse) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::AfterAllKeys);
        }
        if has_spaces(pattern) {
            return Err(RuleError::Syntax);
        }
        match self.keys.iter_mut().find(|keys| keys.pattern == pattern) {
            Some(keys) => keys.allowed = keys.allowed.and(allowed),
            None => self.keys.push(KeyPattern { pattern: pattern.to_vec(), allowed }),
        }
        Ok(())
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::AfterAllChannels);
        }
        if has_spaces(pattern) {
            return Err(RuleError::Syntax);
        }
        if !self.channels.iter().any(|channels| channels == pattern) {
            self.channels.push(pattern.to_vec());
        }
        Ok(())
    }

    /// Applies `+command`, `+command|subcommand` or `+command|argument`.
    fn allow_named(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let Some(at) = name.iter().rposition(|byte| *byte == b'|') else {
            let entry = commands::find(name).ok_or(RuleError::UnknownCommand)?;
            self.allow(entry, true);
            return Ok(());
        };
        let (command, argument) = (&name[..at], &name[at + 1..]);
        let entry = commands::find(command).ok_or(RuleError::UnknownCommand)?;
        if entry.parent.is_some() {
            return Err(RuleError::FirstArgumentOfSubcommand);
        }
        if argument.is_empty() || has_spaces(argument) || std::str::from_utf8(argument).is_err() {
            return Err(RuleError::Syntax);
        }
        if !entry.spec.subs.is_empty() {
            let entry = commands::find(name).ok_or(RuleError::UnknownCommand)?;
            self.allow(entry, true);
            return Ok(());
        }
        let arguments = self.first_arguments.entry(commands::number((None, entry.spec))).or_default();
        if !arguments.iter().any(|known| known.eq_ignore_ascii_case(argument)) {
            arguments.push(argument.to_vec());
        }
        Ok(())
    }

    /// Allows or forbids a command with all its subcommands, or a subcommand.
    fn allow(&mut self, entry: &Entry, allowed: bool) {
        let subcommands = entry.spec.subs.iter().map(|sub| (Some(entry.spec), sub));
        for found in std::iter::once((entry.parent, entry.spec)).chain(subcommands) {
            let number = commands::number(found);
            self.commands.put(number, allowed);
            self.first_arguments.remove(&number);
        }
        if !allowed {
            self.all_commands = false;
        }
    }

    fn allow_category(&mut self, category: Category, allowed: bool) {
        for entry in commands::all() {
            if entry.categories.has(category) {
                self.allow(entry, allowed);
            }
        }
        if let Some(number) = commands::stand_in(category) {
            self.commands.put(number, allowed);
            self.all_commands &= allowed;
        }
    }

    /// Whether it allows a request.
    pub(super) fn check(&self, request: &Request<'_>) -> Result<(), Denied> {
        let Request { resolved, args } = request;
        let spec = resolved.spec;
        if !self.all_commands && !spec.has(flags::NO_AUTH) {
            let number = commands::number(resolved.found());
            let allows_argument = |known: &Vec<u8>| known.eq_ignore_ascii_case(args.get(1));
            let has_argument = || {
                args.len() > 1
                    && self
                        .first_arguments
                        .get(&number)
                        .is_some_and(|known| known.iter().any(allows_argument))
            };
            if !self.commands.has(number) && !has_argument() {
                return Err(Denied::Command);
            }
        }
        if self.all_keys {
            return Ok(());
        }
        if spec.has(flags::ANY_KEYS) {
            return Err(Denied::Key(1));
        }
        let denied = resolved.keys(*args).find(|(at, wanted)| !self.allows_key(args.get(*at), *wanted));
        denied.map_or(Ok(()), |(at, _)| Err(Denied::Key(at)))
    }

    fn allows_key(&self, key: &[u8], wanted: KeyUse) -> bool {
        self.keys.iter().any(|keys| keys.allowed.covers(wanted) && glob_match(&keys.pattern, key, false))
    }

    /// The rules about keys, separated by spaces.
    pub(super) fn describe_keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let one = |keys: &KeyPattern| {
            let prefix: &[u8] = match keys.allowed {
                KeyUse::READ => b"%R~",
                KeyUse::WRITE => b"%W~",
                // `~*` is the right to all keys, also those that no argument names, and a list of patterns cannot go on behind it.
                _ if keys.pattern == b"*" => b"%RW~",
                _ => b"~",
            };
            [prefix, &keys.pattern].concat()
        };
        self.keys.iter().map(one).collect::<Vec<_>>().join(&b' ')
    }

    /// The rules about channels, separated by spaces.
    pub(super) fn describe_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|channel| [b"&", &channel[..]].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// All rules, which make the same selector of one without rights.
    pub(super) fn describe(&self) -> Vec<u8> {
        let mut words = vec![self.describe_keys()];
        if !self.all_channels {
            words.push(b"resetchannels".to_vec());
        }
        words.extend([self.describe_channels(), self.describe_commands().into_bytes()]);
        words.retain(|word| !word.is_empty());
        words.join(&b' ')
    }

    /// Rules about commands that lead to the same set, not those that were given. Categories come first: in each step the one that brings
    /// the fewest commands too many. Then come the commands that still differ.
    pub(super) fn describe_commands(&self) -> String {
        let adds = !self.future_commands;
        let mut words = vec![if adds { "-@all".to_owned() } else { "+@all".to_owned() }];
        let (sign, mut made) = match adds {
            true => ('+', Selector::default()),
            false => ('-', Selector::unrestricted()),
        };
        // The commands that no chosen category has covered so far.
        let mut left = self.clone();
        let mut unused: Vec<Category> = Category::all().collect();
        while let Some((category, _)) = unused
            .iter()
            .map(|category| (*category, left.count(*category, adds)))
            .filter(|(_, (wanted, unwanted))| wanted > unwanted)
            .reduce(|best, other| {
                let is_better =
                    (other.1.1, std::cmp::Reverse(other.1.0)) < (best.1.1, std::cmp::Reverse(best.1.0));
                if is_better { other } else { best }
            })
        {
            words.push(format!("{sign}@{}", category.name()));
            made.allow_category(category, adds);
            left.allow_category(category, !adds);
            unused.retain(|other| *other != category);
        }
        for (number, entry) in (0..).zip(commands::all()) {
            let allowed = self.commands.has(number);
            if allowed != made.commands.has(number) {
                words.push(format!("{}{}", if allowed { '+' } else { '-' }, entry.full_name()));
                made.allow(entry, allowed);
            }
            if let Some(arguments) = self.first_arguments.get(&number).filter(|_| !allowed) {
                for argument in arguments {
                    words.push(format!("+{}|{}", entry.full_name(), String::from_utf8_lossy(argument)));
                }
            }
        }
        words.join(" ")
    }

    /// The number of commands of a category that are as wanted, and of the others.
    fn count(&self, category: Category, wanted: bool) -> (usize, usize) {
        let of_it = (0..).zip(commands::all()).filter(|(_, entry)| entry.categories.has(category));
        let numbers = of_it.map(|(number, _)| number).chain(commands::stand_in(category));
        numbers.fold((0, 0), |(yes, no), number| match self.commands.has(number) == wanted {
            true => (yes + 1, no),
            false => (yes, no + 1),
        })
    }
}

/// Splits `R~pattern`, `W~pattern` or `RW~pattern`.
fn key_permission(rest: &[u8]) -> Option<(&[u8], KeyUse)> {
    let at = rest.iter().position(|byte| *byte == b'~').filter(|at| *at > 0)?;
    let mut allowed = KeyUse::NONE;
    for letter in &rest[..at] {
        let one = match letter.to_ascii_uppercase() {
            b'R' => KeyUse::READ,
            b'W' => KeyUse::WRITE,
            _ => return None,
        };
        if allowed.covers(one) {
            return None;
        }
        allowed = allowed.and(one);
    }
    Some((&rest[at + 1..], allowed))
}
