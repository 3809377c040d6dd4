//! The static description of a command: name, arity, flags and positions of its keys.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::table::COMMANDS;
use crate::resp::{Args, parse_i64};

/// Flags of commands, as bits; [`flags::NAMES`] has their names in COMMAND.
pub(super) mod flags {
    pub const RO: u32 = 1;
    pub const W: u32 = 1 << 1;
    pub const OOM: u32 = 1 << 2;
    pub const ADMIN: u32 = 1 << 3;
    pub const NOSCRIPT: u32 = 1 << 4;
    pub const LOADING: u32 = 1 << 5;
    pub const STALE: u32 = 1 << 6;
    pub const FAST: u32 = 1 << 7;
    pub const NO_AUTH: u32 = 1 << 8;
    pub const NO_ASYNC: u32 = 1 << 9;
    pub const NO_MULTI: u32 = 1 << 10;
    pub const ALLOW_BUSY: u32 = 1 << 11;
    pub const SKIP_SLOWLOG: u32 = 1 << 12;
    pub const SKIP_MONITOR: u32 = 1 << 13;
    pub const NO_MANDATORY_KEYS: u32 = 1 << 14;
    /// The keys follow their number, which is the second argument.
    pub const MOVABLE_KEYS: u32 = 1 << 15;

    /// It cannot be a part of MULTI here, but it can in Redis, so COMMAND does not show this.
    pub const NOT_QUEUED: u32 = 1 << 16;

    /// It uses keys that its arguments do not name, so it needs the right to every key.
    pub const ANY_KEYS: u32 = 1 << 17;

    pub const NAMES: &[(u32, &str)] = &[
        (W, "write"),
        (RO, "readonly"),
        (OOM, "denyoom"),
        (ADMIN, "admin"),
        (NOSCRIPT, "noscript"),
        (LOADING, "loading"),
        (STALE, "stale"),
        (SKIP_MONITOR, "skip_monitor"),
        (SKIP_SLOWLOG, "skip_slowlog"),
        (FAST, "fast"),
        (NO_AUTH, "no_auth"),
        (NO_ASYNC, "no_async_loading"),
        (NO_MULTI, "no_multi"),
        (NO_MANDATORY_KEYS, "no_mandatory_keys"),
        (MOVABLE_KEYS, "movablekeys"),
        (ALLOW_BUSY, "allow_busy"),
    ];
}

/// The use that a command makes of a key, for the rights of users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyUse(u8);

impl KeyUse {
    /// It neither returns nor changes the value. It may tell whether the key exists, or the value's type or length.
    pub const NONE: KeyUse = KeyUse(0);
    /// It returns the value, a part of it, or something that it has computed from the value.
    pub const READ: KeyUse = KeyUse(1);
    /// It changes or deletes the value or the expiry.
    pub const WRITE: KeyUse = KeyUse(2);
    /// Both.
    pub const READ_WRITE: KeyUse = KeyUse(3);

    /// Whether it includes another use.
    pub fn covers(self, other: KeyUse) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both uses.
    pub fn and(self, other: KeyUse) -> KeyUse {
        KeyUse(self.0 | other.0)
    }
}

/// The uses of a command's keys: of the first one, and of all others. The constants are the column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyUses(KeyUse, KeyUse);

impl KeyUses {
    /// There are no keys, or the command looks only whether they exist.
    pub const LOOK: KeyUses = KeyUses(KeyUse::NONE, KeyUse::NONE);
    pub const READ: KeyUses = KeyUses(KeyUse::READ, KeyUse::READ);
    pub const WRITE: KeyUses = KeyUses(KeyUse::WRITE, KeyUse::WRITE);
    pub const UPDATE: KeyUses = KeyUses(KeyUse::READ_WRITE, KeyUse::READ_WRITE);
    /// From the first key to the second one.
    pub const COPY: KeyUses = KeyUses(KeyUse::READ, KeyUse::WRITE);
    pub const MOVE: KeyUses = KeyUses(KeyUse::READ_WRITE, KeyUse::WRITE);
    /// From the other keys to the first one.
    pub const COMBINE: KeyUses = KeyUses(KeyUse::WRITE, KeyUse::READ);
}

/// Identity of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cmd {
    Acl,
    Append,
    Auth,
    Bedplate,
    Begin,
    Bgsave,
    Bitcount,
    Bitfield,
    BitfieldRo,
    Bitop,
    Bitpos,
    Call,
    Cas,
    Client,
    Command,
    Commit,
    Config,
    Copy,
    Dbsize,
    Decr,
    Decrby,
    Del,
    Discard,
    Dump,
    Echo,
    Eval,
    EvalRo,
    Evalsha,
    EvalshaRo,
    Exec,
    Exists,
    Expire,
    Expireat,
    Expiretime,
    Fcall,
    FcallRo,
    Flushall,
    Flushdb,
    Function,
    Get,
    Getbit,
    Getdel,
    Getex,
    Getrange,
    Getset,
    Hello,
    Incr,
    Incrby,
    Incrbyfloat,
    Info,
    Keys,
    Lastsave,
    Latency,
    Lcs,
    Memory,
    Mget,
    Monitor,
    Mset,
    Msetnx,
    Multi,
    Object,
    Persist,
    Pexpire,
    Pexpireat,
    Pexpiretime,
    Ping,
    Proc,
    Psetex,
    Pttl,
    Quit,
    Randomkey,
    Rename,
    Renamenx,
    Reset,
    Restore,
    Rollback,
    Save,
    Scan,
    Script,
    Select,
    Set,
    Setbit,
    Setex,
    Setnx,
    Setrange,
    Shutdown,
    Slowlog,
    Strlen,
    Substr,
    Time,
    Touch,
    Ttl,
    Type,
    Unlink,
    Unwatch,
    Wait,
    Waitaof,
    Watch,
}

