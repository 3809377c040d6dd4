/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * store: a transactional key-value store in a directory. Link with -lbedplate_store, or use pkg-config bedplate-store.
 *
 * Functions return a bp_store_code: 0 or more, or an error, which is negative. bp_store_error() gives the reason of
 * this thread's last failure in words. Unless its code says otherwise, a call that failed has changed nothing.
 *
 * Handles are numbers: a handle that was never given out, was closed, or is of another kind is an error, never an access
 * to memory. Functions on a store may be called in any thread, several at once. A transaction and its cursors may move
 * from thread to thread, but two threads in one transaction at the same time are an error.
 *
 * Keys and values are bytes with an explicit length. Where a length is 0, the pointer may be NULL. Keys are compared as
 * byte strings, so numbers keep their order when they are written big-endian.
 *
 * Structures that begin with a size may grow: set it to sizeof the structure, and all that you do not use to 0.
 *
 * Generated from the Rust sources.
 */

#pragma once

#include <stddef.h>
#include <stdint.h>

/* For bp_store_open(): an empty store is created if the directory has none. For bp_store_open_tree(): an empty tree is created
   if there is none of this name. */
#define BP_STORE_CREATE UINT32_C(0x1)
/* For bp_store_open(): a commit returns before it is durable. A crash may lose the last commits, in the reverse order in which
   they were made; bp_store_sync() makes all of them durable. */
#define BP_STORE_ASYNC UINT32_C(0x2)
/* For bp_store_begin(): the transaction reads one snapshot. It never waits, never conflicts, and cannot write. */
#define BP_STORE_READ_ONLY UINT32_C(0x1)

/* The longest key in bytes of a store with pages of 4096 bytes, which is an eighth of a page; one more is
   BP_STORE_ERROR_KEY_TOO_LONG. */
#define BP_STORE_KEY_MAX ((size_t)512)
/* The longest value in bytes; one more is BP_STORE_ERROR_VALUE_TOO_LONG. */
#define BP_STORE_VALUE_MAX ((size_t)0x1000000)
/* The longest name of a tree in bytes, without the zero at the end; one more is BP_STORE_ERROR_TREE_NAME. */
#define BP_STORE_TREE_NAME_MAX ((size_t)255)
/* The most trees of a store; one more is BP_STORE_ERROR_TOO_MANY_TREES. */
#define BP_STORE_TREES_MAX UINT32_C(4096)
/* The most keys that a transaction writes; one more is BP_STORE_ERROR_TOO_LARGE. */
#define BP_STORE_TRANSACTION_WRITES_MAX UINT32_C(0x100000)
/* The most bytes of keys and values that a transaction writes, with the values that they replace; beyond it,
   BP_STORE_ERROR_TOO_LARGE. */
#define BP_STORE_TRANSACTION_BYTES_MAX ((size_t)0x4000000)
/* The most stores of a process, and the most transactions, that are open at a time; one more is BP_STORE_ERROR_FULL. */
#define BP_STORE_HANDLES_MAX UINT32_C(65536)
/* The most cursors of a transaction that are open at a time; one more is BP_STORE_ERROR_FULL. */
#define BP_STORE_CURSORS_MAX UINT32_C(1024)
/* The most records that a cursor reads ahead of the program. */
#define BP_STORE_AHEAD_MAX UINT32_C(64)


/*
 The results of functions. Errors are negative.
 */
