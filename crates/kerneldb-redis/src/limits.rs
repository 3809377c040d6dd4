//! Limits of the server, and its behaviour at each of them.

use std::time::Duration;

/// Highest [`crate::server::ServerConfig::max_clients`]; more are a configuration error. A connection beyond the
/// configured number gets an error and is closed.
pub const CLIENTS_MAX: u32 = 65_536;

/// Descriptors of the process that connections leave free: for the log and checkpoints, for the exchange of the programs, and for
/// the libraries of procedures that clients load. If the limit on open files leaves less, the server has fewer connections.
pub const DESCRIPTORS_RESERVED: u64 = 256;

/// Connections that wait to be accepted; the kernel lets further clients try again later.
pub(crate) const CONNECTIONS_WAITING: i32 = 1024;

/// Arguments of one request; more are a protocol error, after which the connection is closed.
pub const REQUEST_ARGUMENTS_MAX: i64 = 1 << 20;

/// Default of `proto-max-bulk-len`: the longest argument in bytes. A longer one is a protocol error.
pub const BULK_BYTES_MAX: i64 = 512 << 20;

/// Longest argument in bytes that is stored. The bytes of a longer one are dropped as they arrive; commands refuse it.
pub const KEPT_BULK_BYTES_MAX: usize = 128 << 10;

/// Arguments of one request before authentication; more are a protocol error.
pub const UNAUTHENTICATED_ARGUMENTS_MAX: i64 = 10;

/// Longest argument in bytes before authentication; a longer one is a protocol error.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 << 10;

/// Longest line in bytes of an inline command or a length header; a longer one is a protocol error.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Most checkpoints and verifications that clients of the server may wait for, besides those that run. A further SAVE,
/// BEDPLATE CHECKPOINT, BEDPLATE VERIFY or SHUTDOWN SAVE gets an error.
pub const ADMIN_TASKS_WAITING: usize = 64;

/// Product of the lengths of two values of which LCS returns the longest common subsequence. A larger one is an error, as in Redis with its
/// default configuration. The event loop serves nobody else meanwhile, so the products of all LCS in one EXEC together have the same limit.
pub const LCS_CELLS_MAX: u64 = 1 << 27;

/// Bytes of the commands that a monitor has not received yet (MONITOR). A monitor with more is closed.
pub const MONITOR_BACKLOG_BYTES_MAX: usize = 8 << 20;

/// Bytes of the commands that all monitors together have not received yet. With more, the monitor with the most bytes is closed.
pub const MONITORS_BACKLOG_BYTES_MAX: usize = 64 << 20;

/// Seconds with long commands that LATENCY HISTORY has of each event, as in Redis. One more, and the oldest is forgotten.
pub const LATENCY_SAMPLES_MAX: usize = 160;

/// Codes of errors that INFO errorstats counts. Further ones are not counted until CONFIG RESETSTAT.
pub const ERROR_CODES_MAX: usize = 128;

/// Largest `slowlog-max-len`: entries of the slow log, of some KiB at most. A larger one is an error of CONFIG SET.
pub const SLOW_LOG_ENTRIES_MAX: u64 = 10_000;

/// Scripts that are kept for EVALSHA. One more, and the oldest is forgotten: its clients get NOSCRIPT.
pub const SCRIPTS_MAX: usize = 4096;

/// Bytes of the texts of these scripts. With more, the oldest is forgotten.
pub const SCRIPT_CACHE_BYTES_MAX: usize = 32 << 20;

/// Memory of the interpreter of scripts in bytes. A script that needs more gets an error and is rolled back.
pub const SCRIPT_MEMORY_BYTES_MAX: usize = 64 << 20;

/// Bytes of a script's reply; a longer one is an error.
pub const SCRIPT_REPLY_BYTES_MAX: usize = 16 << 20;

/// Bytes of the arguments of a command that a script calls, and of a text in JSON that it makes; more are an error of the script.
pub const SCRIPT_REQUEST_BYTES_MAX: usize = 16 << 20;

/// Bytes of a text in JSON or MessagePack that a script reads; a longer one is an error of the script.
pub const SCRIPT_DECODE_BYTES_MAX: usize = 8 << 20;

/// Tables inside of one another in a text in MessagePack that a script reads; more are an error of the script.
pub const SCRIPT_MSGPACK_DEPTH_MAX: u32 = 128;

/// Arrays and objects inside of one another in a text in JSON that a script reads, whatever `cjson.decode_max_depth` says; more are an
/// error of the script.
pub const SCRIPT_JSON_DECODE_DEPTH_MAX: usize = 1000;

/// Tables inside of one another in a text in JSON that a script makes, whatever `cjson.encode_max_depth` says; more are an error of the
/// script.
pub const SCRIPT_JSON_ENCODE_DEPTH_MAX: i32 = 128;

/// Values that `cmsgpack.unpack` and `struct.unpack` return at a time; more are an error of the script.
pub const SCRIPT_RESULTS_MAX: usize = 4096;

/// Bytes of a pattern of Lua's functions for strings; a longer one is an error of the script.
pub const SCRIPT_PATTERN_BYTES_MAX: usize = 1024;

/// Tables inside of one another in a script's reply; more are an error.
pub const SCRIPT_REPLY_DEPTH_MAX: u32 = 128;

/// Default of `busy-reply-threshold`: the longest time of a script. One that runs for longer gets an error and is rolled back.
pub const SCRIPT_TIME_MAX: Duration = Duration::from_secs(5);

