/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The memory layout that the eBPF programs and user space share.
 *
 * This file is the only definition of it: the programs include it, and the Rust side is generated
 * from it (bindgen) at build time. Everything here is plain C with fixed-width integers and explicit
 * padding; no field may move without a change of KDB_LAYOUT_VERSION.
 *
 * Units: every `*_ns` is nanoseconds, every `*_ms` is milliseconds since the Unix epoch, every `off`
 * is a byte offset from the start of a partition's arena (0 = none).
 */
#ifndef BEDPLATE_LAYOUT_H
#define BEDPLATE_LAYOUT_H

#define KDB_LAYOUT_VERSION 5u
#define KDB_MAGIC 0x31626465706c6474ull /* arena superblock */

/* ---- Limits -------------------------------------------------------------------------------- */
#define KDB_KEY_MAX 255u             /* bytes in a key; at least 1 */
#define KDB_KEY_BUF 256u             /* key buffers are padded with zeros to a multiple of 8 */
#define KDB_VAL_MAX 65536u           /* bytes in a value; 0 is allowed */
#define KDB_TX_LOCKS 128u            /* distinct keys one transaction may lock (read or write) */
/*
 * Bytes that the writes of one transaction may put into the log, every rewrite of a key included; beyond it a
 * write fails with KDB_ERR_TX_TOO_LARGE. It is counted without a log as well. KDB_TX_LOCKS of the longest keys
 * and values take half of it, and a frame of the log holds a transaction of this size.
 */
#define KDB_TX_BYTES (16u << 20)
#define KDB_TX_WRITE_BYTES 56u       /* counted for each write besides key and value: record header, padding */
#define KDB_MAX_PARTITIONS 16u
#define KDB_MAX_CPUS 64u
#define KDB_MAX_VERSIONS 64u
#define KDB_SNAPSHOTS 1024u          /* read-only snapshots active at once */
#define KDB_CACHE_LINE 64u
#define KDB_REMOVED_SLOTS 1024u      /* power of two; see kdb_state.removed_ts */
#define KDB_CHAIN_MAX 256u           /* index entries in one hash chain; more keys get KDB_ERR_CHAIN */

/* ---- Status: the result of an operator, which selects the continuation ------------------------ */
enum kdb_status {
	KDB_OK = 0,               /* done; for GET: key found */
	KDB_NOT_FOUND = 1,        /* GET, DELETE: no such key; compare-and-set: no such key */
	KDB_MISMATCH = 2,         /* compare-and-set: the key holds another value */
	KDB_REFUSED = 3,          /* a procedure refuses the call; kdb_call.text has the reason */
	/* From here on: Error states. The transaction, if any, can only be rolled back, except after
	 * KDB_ERR_WAL_FULL and KDB_ERR_BUSY. */
	KDB_ERR_CONFLICT = 16,    /* a lock is held by another transaction (no-wait) */
	KDB_ERR_NO_MEMORY = 17,   /* no free block, entry or version slot within the memory limit */
	KDB_ERR_NO_VERSION = 18,  /* every version of the key is still visible to some snapshot */
	KDB_ERR_WAL_FULL = 19,    /* the log ring is full: the log writer is behind. The operator had no effect, and
				   * an open transaction goes on: repeat the operator (COMMIT, too), or roll back */
	KDB_ERR_WAL_FAILED = 20,  /* the log cannot be written (disk full, I/O error): read only */
	KDB_ERR_TOO_LARGE = 21,   /* key or value exceeds the limits above */
	KDB_ERR_TOO_MANY_LOCKS = 22, /* KDB_TX_LOCKS exceeded */
	KDB_ERR_STATE = 23,       /* operator not allowed in this transaction state */
	KDB_ERR_BUSY = 24,        /* a latch, or a lock that is held for a moment only, or a snapshot slot could not be acquired.
				   * The operator had no effect, and an open transaction goes on: repeat the operator */
	KDB_ERR_ABORTED = 25,     /* the transaction already met an Error state: roll back */
	KDB_ERR_PARTITION = 26,   /* the key belongs to another partition than this program's */
	KDB_ERR_MEMORY_IN_LOG = 27, /* user space's: KDB_ERR_NO_MEMORY until the log's reader has caught up */
	KDB_ERR_TX_TOO_LARGE = 28, /* the transaction's writes exceed KDB_TX_BYTES */
	KDB_ERR_SNAPSHOT_TOO_OLD = 29, /* the transaction's snapshot was revoked: a writer needed its versions */
	KDB_ERR_CHAIN = 30,       /* the key's hash chain has KDB_CHAIN_MAX entries already */
	KDB_ERR_TX_TIMED_OUT = 31, /* the transaction exceeded its age or idle limit and was rolled back */
	KDB_ERR_TOO_MANY_VISITS = 32, /* a call has no visit of another partition left */
};

