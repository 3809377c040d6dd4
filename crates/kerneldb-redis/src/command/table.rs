//! The command table: every command the server knows, as clients see it in COMMAND.
//!
//! `tests` compares it with a real Redis: name, arity, flags, key positions and ACL
//! categories are the same for every command that both have.

use super::spec::{Cmd, KeyUses, Spec, command as c, flags::*, subcommand as sub};

const NONE: &[Spec] = &[];

const LOOK: KeyUses = KeyUses::LOOK;
const READ: KeyUses = KeyUses::READ;
const WRITE: KeyUses = KeyUses::WRITE;
const UPDATE: KeyUses = KeyUses::UPDATE;
const COPY: KeyUses = KeyUses::COPY;
const MOVE: KeyUses = KeyUses::MOVE;
const COMBINE: KeyUses = KeyUses::COMBINE;

#[rustfmt::skip]
pub(super) static COMMANDS: &[Spec] = &[
    c(Cmd::Acl, "acl", -2, 0, (0, 0, 0), LOOK, "slow", "server", "6.0.0", "Groups commands about users and their rights.", ACL),
    c(Cmd::Append, "append", 3, W|OOM|FAST, (1, 1, 1), WRITE, "write string fast", "string", "2.0.0", "Appends to a value; returns its new length.", NONE),
    c(Cmd::Auth, "auth", -2, NOSCRIPT|LOADING|STALE|FAST|NO_AUTH|ALLOW_BUSY, (0, 0, 0), LOOK, "fast connection", "connection", "1.0.0", "Authenticates the connection.", NONE),
    c(Cmd::Bedplate, "bedplate", -2, 0, (0, 0, 0), LOOK, "slow", "server", "0.1.0", "Groups commands about durability, checkpoints and statistics.", BEDPLATE),
    c(Cmd::Begin, "begin", -1, FAST|NOSCRIPT, (0, 0, 0), LOOK, "fast transaction", "transactions", "0.1.0", "Starts an interactive transaction; READ ONLY: on a snapshot.", NONE),
    c(Cmd::Bgsave, "bgsave", -1, ADMIN|NOSCRIPT|NO_ASYNC, (0, 0, 0), LOOK, "admin slow dangerous", "server", "1.0.0", "Takes a checkpoint in the background.", NONE),
    c(Cmd::Bitcount, "bitcount", -2, RO, (1, 1, 1), READ, "read bitmap slow", "bitmap", "2.6.0", "Counts the bits that are 1, in a value or a part of it.", NONE),
    c(Cmd::Bitfield, "bitfield", -2, W|OOM, (1, 1, 1), UPDATE, "write bitmap slow", "bitmap", "3.2.0", "Reads and writes integers of any width in a value.", NONE),
    c(Cmd::BitfieldRo, "bitfield_ro", -2, RO|FAST, (1, 1, 1), READ, "read bitmap fast", "bitmap", "6.0.0", "Reads integers of any width in a value.", NONE),
    c(Cmd::Bitop, "bitop", -4, W|OOM, (2, -1, 1), COMBINE, "write bitmap slow", "bitmap", "2.6.0", "Combines the bits of values and writes the result.", NONE),
    c(Cmd::Bitpos, "bitpos", -3, RO, (1, 1, 1), READ, "read bitmap slow", "bitmap", "2.8.7", "Finds the first bit that is 1, or 0.", NONE),
    c(Cmd::Call, "call", -2, W|OOM|NOSCRIPT|ANY_KEYS, (0, 0, 0), LOOK, "write slow scripting", "scripting", "0.1.0", "Calls a procedure by name.", NONE),
    c(Cmd::Cas, "cas", 4, W|OOM|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "0.1.0", "Writes a new value if the key has the expected one.", NONE),
    c(Cmd::Client, "client", -2, 0, (0, 0, 0), LOOK, "slow", "connection", "2.4.0", "Groups commands about connections.", CLIENT),
    c(Cmd::Command, "command", -1, LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "server", "2.8.13", "Describes the commands.", COMMAND),
    c(Cmd::Commit, "commit", 1, FAST|NOSCRIPT, (0, 0, 0), LOOK, "fast transaction", "transactions", "0.1.0", "Commits the interactive transaction.", NONE),
    c(Cmd::Config, "config", -2, 0, (0, 0, 0), LOOK, "slow", "server", "2.0.0", "Groups commands about the configuration.", CONFIG),
    c(Cmd::Copy, "copy", -3, W|OOM, (1, 2, 1), COPY, "keyspace write slow", "generic", "6.2.0", "Copies a key's value and expiry to another key.", NONE),
    c(Cmd::Dbsize, "dbsize", 1, RO|FAST, (0, 0, 0), LOOK, "keyspace read fast", "server", "1.0.0", "Returns the number of keys.", NONE),
    c(Cmd::Decr, "decr", 2, W|OOM|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "1.0.0", "Subtracts 1 from an integer value.", NONE),
    c(Cmd::Decrby, "decrby", 3, W|OOM|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "1.0.0", "Subtracts a number from an integer value.", NONE),
    c(Cmd::Del, "del", -2, W, (1, -1, 1), WRITE, "keyspace write slow", "generic", "1.0.0", "Deletes keys; returns how many existed.", NONE),
    c(Cmd::Discard, "discard", 1, NOSCRIPT|LOADING|STALE|FAST|ALLOW_BUSY, (0, 0, 0), LOOK, "fast transaction", "transactions", "2.0.0", "Forgets the queued transaction.", NONE),
    c(Cmd::Dump, "dump", 2, RO, (1, 1, 1), READ, "keyspace read slow", "generic", "2.6.0", "Returns a value as bytes that RESTORE reads, also that of Redis.", NONE),
    c(Cmd::Echo, "echo", 2, LOADING|STALE|FAST, (0, 0, 0), LOOK, "fast connection", "connection", "1.0.0", "Returns its argument.", NONE),
    c(Cmd::Eval, "eval", -3, NOSCRIPT|STALE|SKIP_MONITOR|NO_MANDATORY_KEYS|MOVABLE_KEYS, (0, 0, 0), UPDATE, "slow scripting", "scripting", "2.6.0", "Runs a Lua script as a transaction.", NONE),
    c(Cmd::EvalRo, "eval_ro", -3, RO|NOSCRIPT|STALE|SKIP_MONITOR|NO_MANDATORY_KEYS|MOVABLE_KEYS, (0, 0, 0), READ, "slow scripting", "scripting", "7.0.0", "Runs a Lua script that only reads, on a snapshot.", NONE),
    c(Cmd::Evalsha, "evalsha", -3, NOSCRIPT|STALE|SKIP_MONITOR|NO_MANDATORY_KEYS|MOVABLE_KEYS, (0, 0, 0), UPDATE, "slow scripting", "scripting", "2.6.0", "Runs a Lua script that the server has kept.", NONE),
    c(Cmd::EvalshaRo, "evalsha_ro", -3, RO|NOSCRIPT|STALE|SKIP_MONITOR|NO_MANDATORY_KEYS|MOVABLE_KEYS, (0, 0, 0), READ, "slow scripting", "scripting", "7.0.0", "Runs a Lua script that the server has kept, and that only reads, on a snapshot.", NONE),
    c(Cmd::Exec, "exec", 1, NOSCRIPT|LOADING|STALE|SKIP_SLOWLOG, (0, 0, 0), LOOK, "slow transaction", "transactions", "1.2.0", "Runs the queued transaction.", NONE),
    c(Cmd::Exists, "exists", -2, RO|FAST, (1, -1, 1), LOOK, "keyspace read fast", "generic", "1.0.0", "Counts how many of the keys given exist.", NONE),
    c(Cmd::Expire, "expire", -3, W|FAST, (1, 1, 1), WRITE, "keyspace write fast", "generic", "1.0.0", "Lets a key expire after so many seconds.", NONE),
    c(Cmd::Expireat, "expireat", -3, W|FAST, (1, 1, 1), WRITE, "keyspace write fast", "generic", "1.2.0", "Lets a key expire at a Unix time in seconds.", NONE),
    c(Cmd::Expiretime, "expiretime", 2, RO|FAST, (1, 1, 1), READ, "keyspace read fast", "generic", "7.0.0", "Returns the Unix time in seconds at which a key expires.", NONE),
    c(Cmd::Fcall, "fcall", -3, NOSCRIPT|STALE|SKIP_MONITOR|NO_MANDATORY_KEYS|MOVABLE_KEYS, (0, 0, 0), UPDATE, "slow scripting", "scripting", "7.0.0", "Calls a function of a library as a transaction.", NONE),
    c(Cmd::FcallRo, "fcall_ro", -3, RO|NOSCRIPT|STALE|SKIP_MONITOR|NO_MANDATORY_KEYS|MOVABLE_KEYS, (0, 0, 0), READ, "slow scripting", "scripting", "7.0.0", "Calls a function that only reads, on a snapshot.", NONE),
    c(Cmd::Flushall, "flushall", -1, W, (0, 0, 0), LOOK, "keyspace write slow dangerous", "server", "1.0.0", "Deletes all keys.", NONE),
    c(Cmd::Flushdb, "flushdb", -1, W, (0, 0, 0), LOOK, "keyspace write slow dangerous", "server", "1.0.0", "Deletes all keys.", NONE),
    c(Cmd::Function, "function", -2, 0, (0, 0, 0), LOOK, "slow", "scripting", "7.0.0", "Groups commands about libraries of functions.", FUNCTION),
    c(Cmd::Get, "get", 2, RO|FAST, (1, 1, 1), READ, "read string fast", "string", "1.0.0", "Returns the value of a key.", NONE),
    c(Cmd::Getbit, "getbit", 3, RO|FAST, (1, 1, 1), READ, "read bitmap fast", "bitmap", "2.2.0", "Returns a bit of a value.", NONE),
    c(Cmd::Getdel, "getdel", 2, W|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "6.2.0", "Returns a value and deletes its key.", NONE),
    c(Cmd::Getex, "getex", -2, W|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "6.2.0", "Returns a value and changes when its key expires.", NONE),
    c(Cmd::Getrange, "getrange", 4, RO, (1, 1, 1), READ, "read string slow", "string", "2.4.0", "Returns a part of a value.", NONE),
    c(Cmd::Getset, "getset", 3, W|OOM|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "1.0.0", "Writes a key and returns its old value.", NONE),
    c(Cmd::Hello, "hello", -1, NOSCRIPT|LOADING|STALE|FAST|NO_AUTH|ALLOW_BUSY, (0, 0, 0), LOOK, "fast connection", "connection", "6.0.0", "Chooses the protocol version; authenticates.", NONE),
    c(Cmd::Incr, "incr", 2, W|OOM|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "1.0.0", "Adds 1 to an integer value.", NONE),
    c(Cmd::Incrby, "incrby", 3, W|OOM|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "1.0.0", "Adds a number to an integer value.", NONE),
    c(Cmd::Incrbyfloat, "incrbyfloat", 3, W|OOM|FAST, (1, 1, 1), UPDATE, "write string fast", "string", "2.6.0", "Adds a number to a floating-point value.", NONE),
    c(Cmd::Info, "info", -1, LOADING|STALE, (0, 0, 0), LOOK, "slow dangerous", "server", "1.0.0", "Describes the server.", NONE),
    c(Cmd::Keys, "keys", 2, RO, (0, 0, 0), LOOK, "keyspace read slow dangerous", "generic", "1.0.0", "Returns all keys that match a pattern, from one snapshot.", NONE),
    c(Cmd::Lastsave, "lastsave", 1, LOADING|STALE|FAST, (0, 0, 0), LOOK, "admin fast dangerous", "server", "1.0.0", "Returns the Unix time in seconds of the last checkpoint.", NONE),
    c(Cmd::Latency, "latency", -2, 0, (0, 0, 0), LOOK, "slow", "server", "2.8.13", "Groups commands about the times that commands take.", LATENCY),
    c(Cmd::Lcs, "lcs", -3, RO, (1, 2, 1), READ, "read string slow", "string", "7.0.0", "Returns the longest common subsequence of two values.", NONE),
    c(Cmd::Memory, "memory", -2, 0, (0, 0, 0), LOOK, "slow", "server", "4.0.0", "Groups commands about memory.", MEMORY),
    c(Cmd::Mget, "mget", -2, RO|FAST, (1, -1, 1), READ, "read string fast", "string", "1.0.0", "Returns the values of several keys, read from one snapshot.", NONE),
    c(Cmd::Monitor, "monitor", 1, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "server", "1.0.0", "Lets the connection see every command of all clients.", NONE),
    c(Cmd::Mset, "mset", -3, W|OOM, (1, -1, 2), WRITE, "write string slow", "string", "1.0.1", "Writes several keys in one transaction.", NONE),
    c(Cmd::Msetnx, "msetnx", -3, W|OOM, (1, -1, 2), WRITE, "write string slow", "string", "1.0.1", "Writes several keys in one transaction if none of them exists.", NONE),
    c(Cmd::Multi, "multi", 1, NOSCRIPT|LOADING|STALE|FAST|ALLOW_BUSY, (0, 0, 0), LOOK, "fast transaction", "transactions", "1.2.0", "Starts queueing a transaction.", NONE),
    c(Cmd::Object, "object", -2, 0, (0, 0, 0), LOOK, "slow", "generic", "2.2.3", "Groups commands about how values are stored.", OBJECT),
    c(Cmd::Persist, "persist", 2, W|FAST, (1, 1, 1), WRITE, "keyspace write fast", "generic", "2.2.0", "Lets a key live until it is deleted.", NONE),
    c(Cmd::Pexpire, "pexpire", -3, W|FAST, (1, 1, 1), WRITE, "keyspace write fast", "generic", "2.6.0", "Lets a key expire after so many milliseconds.", NONE),
    c(Cmd::Pexpireat, "pexpireat", -3, W|FAST, (1, 1, 1), WRITE, "keyspace write fast", "generic", "2.6.0", "Lets a key expire at a Unix time in milliseconds.", NONE),
    c(Cmd::Pexpiretime, "pexpiretime", 2, RO|FAST, (1, 1, 1), READ, "keyspace read fast", "generic", "7.0.0", "Returns the Unix time in milliseconds at which a key expires.", NONE),
    c(Cmd::Ping, "ping", -1, FAST, (0, 0, 0), LOOK, "fast connection", "connection", "1.0.0", "Returns PONG or its argument.", NONE),
    c(Cmd::Proc, "proc", -2, 0, (0, 0, 0), LOOK, "slow", "scripting", "0.1.0", "Groups commands about procedures.", PROC),
    c(Cmd::Psetex, "psetex", 4, W|OOM, (1, 1, 1), WRITE, "write string slow", "string", "2.6.0", "Writes a key that expires after so many milliseconds.", NONE),
    c(Cmd::Pttl, "pttl", 2, RO|FAST, (1, 1, 1), READ, "keyspace read fast", "generic", "2.6.0", "Returns the milliseconds until a key expires.", NONE),
    c(Cmd::Quit, "quit", -1, NOSCRIPT|LOADING|STALE|FAST|NO_AUTH|ALLOW_BUSY, (0, 0, 0), LOOK, "fast connection", "connection", "1.0.0", "Closes the connection.", NONE),
    c(Cmd::Randomkey, "randomkey", 1, RO, (0, 0, 0), LOOK, "keyspace read slow", "generic", "1.0.0", "Returns some key.", NONE),
    c(Cmd::Rename, "rename", 3, W, (1, 2, 1), MOVE, "keyspace write slow", "generic", "1.0.0", "Renames a key, replacing the new name's value.", NONE),
    c(Cmd::Renamenx, "renamenx", 3, W|FAST, (1, 2, 1), MOVE, "keyspace write fast", "generic", "1.0.0", "Renames a key if the new name does not exist.", NONE),
    c(Cmd::Reset, "reset", 1, NOSCRIPT|LOADING|STALE|FAST|NO_AUTH|ALLOW_BUSY, (0, 0, 0), LOOK, "fast connection", "connection", "6.2.0", "Brings the connection back to how it started.", NONE),
    c(Cmd::Restore, "restore", -4, W|OOM, (1, 1, 1), WRITE, "keyspace write slow dangerous", "generic", "2.6.0", "Writes a key with a value that DUMP has returned.", NONE),
    c(Cmd::Rollback, "rollback", 1, FAST|NOSCRIPT, (0, 0, 0), LOOK, "fast transaction", "transactions", "0.1.0", "Rolls the interactive transaction back.", NONE),
    c(Cmd::Save, "save", 1, ADMIN|NOSCRIPT|NO_ASYNC|NO_MULTI, (0, 0, 0), LOOK, "admin slow dangerous", "server", "1.0.0", "Takes a checkpoint and waits for it.", NONE),
    c(Cmd::Scan, "scan", -2, RO, (0, 0, 0), LOOK, "keyspace read slow", "generic", "2.8.0", "Returns keys in portions.", NONE),
    c(Cmd::Script, "script", -2, 0, (0, 0, 0), LOOK, "slow", "scripting", "2.6.0", "Groups commands about scripts.", SCRIPT),
    c(Cmd::Select, "select", 2, LOADING|STALE|FAST, (0, 0, 0), LOOK, "fast connection", "connection", "1.0.0", "Chooses the database; there is only 0.", NONE),
    c(Cmd::Set, "set", -3, W|OOM, (1, 1, 1), WRITE, "write string slow", "string", "1.0.0", "Writes a key, with options for expiry, condition and the old value.", NONE),
    c(Cmd::Setbit, "setbit", 4, W|OOM, (1, 1, 1), UPDATE, "write bitmap slow", "bitmap", "2.2.0", "Writes a bit of a value; returns the old one.", NONE),
    c(Cmd::Setex, "setex", 4, W|OOM, (1, 1, 1), WRITE, "write string slow", "string", "2.0.0", "Writes a key that expires after so many seconds.", NONE),
    c(Cmd::Setnx, "setnx", 3, W|OOM|FAST, (1, 1, 1), WRITE, "write string fast", "string", "1.0.0", "Writes a key if it does not exist.", NONE),
    c(Cmd::Setrange, "setrange", 4, W|OOM, (1, 1, 1), WRITE, "write string slow", "string", "2.2.0", "Overwrites a part of a value; returns its new length.", NONE),
    c(Cmd::Shutdown, "shutdown", -1, ADMIN|NOSCRIPT|LOADING|STALE|NO_MULTI|ALLOW_BUSY, (0, 0, 0), LOOK, "admin slow dangerous", "server", "1.0.0", "Stops the server.", NONE),
    c(Cmd::Slowlog, "slowlog", -2, 0, (0, 0, 0), LOOK, "slow", "server", "2.2.12", "Groups commands about commands that have taken long.", SLOWLOG),
    c(Cmd::Strlen, "strlen", 2, RO|FAST, (1, 1, 1), LOOK, "read string fast", "string", "2.2.0", "Returns the length of a value.", NONE),
    c(Cmd::Substr, "substr", 4, RO, (1, 1, 1), READ, "read string slow", "string", "1.0.0", "Returns a part of a value; the old name of GETRANGE.", NONE),
    c(Cmd::Time, "time", 1, LOADING|STALE|FAST, (0, 0, 0), LOOK, "fast", "server", "2.6.0", "Returns the server's time in seconds and microseconds.", NONE),
    c(Cmd::Touch, "touch", -2, RO|FAST, (1, -1, 1), LOOK, "keyspace read fast", "generic", "3.2.1", "Counts how many of the keys given exist.", NONE),
    c(Cmd::Ttl, "ttl", 2, RO|FAST, (1, 1, 1), READ, "keyspace read fast", "generic", "1.0.0", "Returns the seconds until a key expires.", NONE),
    c(Cmd::Type, "type", 2, RO|FAST, (1, 1, 1), LOOK, "keyspace read fast", "generic", "1.0.0", "Returns the type of a key's value.", NONE),
    c(Cmd::Unlink, "unlink", -2, W|FAST, (1, -1, 1), WRITE, "keyspace write fast", "generic", "4.0.0", "Deletes keys; the same as DEL.", NONE),
    c(Cmd::Unwatch, "unwatch", 1, NOSCRIPT|LOADING|STALE|FAST|ALLOW_BUSY, (0, 0, 0), LOOK, "fast transaction", "transactions", "2.2.0", "Forgets the watched keys.", NONE),
    c(Cmd::Wait, "wait", 3, NOSCRIPT, (0, 0, 0), LOOK, "slow connection", "generic", "3.0.0", "Returns the number of replicas: none.", NONE),
    c(Cmd::Waitaof, "waitaof", 4, NOSCRIPT, (0, 0, 0), LOOK, "slow connection", "generic", "7.2.0", "Waits until this connection's writes are on disk.", NONE),
    c(Cmd::Watch, "watch", -2, NOSCRIPT|LOADING|STALE|FAST|ALLOW_BUSY, (1, -1, 1), LOOK, "fast transaction", "transactions", "2.2.0", "Lets the next EXEC fail if one of the keys changes before.", NONE),
];