/// A command or subcommand.
#[derive(Debug)]
pub(super) struct Spec {
    /// The command; `None` for a subcommand.
    pub cmd: Option<Cmd>,
    /// Lower-case name.
    pub name: &'static str,
    /// Number of arguments, the name (and subcommand) included; negative = at least this number.
    pub arity: i32,
    /// [`flags`].
    pub flags: u32,
    /// First key, last key (negative: from the end), step; 0 = no keys.
    pub keys: (i32, i32, i32),
    /// The uses of the keys. Some commands use them in another way with some options ([`Resolved::keys`]).
    pub uses: KeyUses,
    /// ACL categories without `@`, separated by spaces.
    pub acl: &'static str,
    /// Group of the documentation.
    pub group: &'static str,
    /// First version of Redis that has the command, or of Bedplate for its own commands.
    pub since: &'static str,
    /// Description in one sentence.
    pub summary: &'static str,
    /// Subcommands.
    pub subs: &'static [Spec],
}

/// A command's entry in the table.
#[expect(clippy::too_many_arguments, reason = "one line of the table per command")]
pub(super) const fn command(
    cmd: Cmd,
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: (i32, i32, i32),
    uses: KeyUses,
    acl: &'static str,
    group: &'static str,
    since: &'static str,
    summary: &'static str,
    subs: &'static [Spec],
) -> Spec {
    Spec { cmd: Some(cmd), name, arity, flags, keys, uses, acl, group, since, summary, subs }
}

/// A subcommand's entry in the table.
pub(super) const fn subcommand(
    name: &'static str,
    arity: i32,
    flags: u32,
    keys: (i32, i32, i32),
    uses: KeyUses,
    acl: &'static str,
    since: &'static str,
) -> Spec {
    Spec { cmd: None, name, arity, flags, keys, uses, acl, group: "", since, summary: "", subs: &[] }
}

impl Spec {
    /// Whether it has one of the flags.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// Whether it may write. A command that runs a script has no flag for that.
    pub fn may_write(&self) -> bool {
        self.has(flags::W) || self.has(flags::MOVABLE_KEYS) && !self.has(flags::RO)
    }

    /// The subcommand with this name, which is not case sensitive.
    pub fn sub(&self, name: &[u8]) -> Option<&'static Spec> {
        self.subs.iter().find(|sub| name.eq_ignore_ascii_case(sub.name.as_bytes()))
    }

    /// Finds the subcommand of a request, if the command has some and the request names one.
    fn resolve_sub(&'static self, args: Args<'_>) -> Option<Resolved> {
        let cmd = self.cmd.expect("the table's own entries are commands");
        let spec = if self.subs.is_empty() || args.len() < 2 { self } else { self.sub(args.get(1))? };
        Some(Resolved { cmd, spec, parent: self })
    }

    fn takes(&self, count: usize) -> bool {
        let count = count as i32;
        if self.arity >= 0 { count == self.arity } else { count >= -self.arity }
    }

    /// Indexes of the arguments that are keys.
    pub fn key_indexes(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { count as i32 + last } else { last };
        let range = if first > 0 { first..last.min(count as i32 - 1) + 1 } else { 0..0 };
        range.step_by(step.max(1) as usize).map(|i| i as usize)
    }
}

/// A request with a known command and a valid number of arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolved {
    /// The command.
    pub cmd: Cmd,
    /// Its entry, or its subcommand's, which has the flags and keys.
    pub spec: &'static Spec,
    /// The command's own entry, for its name in messages.
    pub parent: &'static Spec,
}

/// A command, or a subcommand behind its command.
pub(super) type Found = (Option<&'static Spec>, &'static Spec);

/// All commands in the order of the table, each followed by its subcommands.
pub(super) fn all() -> impl Iterator<Item = Found> {
    COMMANDS.iter().flat_map(|parent| {
        std::iter::once((None, parent)).chain(parent.subs.iter().map(move |sub| (Some(parent), sub)))
    })
}

/// The position of a command or subcommand in [`all`].
pub(super) fn number((parent, spec): Found) -> usize {
    static FIRST: OnceLock<Vec<usize>> = OnceLock::new();
    let first = FIRST.get_or_init(|| {
        let next = |next: &mut usize, spec: &Spec| {
            let first = *next;
            *next += 1 + spec.subs.len();
            Some(first)
        };
        COMMANDS.iter().scan(0, next).collect()
    });
    let command = parent.unwrap_or(spec);
    let sub = command.subs.iter().position(|sub| std::ptr::eq(sub, spec));
    first[command.cmd.expect("the table's own entries are commands") as usize] + sub.map_or(0, |sub| sub + 1)
}