/* ---- Transaction state, in the session context ------------------------------------------------ */
enum kdb_tx_state {
	KDB_TX_NONE = 0,
	KDB_TX_ACTIVE = 1,        /* read-write, strict two-phase locking */
	KDB_TX_READ_ONLY = 2,     /* snapshot */
	KDB_TX_FAILED = 3,        /* met an Error state; ROLLBACK is the only way on */
	KDB_TX_COMMITTED = 4,     /* commit point passed, versions being stamped, locks being released */
	KDB_TX_ROLLING_BACK = 5,  /* locks being released without effect */
};

/* One lock of a transaction; `entry` is unique within the list. */
struct kdb_lock {
	__u32 entry;              /* arena offset of the index entry */
	__u16 partition;
	__u8 mode;                /* 1 = shared, 2 = exclusive */
	__u8 slot;                /* exclusive and written: version slot + 1; else 0 */
	__u64 id;                 /* hash-map engine: id of the index entry, in place of `entry` */
};

/*
 * Session context (the paper's `contexts` map). One per session. The session's owner runs one operator at a
 * time. The reaper may roll back the transaction between two operators: both sides hold `in_use` while they
 * change a transaction that is not KDB_TX_NONE. The reaper leaves the state KDB_TX_FAILED behind, so only
 * the owner changes a session from and to KDB_TX_NONE.
 */
struct kdb_ctx {
	__u64 commit_ts;          /* 0 until the commit point; read by others to resolve markers */
	__u64 tx_seq;             /* number of this session's current transaction; never repeats */
	__u64 snapshot_ts;        /* READ_ONLY: timestamp of its snapshot; ACTIVE: clock at BEGIN */
	__u32 state;              /* enum kdb_tx_state */
	__u32 nlocks;
	__u32 snapshot_slot;      /* index in kdb_state.snapshots, READ_ONLY only */
	__u32 nwrites;            /* log records written so far by this transaction */
	__u32 partitions;         /* bit p: holds locks in partition p */
	__u32 error;              /* enum kdb_status that made the transaction fail */
	__u32 flags;              /* KDB_CTX_* */
	__u32 session;            /* index of this element */
	__u64 begin_ns;           /* kdb_state.coarse_ns at BEGIN */
	__u64 last_ns;            /* the same at the start of the transaction's last operator */
	__u32 bytes;              /* counted against KDB_TX_BYTES */
	__u32 in_use;             /* enum kdb_in_use; changed by compare-and-swap from KDB_CTX_FREE */
	__u64 app[8];             /* for the application; the engine never reads or writes it */
	struct kdb_lock locks[KDB_TX_LOCKS];
};
#define KDB_CTX_NO_WAL 1u         /* this session's writes are not logged (durability off) */
enum kdb_in_use {
	KDB_CTX_FREE = 0,
	KDB_CTX_OPERATOR = 1,     /* an operator of the session's transaction runs */
	KDB_CTX_REAPER = 2,       /* the reaper rolls the transaction back */
};

