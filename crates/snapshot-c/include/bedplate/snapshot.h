/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * snapshot: memory of which instant snapshots are taken. Link with -lbedplate_snapshot, or use pkg-config bedplate-snapshot.
 *
 * Functions return a bp_snapshot_code: 0 or more, or an error, which is negative. bp_snapshot_error() says in words what was
 * wrong in this thread's last call that failed. Handles are numbers: a handle that was never given out, was closed, or is of
 * another kind is an error, never an access to memory. All functions may be called in any thread, several at once.
 *
 * Structures that begin with a size may grow: set it to sizeof the structure, and all that you do not use to 0.
 *
 * Generated from the Rust sources.
 */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of bp_snapshot_options: tasks run in a child process, where they see the memory at its own address. */
#define BP_SNAPSHOT_IN_CHILD UINT32_C(0x1)
/* The memory keeps track of which pages change, for bp_snapshot_changed_since(). Only the engine uffd can. */
#define BP_SNAPSHOT_TRACK_CHANGES UINT32_C(0x2)
/* The kernel may back the memory with transparent huge pages. */
#define BP_SNAPSHOT_HUGE_PAGES UINT32_C(0x4)
/* The memory is a heap: its blocks are allocated by bp_snapshot_allocate(). */
#define BP_SNAPSHOT_HEAP UINT32_C(0x8)
/* For the engine ring0: page tables are copied at each snapshot, and not ahead of it. */
#define BP_SNAPSHOT_NOT_AHEAD UINT32_C(0x10)

/* The largest alignment of a heap's block: 2 MiB. */
#define BP_SNAPSHOT_LARGEST_ALIGNMENT ((size_t)0x200000)


/*
 What functions return. Errors are negative.
 */
enum bp_snapshot_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   It is done.
   */
  BP_SNAPSHOT_OK = 0,
  /*
   The task has not ended yet.
   */
  BP_SNAPSHOT_NOT_YET = 1,
  /*
   There may be more ranges than there was room for.
   */
  BP_SNAPSHOT_MORE = 2,
  /*
   The snapshot was given up, because there was no memory for pages that it shared with its owner. What was read from it
   does not count. The memory itself is unharmed.
   */
  BP_SNAPSHOT_ERROR_INCOMPLETE = -1,
  /*
   The task did not end: its process was killed, or ended by itself.
   */
  BP_SNAPSHOT_ERROR_TASK = -2,
  /*
   A system call failed: bp_snapshot_error_number() says how.
   */
  BP_SNAPSHOT_ERROR_SYSTEM = -16,
  /*
   The engine does not work on this machine, or cannot do what was asked for.
   */
  BP_SNAPSHOT_ERROR_UNAVAILABLE = -17,
  /*
   The memory is as large as it can become.
   */
  BP_SNAPSHOT_ERROR_NO_ROOM = -18,
  /*
   As many snapshots are active as there can be: let one end.
   */
  BP_SNAPSHOT_ERROR_TOO_MANY = -19,
  /*
   There are too many handles.
   */
  BP_SNAPSHOT_ERROR_FULL = -20,
  /*
   The memory was made without BP_SNAPSHOT_TRACK_CHANGES.
   */
  BP_SNAPSHOT_ERROR_NOT_TRACKED = -21,
  /*
   The bookmark is not of an earlier snapshot of this memory: all of the memory may have changed since.
   */
  BP_SNAPSHOT_ERROR_NOT_EARLIER = -22,
  /*
   There are no snapshots of snapshots.
   */
  BP_SNAPSHOT_ERROR_OF_A_SNAPSHOT = -23,
  /*
   What was asked for cannot be.
   */
  BP_SNAPSHOT_ERROR_INVALID = -32,
  /*
   A pointer is NULL that must not be.
   */
  BP_SNAPSHOT_ERROR_NULL = -33,
  /*
   There never was such a handle, or it is one of something else.
   */
  BP_SNAPSHOT_ERROR_HANDLE = -34,
  /*
   The handle was closed.
   */
  BP_SNAPSHOT_ERROR_CLOSED = -35,
  /*
   The handle is the parent process's.
   */
  BP_SNAPSHOT_ERROR_FORKED = -36,
  /*
   The memory is not a heap.
   */
  BP_SNAPSHOT_ERROR_NOT_A_HEAP = -37,
  /*
   The memory is a heap, which grows by itself.
   */
  BP_SNAPSHOT_ERROR_A_HEAP = -38,
  /*
   This is no block of this heap: it was freed before, or something has written over the bytes in front of it.
   */
  BP_SNAPSHOT_ERROR_BLOCK = -39,
  /*
   This is not a bookmark that this process has got.
   */
  BP_SNAPSHOT_ERROR_BOOKMARK = -40,
  /*
   Something went wrong within the library. A handle in which this happens can only be closed.
   */
  BP_SNAPSHOT_ERROR_INTERNAL = -64,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bp_snapshot_code bp_snapshot_code;