/// Longest time for which a script waits in the middle of its transaction, for room in the log ring or for memory. Then it starts again.
/// No other client of the event loop is served meanwhile.
pub(crate) const SCRIPT_LOG_WAIT: Duration = Duration::from_millis(20);

/// Scripts that the interpreter has compiled at a time. One more, and it compiles all of them again when they are called.
pub(crate) const SCRIPTS_COMPILED_MAX: usize = 512;

/// Libraries of functions. One more is an error of FUNCTION LOAD and FUNCTION RESTORE.
pub const FUNCTION_LIBRARIES_MAX: usize = 512;

/// Functions of all libraries. One more is an error of FUNCTION LOAD and FUNCTION RESTORE.
pub const FUNCTIONS_MAX: usize = 4096;

/// Bytes of all libraries: their code, and the names and descriptions of their functions. More are an error of FUNCTION LOAD and FUNCTION
/// RESTORE.
pub const FUNCTION_BYTES_MAX: usize = 1 << 20;

/// Time in which a library has to register its functions. One that needs longer is not loaded.
pub const FUNCTION_LOAD_TIME_MAX: Duration = Duration::from_millis(500);

const _: () = assert!(KEPT_BULK_BYTES_MAX > bedplate_kerneldb::VALUE_MAX);

// The following bound the buffers of the eBPF programs. Each pool is shared by all connections. A packet for which no
// buffer is free is passed to the event loop, which gives the same replies.

/// Request buffers per processor. A run of the verdict claims one, and an EXEC a second one. Runs on one processor can
/// nest, because a softirq can interrupt a run. A packet that finds none free is passed to the event loop and counts
/// in [`crate::server::ServerStats::no_buffer`]; an EXEC that finds none free is passed as well.
pub(crate) const INPUTS_PER_CPU: u32 = 4;

/// Reply buffers per processor. A run of the verdict claims one. If the reply is long, the buffer stays claimed until
/// TCP has taken the reply. A packet that finds none free is passed to the event loop and counts in
/// [`crate::server::ServerStats::no_buffer`].
pub(crate) const OUTPUTS_PER_CPU: u32 = 32;

/// Connections that are between MULTI and EXEC in the kernel, at least one per processor. The packet with a MULTI that
/// finds no queue free is passed to the event loop, which serves that connection until EXEC or DISCARD.
pub(crate) const QUEUES: u32 = 128;

// The following bound the work and the memory for one connection before the others get their turn. A connection that
// reaches one of them waits, and is not closed. While it waits, the event loop does not read from its socket, so TCP
// slows the client down.

/// Bytes of keys and values from which on a transaction that a request began (EXEC, MSET) stays open while it waits for
/// room in the log ring. Its records may never fit into the ring as a whole. A shorter one is rolled back and
/// started again, so that other connections can have its locks meanwhile.
pub(crate) const LONG_TRANSACTION_BYTES: usize = bedplate_kerneldb::limits::LOG_RING_BYTES_MIN as usize / 4;

/// Request bytes that the event loop reads from one connection and executes before it serves the next one.
pub(crate) const TURN_READ_BYTES: usize = 16 << 10;

/// The event loop executes the requests of one connection for at most this long before it looks at other connections, and always one
/// request.
pub(crate) const REQUESTS_TIME: Duration = Duration::from_millis(250);

/// Time for which connections with more requests are served before the event loop looks for events again.
pub(crate) const TURN_TIME: Duration = Duration::from_millis(2);

/// Connections accepted before the event loop serves others again.
pub(crate) const TURN_ACCEPTS: usize = 64;

/// Events taken from the kernel at a time.
pub(crate) const TURN_EVENTS: usize = 256;

/// Memory of sent replies that a connection keeps for the next ones.
pub(crate) const KEPT_OUTPUT_BYTES: usize = 1 << 20;

/// Longest reply in bytes whose departure ends the event loop's turn.
pub(crate) const TURN_END_REPLY_BYTES: usize = 16 << 10;

/// Interval at which the event loop checks every connection for changes that no event announces.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Shortest time for which a request waits before it is tried again.
pub(crate) const RETRY_MIN: Duration = Duration::from_micros(50);

/// Longest time for which an upgrade waits for the check of the new program.
pub const UPGRADE_CHECK_WAIT: Duration = Duration::from_secs(20);

/// Time for which an upgrade waits for bytes of one connection that are on their way to its socket. Then it closes the connection.
pub(crate) const DRAIN_WAIT: Duration = Duration::from_secs(1);

/// Time for which a change of the database's options waits for open transactions to end. Then it fails, and nothing has changed.
pub(crate) const REBUILD_WAIT: Duration = Duration::from_secs(5);

/// Users of a server, `default` included. One more is an error of ACL SETUSER and of an ACL file.
pub const USERS_MAX: usize = 4096;

/// Passwords of a user. One more is an error of the rule.
pub const USER_PASSWORDS_MAX: usize = 64;

/// Patterns of keys and channels, first arguments and selectors of a user together. One more is an error of the rule.
pub const USER_RULES_MAX: usize = 1024;

/// Bytes of the users as an ACL file. More are an error of ACL SETUSER, of CONFIG SET requirepass, and of an ACL file.
pub const ACL_BYTES_MAX: usize = 1 << 20;

/// Bytes of a text in an entry of ACL LOG: of the command or key, the user, and the client as in CLIENT LIST. A longer one is cut.
pub const ACL_LOG_NAME_BYTES_MAX: usize = 1024;

/// Most entries of ACL LOG, and so the largest value of `acllog-max-len`. With more entries, the oldest are forgotten.
pub const ACL_LOG_ENTRIES_MAX: usize = 10_000;