/* I/O buffers of one operator call: the paper's key and value buffers of the context. */
struct kdb_io {
	__u32 claimed;            /* 0 = free, else owner; claimed by compare-and-swap */
	__u32 klen;               /* bytes, 1..=KDB_KEY_MAX */
	__u32 vlen;               /* in: value to SET; out: value of GET */
	__u32 flags;              /* KDB_IO_* */
	__u64 expire_ms;          /* in (SET): absolute expiry, 0 = never; out (GET): the same */
	__u64 commit_ts;          /* out: commit timestamp of the write, or of the version read */
	__u32 elen;               /* compare-and-set: length of the expected value */
	__s32 status;             /* out: enum kdb_status */
	__u64 observed_ts;        /* out: newest commit that the outcome reveals; 0 = none (arena engine) */
	__u64 hash;               /* out: SipHash-1-3 of the key (arena engine); see engine/hash.h */
	__u64 write[6];           /* the engine's: a struct kdb_write, which would need too much stack */
	__u32 step;               /* loop counter of the engine */
	__u32 index;              /* hash-map engine: this buffer's index in kdb_ios */
	__u32 usage;              /* out: kdb_entry.usage before a read that found the key (arena engine) */
	__u32 map_klen;           /* hash-map engine: klen, directly before the key: a map key in place */
	__u8 key[KDB_KEY_BUF];
	__u8 val[KDB_VAL_MAX + 64];
	__u8 expect[KDB_VAL_MAX + 64]; /* compare-and-set: expected value */
};
#define KDB_IO_IF_ABSENT 1u       /* SET only if the key does not exist (else KDB_MISMATCH) */
#define KDB_IO_IF_PRESENT 2u      /* SET only if the key exists (else KDB_NOT_FOUND) */
/* SET keeps the expiry that the key has. With KDB_IO_IF_PRESENT the key was live when that was tested, and its expiry
 * is kept even if it has passed since. Otherwise the new value would live for ever. */
#define KDB_IO_KEEP_TTL 4u
#define KDB_IO_IF_EQUAL 16u        /* compare-and-set: SET only if the value equals `expect` */
#define KDB_IO_HASHED 32u         /* `hash` is an input (arena engine) */
#define KDB_IO_IF_EXPIRED 64u     /* auto-commit DELETE only if the newest version is expired (else KDB_MISMATCH) */
#define KDB_IO_REPLAY 8u          /* recovery: not logged, commit_ts is an input */
#define KDB_IO_UNCHANGED 256u     /* auto-commit write only if the newest commit of the key is commit_ts (else KDB_MISMATCH) */
#define KDB_IO_NO_USE 512u        /* the read does not count as a use of the key (arena engine) */
#define KDB_IO_REPEATS 128u       /* KDB_ERR_NO_MEMORY leaves a transaction as it was: the caller repeats the operator */

/* ---- Calls of procedures by name: see procedure.h --------------------------------------------- */
#define KDB_CALL_ARGUMENTS 16u    /* arguments of one call */
#define KDB_CALL_BYTES 65536u     /* bytes of all arguments of one call together; power of two */
#define KDB_CALL_TEXT 128u        /* bytes of the reason of a refusal */

#define KDB_VISITS_MAX 32u        /* operators of one call on keys of other partitions than the one that it runs in */

/* The operators that calls and handlers run. */
enum kdb_operator {
	KDB_READ = 0,
	KDB_READ_FOR_UPDATE = 1,
	KDB_WRITE = 2,
	KDB_DELETE = 3,
	KDB_RELEASE = 4,          /* of a handler that is over: releases the locks in the partition */
};

/* The reply of a call that is not refused. */
enum kdb_reply {
	KDB_REPLY_OK = 0,
	KDB_REPLY_NIL = 1,
	KDB_REPLY_INTEGER = 2,    /* kdb_call.integer */
	KDB_REPLY_VALUE = 3,      /* the value in the I/O buffer */
};

struct kdb_argument {
	__u32 at;                 /* in kdb_call.bytes */
	__u32 len;
};