#else
typedef int32_t bp_snapshot_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What makes snapshots. docs/snapshot.md says what each of them costs and what it cannot do.
 */
enum bp_snapshot_engine {
  /*
   The best one that works here and has what is asked for, found by trying. It is not BP_SNAPSHOT_ENGINE_RING0.
   */
  BP_SNAPSHOT_ENGINE_AUTO = 0,
  /*
   Page tables are moved, and the kernel copies pages. It has the shortest pause, and one snapshot at a time in the process.
   */
  BP_SNAPSHOT_ENGINE_REMAP = 1,
  /*
   Write protection by userfaultfd. It has 16 snapshots at once, and can keep track of changes.
   */
  BP_SNAPSHOT_ENGINE_UFFD = 2,
  /*
   fork(). It runs tasks in children only.
   */
  BP_SNAPSHOT_ENGINE_FORK = 3,
  /*
   Page tables in ring 0 of a processor. Tasks run in threads of this process, and see the memory at its own address.
   */
  BP_SNAPSHOT_ENGINE_RING0 = 4,
};

/*
 Memory of which snapshots are taken.
 */
struct bp_snapshot_memory {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 A memory to be created.
 */
struct bp_snapshot_options {
  /*
   sizeof(struct bp_snapshot_options)
   */
  size_t size;
  /*
   The memory's size to begin with, in bytes; it is rounded up to whole pages of 4 KiB. At most 2^46.
   */
  size_t bytes;
  /*
   The size to which the memory can grow, in bytes; 0: it cannot grow. Addresses are reserved for it, but no memory.
   */
  size_t reserve;
  /*
   One of bp_snapshot_engine.
   */
  uint32_t engine;
  /*
   BP_SNAPSHOT_IN_CHILD and the like, or 0.
   */
  uint32_t flags;
  /*
   How many snapshots may be active at once; 0: 1. An engine that has fewer is not chosen.
   */
  uint32_t snapshots_at_once;
  /*
   For ring0: how many snapshots can be taken in a row without copying page tables; 0: 2.
   */
  uint32_t ahead;
  /*
   For ring0: how many threads make page tables ready for that; 0: 1.
   */
  uint32_t copiers;
  /*
   0.
   */
  uint32_t reserved;
};

/*
 What a memory is.
 */
struct bp_snapshot_memory_info {
  /*
   Where it begins. The program may read and write it from there until the memory is destroyed.
   */
  uint8_t *base;
  /*
   How many bytes of it are accessible.
   */
  size_t len;
  /*
   The engine that was chosen: one of bp_snapshot_engine.
   */
  uint32_t engine;
  /*
   The flags with which it was created.
   */
  uint32_t flags;
};

/*
 A part of a memory: the bytes from `start` to before `end`.
 */
struct bp_snapshot_range {
  /*
   The first byte, counted from the memory's beginning.
   */
  size_t start;
  /*
   The byte after the last.
   */
  size_t end;
};

/*
 What has happened to a memory since it was created. Times are in nanoseconds.
 */
struct bp_snapshot_statistics {
  /*
   Snapshots taken.
   */
  uint64_t snapshots;
  /*
   Snapshots that could not be taken.
   */
  uint64_t failed;
  /*
   Snapshots that have not ended.
   */
  uint64_t active;
  /*
   Write faults that the engine handled.
   */
  uint64_t faults;
  /*
   Snapshots that were given up because a page could not be kept for them.
   */
  uint64_t incomplete;
  /*
   Pages whose old content was kept for a snapshot; of remap: of which writers got copies.
   */
  uint64_t pages_copied;
  /*
   Pages that were write-protected during the pauses of snapshots.
   */
  uint64_t pages_armed_at_snapshots;
  /*
   Pages that were write-protected ahead of time.
   */
  uint64_t pages_armed_ahead;
  /*
   Pages that are not write-protected now.
   */
  uint64_t pages_unarmed;
  /*
   Pages that are mapped privately now, copied or not.
   */
  uint64_t pages_private;
  /*
   Pages that are in use now.
   */
  uint64_t pages_claimed;
  /*
   Snapshots for which everything had been made ready before.
   */
  uint64_t instantaneous;
  /*
   With remap: snapshots for which fork() copied page tables, because an earlier one was not merged.
   */
  uint64_t copied_as_usual;
  /*
   With remap: times at which all was merged after snapshots had ended.
   */
  uint64_t merges;
  /*
   How long the latest of them took.
   */
  uint64_t latest_merge_ns;
  /*
   How long all of them took.
   */
  uint64_t merges_ns;
  /*
   Bytes that snapshots take beside the memory itself, with what is made ahead for them.
   */
  uint64_t extra_bytes;
  /*
   The longest time for which a snapshot held up writers.
   */
  uint64_t longest_pause_ns;
  /*
   The latest of these times.
   */
  uint64_t latest_pause_ns;
  /*
   All of these times together.
   */
  uint64_t pauses_ns;
  /*
   How many of these times were at most 8192 ns, at most 16384 ns, and so on, each bound twice the one before and each
   time counted once; the last number is of those above 8192 << 20.
   */
  uint64_t pauses[22];
};

/*
 A memory as it was at one moment, for threads of this process. It ends when all handles of it are released.
 */
struct bp_snapshot {
  /*
   The number of this handle; never 0.
   */
  uint64_t handle;
};

/*
 A memory as it was, where a thread or a task reads it.
 */
struct bp_snapshot_view {
  /*
   The memory's bytes as they were. They can only be read.
   */
  const uint8_t *data;
  /*
   How many there are.
   */
  size_t len;
  /*
   Where the owner has them. If this is `data`, pointers in the data can be followed; otherwise they lead to what is there
   now.
   */
  const uint8_t *home;
};

/*
 What a snapshot is.
 */
struct bp_snapshot_info {
  /*
   Its number: later snapshots of a memory have greater ones.
   */
  uint64_t epoch;
  /*
   For how many nanoseconds the memory's writers stood still for it.
   */
  uint64_t pause_ns;
};

/*
 The moment of a snapshot, for later snapshots to be compared with, also when it has ended itself. It takes nothing that
 would have to be freed, and can be copied. It means nothing in another process, nor after this one has ended.
 */
struct bp_snapshot_bookmark {
  /*
   The library's.
   */
  uint64_t word[4];
};

/*
 Where a task writes what it returns: see bp_snapshot_write(). It is closed when the task's function returns.
 */
struct bp_snapshot_output {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 A task's function. `argument` is what the program passed; the memory as it was is in `view`. What the function returns is
 the `status` of the task's result. It must return: neither longjmp() nor a C++ exception may leave it.
 */
typedef int (*bp_snapshot_work)(void *argument,
                                const struct bp_snapshot_view *view,
                                struct bp_snapshot_output output);

/*
 A function that runs on a snapshot.
 */
struct bp_snapshot_task {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 What a task returned.
 */
struct bp_snapshot_result {
  /*
   What it has written. It is there until the task is closed.
   */
  const uint8_t *data;
  /*
   How many bytes there are.
   */
  size_t len;
  /*
   What its function returned.
   */
  int32_t status;
  /*
   0.
   */
  uint32_t reserved;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The library's version, as in "0.1.0".
 */
const char *bp_snapshot_version(void);

/*
 What a code means, in words; never NULL.
 */
const char *bp_snapshot_strerror(int code);

/*
 What went wrong in this thread's last call that failed, in words; "" if none did. Valid until the next one.
 */
const char *bp_snapshot_error(void);

/*
 The error number (errno) of this thread's last call that failed; 0 if the kernel had no part in it.
 */
int bp_snapshot_error_number(void);

/*
 Allocates a block of a heap. `alignment` is a power of two up to BP_SNAPSHOT_LARGEST_ALIGNMENT; 0: 16, as malloc() has it. A
 block takes as many bytes more as it is aligned to, at least 16. Its content is not defined.

 # Safety
 `block` is writable or NULL.
 */
int bp_snapshot_allocate(struct bp_snapshot_memory memory,
                         size_t bytes,
                         size_t alignment,
                         void **block);

/*
 As bp_snapshot_allocate(), with zeros in the block.

 # Safety
 `block` is writable or NULL.
 */
int bp_snapshot_allocate_zeroed(struct bp_snapshot_memory memory,
                                size_t bytes,
                                size_t alignment,
                                void **block);

/*
 Makes a block larger or smaller. Its content stays, as far as there is room; its alignment, too. `resized` gets where it is
 now, which may be elsewhere; then nobody may look at the old block. If it cannot be done the block stays as it is. A block of
 NULL is a new one.

 # Safety
 `block` is NULL or a block that nobody else uses meanwhile; `resized` is writable or NULL.
 */
int bp_snapshot_resize(struct bp_snapshot_memory memory,
                       void *block,
                       size_t bytes,
                       void **resized);

/*
 Frees a block. NULL is no block, and nothing happens.

 # Safety
 `block` is NULL or a block that nobody uses any more.
 */
int bp_snapshot_free(struct bp_snapshot_memory memory, void *block);

/*
 Creates a memory, filled with zeros.

 # Safety
 `options` is NULL or as long as it says; `created` is writable or NULL.
 */
int bp_snapshot_create(const struct bp_snapshot_options *options,
                       struct bp_snapshot_memory *created);

/*
 Destroys a memory. Nobody may access it at its own address any more, nor any block of a heap. Its snapshots can still be
 read, until they are released; its tasks go on.
 */
int bp_snapshot_destroy(struct bp_snapshot_memory memory);

/*
 Where a memory is, how large it is now, and which engine it has. `size` is sizeof the structure. Also in a child that runs a
 task on the memory.

 # Safety
 `info` is writable, as many bytes as `size` says, or NULL.
 */
int bp_snapshot_get_memory_info(struct bp_snapshot_memory memory,
                                struct bp_snapshot_memory_info *info,
                                size_t size);

/*
 Which engine a memory has, and why not a better one, in words: as much as `bytes` has room for, with a zero at the end.

 # Safety
 `text` has room for so many bytes, or is NULL.
 */
int bp_snapshot_about(struct bp_snapshot_memory memory,
                      char *text,
                      size_t bytes);

/*
 Makes `bytes` more of a memory accessible, rounded up to whole pages, up to the reserve. The new bytes are zero. Snapshots
 that were taken before do not have them. `grown` gets where they are in the memory; it may be NULL.

 # Safety
 `grown` is writable or NULL.
 */
int bp_snapshot_grow(struct bp_snapshot_memory memory,
                     size_t bytes,
                     struct bp_snapshot_range *grown);

/*
 Does what can be done ahead of the next snapshot, or waits until it is done. With the engine uffd this write-protects all
 pages that were written since the snapshot before, which shortens the next pause; the next write to each of them is slower. The
 other engines work ahead by themselves.
 */
int bp_snapshot_settle(struct bp_snapshot_memory memory);

/*
 What has happened to a memory so far. `size` is sizeof the structure.

 # Safety
 `statistics` is writable, as many bytes as `size` says, or NULL.
 */
int bp_snapshot_get_statistics(struct bp_snapshot_memory memory,
                               struct bp_snapshot_statistics *statistics,
                               size_t size);

/*
 Takes a snapshot that any thread of this process can read, at another address than the memory's. remap has one at a time,
 uffd has 16; the other engines have none, only tasks.

 # Safety
 `taken` is writable or NULL.
 */
int bp_snapshot_take(struct bp_snapshot_memory memory,
                     struct bp_snapshot *taken);

/*
 Makes another handle of a snapshot, to be released on its own: for a thread that may read longer than the others.

 # Safety
 `cloned` is writable or NULL.
 */
int bp_snapshot_clone(struct bp_snapshot snapshot,
                      struct bp_snapshot *cloned);

/*
 Releases a handle of a snapshot. After the last one nobody may look at the snapshot's bytes any more.
 */
int bp_snapshot_release(struct bp_snapshot snapshot);

/*
 Where the bytes of a snapshot are. They are there until its last handle is released. `size` is sizeof the structure.

 # Safety
 `view` is writable, as many bytes as `size` says, or NULL.
 */
int bp_snapshot_get_view(struct bp_snapshot snapshot,
                         struct bp_snapshot_view *view,
                         size_t size);

/*
 Where a view has what the owner had in `len` bytes at its own address `owners`. NULL if not all of them are in the view.

 # Safety
 `view` is one that bp_snapshot_get_view() has filled in, or a task's, or NULL.
 */
const void *bp_snapshot_bytes_at(const struct bp_snapshot_view *view,
                                 const void *owners,
                                 size_t len);

/*
 Whether all that was read from a snapshot before this call is what the memory was. BP_SNAPSHOT_ERROR_INCOMPLETE: there was no
 memory for a page that it shared with its owner, so what was read does not count. With remap it always is.
 */
int bp_snapshot_check(struct bp_snapshot snapshot);

/*
 A snapshot's number, and how long writers stood still for it. `size` is sizeof the structure.

 # Safety
 `info` is writable, as many bytes as `size` says, or NULL.
 */
int bp_snapshot_get_info(struct bp_snapshot snapshot, struct bp_snapshot_info *info, size_t size);

/*
 Gives the moment of a snapshot, for bp_snapshot_changed_since(). The memory must keep track of changes.

 # Safety
 `bookmark` is writable or NULL.
 */
int bp_snapshot_get_bookmark(struct bp_snapshot snapshot,
                             struct bp_snapshot_bookmark *bookmark);

/*
 Gives the parts of a memory that were written between an earlier snapshot, of which this is the bookmark, and this snapshot:
 ranges of whole pages, in ascending order, from the byte `from` on. A page is also in one if a thread began its first write to
 it before this snapshot, and the write took effect after it. The last range is the part by which the memory has grown. The
 function fills in at most `capacity` ranges, and their number at `count`. BP_SNAPSHOT_OK: there are no more.
 BP_SNAPSHOT_MORE: call again, with `from` the end of the last range.

 # Safety
 `earlier` is readable or NULL; `ranges` has room for so many, or is NULL; `count` is writable or NULL.
 */
int bp_snapshot_changed_since(struct bp_snapshot snapshot,
                              const struct bp_snapshot_bookmark *earlier,
                              size_t from,
                              struct bp_snapshot_range *ranges,
                              size_t capacity,
                              size_t *count);

/*
 Takes a snapshot and runs `work` on it: in a child process if the memory was created with BP_SNAPSHOT_IN_CHILD or has the
 engine fork, in a thread otherwise. So the function must not rely on threads or locks of the program. A
 heap has no tasks in threads.

 # Safety
 `work` is NULL or a function that may be called with `argument` in any thread; `spawned` is writable or NULL.
 */
int bp_snapshot_spawn(struct bp_snapshot_memory memory,
                      bp_snapshot_work work,
                      void *argument,
                      struct bp_snapshot_task *spawned);

/*
 Takes a snapshot and runs `work` on it in a child process. The child sees the memory at its own address, so data with
 pointers can be read there, and has a copy of all else that the program has. It has one thread. So it must not wait for a
 lock that another thread may have held. In it, no handle of the program works, except the memory's for the functions of
 heaps: it can allocate from what is free.

 # Safety
 `work` is NULL or a function that may be called with `argument`; `spawned` is writable or NULL.
 */
int bp_snapshot_spawn_in_child(struct bp_snapshot_memory memory,
                               bp_snapshot_work work,
                               void *argument,
                               struct bp_snapshot_task *spawned);

/*
 Adds to what a task returns. Only the task's function can do so, in its own process.

 # Safety
 `len` bytes at `data` are readable, or `data` is NULL.
 */
int bp_snapshot_write(struct bp_snapshot_output output, const void *data, size_t len);

/*
 Whether a task has ended. BP_SNAPSHOT_NOT_YET: it has not. BP_SNAPSHOT_OK: it has, so bp_snapshot_join() does not wait.
 */
int bp_snapshot_poll(struct bp_snapshot_task task);

/*
 Waits for a task and gives what it returned. It can be called again, and by several threads. `size` is sizeof the structure.
 BP_SNAPSHOT_ERROR_INCOMPLETE, BP_SNAPSHOT_ERROR_TASK: what it returned cannot be had, and `result` stays as it is.

 # Safety
 `result` is writable, as many bytes as `size` says, or NULL.
 */
int bp_snapshot_join(struct bp_snapshot_task task,
                     struct bp_snapshot_result *result,
                     size_t size);

/*
 The number of a task's snapshot, and how long writers stood still for it: with a child, also for its fork(). `size` is sizeof
 the structure.

 # Safety
 `info` is writable, as many bytes as `size` says, or NULL.
 */
int bp_snapshot_get_task_info(struct bp_snapshot_task task,
                              struct bp_snapshot_info *info,
                              size_t size);

/*
 Closes a task, and waits for nothing: a task that has not ended goes on. What it returned is gone.
 */
int bp_snapshot_close_task(struct bp_snapshot_task task);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
