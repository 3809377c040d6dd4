/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * scan: table scans whose data is already there. Link with -lbedplate_scan, or use pkg-config bedplate-scan.
 *
 * Functions return a bp_scan_code: 0 or more, or an error, which is negative; bp_scan_error() says in words what was
 * wrong in this thread's last call that failed. Handles are numbers: one that was never given out, or was closed, is
 * an error, never an access to memory. Any function may be called in any thread, but a channel is one worker's: two
 * threads in one channel at the same time is an error, too.
 *
 * Structures that begin with a size may grow: set it to sizeof the structure, and all that you do not use to 0.
 *
 * Generated from the Rust sources.
 */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The process's own service, which starts when it is used first. Use it unless workers share with another process, or an engine
   has to be chosen: see bp_scan_connect() and bp_scan_start(). */
#ifdef __cplusplus
#define BP_SCAN_DEFAULT (bp_scan_service{})
#else
#define BP_SCAN_DEFAULT ((struct bp_scan_service){0})
#endif

/* Of bp_scan_source: the file is `fd`. */
#define BP_SCAN_FD UINT32_C(0x1)
/* Of bp_scan_options and bp_scan_pool_options: files that change are not watched. Each byte of the scan is read and delivered
   once, whatever happens to the file meanwhile; nothing is taken back. The reader judges each page by read_began_ns,
   BP_SCAN_PAGE_STABLE and bp_scan_unchanged(). */
#define BP_SCAN_UNWATCHED UINT32_C(0x1)
/* Of bp_scan_page: the page is not torn. Nobody wrote to its file while it was read, because the file had the same stamp before
   and after the read. A stamp is a file's size, its times of change and its number of names, as statx() gives them. The flag is
   not set where equal stamps prove nothing: see bp_scan_unchanged(). */
#define BP_SCAN_PAGE_STABLE UINT32_C(0x1)
/* The most pages of a channel that may be out at a time. */
#define BP_SCAN_PAGES_HELD_MAX UINT32_C(510)
/* The same of each worker of a pool. */
#define BP_SCAN_POOL_PAGES_HELD_MAX UINT32_C(509)
/* Of bp_scan_next_page(): as long as it takes. */
#define BP_SCAN_FOREVER INT64_C(-1)


/*
 What functions return. Errors are negative.
 */
enum bp_scan_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   It is done; of bp_scan_get_page(): here is a page.
   */
  BP_SCAN_OK = 0,
  /*
   There is no page yet.
   */
  BP_SCAN_NOT_YET = 1,
  /*
   The scan is over, unless ranges are added.
   */
  BP_SCAN_END = 2,
  /*
   A page cannot be read: bp_scan_error_number() says why. The scan may go on with the next one, as after the next three.
   */
  BP_SCAN_ERROR_READ = -1,
  /*
   The file has become shorter since the scan began; the page's `offset` is the first byte of it that is not there.
   */
  BP_SCAN_ERROR_TRUNCATED = -2,
  /*
   The file is written faster than it can be read.
   */
  BP_SCAN_ERROR_CHANGING = -3,
  /*
   The file was replaced or deleted since the scan began.
   */
  BP_SCAN_ERROR_REPLACED = -4,
  /*
   A system call failed: bp_scan_error_number() says how.
   */
  BP_SCAN_ERROR_SYSTEM = -16,
  /*
   A file cannot be scanned: bp_scan_error_number() says why.
   */
  BP_SCAN_ERROR_FILE = -17,
  /*
   The engine does not work on this machine.
   */
  BP_SCAN_ERROR_UNAVAILABLE = -18,
  /*
   The service that reads has ended.
   */
  BP_SCAN_ERROR_GONE = -19,
  /*
   The other side does not speak this protocol.
   */
  BP_SCAN_ERROR_PROTOCOL = -20,
  /*
   There are too many handles.
   */
  BP_SCAN_ERROR_FULL = -21,
  /*
   The service of another process does not do it.
   */
  BP_SCAN_ERROR_REFUSED = -22,
  /*
   What was asked for cannot be.
   */
  BP_SCAN_ERROR_INVALID = -32,
  /*
   A pointer is NULL that must not be.
   */
  BP_SCAN_ERROR_NULL = -33,
  /*
   There never was such a handle, or it is one of something else.
   */
  BP_SCAN_ERROR_HANDLE = -34,
  /*
   The handle was closed.
   */
  BP_SCAN_ERROR_CLOSED = -35,
  /*
   Another thread is in this channel.
   */
  BP_SCAN_ERROR_BUSY = -36,
  /*
   As many pages are out as may be, or some are that have to be returned first.
   */
  BP_SCAN_ERROR_HELD = -37,
  /*
   No page is out: this one was returned before.
   */
  BP_SCAN_ERROR_NOT_HELD = -38,
  /*
   The page is not one that is out: an earlier one, or another channel's.
   */
  BP_SCAN_ERROR_PAGE = -39,
  /*
   The handle is the parent process's: nothing reads for this one. Open anew.
   */
  BP_SCAN_ERROR_FORKED = -40,
  /*
   Something went wrong within the library. A handle in which this happens can only be closed.
   */
  BP_SCAN_ERROR_INTERNAL = -64,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bp_scan_code bp_scan_code;