/* A call. Element i of kdb_calls belongs to the call that has claimed element i of kdb_ios. */
struct kdb_call {
	__u32 arguments;          /* number of arguments */
	__u32 reply;              /* out: enum kdb_reply */
	__s64 integer;            /* out */
	__u64 observed_ts;        /* out (arena engine): newest commit that the call reveals */
	__s64 number;             /* result of the functions that parse numbers */
	__u32 return_program;     /* of a call on a connection: the program in kdb_call_returns that continues */
	__u32 visits;             /* how many visits the call may still make (visit.h) */
	__u32 text_len;           /* out: bytes of `text` */
	__u32 status;             /* out, of a call on a connection: enum kdb_status */
	__u32 partition;          /* out: that of the last operator's key */
	__u32 operator;           /* of a visit: enum kdb_operator */
	__u32 visit_status;       /* of a visit, out: enum kdb_status */
	__u32 _pad;
	struct kdb_argument argument[KDB_CALL_ARGUMENTS];
	__u8 text[KDB_CALL_TEXT]; /* out: why the procedure refuses */
	__u8 bytes[KDB_CALL_BYTES + 64];
};

/* A procedure that can be called on connections (connection.h). */
#define KDB_PROCEDURE_NAME 64u    /* bytes of a longest name and a zero */
#define KDB_PROCEDURE_SLOTS 256u  /* largest number of procedures */
struct kdb_procedure {
	__u8 name[KDB_PROCEDURE_NAME]; /* padded with zeros; empty: the slot is free */
	__u32 read_only;
	__u32 _pad;
};

/* A connection of a server, found by the cookie of its socket. User space sets the first two fields when it accepts the
 * connection. The program that begins a call sets the third. */
struct kdb_connection {
	__u32 index;              /* the server's number of the connection */
	__u32 session;            /* index of the session's kdb_ctx */
	__u32 call_buffer;        /* of the call: the index in kdb_ios and kdb_calls */
};

/* ---- Handlers: see handler.h ------------------------------------------------------------------- */
#define KDB_HANDLER_ATTEMPTS 6u   /* a handler whose transaction meets a conflict runs at most this often */

/* The buffers of the handler that runs on a processor: element i of kdb_handler_slots is processor i's. */
struct kdb_handler_slot {
	__u32 in_use;             /* 1 while a handler runs; changed with interrupts off */
	__u32 _pad;
	struct kdb_call call;
	struct kdb_io io;
};

/* Counts of a handler on one processor. runs = committed + refused + failed. */
struct kdb_handler_counts {
	__u64 runs;               /* events */
	__u64 committed;
	__u64 refused;            /* rolled back because the handler has refused the event */
	__u64 failed;             /* rolled back because of an Error state, or not begun */
	__u64 nested;             /* of the failed ones: another handler was running on the processor */
	__u64 retries;            /* attempts after a conflict */
	__u64 last_error;         /* enum kdb_status of the last failure; 0 = none */
	__u64 _pad;
};

/* The one element of a handler's map, which has the handler's name and the suffix _handler. */
struct kdb_handler {
	struct kdb_handler_counts counts[KDB_MAX_CPUS];
};

/* Argument of the program that starts a handler's timer, or stops it. */
struct kdb_timer_arguments {
	__u64 interval_ns;        /* from the end of a run to the next one; 0 stops the timer */
};

/* ---- Global state (the paper's `timestamps` map), one element, memory-mapped ------------------- */
struct kdb_cpu_stats {
	__u64 gets, get_misses, sets, dels, begins, begins_ro, commits, commits_ro, rollbacks;
	__u64 conflicts, no_memory, no_version, wal_full;
	__u64 versions_pruned, gc_entries, read_retries;
	__s64 live_keys;          /* sum over CPUs = number of keys */
	__s64 value_bytes;        /* sum over CPUs = bytes of key and value of live keys */
	__u64 clock_seen;         /* some value that the clock had */
	__u64 drained_seen;       /* some value that drained_ts had since the last recovery */
	__u64 deferred_freed;     /* blocks that waited for the log's reader */
	__u64 tx_timed_out;       /* transactions that the reaper rolled back */
	__u64 tx_too_large;       /* transactions that exceeded KDB_TX_BYTES */
	__u64 snapshots_revoked;
	__s64 expiring_keys;      /* sum over CPUs = number of keys that have an expiry */
	__u64 expired;            /* keys deleted or overwritten after their expiry had passed */
	__u64 _pad[6];
};