/// The name of a command, or `command|subcommand`.
pub(super) fn full_name((parent, spec): Found) -> String {
    parent.map_or_else(|| spec.name.to_owned(), |parent| format!("{}|{}", parent.name, spec.name))
}

/// Finds `command` or `command|subcommand`, which are not case sensitive.
pub(super) fn find_by_full_name(name: &[u8]) -> Option<Found> {
    match name.iter().position(|byte| *byte == b'|') {
        None => find(name).map(|found| (None, found)),
        Some(at) => {
            let parent = find(&name[..at])?;
            Some((Some(parent), parent.sub(&name[at + 1..])?))
        }
    }
}

impl Resolved {
    /// The command, or the subcommand.
    pub fn found(&self) -> Found {
        ((!std::ptr::eq(self.parent, self.spec)).then_some(self.parent), self.spec)
    }

    /// `command` or `command|subcommand`.
    pub fn full_name(&self) -> String {
        full_name(self.found())
    }

    /// Indexes of the arguments that are keys, and their uses. A request whose number of keys is wrong has none; it fails without any use.
    pub fn keys(&self, args: Args<'_>) -> impl Iterator<Item = (usize, KeyUse)> + use<> {
        let counted = self.spec.has(flags::MOVABLE_KEYS).then(|| {
            let count = parse_i64(args.get(2)).and_then(|count| usize::try_from(count).ok());
            count.filter(|count| *count <= args.len().saturating_sub(3)).unwrap_or(0)
        });
        let uses = self.uses(args);
        let indexes = self.spec.key_indexes(args.len()).chain(3..3 + counted.unwrap_or(0));
        indexes.enumerate().map(move |(at, index)| (index, if at == 0 { uses.0 } else { uses.1 }))
    }

    fn uses(&self, args: Args<'_>) -> KeyUses {
        match self.cmd {
            Cmd::Set if args.from(3).any(|option| option.eq_ignore_ascii_case(b"get")) => KeyUses::UPDATE,
            Cmd::Bitfield if only_gets(args) => KeyUses::READ,
            _ => self.spec.uses,
        }
    }
}

/// Whether a BITFIELD has no operation but GET.
fn only_gets(args: Args<'_>) -> bool {
    let mut at = 2;
    while at < args.len() {
        let (option, left) = (args.get(at), args.len() - at - 1);
        at += match () {
            () if option.eq_ignore_ascii_case(b"get") && left >= 2 => 3,
            () if option.eq_ignore_ascii_case(b"overflow") && left >= 1 => 2,
            () => return false,
        };
    }
    true
}

/// Finds the command of a request by name.
pub(super) fn find(name: &[u8]) -> Option<&'static Spec> {
    static INDEX: OnceLock<HashMap<&'static [u8], &'static Spec>> = OnceLock::new();
    let index = INDEX.get_or_init(|| COMMANDS.iter().map(|s| (s.name.as_bytes(), s)).collect());
    let mut lower = [0u8; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    index.get(&*lower).copied()
}

/// Finds the command of a request, whose number of arguments may be wrong.
pub(super) fn resolve_name(args: Args<'_>) -> Option<Resolved> {
    find(args.get(0))?.resolve_sub(args)
}

/// Finds the command of a request and checks its arity; the error is the reply without its `-`.
pub(super) fn resolve(args: Args<'_>) -> Result<Resolved, Vec<u8>> {
    let parent = find(args.get(0)).ok_or_else(|| unknown_command(args))?;
    if !parent.takes(args.len()) {
        return Err(wrong_arity(parent.name));
    }
    let resolved = parent.resolve_sub(args).ok_or_else(|| {
        let name = args.get(1);
        let name = String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
        format!("ERR unknown subcommand '{name}'. Try {} HELP.", parent.name.to_ascii_uppercase())
            .into_bytes()
    })?;
    if !resolved.spec.takes(args.len()) {
        return Err(wrong_arity(&resolved.full_name()));
    }
    Ok(resolved)
}

pub(super) fn wrong_arity(name: &str) -> Vec<u8> {
    format!("ERR wrong number of arguments for '{name}' command").into_bytes()
}

/// Redis's text: the name and as many arguments as fit in 128 bytes or so.
fn unknown_command(args: Args<'_>) -> Vec<u8> {
    let cut = |arg: &[u8], limit: usize| -> Vec<u8> {
        arg.iter().copied().take(limit).take_while(|c| *c != 0).collect()
    };
    let mut shown = Vec::new();
    for arg in args.from(1) {
        if shown.len() >= 128 {
            break;
        }
        let limit = 128 - shown.len();
        shown.push(b'\'');
        shown.extend(cut(arg, limit));
        shown.extend_from_slice(b"' ");
    }
    let name = cut(args.get(0), 128);
    [b"ERR unknown command '", &name[..], b"', with args beginning with: ", &shown].concat()
}