enum bp_store_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   It is done.
   */
  BP_STORE_OK = 0,
  /*
   The key is not in the tree.
   */
  BP_STORE_NOT_FOUND = 1,
  /*
   The key is in the tree already, and its value stays as it was.
   */
  BP_STORE_EXISTS = 2,
  /*
   There is no further record, or no further tree.
   */
  BP_STORE_END = 3,
  /*
   Another transaction changed a record or a range that this one had read. This transaction has ended, and nothing was written:
   begin it again.
   */
  BP_STORE_ERROR_CONFLICT = -1,
  /*
   The values that the snapshot needs were dropped to keep within `version_bytes` of the options: begin the transaction again.
   */
  BP_STORE_ERROR_SNAPSHOT_TOO_OLD = -2,
  /*
   A file of the store could not be used: bp_store_error_number() says why.
   */
  BP_STORE_ERROR_SYSTEM = -16,
  /*
   The file system or the capacity of the store is full.
   */
  BP_STORE_ERROR_NO_SPACE = -17,
  /*
   There is not enough memory, or `memory_bytes` is too small for the threads that use the store.
   */
  BP_STORE_ERROR_NO_MEMORY = -18,
  /*
   Another process, or this one, has the store open.
   */
  BP_STORE_ERROR_IN_USE = -19,
  /*
   The directory has no store, and BP_STORE_CREATE was not given.
   */
  BP_STORE_ERROR_NO_STORE = -20,
  /*
   Files of the store are damaged or missing: restore it from a backup.
   */
  BP_STORE_ERROR_DAMAGED = -21,
  /*
   The log could not be written during the commit. Close the store and open it again to know whether the transaction has
   committed.
   */
  BP_STORE_ERROR_IN_DOUBT = -22,
  /*
   An earlier error, often BP_STORE_ERROR_IN_DOUBT, left the store in a state that recovery completes: close it and open it
   again.
   */
  BP_STORE_ERROR_REOPEN = -23,
  /*
   The engine does not work on this machine.
   */
  BP_STORE_ERROR_UNAVAILABLE = -24,
  /*
   As many handles are open as there can be.
   */
  BP_STORE_ERROR_FULL = -25,
  /*
   The key is longer than BP_STORE_KEY_MAX.
   */
  BP_STORE_ERROR_KEY_TOO_LONG = -32,
  /*
   The value is longer than BP_STORE_VALUE_MAX.
   */
  BP_STORE_ERROR_VALUE_TOO_LONG = -33,
  /*
   The transaction writes or reads more than a transaction may. It can still be committed without this call.
   */
  BP_STORE_ERROR_TOO_LARGE = -34,
  /*
   The name of a tree is empty or longer than BP_STORE_TREE_NAME_MAX.
   */
  BP_STORE_ERROR_TREE_NAME = -35,
  /*
   There is no tree of this name, or the tree was dropped.
   */
  BP_STORE_ERROR_NO_TREE = -36,
  /*
   The store has BP_STORE_TREES_MAX trees.
   */
  BP_STORE_ERROR_TOO_MANY_TREES = -37,
  /*
   Transactions of the store are open, or another thread is in a function on it: the store cannot be closed, or the tree not
   be dropped.
   */
  BP_STORE_ERROR_ACTIVE = -38,
  /*
   An argument has a value that it cannot have.
   */
  BP_STORE_ERROR_INVALID = -48,
  /*
   A pointer is NULL that must not be.
   */
  BP_STORE_ERROR_NULL = -49,
  /*
   There never was such a handle, or it is one of another kind.
   */
  BP_STORE_ERROR_HANDLE = -50,
  /*
   The handle was closed, or the transaction has ended.
   */
  BP_STORE_ERROR_CLOSED = -51,
  /*
   Another thread is in this transaction.
   */
  BP_STORE_ERROR_BUSY = -52,
  /*
   The tree is another store's.
   */
  BP_STORE_ERROR_OTHER_STORE = -53,
  /*
   The transaction is read-only.
   */
  BP_STORE_ERROR_READ_ONLY = -54,
  /*
   The function of bp_store_update() must not call this: it would wait for itself.
   */
  BP_STORE_ERROR_IN_UPDATE = -55,
  /*
   The handle is the parent process's. After fork() a child opens stores of its own.
   */
  BP_STORE_ERROR_FORKED = -56,
  /*
   Something went wrong within the library. A transaction in which this happens can only be aborted.
   */
  BP_STORE_ERROR_INTERNAL = -64,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bp_store_code bp_store_code;
