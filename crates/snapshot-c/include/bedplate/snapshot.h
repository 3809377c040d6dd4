/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * snapshot: memory of which instant snapshots are taken. Link with -lbedplate_snapshot, or use pkg-config bedplate-snapshot.
 *
 * Functions return a bp_snapshot_code: 0 or more, or an error, which is negative. bp_snapshot_error() returns the error text
 * of this thread's last call that failed. Handles are numbers: a handle that was never given out, was closed, or is of
 * another kind is an error, never an access to memory. All functions may be called in any thread, several at once.
 *
 * Structures that begin with a size may grow: set it to sizeof the structure, and all unused fields to 0.
 *
 * Generated from the Rust sources.
 */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Flags of bp_snapshot_options. Tasks run in a child process, where they see the memory at its own address. */
#define BP_SNAPSHOT_IN_CHILD UINT32_C(0x1)
/* The memory tracks which pages change, for bp_snapshot_changed_since(). Only the engine uffd can. */
#define BP_SNAPSHOT_TRACK_CHANGES UINT32_C(0x2)
/* The kernel may back the memory with transparent huge pages. */
#define BP_SNAPSHOT_HUGE_PAGES UINT32_C(0x4)
/* The memory is a heap: its blocks are allocated by bp_snapshot_allocate(). */
#define BP_SNAPSHOT_HEAP UINT32_C(0x8)
/* The engine ring0 copies page tables at each snapshot, and not ahead of it. */
#define BP_SNAPSHOT_NOT_AHEAD UINT32_C(0x10)

/* The largest alignment of a heap's block: 2 MiB. */
#define BP_SNAPSHOT_LARGEST_ALIGNMENT ((size_t)0x200000)


/*
 The results of functions. Errors are negative.
 */
enum bp_snapshot_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Success.
   */
  BP_SNAPSHOT_OK = 0,
  /*
   The task has not ended yet.
   */
  BP_SNAPSHOT_NOT_YET = 1,
  /*
   There may be more ranges than the array has room for.
   */
  BP_SNAPSHOT_MORE = 2,
  /*
   The snapshot was abandoned, because there was no memory for pages that it shared with its owner. Bytes that were read from
   it do not count. The memory itself is undamaged.
   */
  BP_SNAPSHOT_ERROR_INCOMPLETE = -1,
  /*
   The task did not end normally: its process was killed, or exited by itself.
   */
  BP_SNAPSHOT_ERROR_TASK = -2,
  /*
   A system call failed: bp_snapshot_error_number() gives the error.
   */
  BP_SNAPSHOT_ERROR_SYSTEM = -16,
  /*
   The engine does not work on this machine, or does not support the request.
   */
  BP_SNAPSHOT_ERROR_UNAVAILABLE = -17,
  /*
   The memory has its maximum size.
   */
  BP_SNAPSHOT_ERROR_NO_ROOM = -18,
  /*
   The maximum number of snapshots is active. Wait until one ends.
   */
  BP_SNAPSHOT_ERROR_TOO_MANY = -19,
  /*
   There are too many handles.
   */
  BP_SNAPSHOT_ERROR_FULL = -20,
  /*
   The memory was created without BP_SNAPSHOT_TRACK_CHANGES.
   */
  BP_SNAPSHOT_ERROR_NOT_TRACKED = -21,
  /*
   The bookmark does not belong to an earlier snapshot of this memory, so all of the memory may have changed since then.
   */
  BP_SNAPSHOT_ERROR_NOT_EARLIER = -22,
  /*
   A snapshot of a snapshot is not possible.
   */
  BP_SNAPSHOT_ERROR_OF_A_SNAPSHOT = -23,
  /*
   The request is not possible.
   */
  BP_SNAPSHOT_ERROR_INVALID = -32,
  /*
   A pointer is NULL that must not be NULL.
   */
  BP_SNAPSHOT_ERROR_NULL = -33,
  /*
   The handle was never given out, or is of another kind.
   */
  BP_SNAPSHOT_ERROR_HANDLE = -34,
  /*
   The handle was closed.
   */
  BP_SNAPSHOT_ERROR_CLOSED = -35,
  /*
   The handle belongs to the parent process.
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
   The pointer is not a block of this heap: the block was freed before, or the bytes in front of it were overwritten.
   */
  BP_SNAPSHOT_ERROR_BLOCK = -39,
  /*
   The bookmark was not made by this process.
   */
  BP_SNAPSHOT_ERROR_BOOKMARK = -40,
  /*
   An error within the library. A handle in which this happens can only be closed.
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
 The mechanism that makes snapshots. docs/snapshot.md describes the cost and the limits of each.
 */