#[rustfmt::skip]
static ACL: &[Spec] = &[
    sub("cat", -2, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow", "6.0.0"),
    sub("deluser", -3, ADMIN|NOSCRIPT|LOADING|STALE|NOT_QUEUED, (0, 0, 0), LOOK, "admin slow dangerous", "6.0.0"),
    sub("dryrun", -4, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "7.0.0"),
    sub("genpass", -2, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow", "6.0.0"),
    sub("getuser", 3, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "6.0.0"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow", "6.0.0"),
    sub("list", 2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "6.0.0"),
    sub("load", 2, ADMIN|NOSCRIPT|LOADING|STALE|NOT_QUEUED, (0, 0, 0), LOOK, "admin slow dangerous", "6.0.0"),
    sub("log", -2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "6.0.0"),
    sub("save", 2, ADMIN|NOSCRIPT|LOADING|STALE|NOT_QUEUED, (0, 0, 0), LOOK, "admin slow dangerous", "6.0.0"),
    sub("setuser", -3, ADMIN|NOSCRIPT|LOADING|STALE|NOT_QUEUED, (0, 0, 0), LOOK, "admin slow dangerous", "6.0.0"),
    sub("users", 2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "6.0.0"),
    sub("whoami", 2, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow", "6.0.0"),
];
#[rustfmt::skip]
static BEDPLATE: &[Spec] = &[
    sub("checkpoint", 2, ADMIN|NOSCRIPT, (0, 0, 0), LOOK, "admin slow dangerous", "0.1.0"),
    sub("durability", -2, ADMIN|NOSCRIPT, (0, 0, 0), LOOK, "admin slow dangerous", "0.1.0"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow", "0.1.0"),
    sub("stats", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow", "0.1.0"),
    sub("upgrade", 2, ADMIN|NOSCRIPT|NO_MULTI, (0, 0, 0), LOOK, "admin slow dangerous", "0.1.0"),
    sub("verify", 2, ADMIN|NOSCRIPT, (0, 0, 0), LOOK, "admin slow dangerous", "0.1.0"),
];
#[rustfmt::skip]
static PROC: &[Spec] = &[
    sub("attach", 4, ADMIN|NOSCRIPT|NO_MULTI, (0, 0, 0), LOOK, "admin slow dangerous scripting", "0.1.0"),
    sub("detach", 4, ADMIN|NOSCRIPT|NO_MULTI, (0, 0, 0), LOOK, "admin slow dangerous scripting", "0.1.0"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow scripting", "0.1.0"),
    sub("list", 2, NOSCRIPT, (0, 0, 0), LOOK, "slow scripting", "0.1.0"),
    sub("load", 3, ADMIN|NOSCRIPT|NO_MULTI, (0, 0, 0), LOOK, "admin slow dangerous scripting", "0.1.0"),
    sub("replace", 3, ADMIN|NOSCRIPT|NO_MULTI, (0, 0, 0), LOOK, "admin slow dangerous scripting", "0.1.0"),
    sub("unload", 3, ADMIN|NOSCRIPT|NO_MULTI, (0, 0, 0), LOOK, "admin slow dangerous scripting", "0.1.0"),
];
#[rustfmt::skip]
static SCRIPT: &[Spec] = &[
    sub("debug", 3, NOSCRIPT, (0, 0, 0), LOOK, "slow scripting", "3.2.0"),
    sub("exists", -3, NOSCRIPT, (0, 0, 0), LOOK, "slow scripting", "2.6.0"),
    sub("flush", -2, NOSCRIPT, (0, 0, 0), LOOK, "slow scripting", "2.6.0"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow scripting", "5.0.0"),
    sub("kill", 2, NOSCRIPT|ALLOW_BUSY, (0, 0, 0), LOOK, "slow scripting", "2.6.0"),
    sub("load", 3, NOSCRIPT|STALE, (0, 0, 0), LOOK, "slow scripting", "2.6.0"),
];
#[rustfmt::skip]
static FUNCTION: &[Spec] = &[
    sub("delete", 3, W|NOSCRIPT|NOT_QUEUED, (0, 0, 0), LOOK, "write slow scripting", "7.0.0"),
    sub("dump", 2, NOSCRIPT, (0, 0, 0), LOOK, "slow scripting", "7.0.0"),
    sub("flush", -2, W|NOSCRIPT|NOT_QUEUED, (0, 0, 0), LOOK, "write slow scripting", "7.0.0"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow scripting", "7.0.0"),
    sub("kill", 2, NOSCRIPT|ALLOW_BUSY, (0, 0, 0), LOOK, "slow scripting", "7.0.0"),
    sub("list", -2, NOSCRIPT, (0, 0, 0), LOOK, "slow scripting", "7.0.0"),
    sub("load", -3, W|OOM|NOSCRIPT|NOT_QUEUED, (0, 0, 0), LOOK, "write slow scripting", "7.0.0"),
    sub("restore", -3, W|OOM|NOSCRIPT|NOT_QUEUED, (0, 0, 0), LOOK, "write slow scripting", "7.0.0"),
    sub("stats", 2, NOSCRIPT|ALLOW_BUSY, (0, 0, 0), LOOK, "slow scripting", "7.0.0"),
];
#[rustfmt::skip]
static CLIENT: &[Spec] = &[
    sub("getname", 2, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "2.6.9"),
    sub("getredir", 2, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "6.0.0"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "5.0.0"),
    sub("id", 2, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "5.0.0"),
    sub("info", 2, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "6.2.0"),
    sub("kill", -3, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous connection", "2.4.0"),
    sub("list", -2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous connection", "2.4.0"),
    sub("no-evict", 3, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous connection", "7.0.0"),
    sub("no-touch", 3, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "7.2.0"),
    sub("pause", -3, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous connection", "2.9.50"),
    sub("reply", 3, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "3.2.0"),
    sub("setinfo", 4, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "7.2.0"),
    sub("setname", 3, NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "2.6.9"),
    sub("unpause", 2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous connection", "6.2.0"),
];
#[rustfmt::skip]
static COMMAND: &[Spec] = &[
    sub("count", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "2.8.13"),
    sub("docs", -2, LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "7.0.0"),
    sub("getkeys", -4, LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "2.8.13"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "5.0.0"),
    sub("info", -2, LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "2.8.13"),
    sub("list", -2, LOADING|STALE, (0, 0, 0), LOOK, "slow connection", "7.0.0"),
];
#[rustfmt::skip]
static CONFIG: &[Spec] = &[
    sub("get", -3, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.0.0"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow", "5.0.0"),
    sub("resetstat", 2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.0.0"),
    sub("set", -4, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.0.0"),
];
#[rustfmt::skip]
static LATENCY: &[Spec] = &[
    sub("doctor", 2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.8.13"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow", "2.8.13"),
    sub("histogram", -2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "7.0.0"),
    sub("history", 3, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.8.13"),
    sub("latest", 2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.8.13"),
    sub("reset", -2, ADMIN|NOSCRIPT|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.8.13"),
];
#[rustfmt::skip]
static MEMORY: &[Spec] = &[
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow", "4.0.0"),
    sub("usage", -3, RO, (2, 2, 1), LOOK, "read slow", "4.0.0"),
];
#[rustfmt::skip]
static SLOWLOG: &[Spec] = &[
    sub("get", -2, ADMIN|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.2.12"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "slow", "6.2.0"),
    sub("len", 2, ADMIN|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.2.12"),
    sub("reset", 2, ADMIN|LOADING|STALE, (0, 0, 0), LOOK, "admin slow dangerous", "2.2.12"),
];
#[rustfmt::skip]
static OBJECT: &[Spec] = &[
    sub("encoding", 3, RO, (2, 2, 1), LOOK, "keyspace read slow", "2.2.3"),
    sub("freq", 3, RO, (2, 2, 1), LOOK, "keyspace read slow", "4.0.0"),
    sub("help", 2, LOADING|STALE, (0, 0, 0), LOOK, "keyspace slow", "6.2.0"),
    sub("idletime", 3, RO, (2, 2, 1), LOOK, "keyspace read slow", "2.2.3"),
    sub("refcount", 3, RO, (2, 2, 1), LOOK, "keyspace read slow", "2.2.3"),
];