#else
typedef int32_t bp_store_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 The way in which pages are found in memory. docs/bufpool.md compares them.
 */
enum bp_store_engine {
  /*
   The best one that works here.
   */
  BP_STORE_ENGINE_AUTO = 0,
  /*
   An array that has the frame of each page.
   */
  BP_STORE_ENGINE_ARRAY = 1,
  /*
   Virtual memory; pages are evicted in batches.
   */
  BP_STORE_ENGINE_STOCK = 2,
  /*
   A hash table of the pages in memory.
   */
  BP_STORE_ENGINE_HASHTABLE = 4,
};

/*
 A transaction that is open.
 */
struct bp_store_transaction {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 A tree of a store. It is valid until the store is closed or the tree is dropped, in all threads; there is nothing to close.
 */
struct bp_store_tree {
  /*
   The number of its store.
   */
  uint64_t store;
  /*
   Its number in the store; never 0.
   */
  uint64_t number;
};

/*
 Bytes with their length.
 */
struct bp_store_bytes {
  /*
   The first byte.
   */
  const void *data;
  /*
   The number of bytes.
   */
  size_t len;
};

/*
 A range of keys: those that pass all three conditions. Set a condition that you do not use to {NULL, 0}.
 */
struct bp_store_range {
  /*
   The keys from this one on.
   */
  struct bp_store_bytes from;
  /*
   The keys before this one.
   */
  struct bp_store_bytes before;
  /*
   The keys that begin with these bytes.
   */
  struct bp_store_bytes prefix;
};

/*
 A position among the records of a range. It ends with its transaction, or when it is closed.
 */
struct bp_store_cursor {
  /*
   The number of its transaction.
   */
  uint64_t transaction;
  /*
   Its number in the transaction; never 0.
   */
  uint64_t number;
};

/*
 How a store is opened.
 */
struct bp_store_options {
  /*
   sizeof(struct bp_store_options)
   */
  size_t size;
  /*
   The most bytes of pages in memory; 0: 64 MiB.
   */
  size_t memory_bytes;
  /*
   The most bytes of pages that the store may ever have; 0: 16 GiB. It may be another number each time.
   */
  uint64_t capacity_bytes;
  /*
   The most bytes of superseded values that are kept in memory for open transactions; 0: 256 MiB.
   */
  uint64_t version_bytes;
  /*
   The bytes of log after which a commit makes a checkpoint; 0: 64 MiB.
   */
  uint64_t checkpoint_bytes;
  /*
   BP_STORE_CREATE and BP_STORE_ASYNC, or 0.
   */
  uint32_t flags;
  /*
   One of bp_store_engine.
   */
  uint32_t engine;
  /*
   The bytes of a page: a power of two from 4096 to 65536; 0: those of the store, or 4096 for a new one. Another number than
   that of an existing store is an error. A key has at most an eighth of a page.
   */
  uint64_t page_bytes;
};

/*
 A store that is open.
 */
struct bp_store {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 Counts of a store. They count from the opening on, unless they say otherwise.
 */
struct bp_store_statistics {
  /*
   Transactions that wrote something and committed.
   */
  uint64_t commits;
  /*
   Commits that failed with BP_STORE_ERROR_CONFLICT.
   */
  uint64_t conflicts;
  /*
   Bytes of superseded values that are kept now.
   */
  uint64_t version_bytes;
  /*
   Bytes that were appended to the log since the store was created.
   */
  uint64_t log_bytes;
  /*
   Checkpoints, the one at the opening included.
   */
  uint64_t checkpoints;
  /*
   Checkpoints that a commit began and that failed. The commits are durable, and the log grows until a checkpoint succeeds:
   bp_store_checkpoint() returns the reason.
   */
  uint64_t failed_checkpoints;
  /*
   Trees that the store has now.
   */
  uint64_t trees;
  /*
   Pages that were read from the file.
   */
  uint64_t pages_read;
  /*
   Pages that were written to the file.
   */
  uint64_t pages_written;
  /*
   Pages that left memory.
   */
  uint64_t pages_evicted;
  /*
   Pages that are in memory now.
   */
  uint64_t pages_in_memory;
  /*
   Pages that fit into memory.
   */
  uint64_t pages_in_memory_max;
  /*
   The engine that was chosen: one of bp_store_engine.
   */
  uint32_t engine;
  /*
   0.
   */
  uint32_t reserved;
  /*
   How often a commit or a checkpoint waited for another commit.
   */
  uint64_t commit_waits;
  /*
   How often a thread waited for a page that another thread held or read.
   */
  uint64_t page_waits;
  /*
   How often a thread waited for room in memory, because no page could be evicted at once.
   */
  uint64_t frame_waits;
  /*
   Durations of commits that wrote something, in nanoseconds: half of them took at most this long.
   */
  uint64_t commit_p50_ns;
  /*
   99 of 100 commits took at most this long.
   */
  uint64_t commit_p99_ns;
  /*
   The longest commit.
   */
  uint64_t commit_max_ns;
  /*
   Durations of writes of the log with their fsync, in nanoseconds: half of them took at most this long.
   */
  uint64_t log_write_p50_ns;
  /*
   99 of 100 writes of the log took at most this long.
   */
  uint64_t log_write_p99_ns;
  /*
   The longest write of the log.
   */
  uint64_t log_write_max_ns;
  /*
   Durations of checkpoints, in nanoseconds: half of them took at most this long.
   */
  uint64_t checkpoint_p50_ns;
  /*
   99 of 100 checkpoints took at most this long.
   */
  uint64_t checkpoint_p99_ns;
  /*
   The longest checkpoint.
   */
  uint64_t checkpoint_max_ns;
};

/*
 The function of an update. `argument` is the one of bp_store_update(). It returns BP_STORE_OK to have the
 transaction committed, or another number to have it undone. It must return: neither longjmp() nor a C++ exception may leave it.
 */
typedef int (*bp_store_work)(struct bp_store_transaction transaction, void *argument);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The library's version, as in "0.1.0".
 */
const char *bp_store_version(void);

/*
 The meaning of a code, in words; never NULL.
 */
const char *bp_store_strerror(int code);

/*
 The reason of this thread's last failure, in words; "" if no call has failed. Valid until the next call that fails.
 */
const char *bp_store_error(void);

/*
 The error number (errno) of this thread's last failure; 0 if the kernel had no part in it.
 */
int bp_store_error_number(void);

/*
 Opens a cursor over a range of a tree, before its first record; `range` NULL: all records. The bytes of the range are copied.

 # Safety
 `range` is NULL or readable, as its bytes are; `opened` is writable or NULL.
 */
int bp_store_open_cursor(struct bp_store_transaction transaction,
                         struct bp_store_tree tree,
                         const struct bp_store_range *range,
                         struct bp_store_cursor *opened);

/*
 Closes a cursor. The end of its transaction closes it, too.
 */
int bp_store_close_cursor(struct bp_store_cursor cursor);

/*
 Moves to between the last key below `key` and the first key that is not below it. So bp_store_next() returns the record of
 `key` if it is there.

 # Safety
 `key_len` bytes at `key` are readable, or `key` is NULL.
 */
int bp_store_seek(struct bp_store_cursor cursor,
                  const void *key,
                  size_t key_len);

/*
 Moves before the first record of the range.
 */
int bp_store_seek_first(struct bp_store_cursor cursor);

/*
 Moves after the last record of the range.
 */
int bp_store_seek_last(struct bp_store_cursor cursor);

/*
 Moves to the next record: BP_STORE_OK with its key and value, or BP_STORE_END, and both are {NULL, 0}; from the end,
 bp_store_previous() returns the last record. `key` and `value` may be NULL. The bytes are the library's. They are valid until
 the cursor is used again or closed, or the transaction ends.

 The transaction's own writes are seen. A write transaction counts the records as read, and with them as many as the cursor has
 returned, up to BP_STORE_AHEAD_MAX, which the cursor reads ahead.

 # Safety
 `key` and `value` are writable or NULL.
 */
int bp_store_next(struct bp_store_cursor cursor,
                  struct bp_store_bytes *key,
                  struct bp_store_bytes *value);

/*
 Moves to the record before; otherwise as bp_store_next(). At the beginning it is BP_STORE_END, and bp_store_next() then returns
 the first record.

 # Safety
 As for bp_store_next().
 */
int bp_store_previous(struct bp_store_cursor cursor,
                      struct bp_store_bytes *key,
                      struct bp_store_bytes *value);

/*
 Opens the store in a directory, and recovers it if it was not closed. One process at a time has a store open.

 # Safety
 `directory` is a C string or NULL; `options` is NULL or as long as it says; `opened` is writable or NULL.
 */
int bp_store_open(const char *directory,
                  const struct bp_store_options *options,
                  struct bp_store *opened);

/*
 Makes everything durable and closes the store, so that the next opening has nothing to recover.

 BP_STORE_ERROR_ACTIVE if transactions are open, or another thread is in a function on the store: it stays open. After any error
 that is not the program's mistake the store is closed all the same, and the next opening recovers it.
 */
int bp_store_close(struct bp_store store);

/*
 Makes all commits durable; of use with BP_STORE_ASYNC.
 */
int bp_store_sync(struct bp_store store);

/*
 Writes all pages to the file and drops the part of the log that is not needed any more. Commits go on meanwhile. The store
 makes checkpoints by itself, so a program need not call this.
 */
int bp_store_checkpoint(struct bp_store store);

/*
 Counts of a store. `size` is sizeof the structure.

 # Safety
 `statistics` is writable, as many bytes as `size` says, or NULL.
 */
int bp_store_get_statistics(struct bp_store store,
                            struct bp_store_statistics *statistics,
                            size_t size);

/*
 Begins a transaction. With BP_STORE_READ_ONLY in `flags` it reads the store as it is now, whatever others commit
 meanwhile. Without, it reads the store as it is now, keeps its writes to itself, and is validated when it commits. Every
 transaction must be ended by bp_store_commit() or bp_store_abort(): until then, values that others replace are kept in memory
 for it.

 # Safety
 `begun` is writable or NULL.
 */
int bp_store_begin(struct bp_store store,
                   uint32_t flags,
                   struct bp_store_transaction *begun);

/*
 Commits a transaction and ends it, with its cursors, whatever this returns, unless the error is a mistake of the program's:
 one of BP_STORE_ERROR_HANDLE, CLOSED, BUSY, FORKED and IN_UPDATE.

 BP_STORE_ERROR_CONFLICT if another transaction has committed a change of a record or a range that this one read: nothing was
 written, and the program begins again. That is so even if this one wrote nothing. A read-only transaction never conflicts.
 */
int bp_store_commit(struct bp_store_transaction transaction);

/*
 Undoes a transaction and ends it, with its cursors. So does a read-only one end.
 */
int bp_store_abort(struct bp_store_transaction transaction);

/*
 The value of a key: BP_STORE_OK and the value, or BP_STORE_NOT_FOUND, and `value` is {NULL, 0}. The bytes are the library's.
 They are valid until the next bp_store_get() in this transaction, or its end, and may be passed to any function. If `value` is
 NULL, this only says whether the key is there.

 # Safety
 `key_len` bytes at `key` are readable, or `key` is NULL; `value` is writable or NULL.
 */
int bp_store_get(struct bp_store_transaction transaction,
                 struct bp_store_tree tree,
                 const void *key,
                 size_t key_len,
                 struct bp_store_bytes *value);

/*
 Inserts a record, or replaces its value. It reads nothing, so it alone never conflicts.

 # Safety
 `key_len` bytes at `key` and `value_len` bytes at `value` are readable, or the pointers are NULL.
 */
int bp_store_put(struct bp_store_transaction transaction,
                 struct bp_store_tree tree,
                 const void *key,
                 size_t key_len,
                 const void *value,
                 size_t value_len);

/*
 Inserts a record unless the key is there: BP_STORE_EXISTS, and its value stays.

 # Safety
 As for bp_store_put().
 */
int bp_store_insert(struct bp_store_transaction transaction,
                    struct bp_store_tree tree,
                    const void *key,
                    size_t key_len,
                    const void *value,
                    size_t value_len);

/*
 Deletes a record: BP_STORE_OK, or BP_STORE_NOT_FOUND if the key is not there.

 # Safety
 `key_len` bytes at `key` are readable, or `key` is NULL.
 */
int bp_store_delete(struct bp_store_transaction transaction,
                    struct bp_store_tree tree,
                    const void *key,
                    size_t key_len);

/*
 Deletes all records of a range; `range` NULL: all records of the tree. `deleted`, which may be NULL, gets the number of them.
 BP_STORE_ERROR_TOO_LARGE if there are more than a transaction may write: delete them in several transactions.

 # Safety
 `range` is NULL or readable, as its bytes are; `deleted` is writable or NULL.
 */
int bp_store_delete_range(struct bp_store_transaction transaction,
                          struct bp_store_tree tree,
                          const struct bp_store_range *range,
                          uint64_t *deleted);

/*
 Opens a tree by its name, which is UTF-8. With BP_STORE_CREATE in `flags`, an empty tree is created if there is none; its
 creation is a commit of its own, and durable when this returns unless the store was opened with BP_STORE_ASYNC. A tree that is
 opened twice has the same handle.

 # Safety
 `name` is a C string or NULL; `opened` is writable or NULL.
 */
int bp_store_open_tree(struct bp_store store,
                       const char *name,
                       uint32_t flags,
                       struct bp_store_tree *opened);

/*
 Removes a tree with all its records. BP_STORE_ERROR_ACTIVE while any transaction of the store is open. It is a commit of its
 own.

 # Safety
 `name` is a C string or NULL.
 */
int bp_store_drop_tree(struct bp_store store,
                       const char *name);

/*
 The name of the first tree after `after` in the order of names, with a zero at the end; NULL and "" are before all names.
 BP_STORE_END if there is none. `name` may be the same place as `after`, so that a loop goes through all names. Names with a
 zero byte, which only other languages can give, are left out.

 # Safety
 `after` is a C string or NULL; `name` has room for so many bytes, or is NULL.
 */
int bp_store_next_tree(struct bp_store store,
                       const char *after,
                       char *name,
                       size_t bytes);

/*
 Runs `work` in a transaction and commits it, and does so again after each conflict. After 8 conflicts, `work` runs while no
 other transaction of the store commits, so this comes to an end.

 `work` may run several times: it must not change anything of the program's that another run would find changed. If it returns
 BP_STORE_OK, the transaction is committed, and this returns BP_STORE_OK or the error of the commit. If it returns
 BP_STORE_ERROR_CONFLICT or BP_STORE_ERROR_SNAPSHOT_TOO_OLD, it runs again. If it returns anything else, the transaction
 is undone, and this returns the same number.

 In `work` the transaction must not be committed or aborted, and in its thread no other function may be called for the store
 that commits, closes, or makes a checkpoint: BP_STORE_ERROR_IN_UPDATE. Nor may it wait for a thread that does so.

 # Safety
 `work` is NULL or a function that may be called with `argument`.
 */
int bp_store_update(struct bp_store store,
                    bp_store_work work,
                    void *argument);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
