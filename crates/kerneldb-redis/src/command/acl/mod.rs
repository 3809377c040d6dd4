//! Users and their rights (ACL).
//!
//! Every command that the event loop runs for a client is checked here ([`Account::check`]), with the keys and their uses from the table of
//! commands. The kernel checks nothing: it answers only connections whose user is unrestricted, which may use every command on every key.
//! A change that takes rights from a user reports that ([`Change::restricts`]). The caller must then call
//! [`Services::rights_changed`](super::Services::rights_changed) before it replies.
//!
//! Locks, in their order: the map of users, the rights of one user. The lock of the log is never held together with another one. All of
//! them are held for a few instructions, or for the description of users.

pub(super) mod category;
pub(super) mod commands;
mod file;
mod log;
mod rule;
mod selector;
#[cfg(test)]
mod tests;
mod user;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

pub(super) use file::UNCHANGED;
pub(super) use log::{Context, LogEntry};
pub(super) use user::User;

use super::spec::Resolved;
use crate::limits::{ACL_BYTES_MAX, USERS_MAX};
use crate::resp::Args;
use log::Log;
use rule::merge_selectors;
use selector::has_spaces;

/// The user of connections that have not named one.
pub(super) const DEFAULT_USER: &[u8] = b"default";

/// A request that is to be checked.
pub(super) struct Request<'a> {
    pub(super) resolved: Resolved,
    pub(super) args: Args<'a>,
}

/// The reason why a user may not run a request. A later one is a lesser lack of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Denied {
    /// The command.
    Command,
    /// The key at this index of the arguments.
    Key(usize),
}

impl Denied {
    /// Its name in ACL LOG.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Denied::Command => "command",
            Denied::Key(_) => "key",
        }
    }

    /// The reply to a client, without the `-`.
    pub(super) fn reply(self, resolved: Resolved) -> Vec<u8> {
        match self {
            Denied::Command => {
                format!("NOPERM this user has no permissions to run the '{}' command", resolved.full_name())
                    .into_bytes()
            }
            Denied::Key(_) => {
                b"NOPERM this user has no permissions to access one of the keys used as arguments".to_vec()
            }
        }
    }

    /// The reply in the place of a command that was queued.
    pub(super) fn reply_in_exec(self) -> Vec<u8> {
        let reason = match self {
            Denied::Command => "no permission to execute the command or subcommand",
            Denied::Key(_) => "no permission to touch the specified keys",
        };
        format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer \
             allowed for the following reason: {reason}"
        )
        .into_bytes()
    }

    /// The error of a call in a script.
    pub(super) fn error_in_script(self) -> &'static [u8] {
        match self {
            Denied::Command => b"ERR The user executing the script can't run this command or subcommand",
            Denied::Key(_) => {
                b"ERR The user executing the script can't access at least one of the keys mentioned in the command arguments"
            }
        }
    }
}

/// A user as connections refer to it. Its rights can change.
#[derive(Debug)]
pub(super) struct Account {
    name: Vec<u8>,
    user: RwLock<Arc<User>>,
    is_unrestricted: AtomicBool,
    is_open: AtomicBool,
    is_removed: AtomicBool,
}

impl Account {
    fn new(name: &[u8], user: User) -> Arc<Account> {
        let account = Account {
            name: name.to_vec(),
            user: RwLock::default(),
            is_unrestricted: AtomicBool::default(),
            is_open: AtomicBool::default(),
            is_removed: AtomicBool::default(),
        };
        account.set(user);
        Arc::new(account)
    }

    /// Gives the user other rights. Returns whether it is no longer unrestricted.
    fn set(&self, user: User) -> bool {
        let (is_unrestricted, is_open) = (user.is_unrestricted(), user.is_open());
        *self.user.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(user);
        self.is_open.store(is_open, Ordering::SeqCst);
        self.is_unrestricted.swap(is_unrestricted, Ordering::SeqCst) && !is_unrestricted
    }

    /// Takes all rights away, because the user is deleted. Returns whether it was unrestricted.
    fn remove(&self) -> bool {
        self.is_removed.store(true, Ordering::SeqCst);
        self.set(User::default())
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(super) fn user(&self) -> Arc<User> {
        self.user.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the user may use every command on every key, so that the kernel may answer its connections.
    pub(super) fn is_unrestricted(&self) -> bool {
        self.is_unrestricted.load(Ordering::SeqCst)
    }

    /// Whether the user is deleted, so that its connections must be closed.
    pub(super) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::SeqCst)
    }