enum bp_snapshot_engine {
  /*
   The best one that works here and supports the request. The library tries them. It is not BP_SNAPSHOT_ENGINE_RING0.
   */
  BP_SNAPSHOT_ENGINE_AUTO = 0,
  /*
   Page tables are moved, and the kernel copies pages. It has the shortest pause. The process can have one snapshot at a
   time.
   */
  BP_SNAPSHOT_ENGINE_REMAP = 1,
  /*
   Write protection by userfaultfd. It has up to 16 snapshots at once, and can track changes.
   */
  BP_SNAPSHOT_ENGINE_UFFD = 2,
  /*
   fork(). It only runs tasks in children.
   */
  BP_SNAPSHOT_ENGINE_FORK = 3,
  /*
   Page tables in ring 0 of a processor. Tasks run in threads of this process, and see the memory at its own address.
   */
  BP_SNAPSHOT_ENGINE_RING0 = 4,
};

/*
 A memory of which snapshots are taken.
 */
struct bp_snapshot_memory {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 The options of a memory.
 */
struct bp_snapshot_options {
  /*
   sizeof(struct bp_snapshot_options)
   */
  size_t size;
  /*
   The memory's initial size in bytes, which is rounded up to whole pages of 4 KiB. At most 2^46.
   */
  size_t bytes;
  /*
   Maximum size to which the memory can grow, in bytes; 0: it cannot grow. This reserves addresses, but no memory.
   */
  size_t reserve;
  /*
   One of bp_snapshot_engine.
   */
  uint32_t engine;
  /*
   A combination of BP_SNAPSHOT_IN_CHILD and the other flags, or 0.
   */
  uint32_t flags;
  /*
   Number of snapshots that may be active at once; 0: 1. An engine that supports fewer is not chosen.
   */
  uint32_t snapshots_at_once;
  /*
   For ring0: number of snapshots that can be taken in a row without copying page tables; 0: 2.
   */
  uint32_t ahead;
  /*
   For ring0: number of threads that prepare page tables for that; 0: 1.
   */
  uint32_t copiers;
  /*
   Must be 0.
   */
  uint32_t reserved;
};

/*
 The properties of a memory.
 */
struct bp_snapshot_memory_info {
  /*
   The first address of the memory. The program may read and write the memory until it is destroyed.
   */
  uint8_t *base;
  /*
   Number of accessible bytes.
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
 A part of a memory: the bytes from `start` up to `end`, exclusive.
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
 The counts of a memory since it was created. Times are in nanoseconds.
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
   Snapshots that were abandoned because a page could not be kept for them.
   */
  uint64_t incomplete;
  /*
   Pages whose old content was kept for a snapshot. With remap: pages of which writers got copies.
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
   Snapshots for which all preparations were complete before.
   */
  uint64_t instantaneous;
  /*
   With remap: snapshots for which fork() copied page tables, because an earlier one was not merged.
   */
  uint64_t copied_as_usual;
  /*
   With remap: number of merges after snapshots had ended.
   */
  uint64_t merges;
  /*
   Time that the latest merge took.
   */
  uint64_t latest_merge_ns;
  /*
   Time that all merges took.
   */
  uint64_t merges_ns;
  /*
   Bytes that snapshots take in addition to the memory itself, including preparations for them.
   */
  uint64_t extra_bytes;
  /*
   The longest time for which a snapshot stopped writers.
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
   Histogram of these times: the numbers of times that were at most 8192 ns, at most 16384 ns, and so on. Each bound is twice
   the previous one, and each time is counted once. The last number is that of times above 8192 << 20.
   */
  uint64_t pauses[22];
};

/*
 A memory as it was at one moment, for threads of this process. It ends when all of its handles are released.
 */
struct bp_snapshot {
  /*
   The number of this handle; never 0.
   */
  uint64_t handle;
};

/*
 A memory as it was, at the address where a thread or a task reads it.
 */
struct bp_snapshot_view {
  /*
   The old bytes of the memory. They can only be read.
   */
  const uint8_t *data;
  /*
   Number of bytes.
   */
  size_t len;
  /*
   The owner's address of the memory. If this is `data`, pointers in the data can be followed. Otherwise they lead to the
   current content.
   */
  const uint8_t *home;
};

/*
 The properties of a snapshot.
 */
struct bp_snapshot_info {
  /*
   Its number. Later snapshots of a memory have greater numbers.
   */
  uint64_t epoch;
  /*
   Nanoseconds for which it stopped the memory's writers.
   */
  uint64_t pause_ns;
};

/*
 The moment of a snapshot, for comparisons with later snapshots, even after the snapshot has ended. It holds no resources, and
 can be copied. It is valid only in this process.
 */
struct bp_snapshot_bookmark {
  /*
   For the library.
   */
  uint64_t word[4];
};

/*
 The output of a task: see bp_snapshot_write(). It is closed when the task's function returns.
 */
struct bp_snapshot_output {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 A task's function. `argument` is the value that the program passed, and `view` is the memory as it was. The function's return
 value is the `status` of the task's result. It must return: neither longjmp() nor a C++ exception may leave it.
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
 The result of a task.
 */
struct bp_snapshot_result {
  /*
   The bytes that it has written. They exist until the task is closed.
   */
  const uint8_t *data;
  /*
   Number of bytes.
   */
  size_t len;
  /*
   The return value of its function.
   */
  int32_t status;
  /*
   Always 0.
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
 Returns the meaning of a code as text, never NULL.
 */
const char *bp_snapshot_strerror(int code);

/*
 Returns the error text of this thread's last call that failed; "" if none did. It is valid until the next such call.
 */
const char *bp_snapshot_error(void);

/*
 Returns the error number (errno) of this thread's last call that failed; 0 if no system call failed.
 */
int bp_snapshot_error_number(void);

/*
 Allocates a block of a heap. `alignment` is a power of two up to BP_SNAPSHOT_LARGEST_ALIGNMENT; 0: 16, like malloc(). A block
 takes as many additional bytes as its alignment, at least 16. Its content is undefined.

 # Safety
 `block` is writable or NULL.
 */
int bp_snapshot_allocate(struct bp_snapshot_memory memory,
                         size_t bytes,
                         size_t alignment,
                         void **block);

/*
 Does the same as bp_snapshot_allocate(), and fills the block with zeros.

 # Safety
 `block` is writable or NULL.
 */
int bp_snapshot_allocate_zeroed(struct bp_snapshot_memory memory,
                                size_t bytes,
                                size_t alignment,
                                void **block);

/*
 Makes a block larger or smaller. It keeps its alignment, and its content up to the smaller size. `resized` gets its address,
 which may be new. Then no thread may use the old block any more. If the call fails, the block stays unchanged. If `block` is
 NULL, the call allocates a new one.

 # Safety
 `block` is NULL or a block that no other thread uses meanwhile; `resized` is writable or NULL.
 */
int bp_snapshot_resize(struct bp_snapshot_memory memory,
                       void *block,
                       size_t bytes,
                       void **resized);

/*
 Frees a block. If `block` is NULL, the call does nothing.

 # Safety
 `block` is NULL or a block that no thread uses any more.
 */
int bp_snapshot_free(struct bp_snapshot_memory memory, void *block);

/*
 Creates a memory, filled with zeros.

 # Safety
 `options` is NULL or as long as its size says; `created` is writable or NULL.
 */
int bp_snapshot_create(const struct bp_snapshot_options *options,
                       struct bp_snapshot_memory *created);

/*
 Destroys a memory. No thread may access it at its own address any more, nor any block of a heap. Its snapshots can still be
 read until they are released, and its tasks continue.
 */
int bp_snapshot_destroy(struct bp_snapshot_memory memory);

/*
 Gives the address of a memory, its current size, and its engine. `size` is sizeof the structure. A child that runs a task on
 the memory may also call it.

 # Safety
 `info` has `size` writable bytes, or is NULL.
 */
int bp_snapshot_get_memory_info(struct bp_snapshot_memory memory,
                                struct bp_snapshot_memory_info *info,
                                size_t size);

/*
 Describes the engine of a memory, and why it has no better one. The text is cut off after `bytes` bytes, with a zero at the
 end.

 # Safety
 `text` has room for `bytes` bytes, or is NULL.
 */
int bp_snapshot_about(struct bp_snapshot_memory memory,
                      char *text,
                      size_t bytes);

/*
 Makes `bytes` more of a memory accessible, rounded up to whole pages, up to the reserve. The new bytes are zero. Earlier
 snapshots do not have them. `grown` gets their range in the memory; it may be NULL.

 # Safety
 `grown` is writable or NULL.
 */
int bp_snapshot_grow(struct bp_snapshot_memory memory,
                     size_t bytes,
                     struct bp_snapshot_range *grown);

/*
 Prepares the next snapshot as far as possible, or waits until this is done. With the engine uffd, this write-protects all
 pages that were written since the previous snapshot. That shortens the next pause, and makes the next write to each of these
 pages slower. The other engines prepare by themselves.
 */
int bp_snapshot_settle(struct bp_snapshot_memory memory);

/*
 Gives the counts of a memory so far. `size` is sizeof the structure.

 # Safety
 `statistics` has `size` writable bytes, or is NULL.
 */
int bp_snapshot_get_statistics(struct bp_snapshot_memory memory,
                               struct bp_snapshot_statistics *statistics,
                               size_t size);

/*
 Takes a snapshot that any thread of this process can read, at another address than the memory's. With remap there is one at a
 time, and with uffd up to 16. The other engines only support tasks.

 # Safety
 `taken` is writable or NULL.
 */
int bp_snapshot_take(struct bp_snapshot_memory memory,
                     struct bp_snapshot *taken);

/*
 Makes another handle of a snapshot, which is released separately: for a thread that may read longer than the others.

 # Safety
 `cloned` is writable or NULL.
 */
int bp_snapshot_clone(struct bp_snapshot snapshot,
                      struct bp_snapshot *cloned);

/*
 Releases a handle of a snapshot. After the last one is released, no thread may read the snapshot's bytes any more.
 */
int bp_snapshot_release(struct bp_snapshot snapshot);

/*
 Gives the address of a snapshot's bytes. They exist until its last handle is released. `size` is sizeof the structure.

 # Safety
 `view` has `size` writable bytes, or is NULL.
 */
int bp_snapshot_get_view(struct bp_snapshot snapshot,
                         struct bp_snapshot_view *view,
                         size_t size);

/*
 Returns the address in a view of the `len` bytes that the owner had at its own address `owners`; NULL if not all of them are
 in the view.

 # Safety
 `view` was filled in by bp_snapshot_get_view(), or is that of a task, or is NULL.
 */
const void *bp_snapshot_bytes_at(const struct bp_snapshot_view *view,
                                 const void *owners,
                                 size_t len);

/*
 Tells whether all bytes that were read from a snapshot before this call are the old content of the memory.
 BP_SNAPSHOT_ERROR_INCOMPLETE: there was no memory for a page that it shared with its owner, so the bytes do not count. With
 remap this never happens.
 */
int bp_snapshot_check(struct bp_snapshot snapshot);

/*
 Gives a snapshot's number, and the time for which it stopped writers. `size` is sizeof the structure.

 # Safety
 `info` has `size` writable bytes, or is NULL.
 */
int bp_snapshot_get_info(struct bp_snapshot snapshot,
                         struct bp_snapshot_info *info,
                         size_t size);

/*
 Gives the moment of a snapshot, for bp_snapshot_changed_since(). The memory must track changes.

 # Safety
 `bookmark` is writable or NULL.
 */
int bp_snapshot_get_bookmark(struct bp_snapshot snapshot, struct bp_snapshot_bookmark *bookmark);

/*
 Gives the parts of a memory that were written between an earlier snapshot, whose bookmark is `earlier`, and this snapshot:
 ranges of whole pages, in ascending order, from the byte `from` on. A page is also in one if a thread began its first write to
 it before this snapshot, and the write took effect after it. The last range is the part by which the memory has grown. The
 function fills in at most `capacity` ranges, and their number at `count`. BP_SNAPSHOT_OK: there are no more. BP_SNAPSHOT_MORE:
 call again, with `from` the end of the last range.

 # Safety
 `earlier` is readable or NULL; `ranges` has room for `capacity` ranges, or is NULL; `count` is writable or NULL.
 */
int bp_snapshot_changed_since(struct bp_snapshot snapshot,
                              const struct bp_snapshot_bookmark *earlier,
                              size_t from,
                              struct bp_snapshot_range *ranges,
                              size_t capacity,
                              size_t *count);

/*
 Takes a snapshot and runs `work` on it: in a child process if the memory was created with BP_SNAPSHOT_IN_CHILD or has the
 engine fork, and otherwise in a thread. So the function must not rely on threads or locks of the program. A heap does not
 support tasks in threads.

 # Safety
 `work` is NULL or a function that may be called with `argument` in any thread; `spawned` is writable or NULL.
 */
int bp_snapshot_spawn(struct bp_snapshot_memory memory,
                      bp_snapshot_work work,
                      void *argument,
                      struct bp_snapshot_task *spawned);

/*
 Takes a snapshot and runs `work` on it in a child process. The child sees the memory at its own address, so data with
 pointers can be read there, and has a copy of everything else in the program. It has one thread, so it must not wait for a
 lock that another thread may have held. No handle of the program works in it, except that of the memory for the functions of
 heaps: it can allocate from free memory.

 # Safety
 `work` is NULL or a function that may be called with `argument`; `spawned` is writable or NULL.
 */
int bp_snapshot_spawn_in_child(struct bp_snapshot_memory memory,
                               bp_snapshot_work work,
                               void *argument,
                               struct bp_snapshot_task *spawned);

/*
 Appends to the result of a task. Only the task's function can do so, in its own process.

 # Safety
 `len` bytes at `data` are readable, or `data` is NULL.
 */
int bp_snapshot_write(struct bp_snapshot_output output, const void *data, size_t len);

/*
 Tells whether a task has ended. BP_SNAPSHOT_NOT_YET: it has not. BP_SNAPSHOT_OK: it has, so bp_snapshot_join() does not wait.
 */
int bp_snapshot_poll(struct bp_snapshot_task task);

/*
 Waits for a task and gives its result. It can be called again, and by several threads. `size` is sizeof the structure.
 BP_SNAPSHOT_ERROR_INCOMPLETE, BP_SNAPSHOT_ERROR_TASK: the result is lost, and `result` stays unchanged.

 # Safety
 `result` has `size` writable bytes, or is NULL.
 */
int bp_snapshot_join(struct bp_snapshot_task task,
                     struct bp_snapshot_result *result,
                     size_t size);

/*
 Gives the number of a task's snapshot, and the time for which it stopped writers: with a child, including its fork(). `size`
 is sizeof the structure.

 # Safety
 `info` has `size` writable bytes, or is NULL.
 */
int bp_snapshot_get_task_info(struct bp_snapshot_task task,
                              struct bp_snapshot_info *info,
                              size_t size);

/*
 Closes a task without waiting: a task that has not ended continues. Its result is freed.
 */
int bp_snapshot_close_task(struct bp_snapshot_task task);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