#else
typedef int32_t bp_scan_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What reads.
 */
enum bp_scan_engine {
  /*
   The best one that works here, found by trying.
   */
  BP_SCAN_ENGINE_AUTO = 0,
  /*
   io_uring.
   */
  BP_SCAN_ENGINE_URING = 1,
  /*
   Threads that call pread(): works everywhere.
   */
  BP_SCAN_ENGINE_THREADS = 2,
};

/*
 What the memory of pages is made of.
 */
enum bp_scan_memory {
  /*
   Something else.
   */
  BP_SCAN_MEMORY_OTHER = 0,
  /*
   Huge pages that the administrator reserved.
   */
  BP_SCAN_MEMORY_RESERVED = 1,
  /*
   Transparent huge pages.
   */
  BP_SCAN_MEMORY_TRANSPARENT = 2,
  /*
   Pages of 4 KiB.
   */
  BP_SCAN_MEMORY_NORMAL = 3,
};

/*
 What reads for channels. It ends when it is stopped and its last channel is closed.
 */
struct bp_scan_service {
  /*
   Its number; 0: the process's own.
   */
  uint64_t handle;
};

/*
 A file to be scanned: by its name, or an open one.
 */
struct bp_scan_source {
  /*
   Its name; NULL with BP_SCAN_FD.
   */
  const char *path;
  /*
   With BP_SCAN_FD: it is open for reading here. It is opened anew, so this one stays as it is and may be closed.
   */
  int fd;
  /*
   0 or BP_SCAN_FD.
   */
  uint32_t flags;
};

/*
 Bytes of one file.
 */
struct bp_scan_range {
  /*
   The first byte.
   */
  uint64_t start;
  /*
   The byte after the last.
   */
  uint64_t end;
  /*
   Which file of the scan, counted from 0.
   */
  uint32_t file;
  /*
   0.
   */
  uint32_t reserved;
};

/*
 A scan to be opened.
 */
struct bp_scan_options {
  /*
   sizeof(struct bp_scan_options)
   */
  size_t size;
  /*
   The files.
   */
  const struct bp_scan_source *sources;
  /*
   How many there are.
   */
  size_t source_count;
  /*
   The bytes to be scanned, in this order; NULL: all of every file. With `range_count` 0 and not NULL: none yet.
   */
  const struct bp_scan_range *ranges;
  /*
   How many there are.
   */
  size_t range_count;
  /*
   The size of pages: a power of two from 4 KiB to 2 MiB; 0: 2 MiB. A page never crosses a multiple of it in its file.
   */
  size_t page_size;
  /*
   The memory of the channel: 4 MiB to 1 GiB; 0: 32 MiB. If several pages may be out it has to have 2 MiB for each of them,
   and 4 MiB.
   */
  size_t ring_bytes;
  /*
   0 or BP_SCAN_UNWATCHED.
   */
  uint32_t flags;
  /*
   How many pages may be out at a time: 1 to BP_SCAN_PAGES_HELD_MAX; 0: 1.
   */
  uint32_t pages_held;
};

/*
 One worker's stream of pages.
 */