struct kdb_state {
	/* line 0: the clock. Commit timestamps are dense: each committed writing transaction takes
	 * the next one, under `commit_latch`. */
	__u64 clock;              /* timestamp of the newest commit that is completely visible */
	__u32 commit_latch;
	__u32 _pad0;
	__u64 _pad1[6];
	/* line 1: snapshots */
	__u64 active_snapshots;   /* number of slots in use */
	__u32 snapshot_high;      /* slots at and above this index are free */
	__u32 _pad2;
	__u64 snapshot_grace_ns;  /* a snapshot older than this gives way to a writer; ~0 = never */
	__u64 scan_grace_ns;      /* the same for snapshots with KDB_SNAPSHOT_SCAN */
	__u64 coarse_ns;          /* the clock of all limits on time; user space advances it every few ms. Not 0. */
	__u64 _pad3[3];
	/* line 2: durability, written by the log writer */
	__u64 durable_ts;         /* every commit up to here is on disk */
	__u32 wal_failed;         /* 1: writes are refused */
	__u32 writes_paused;      /* 1: writes are refused with KDB_ERR_BUSY (quiesced checkpoint) */
	__u64 clock_offset_ms;    /* Unix time in ms = bpf_ktime_get_ns() / 1e6 + this */
	__u64 _pad5;
	__u64 drained_ts;         /* the log's reader has every commit up to here, values included; -1 in recovery */
	__u64 _pad4[3];
	/* A snapshot slot: 0 = free, 1 = being registered (keeps every version), KDB_SNAPSHOT_REVOKED, else
	 * timestamp + 2, perhaps with KDB_SNAPSHOT_SCAN. See engine/snapshot.h for the protocol. */
	__u64 snapshots[KDB_SNAPSHOTS];
	struct kdb_cpu_stats stats[KDB_MAX_CPUS];
	/* By hash: the newest commit that removed a key without a trace (its tombstone is gone) before that
	 * commit was durable. A key that is absent may be so because of this commit. */
	__u64 removed_ts[KDB_REMOVED_SLOTS];
	__u64 snapshot_ns[KDB_SNAPSHOTS]; /* coarse_ns when the slot was claimed */
};
#define KDB_SNAPSHOT_SCAN (1ull << 62)    /* user space's: checkpoints, dumps, scans */
#define KDB_SNAPSHOT_REVOKED (1ull << 63) /* needs no version any more; its owner has yet to notice */

/* ---- Arena layout ----------------------------------------------------------------------------- */

/* A version. Unordered within its entry (4.1); a slot with ts == 0 is free. */
struct kdb_version {
	__u64 ts;                 /* commit timestamp, or KDB_MARKER | session << 40 | tx_seq low bits */
	__u32 block;              /* offset of the value's first byte, a multiple of 8; 0 = tombstone */
	__u32 len;                /* bytes of the value, and KDB_LEN_* */
};
#define KDB_MARKER (1ull << 63)
#define KDB_MARKER_SEQ_BITS 40
#define KDB_LEN_MASK 0x0fffffffu
#define KDB_LEN_EXPIRES 0x80000000u   /* the value's head is its expiry in ms */
#define KDB_LEN_INLINE 0x40000000u    /* the value is in a cell of its entry */
#define KDB_LEN_CELL_SHIFT 29         /* KDB_LEN_INLINE: in which of the two */
#define KDB_LEN_HEAD 0x10000000u      /* the value has a head */

/*
 * A value that is not in a cell has a block of its own. The block may begin with a head, a word of 8 bytes:
 * the value's expiry, and the link of blocks that wait for the log's reader. A value has a head if it
 * expires, and every value has one if the database has a log. A value that leaves no room for it in the
 * largest block, which is a whole slab, has its head in the slab's descriptor.
 */
#define KDB_HEAD_BYTES 8u
#define KDB_HEADED_MAX 65528u         /* longest value whose block has room for the head */

