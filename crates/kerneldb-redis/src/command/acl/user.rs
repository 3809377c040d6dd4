//! The rights and passwords of a user.

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::rule::RuleError;
use super::selector::Selector;
use super::{Denied, Request};
use crate::limits::{USER_PASSWORDS_MAX, USER_RULES_MAX};

/// SHA-256 of a password.
type Hash = [u8; 32];

/// Whether payloads of RESTORE are to be checked. It is kept and shown, and has no effect here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sanitize {
    Yes,
    Skip,
}

/// A user without its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::command) struct User {
    on: bool,
    no_password: bool,
    sanitize: Option<Sanitize>,
    passwords: Vec<Hash>,
    root: Selector,
    selectors: Vec<Selector>,
}

impl User {
    /// A user that is made by a rule: off, and without any right but perhaps channels.
    pub(super) fn new(all_channels: bool) -> User {
        let mut user = User::default();
        user.root.set_all_channels(all_channels);
        user
    }

    /// The user `default` of a server that has no other rules.
    pub(super) fn unrestricted() -> User {
        User { on: true, no_password: true, root: Selector::unrestricted(), ..User::default() }
    }

    /// Whether nobody needs to authenticate as this user.
    pub(super) fn is_open(&self) -> bool {
        self.on && self.no_password
    }

    /// Whether AUTH with a password alone makes no sense.
    pub(in crate::command) fn has_no_password(&self) -> bool {
        self.no_password
    }

    /// Whether it may use every command on every key.
    pub(super) fn is_unrestricted(&self) -> bool {
        self.root.is_unrestricted() || self.selectors.iter().any(Selector::is_unrestricted)
    }

    /// Whether a client can become this user with the password. The time depends on the number of passwords only.
    pub(super) fn accepts(&self, password: &[u8]) -> bool {
        let hash = hash(password);
        let known = self.passwords.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&hash));
        self.on && (self.no_password || bool::from(known))
    }

    /// Applies one rule. After an error, the user may have changed.
    pub(super) fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("on") || is("off") {
            self.on = is("on");
        } else if is("nopass") || is("resetpass") {
            self.no_password = is("nopass");
            self.passwords.clear();
        } else if is("sanitize-payload") {
            self.sanitize = Some(Sanitize::Yes);
        } else if is("skip-sanitize-payload") {
            self.sanitize = Some(Sanitize::Skip);
        } else if is("clearselectors") {
            self.selectors.clear();
        } else if is("reset") {
            *self = User { sanitize: Some(Sanitize::Yes), ..User::new(all_channels) };
        } else {
            match rule {
                [b'>', password @ ..] => self.add_password(hash(password))?,
                [b'#', digits @ ..] => self.add_password(parse_hash(digits)?)?,
                [b'<', password @ ..] => self.remove_password(&hash(password))?,
                [b'!', digits @ ..] => self.remove_password(&parse_hash(digits)?)?,
                [b'(', inner @ .., b')'] => {
                    let mut selector = Selector::default();
                    selector.set_all_channels(all_channels);
                    let words = inner.split(|byte| byte.is_ascii_whitespace() || *byte == 0);
                    for word in words.filter(|word| !word.is_empty()) {
                        // In a file, such a word would end the selector.
                        if word.last() == Some(&b')') {
                            return Err(RuleError::Syntax);
                        }
                        selector.apply(word)?;
                    }
                    self.selectors.push(selector);
                }
                _ => self.root.apply(rule)?,
            }
        }
        let rules = |selector: &Selector| selector.rules();
        let of_selectors = self.selectors.iter().map(|selector| 1 + rules(selector)).sum::<usize>();
        if rules(&self.root) + of_selectors > USER_RULES_MAX { Err(RuleError::Rules) } else { Ok(()) }
    }

    fn add_password(&mut self, hash: Hash) -> Result<(), RuleError> {
        if !self.passwords.contains(&hash) {
            if self.passwords.len() == USER_PASSWORDS_MAX {
                return Err(RuleError::Passwords);
            }
            self.passwords.push(hash);
        }
        self.no_password = false;
        Ok(())
    }

    fn remove_password(&mut self, hash: &Hash) -> Result<(), RuleError> {
        let at = self.passwords.iter().position(|known| known == hash);
        self.passwords.remove(at.ok_or(RuleError::NoSuchPassword)?);
        Ok(())
    }

    /// Whether it may run a request. If several selectors deny it, the error is that of the one that got furthest.
    pub(in crate::command) fn check(&self, request: &Request<'_>) -> Result<(), Denied> {
        let mut furthest = None;
        for selector in std::iter::once(&self.root).chain(&self.selectors) {
            match selector.check(request) {
                Ok(()) => return Ok(()),
                Err(denied) => furthest = furthest.max(Some(denied)),
            }
        }
        furthest.map_or(Ok(()), Err)
    }

    /// Its flags, as ACL GETUSER returns them.
    pub(in crate::command) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.on { "on" } else { "off" }];
        if self.no_password {
            flags.push("nopass");
        }
        flags.extend(self.sanitize.map(|sanitize| match sanitize {
            Sanitize::Yes => "sanitize-payload",
            Sanitize::Skip => "skip-sanitize-payload",
        }));
        flags
    }

    /// The hashes of its passwords.
    pub(in crate::command) fn passwords(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(hex::encode)
    }

    /// The rules about commands, keys and channels of the user itself, and then of each further selector.
    pub(in crate::command) fn selectors(&self) -> impl ExactSizeIterator<Item = [Vec<u8>; 3]> {
        let describe = |selector: &Selector| {
            [
                selector.describe_commands().into_bytes(),
                selector.describe_keys(),
                selector.describe_channels(),
            ]
        };
        let selectors: Vec<_> = std::iter::once(&self.root).chain(&self.selectors).map(describe).collect();
        selectors.into_iter()
    }

    /// All rules, separated by spaces, which make the same user of a new one.
    pub(super) fn describe(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> = self.flags().into_iter().map(|flag| flag.as_bytes().to_vec()).collect();
        words.extend(self.passwords().map(|hash| format!("#{hash}").into_bytes()));
        words.push(self.root.describe());
        words.extend(self.selectors.iter().map(|selector| [b"(", &selector.describe()[..], b")"].concat()));
        words.join(&b' ')
    }
}

fn hash(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

/// Parses 64 lower-case hexadecimal digits.
fn parse_hash(digits: &[u8]) -> Result<Hash, RuleError> {
    let mut hash = Hash::default();
    let is_hash =
        !digits.iter().any(u8::is_ascii_uppercase) && hex::decode_to_slice(digits, &mut hash).is_ok();
    if is_hash { Ok(hash) } else { Err(RuleError::PasswordHash) }
}