struct bp_scan_channel {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 Some bytes of a file, in the memory that the device wrote them to.
 */
struct bp_scan_page {
  /*
   The bytes. They are the program's to read until the page is returned.
   */
  const uint8_t *data;
  /*
   How many there are.
   */
  size_t len;
  /*
   Where they are in the file.
   */
  uint64_t offset;
  /*
   Which file of the scan, counted from 0.
   */
  uint32_t file;
  /*
   0 or BP_SCAN_PAGE_STABLE.
   */
  uint32_t flags;
  /*
   When the read of the bytes began, by CLOCK_MONOTONIC: before it was submitted. 0 in a channel that watches its files. The
   clock is that of the process that reads: if a daemon reads in another time namespace, its clock has another offset.
   */
  uint64_t read_began_ns;
  /*
   The library's: by what a page is known when it is returned.
   */
  uint64_t channel;
  /*
   Likewise.
   */
  uint64_t ticket;
};

/*
 What a channel is, and did so far.
 */
struct bp_scan_statistics {
  /*
   Bytes of the scan, with the ranges that were added.
   */
  uint64_t total_bytes;
  /*
   The size of pages.
   */
  uint64_t page_size;
  /*
   What its memory is made of: one of bp_scan_memory.
   */
  uint32_t memory;
  /*
   How many files the scan has.
   */
  uint32_t files;
  /*
   Frames of up to 2 MiB that the worker is through with.
   */
  uint64_t frames;
  /*
   Bytes of them.
   */
  uint64_t bytes;
  /*
   Nanoseconds that the worker took for them.
   */
  uint64_t ingest_ns;
  /*
   How often there was no page when the worker wanted one.
   */
  uint64_t starved;
  /*
   Nanoseconds that it wanted one in vain.
   */
  uint64_t starved_ns;
  /*
   System calls that it made.
   */
  uint64_t calls;
  /*
   Bytes that were read from files for this channel alone.
   */
  uint64_t bytes_read;
  /*
   How often something was read again because its file changed meanwhile.
   */
  uint64_t read_again;
  /*
   Frames that were taken back before the worker used them.
   */
  uint64_t reclaimed;
  /*
   Frames that are there now and unread.
   */
  uint64_t unread;
  /*
   How many there may be as things are.
   */
  uint64_t watermark;
  /*
   Bytes that were cancelled.
   */
  uint64_t cancelled;
  /*
   Pages that the worker got without BP_SCAN_PAGE_STABLE, in a channel that does not watch its files.
   */
  uint64_t unstable;
  /*
   How many pages may be out at a time.
   */
  uint64_t pages_held;
};

/*
 A pool to be made.
 */
struct bp_scan_pool_options {
  /*
   sizeof(struct bp_scan_pool_options)
   */
  size_t size;
  /*
   Its files, all of which every worker scans.
   */
  const struct bp_scan_source *sources;
  /*
   How many there are.
   */
  size_t source_count;
  /*
   How much memory: 16 MiB to 1 GiB; 0: 64 MiB, which are enough for 29 workers that have one page at a time.
   */
  size_t memory_bytes;
  /*
   0 or BP_SCAN_UNWATCHED: each worker judges its pages for itself.
   */
  uint32_t flags;
  /*
   How many pages each worker may have out at a time: 1 to BP_SCAN_POOL_PAGES_HELD_MAX; 0: 1.
   */
  uint32_t pages_held;
};

/*
 A pool of memory for a group of files. Its memory is there as long as it, or a channel in it, is open.
 */
struct bp_scan_pool {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 What lets a worker join a pool. It cannot be guessed.
 */
struct bp_scan_key {
  uint8_t bytes[16];
};

/*
 How a service is to be.
 */
struct bp_scan_service_options {
  /*
   sizeof(struct bp_scan_service_options)
   */
  size_t size;
  /*
   One of bp_scan_engine.
   */
  uint32_t engine;
  /*
   Other than 0: measures by the kernel's clock even where the processor's counter could be trusted.
   */
  uint32_t kernel_clock;
  /*
   Other than 0: memory may be of huge pages that the administrator reserved, as far as there are enough of them.
   */
  uint32_t reserved_pages;
  /*
   0.
   */
  uint32_t reserved;
};

/*
 What a service did since it began.
 */
struct bp_scan_service_statistics {
  /*
   Bytes that were read from files.
   */
  uint64_t bytes_read;
  /*
   How often its control loop was awake.
   */
  uint64_t rounds;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The library's version, as in "0.1.0".
 */
const char *bp_scan_version(void);

/*
 Opens a channel (zicio_open); reading begins at once.

 # Safety
 `options` is NULL or as long as it says, with arrays of as many elements as it says; `opened` is writable or NULL.
 */
int bp_scan_open(struct bp_scan_service service,
                 const struct bp_scan_options *options,
                 struct bp_scan_channel *opened);

/*
 Closes a channel (zicio_close). BP_SCAN_ERROR_HELD while a page is out, of which the memory would go away.
 */
int bp_scan_close(struct bp_scan_channel channel);

/*
 Closes a channel even if pages are out, for cleaning up after errors. Nobody may look at them any more.
 */
int bp_scan_abandon(struct bp_scan_channel channel);

/*
 The next page (zicio_get_page), if it is there. This never waits, and in steady state it makes no system call.

 - BP_SCAN_OK: here is the page; return it by bp_scan_put_page().
 - BP_SCAN_NOT_YET: the page has not been read yet. The call may have made a system call, by which the service knows that
   the page is wanted.
 - BP_SCAN_END: the scan is over.
 - BP_SCAN_ERROR_READ and the three codes after it: a page cannot be had. `page` says which one, and the next call is about
   the one after it.
 - BP_SCAN_ERROR_HELD: as many pages are out as may be. With this and all other errors `page` stays as it is.

 # Safety
 `page` is writable or NULL.
 */
int bp_scan_get_page(struct bp_scan_channel channel,
                     struct bp_scan_page *page);

/*
 As bp_scan_get_page(), but waits for so many nanoseconds until there is a page; BP_SCAN_FOREVER: as long as it takes.

 # Safety
 `page` is writable or NULL.
 */
int bp_scan_next_page(struct bp_scan_channel channel,
                      struct bp_scan_page *page,
                      int64_t timeout_ns);

/*
 Returns a page (zicio_put_page). If several are out they are returned in any order.

 # Safety
 `page` is readable or NULL.
 */
int bp_scan_put_page(struct bp_scan_channel channel, const struct bp_scan_page *page);

/*
 Whether the file of a page has not changed since before the page was read. This makes one statx() call, and compares the file's
 stamp (see BP_SCAN_PAGE_STABLE) with the one from before the read. The channel must not watch its files, and the page must be
 out. `unchanged` is false if equal stamps would prove nothing. That is so for block devices and for files of network file
 systems. It is also so for a file that was changed just before it was read, where the kernel's time stamps are coarse.

 # Safety
 `page` is readable or NULL, and `unchanged` is writable or NULL.
 */
int bp_scan_unchanged(struct bp_scan_channel channel,
                      const struct bp_scan_page *page,
                      bool *unchanged);

/*
 Takes back ranges that were announced: bytes of them that have not been handed out will not be. `cancelled`, which may be
 NULL, gets how many bytes that are. Ranges that are announced again afterwards come. Not in a pool.

 # Safety
 `ranges` points to so many, or is NULL, and `cancelled` is writable or NULL.
 */
int bp_scan_cancel_ranges(struct bp_scan_channel channel,
                          const struct bp_scan_range *ranges,
                          size_t range_count,
                          uint64_t *cancelled);

/*
 A descriptor that poll(), epoll and what is made of them find readable when bp_scan_get_page() would return something else than
 BP_SCAN_NOT_YET. It may be readable in vain once, until bp_scan_get_page() has returned that. It stays the channel's, and is
 closed with it: do not read from it or close it.

 # Safety
 `descriptor` is writable or NULL.
 */
int bp_scan_descriptor(struct bp_scan_channel channel,
                       int *descriptor);

/*
 Adds ranges to the scan (zicio_notify_ranges), to come after those it has: at most 1048576 that are announced and not read
 yet, of which each call counts as one more. Not in a pool.

 # Safety
 `ranges` points to so many, or is NULL.
 */
int bp_scan_notify_ranges(struct bp_scan_channel channel,
                          const struct bp_scan_range *ranges,
                          size_t range_count);

/*
 Whether reads of a file of the scan go past the page cache.

 # Safety
 `direct` is writable or NULL.
 */
int bp_scan_is_direct(struct bp_scan_channel channel, uint32_t file, bool *direct);

/*
 What it is, and did so far. `size` is sizeof the structure.

 # Safety
 `statistics` is writable, as many bytes as `size` says, or NULL.
 */
int bp_scan_get_statistics(struct bp_scan_channel channel,
                           struct bp_scan_statistics *statistics,
                           size_t size);

/*
 What a code means, in words; never NULL.
 */
const char *bp_scan_strerror(int code);

/*
 What went wrong in this thread's last call that failed, in words; "" if none did. Valid until the next one.
 */
const char *bp_scan_error(void);

/*
 The error number (errno) of this thread's last call that failed; 0 if the kernel had no part in it.
 */
int bp_scan_error_number(void);

/*
 Makes a pool.

 # Safety
 `options` is NULL or as long as it says, with arrays of as many elements as it says; `made` is writable or NULL.
 */
int bp_scan_create_pool(struct bp_scan_service service,
                        const struct bp_scan_pool_options *options,
                        struct bp_scan_pool *made);

/*
 The key by which workers join.

 # Safety
 `key` is writable or NULL.
 */
int bp_scan_pool_key(struct bp_scan_pool pool, struct bp_scan_key *key);

/*
 Nobody else can join; those who are in the pool go on.
 */
int bp_scan_close_pool(struct bp_scan_pool pool);

/*
 Joins a pool: the channel has every page of the pool's files once, in the order in which the pool has them. Pages are of
 `page_size` bytes: a power of two from 4 KiB to 2 MiB; 0: 2 MiB.

 # Safety
 `key` is readable or NULL, and `joined` is writable or NULL.
 */
int bp_scan_join(struct bp_scan_service service,
                 const struct bp_scan_key *key,
                 size_t page_size,
                 struct bp_scan_channel *joined);

/*
 How many bytes of a range of a file are in the page cache, in whole pages of 4 KiB but never more than the range has. What is
 there is read faster through it than past it. Nothing is read. The kernel says it to who may write the file or owns it; to
 others it is BP_SCAN_ERROR_SYSTEM, with EPERM. A file of another kind than a regular file or a block device is BP_SCAN_ERROR_FILE.

 # Safety
 `source` is readable or NULL, with a name that is a C string or NULL, and `bytes` is writable or NULL.
 */
int bp_scan_resident_bytes(const struct bp_scan_source *source,
                           uint64_t start,
                           uint64_t end,
                           uint64_t *bytes);

/*
 Starts another service than BP_SCAN_DEFAULT. `options` may be NULL.

 Most programs use BP_SCAN_DEFAULT, which needs no call and lives as long as the process. Start a service to choose its engine, or
 to end its thread by bp_scan_stop(). Each service has a thread, and channels of two services share nothing, so a process
 needs one service.

 # Safety
 `options` is NULL or as long as it says, and `started` is writable or NULL.
 */
int bp_scan_start(const struct bp_scan_service_options *options,
                  struct bp_scan_service *started);

/*
 Connects to the service of another process, which listens at a path. What is opened at it is read there, and shared with
 other processes. Each step may take 30 s: see bp_scan_connect_within().

 # Safety
 `path` is a C string or NULL, and `connected` is writable or NULL.
 */
int bp_scan_connect(const char *path,
                    struct bp_scan_service *connected);

/*
 bp_scan_connect() with a time in nanoseconds for each step: to connect, to send one message, and to receive the answer to it.
 It is from 1 ms to an hour (BP_SCAN_ERROR_INVALID), and is kept for all that is done with the service and its channels.
 Signals do not make it longer. A step that takes longer fails with the error number ETIMEDOUT, and a channel of which a request
 is not answered in time answers BP_SCAN_ERROR_GONE from then on. Waiting for pages is no such step.

 # Safety
 `path` is a C string or NULL, and `connected` is writable or NULL.
 */
int bp_scan_connect_within(const char *path,
                           uint64_t patience_ns,
                           struct bp_scan_service *connected);

/*
 Nobody can open anything at it any more; what is open goes on. The process's own cannot be stopped.
 */
int bp_scan_stop(struct bp_scan_service service);

/*
 Which engine reads and how it does that here, in words: as much as `bytes` has room for, with a zero at the end.

 # Safety
 `text` has room for so many bytes.
 */
int bp_scan_about(struct bp_scan_service service,
                  char *text,
                  size_t bytes);

/*
 What it did. `size` is sizeof the structure.

 # Safety
 `statistics` is writable, as many bytes as `size` says.
 */
int bp_scan_get_service_statistics(struct bp_scan_service service,
                                   struct bp_scan_service_statistics *statistics,
                                   size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