/*
 * Index entry with inline lock and versions. Two versions are inline: the newest one, and one that is
 * being written. Further ones, which only snapshots need, are in an array of kdb_config.slots -
 * KDB_INLINE_VERSIONS versions, which is a block of its own while there are any.
 *
 * The key follows the versions, padded with zeros to a multiple of 8. The rest of the entry is divided into
 * KDB_CELLS cells for small values, so that reading one takes no further cache miss. Two cells hold the value that
 * is valid and the one that is about to be.
 *
 * Entry memory is type-stable: a slab of entries serves another purpose only after every program that may
 * have a pointer into it has ended. Until then a stale pointer to an entry can be locked and re-validated.
 */
#define KDB_INLINE_VERSIONS 2u
struct kdb_entry {
	__u64 lock;               /* KDB_LOCK_* */
	__u32 next;               /* bucket chain; free list */
	__u32 hash;               /* lower half of the key's hash: bucket and tag */
	__u32 changes;            /* bumped before a committed version leaves; readers re-check it */
	__u32 gc_next;
	__u32 overflow;           /* offset of the further versions; 0 = none */
	__u8 klen;
	__u8 class_;              /* size in KDB_GRAIN, less 1 */
	__u8 gc_queued;
	__u8 usage;               /* by kdb_arena.usage_kind: how long the key was idle, or how often it was used */
	struct kdb_version v[KDB_INLINE_VERSIONS];
};
#define KDB_CELLS 2u

/* The meaning of kdb_entry.usage, for eviction. See engine/arena/usage.h. */
enum kdb_usage_kind {
	KDB_USAGE_NONE = 0,       /* none, and no operator changes it */
	KDB_USAGE_IDLE = 1,       /* an access sets it to 0, and user space increases it as time passes */
	KDB_USAGE_COUNT = 2,      /* an access increases it with a probability that falls as it grows, and user space
				   * decreases it as time passes */
};
#define KDB_USAGE_MAX 255u
#define KDB_USAGE_COUNT_NEW 5u    /* KDB_USAGE_COUNT: of a new key */

#define KDB_CELL_MAX 32u              /* longest value in a cell */
#define KDB_CELL_DEFAULT 16u          /* room for a value that is not known yet */
/* Lock word: bits 0-23 exclusive owner's session + 1, 24-39 its lock index, 40-62 readers, 63 dead */
#define KDB_LOCK_OWNER_MASK 0xffffffull
#define KDB_LOCK_AUTO 0xffffffull     /* owner of auto-commit operations and the collector */
#define KDB_LOCK_IDX_SHIFT 24
#define KDB_LOCK_READER (1ull << 40)
#define KDB_LOCK_READERS_MASK (0x7fffffull << 40)
#define KDB_LOCK_DEAD (1ull << 63)

/*
 * The heap: slabs of 64 KiB, each of which holds blocks of one size, or index entries of one size (its
 * kind). A slab that becomes free may serve any kind. engine/arena/alloc.h has the rules.
 */
#define KDB_SLAB_BYTES 65536u
#define KDB_GRAIN 16u                 /* sizes and offsets of blocks and entries are multiples of it */
#define KDB_CLASSES 95u               /* sizes of blocks */
#define KDB_ENTRY_CLASSES 24u         /* sizes of entries: 1 to 24 grains */
#define KDB_KINDS (KDB_CLASSES + KDB_ENTRY_CLASSES) /* a class, or KDB_CLASSES + an entry's class */
#define KDB_KIND_FREE KDB_KINDS       /* number of the bitmap of free slabs */

enum kdb_slab_state {
	KDB_SLAB_FREE = 0,        /* in the pool, or never used */
	KDB_SLAB_CLAIMED = 1,     /* being given a kind or an owner; in recovery, being filled */
	KDB_SLAB_CURRENT = 2,     /* its owner allocates from it */
	KDB_SLAB_PARTIAL = 3,     /* has free blocks, and no owner */
	KDB_SLAB_FULL = 4,        /* had no free block when its owner gave it up */
	KDB_SLAB_EVACUATING = 5,  /* nothing is allocated from it; user space frees it when it is empty */
};