    /// Whether nobody needs to authenticate as this user.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Whether the user may run a request.
    pub(super) fn check(&self, resolved: Resolved, args: Args<'_>) -> Result<(), Denied> {
        if self.is_unrestricted() {
            return Ok(());
        }
        self.user().check(&Request { resolved, args })
    }
}

/// The effect of a change of users on connections.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// A user is no longer unrestricted.
    pub(super) restricts: bool,
    /// Users that are deleted: their connections must be closed.
    pub(super) removed: Vec<Arc<Account>>,
}

#[derive(Debug)]
struct Entry {
    account: Arc<Account>,
    /// Bytes of its line in a file.
    bytes: usize,
}

type Users = BTreeMap<Vec<u8>, Entry>;

/// The users of a server.
#[derive(Debug)]
pub(super) struct Acl {
    users: RwLock<Users>,
    default: Arc<Account>,
    log: Mutex<Log>,
}

impl Default for Acl {
    fn default() -> Acl {
        let default = Account::new(DEFAULT_USER, User::unrestricted());
        let entry =
            Entry { account: default.clone(), bytes: line_bytes(DEFAULT_USER, &User::unrestricted()) };
        let users = RwLock::new(BTreeMap::from([(DEFAULT_USER.to_vec(), entry)]));
        Acl { users, default, log: Mutex::default() }
    }
}

/// A user's line without its end, as ACL LIST returns it and as it is in a file.
fn line(name: &[u8], user: &User) -> Vec<u8> {
    [&b"user "[..], name, b" ", &user.describe()].concat()
}

fn line_bytes(name: &[u8], user: &User) -> usize {
    line(name, user).len() + 1
}

/// The error of users that exceed a limit, if they do.
fn check_limits(count: usize, bytes: usize) -> Result<(), String> {
    if count > USERS_MAX {
        return Err(format!("there are at most {USERS_MAX} users"));
    }
    if bytes > ACL_BYTES_MAX {
        return Err(format!("the rules of all users have at most {ACL_BYTES_MAX} bytes"));
    }
    Ok(())
}

impl Acl {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Users> {
        self.users.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Users> {
        self.users.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user of new connections, which cannot be deleted.
    pub(super) fn default_user(&self) -> &Arc<Account> {
        &self.default
    }

    /// The user with this name.
    pub(super) fn get(&self, name: &[u8]) -> Option<Arc<Account>> {
        self.read().get(name).map(|entry| entry.account.clone())
    }

    /// The names of all users, sorted.
    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        self.read().keys().cloned().collect()
    }

    /// The users as the lines of a file, sorted by name.
    pub(super) fn lines(&self) -> Vec<Vec<u8>> {
        self.read().iter().map(|(name, entry)| line(name, &entry.account.user())).collect()
    }

    /// The contents of a file with all users.
    pub(super) fn text(&self) -> Vec<u8> {
        self.lines().into_iter().flat_map(|line| [line, b"\n".to_vec()].concat()).collect()
    }

    /// Checks that a file with all users makes the same users.
    pub(super) fn check_text(&self, all_channels: bool) -> Result<(), String> {
        let text = self.text();
        let users = file::parse(&text, "the users", all_channels)?;
        let again = users.iter().flat_map(|(name, user)| [line(name, user), b"\n".to_vec()].concat());
        if again.eq(text) { Ok(()) } else { Err("a user cannot be written to a file".into()) }
    }

    /// The user that a client becomes with a name and a password.
    pub(super) fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<Account>> {
        let account = self.get(name);
        match account {
            Some(account) => account.user().accepts(password).then_some(account),
            None => {
                // It takes as long as for a user with a password, so that the time does not tell which names there are.
                let _ = User::default().accepts(password);
                None
            }
        }
    }

