//! Errors of rules, and rules that arrive in several words.

/// The reason why a rule cannot be applied. Its text is Redis's, where Redis has the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::command) enum RuleError {
    #[error("Syntax error")]
    Syntax,
    #[error("Unknown command or category name in ACL")]
    UnknownCommand,
    #[error(
        "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start \
         with an empty list of patterns"
    )]
    AfterAllKeys,
    #[error(
        "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try 'resetchannels' \
         to start with an empty list of channels"
    )]
    AfterAllChannels,
    #[error("The password you are trying to remove from the user does not exist")]
    NoSuchPassword,
    #[error(
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
    )]
    PasswordHash,
    #[error("Allowing first-arg of a subcommand is not supported")]
    FirstArgumentOfSubcommand,
    #[error("a user has at most {} passwords", crate::limits::USER_PASSWORDS_MAX)]
    Passwords,
    #[error("a user has at most {} patterns, selectors and first arguments", crate::limits::USER_RULES_MAX)]
    Rules,
}

/// Joins the words of selectors: `(+get`, `~x)` are one rule. The error is the word at which a selector begins that does not end.
pub(super) fn merge_selectors<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let mut rules = Vec::new();
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for word in words {
        let (first, rule) = match open.take() {
            Some((first, before)) => (first, [&before, &b" "[..], word].concat()),
            None if word.first() == Some(&b'(') => (word, word.to_vec()),
            None => {
                rules.push(word.to_vec());
                continue;
            }
        };
        if word.last() == Some(&b')') {
            rules.push(rule);
        } else {
            open = Some((first, rule));
        }
    }
    match open {
        Some((first, _)) => Err(first.to_vec()),
        None => Ok(rules),
    }
}