/* Descriptor of a slab. All changes of `word` are compare-and-swaps. */
struct kdb_slab {
	__u64 word;               /* KDB_WORD_* */
	__u64 head;               /* of the value that fills the slab */
	__u32 kind;               /* changes while the state is CLAIMED only, as do the next two */
	__u32 capacity;           /* blocks in the slab */
	__u32 owner;              /* CPU + 1 */
	__u32 _pad;
};
/* Bits 0-12: first free block, its offset in the slab in grains + 1, 0 = none; 13-25: blocks in use; 26-38:
 * blocks that were ever handed out since the slab has its kind; 39-41: state; 42-63: a tag, which every
 * change increments. */
#define KDB_WORD_FIRST 0x1fffull
#define KDB_WORD_USED_SHIFT 13
#define KDB_WORD_CARVED_SHIFT 26
#define KDB_WORD_STATE_SHIFT 39
#define KDB_WORD_TAG_SHIFT 42
#define KDB_WORD_COUNT 0x1fffull      /* of a shifted count */

/* The slab that a CPU allocates from, for each kind: its number + 1; 0 = none. */
struct kdb_cpu_alloc {
	__u32 current[KDB_KINDS + 9];
};

/* Log ring of one CPU in one partition: one producer at a time, one consumer. */
struct kdb_ring {
	__u64 head;               /* bytes ever reserved; the CPU's producers */
	__u64 tail_seen;          /* producers: some value that `tail` had */
	__u32 data;               /* arena offset of the ring's memory */
	__u32 size;               /* bytes, a power of two; 0 = no log */
	__u64 _pad0[5];
	__u64 tail;               /* bytes ever consumed; consumer */
	__u64 _pad1[7];
};

/* A ring record: header, perhaps one word more, key (padded to 8), value (padded to 8). A small change is one
 * cache line. Records never wrap: the rest of the ring before the end is filled by a KDB_REC_PAD record. */
struct kdb_rec {
	__u64 state;              /* once complete: (its position in the ring << 1 | 1) ^ log_secret */
	__u32 size;               /* bytes of the whole record, multiple of 8 */
	__u16 klen;
	__u8 type;                /* enum kdb_rec_type */
	__u8 flags;               /* KDB_REC_* */
	__u64 stamp;              /* AUTO_*, COMMIT, SKIP: commit timestamp; PUT, DEL, ABORT: transaction */
	__u32 vlen;
	__u32 index;              /* PUT, DEL: 0-based index in its transaction; COMMIT: their count;
				   * KDB_REC_BY_REFERENCE: offset of the value's block */
};
/* With KDB_REC_LONG. */
struct kdb_rec_long {
	struct kdb_rec rec;
	__u64 word;               /* AUTO_PUT, PUT: expiry in ms, 0 = none; COMMIT: transaction */
};
/* A transaction is session << KDB_MARKER_SEQ_BITS | low bits of tx_seq. */
#define KDB_REC_BY_REFERENCE 1u   /* AUTO_PUT: the value is in its block, not behind the key */
#define KDB_REC_LONG 2u           /* struct kdb_rec_long */
enum kdb_rec_type {
	KDB_REC_PAD = 0,
	KDB_REC_AUTO_PUT = 1,     /* auto-commit SET */
	KDB_REC_AUTO_DEL = 2,
	KDB_REC_PUT = 3,          /* SET in a transaction; counts only with its COMMIT */
	KDB_REC_DEL = 4,
	KDB_REC_COMMIT = 5,
	KDB_REC_ABORT = 6,
	KDB_REC_SKIP = 7,         /* a commit that is not to be logged (durability off); keeps ts dense */
	KDB_REC_VOID = 8,         /* reserved, then not needed */
};