    /// Makes or changes a user: all rules, or none. The error is the reply.
    pub(super) fn set_user<'a>(
        &self,
        name: &[u8],
        rules: impl Iterator<Item = &'a [u8]>,
        all_channels: bool,
    ) -> Result<Change, Vec<u8>> {
        // In a file, an empty name would be read as the first rule.
        if name.is_empty() || has_spaces(name) {
            return Err(b"ERR Usernames can't contain spaces or null characters".to_vec());
        }
        let rules = merge_selectors(rules).map_err(|word| {
            [b"ERR Unmatched parenthesis in acl selector starting at '", &word[..], b"'."].concat()
        })?;
        let mut users = self.write();
        let present = users.get(name).map(|entry| (entry.account.clone(), entry.bytes));
        let mut user = match &present {
            Some((account, _)) => User::clone(&account.user()),
            None => User::new(all_channels),
        };
        for rule in &rules {
            user.apply(rule, all_channels).map_err(|error| {
                let error = error.to_string();
                [b"ERR Error in ACL SETUSER modifier '", &rule[..], b"': ", error.as_bytes()].concat()
            })?;
        }
        let bytes = line_bytes(name, &user);
        let others: usize = users.values().map(|entry| entry.bytes).sum();
        let others = others - present.as_ref().map_or(0, |(_, bytes)| *bytes);
        check_limits(users.len() + usize::from(present.is_none()), others + bytes)
            .map_err(|error| format!("ERR {error}").into_bytes())?;
        let (account, restricts) = match present {
            Some((account, _)) => {
                let restricts = account.set(user);
                (account, restricts)
            }
            None => (Account::new(name, user), false),
        };
        users.insert(name.to_vec(), Entry { account, bytes });
        Ok(Change { restricts, removed: Vec::new() })
    }

    /// Sets the password of the user `default`, as `requirepass` does; an empty one means none. The error says that the users would exceed a
    /// limit; the user keeps its password then.
    pub(super) fn set_default_password(&self, password: &[u8]) -> Result<(), String> {
        let rule = [b">", password].concat();
        let rules: [&[u8]; 2] = [b"resetpass", if password.is_empty() { b"nopass" } else { &rule }];
        let changed = self.set_user(DEFAULT_USER, rules.into_iter(), false);
        // The rules have no mistake. The text of an error about a rule would have the password.
        changed.map(drop).map_err(|_| format!("the rules of all users have at most {ACL_BYTES_MAX} bytes"))
    }

    /// Deletes users. Returns how many there were. The error is the reply; nobody is deleted then.
    pub(super) fn delete(&self, names: &[&[u8]]) -> Result<(i64, Change), &'static str> {
        if names.contains(&DEFAULT_USER) {
            return Err("ERR The 'default' user cannot be removed");
        }
        let mut users = self.write();
        let removed: Vec<_> =
            names.iter().filter_map(|name| users.remove(*name)).map(|entry| entry.account).collect();
        Ok((removed.len() as i64, remove_all(removed)))
    }

    /// Replaces all users by those of a file: all lines, or none. The user `default` starts without restrictions if the file does not have
    /// it. The connections of other users must be closed. The error describes every bad line; `file` is the name in it.
    pub(super) fn load(&self, text: &[u8], file: &str, all_channels: bool) -> Result<Change, String> {
        let mut loaded = file::parse(text, file, all_channels)?;
        let default = loaded.remove(DEFAULT_USER).unwrap_or_else(User::unrestricted);
        let mut users = Users::new();
        let default_bytes = line_bytes(DEFAULT_USER, &default);
        users.insert(DEFAULT_USER.to_vec(), Entry { account: self.default.clone(), bytes: default_bytes });
        for (name, user) in loaded {
            let bytes = line_bytes(&name, &user);
            users.insert(name.clone(), Entry { account: Account::new(&name, user), bytes });
        }
        check_limits(users.len(), users.values().map(|entry| entry.bytes).sum())
            .map_err(|error| format!("{file}: {error}"))?;
        let mut present = self.write();
        let before = std::mem::replace(&mut *present, users);
        let restricts_default = self.default.set(default);
        drop(present);
        let others = before.into_values().map(|entry| entry.account);
        let mut change = remove_all(others.filter(|account| !Arc::ptr_eq(account, &self.default)).collect());
        change.restricts |= restricts_default;
        Ok(change)
    }

    /// Adds an entry to the log.
    pub(super) fn note(&self, entry: LogEntry, limit: usize) {
        self.log().add(entry, limit);
    }

    /// The newest entries of the log.
    pub(super) fn newest_entries(&self, count: usize) -> Vec<LogEntry> {
        self.log().newest(count)
    }

    /// Empties the log.
    pub(super) fn clear_log(&self) {
        self.log().clear();
    }
}

fn remove_all(removed: Vec<Arc<Account>>) -> Change {
    let restricts = removed.iter().fold(false, |restricts, account| restricts | account.remove());
    Change { restricts, removed }
}