/* Superblock of an arena, at offset KDB_SUPER_OFF. Page 0 is never used. */
#define KDB_SUPER_OFF 4096u
/* Configuration of a loaded object: constants to the verifier and the JIT (section .rodata.kdb). */
struct kdb_config {
	__u32 partition;          /* which partition's arena this object is bound to */
	__u32 partitions;
	__u32 versions;           /* as configured, 1..=64; 1 = single-version mode */
	__u32 slots;              /* physical version slots, max(versions, 2) */
	__u32 buckets;            /* offset of the bucket words */
	__u32 bucket_mask;
	__u32 cpus;               /* offset of the per-CPU allocator state */
	__u32 ncpus;
	__u32 rings;              /* offset of the log rings; 0 = no log */
	__u32 heap;               /* offset of the first slab */
	__u32 slabs;              /* offset of a struct kdb_slab for each slab */
	__u32 bitmaps;            /* offset of KDB_KINDS + 1 bitmaps of slabs: partial ones, free ones */
	__u32 bitmap_words;       /* words of 64 bits in one bitmap */
	__u32 wal;                /* 1: writes are logged */
	__u64 hash_key[2];        /* secret of the key hash (arena engine) */
	__u64 log_secret;         /* marks complete log records; see struct kdb_rec */
	__u32 key_bytes;          /* hash-map engine: longest key, a multiple of 8 */
	__u32 irqs;               /* hash-map engine: 1 = the kernel lets programs disable interrupts */
	__u32 wal_notify;         /* hash-map engine: bytes after which the log's reader is woken */
	__u32 map_args;           /* hash-map engine: 1 = only map memory may be a map's key or value */
	__u32 handler_sessions;   /* the session of handlers on processor 0; the other processors' follow */
	__u32 _pad;
};
struct kdb_arena {
	__u64 magic;
	__u32 layout_version;
	__u32 partition;
	__u32 partitions;
	__u32 versions;           /* physical version slots per entry */
	__u32 nbuckets;           /* power of two */
	__u32 buckets;            /* offset of nbuckets bucket words */
	__u32 ncpus;
	__u32 cpus;               /* offset of ncpus struct kdb_cpu_alloc */
	__u32 rings;              /* offset of ncpus struct kdb_ring */
	__u32 usage_kind;         /* enum kdb_usage_kind; user space sets it */
	__u64 limit;              /* bytes this arena may ever use, at most 4 GiB */
	__u64 usage_factor;       /* KDB_USAGE_COUNT: how much rarer an access of a key that is used more is counted */
	/* line: allocation */
	__u64 brk;                /* first byte never handed to a slab */
	__u64 committed;          /* bytes backed by pages; user space raises it ahead of brk */
	__u64 gc_head;            /* first entry queued for the collector (compare-and-swap) */
	__u64 gc_rest;            /* collector: rest of the chain it took off the queue */
	__u64 gc_latch;           /* 1 while a collector runs */
	__u64 gc_visited;         /* collector: entries visited by the current call */
	__u64 entries;            /* index entries allocated and linked */
	__u64 _pad2[1];
	/* line: blocks that the log's reader may still need: offset of the value, and in bit 32 whether its
	 * head, which has the next such word, is in the slab's descriptor */
	__u64 deferred_head;      /* compare-and-swap; taken as a whole by the collector */
	__u64 deferred_rest;      /* collector: taken, freed when drained_ts reaches deferred_ts */
	__u64 deferred_ts;
	__u64 evacuated;          /* bytes of values that were moved in order to empty their slabs */
	__u64 _pad3[4];
	/* lines: where to begin the search of a bitmap, in words; only a hint */
	__u32 hints[KDB_KINDS + 9];
};
/* State that the hash-map engine shares with user space: memory accounting and the collector's queue. */
struct kdb_hash_state {
	__u64 limit;              /* bytes that entries and values may take together */
	__u64 used;
	__u64 entries;            /* index entries */
	__u64 garbage;            /* keys queued for the collector */
	__u64 log_bytes;          /* written to the ring buffer, ever */
	__u64 _pad[3];
};
/* Bucket word: tag << 32 | offset of the first entry. The tag changes whenever an entry leaves. */

#endif
