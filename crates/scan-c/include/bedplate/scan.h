/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * scan: table scans whose data is ready in time. Link with -lbedplate_scan, or use pkg-config bedplate-scan.
 *
 * Functions return a bp_scan_code: 0 or more, or an error, which is negative. bp_scan_error() returns the error text of
 * this thread's last call that failed. Handles are numbers: one that was never given out, or was closed, is an error,
 * never an access to memory. Any function may be called in any thread. But a channel belongs to one worker, so a call
 * while another thread uses the channel is an error.
 *
 * Structures that begin with a size may grow: set it to sizeof the structure, and all unused fields to 0.
 *
 * Generated from the Rust sources.
 */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The process's own service, which starts at its first use. Use it unless workers share with another process, or the program
   must choose the engine: see bp_scan_connect() and bp_scan_start(). */
#ifdef __cplusplus
#define BP_SCAN_DEFAULT (bp_scan_service{})
#else
#define BP_SCAN_DEFAULT ((struct bp_scan_service){0})
#endif

/* A flag of bp_scan_source: the file is `fd`. */
#define BP_SCAN_FD UINT32_C(0x1)
/* A flag of bp_scan_options and bp_scan_pool_options: the service does not watch files for changes. It reads and delivers each
   byte of the scan once, whatever happens to the file meanwhile, and withdraws no page. The reader judges each page by
   read_began_ns, BP_SCAN_PAGE_STABLE and bp_scan_unchanged(). */
#define BP_SCAN_UNWATCHED UINT32_C(0x1)
/* A flag of bp_scan_page: the page is not torn. No process wrote to its file during the read, because the file had the same
   stamp before and after the read. A stamp is a file's size, its times of change and its number of names, as statx() returns
   them. The flag is not set if equal stamps prove nothing: see bp_scan_unchanged(). */
#define BP_SCAN_PAGE_STABLE UINT32_C(0x1)
/* Maximum number of pages of a channel that may be out at a time. */
#define BP_SCAN_PAGES_HELD_MAX UINT32_C(510)
/* Maximum number of pages of each worker of a pool that may be out at a time. */
#define BP_SCAN_POOL_PAGES_HELD_MAX UINT32_C(509)
/* A timeout of bp_scan_next_page(): wait without a limit. */
#define BP_SCAN_FOREVER INT64_C(-1)


/*
 The results of functions. Errors are negative.
 */
enum bp_scan_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Success. From bp_scan_get_page(): `page` is filled in.
   */
  BP_SCAN_OK = 0,
  /*
   No page is ready yet.
   */
  BP_SCAN_NOT_YET = 1,
  /*
   The scan is over, unless the program adds ranges.
   */
  BP_SCAN_END = 2,
  /*
   A page cannot be read: bp_scan_error_number() gives the reason. The scan can continue with the next one, as after the next
   three codes.
   */
  BP_SCAN_ERROR_READ = -1,
  /*
   The file has become shorter since the scan began. The page's `offset` is its first byte that does not exist.
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
   A system call failed: bp_scan_error_number() gives the error.
   */
  BP_SCAN_ERROR_SYSTEM = -16,
  /*
   A file cannot be scanned: bp_scan_error_number() gives the reason.
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
   The service of another process refuses the request.
   */
  BP_SCAN_ERROR_REFUSED = -22,
  /*
   The request is not possible.
   */
  BP_SCAN_ERROR_INVALID = -32,
  /*
   A pointer is NULL that must not be NULL.
   */
  BP_SCAN_ERROR_NULL = -33,
  /*
   The handle was never given out, or is of another kind.
   */
  BP_SCAN_ERROR_HANDLE = -34,
  /*
   The handle was closed.
   */
  BP_SCAN_ERROR_CLOSED = -35,
  /*
   Another thread is using this channel.
   */
  BP_SCAN_ERROR_BUSY = -36,
  /*
   The maximum number of pages is out, or pages are out that must be returned first.
   */
  BP_SCAN_ERROR_HELD = -37,
  /*
   No page is out, because this one was returned before.
   */
  BP_SCAN_ERROR_NOT_HELD = -38,
  /*
   The page is not out: it is an earlier one, or belongs to another channel.
   */
  BP_SCAN_ERROR_PAGE = -39,
  /*
   The handle belongs to the parent process, and nothing reads for it in this one. Open another one.
   */
  BP_SCAN_ERROR_FORKED = -40,
  /*
   An error within the library. A handle in which this happens can only be closed.
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
 The mechanism that reads.
 */
enum bp_scan_engine {
  /*
   The best one that works here. The service tries them.
   */
  BP_SCAN_ENGINE_AUTO = 0,
  /*
   io_uring.
   */
  BP_SCAN_ENGINE_URING = 1,
  /*
   Threads that call pread(). They work everywhere.
   */
  BP_SCAN_ENGINE_THREADS = 2,
};

/*
 The kind of memory that pages are in.
 */
enum bp_scan_memory {
  /*
   Another kind.
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
 A service, which reads for channels. It ends when it is stopped and its last channel is closed.
 */
struct bp_scan_service {
  /*
   Its number; 0: the process's own service.
   */
  uint64_t handle;
};

/*
 A file of a scan: a name, or an open descriptor.
 */
struct bp_scan_source {
  /*
   The name; NULL with BP_SCAN_FD.
   */
  const char *path;
  /*
   With BP_SCAN_FD: a descriptor that is open for reading. The library opens the file again, so the descriptor stays
   unchanged and may be closed.
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
   The file of the scan, counted from 0.
   */
  uint32_t file;
  /*
   Must be 0.
   */
  uint32_t reserved;
};

/*
 The options of a scan.
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
   Number of files.
   */
  size_t source_count;
  /*
   The bytes to scan, in this order; NULL: all of every file. With `range_count` 0 and not NULL: none yet.
   */
  const struct bp_scan_range *ranges;
  /*
   Number of ranges.
   */
  size_t range_count;
  /*
   The size of pages: a power of two from 4 KiB to 2 MiB; 0: 2 MiB. A page never crosses a multiple of its size in its file.
   */
  size_t page_size;
  /*
   The memory of the channel: 4 MiB to 1 GiB; 0: 32 MiB. If several pages may be out, it must have 2 MiB for each of them,
   and 4 MiB more.
   */
  size_t ring_bytes;
  /*
   0 or BP_SCAN_UNWATCHED.
   */
  uint32_t flags;
  /*
   Maximum number of pages that may be out at a time: 1 to BP_SCAN_PAGES_HELD_MAX; 0: 1.
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
   The bytes. The program may read them until the page is returned.
   */
  const uint8_t *data;
  /*
   Number of bytes.
   */
  size_t len;
  /*
   The offset of the bytes in the file.
   */
  uint64_t offset;
  /*
   The file of the scan, counted from 0.
   */
  uint32_t file;
  /*
   0 or BP_SCAN_PAGE_STABLE.
   */
  uint32_t flags;
  /*
   The time before the read of the bytes was submitted, by CLOCK_MONOTONIC. 0 in a channel that watches its files. The clock
   is that of the process that reads: if a daemon reads in another time namespace, its clock has another offset.
   */
  uint64_t read_began_ns;
  /*
   For the library, which identifies the page by it when the page is returned.
   */
  uint64_t channel;
  /*
   Likewise.
   */
  uint64_t ticket;
};

/*
 The properties of a channel, and its counts so far.
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
   The kind of its memory: one of bp_scan_memory.
   */
  uint32_t memory;
  /*
   Number of files of the scan.
   */
  uint32_t files;
  /*
   Frames of up to 2 MiB that the worker has finished.
   */
  uint64_t frames;
  /*
   Bytes in these frames.
   */
  uint64_t bytes;
  /*
   Nanoseconds that the worker spent on them.
   */
  uint64_t ingest_ns;
  /*
   Number of times that there was no page when the worker wanted one.
   */
  uint64_t starved;
  /*
   Nanoseconds that it waited for a page.
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
   Number of pages that were read again because their file changed meanwhile.
   */
  uint64_t read_again;
  /*
   Frames that were taken back before the worker used them.
   */
  uint64_t reclaimed;
  /*
   Frames that are ready now and unread.
   */
  uint64_t unread;
  /*
   Current maximum of that number.
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
   Maximum number of pages that may be out at a time.
   */
  uint64_t pages_held;
};

/*
 The options of a pool.
 */
struct bp_scan_pool_options {
  /*
   sizeof(struct bp_scan_pool_options)
   */
  size_t size;
  /*
   Its files. Every worker scans all of them.
   */
  const struct bp_scan_source *sources;
  /*
   Number of files.
   */
  size_t source_count;
  /*
   Amount of memory: 16 MiB to 1 GiB; 0: 64 MiB, which are enough for 29 workers that have one page at a time.
   */
  size_t memory_bytes;
  /*
   0 or BP_SCAN_UNWATCHED: each worker judges its own pages.
   */
  uint32_t flags;
  /*
   Maximum number of pages that each worker may have out at a time: 1 to BP_SCAN_POOL_PAGES_HELD_MAX; 0: 1.
   */
  uint32_t pages_held;
};

/*
 A pool of memory for a group of files. Its memory exists as long as the pool, or a channel in it, is open.
 */
struct bp_scan_pool {
  /*
   Its number; never 0.
   */
  uint64_t handle;
};

/*
 The key that lets a worker join a pool. It cannot be guessed.
 */
struct bp_scan_key {
  uint8_t bytes[16];
};

/*
 The options of a service.
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
   Other than 0: measures time with the kernel's clock, even if the processor's counter can be trusted.
   */
  uint32_t kernel_clock;
  /*
   Other than 0: memory may consist of huge pages that the administrator reserved, if there are enough.
   */
  uint32_t reserved_pages;
  /*
   Must be 0.
   */
  uint32_t reserved;
};

/*
 The counts of a service since it began.
 */
struct bp_scan_service_statistics {
  /*
   Bytes that were read from files.
   */
  uint64_t bytes_read;
  /*
   Number of times that its control loop woke.
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
 Opens a channel (zicio_open). Reading begins at once.

 # Safety
 `options` is NULL or as long as its size says, with arrays of the stated lengths; `opened` is writable or NULL.
 */
int bp_scan_open(struct bp_scan_service service,
                 const struct bp_scan_options *options,
                 struct bp_scan_channel *opened);

/*
 Closes a channel (zicio_close). Fails with BP_SCAN_ERROR_HELD while a page is out, because its memory would be unmapped.
 */
int bp_scan_close(struct bp_scan_channel channel);

/*
 Closes a channel even if pages are out, to clean up after errors. No thread may read these pages any more.
 */
int bp_scan_abandon(struct bp_scan_channel channel);

/*
 Returns the next page (zicio_get_page), if it is ready. This never waits, and in steady state it makes no system call.

 - BP_SCAN_OK: `page` is filled in. Return it with bp_scan_put_page().
 - BP_SCAN_NOT_YET: the page has not been read yet. The call may have made a system call, which tells the service that the page
   is wanted.
 - BP_SCAN_END: the scan is over.
 - BP_SCAN_ERROR_READ and the three codes after it: a page cannot be delivered. `page` says which one. The next call concerns
   the page after it.
 - BP_SCAN_ERROR_HELD: the maximum number of pages is out. With this and all other errors, `page` stays as it is.

 # Safety
 `page` is writable or NULL.
 */
int bp_scan_get_page(struct bp_scan_channel channel,
                     struct bp_scan_page *page);

/*
 Does the same as bp_scan_get_page(), but waits up to `timeout_ns` nanoseconds for a page; BP_SCAN_FOREVER: without a limit.

 # Safety
 `page` is writable or NULL.
 */
int bp_scan_next_page(struct bp_scan_channel channel,
                      struct bp_scan_page *page,
                      int64_t timeout_ns);

/*
 Returns a page (zicio_put_page). If several are out, they can be returned in any order.

 # Safety
 `page` is readable or NULL.
 */
int bp_scan_put_page(struct bp_scan_channel channel, const struct bp_scan_page *page);

/*
 Tells whether the file of a page is unchanged since before the page was read. This makes one statx() call, and compares the
 file's stamp (see BP_SCAN_PAGE_STABLE) with the one from before the read. The channel must not watch its files, and the page
 must be out. `unchanged` is false if equal stamps would prove nothing. That is so for block devices and for files of network
 file systems. It is also so for a file that was changed just before it was read, where the kernel's time stamps are coarse.

 # Safety
 `page` is readable or NULL, and `unchanged` is writable or NULL.
 */
int bp_scan_unchanged(struct bp_scan_channel channel,
                      const struct bp_scan_page *page,
                      bool *unchanged);

/*
 Cancels ranges that were announced: bytes of them that have not been handed out will not be. `cancelled`, which may be NULL,
 gets the number of these bytes. Ranges that are announced again afterwards are delivered. Pools do not support this.

 # Safety
 `ranges` points to `range_count` ranges, or is NULL; `cancelled` is writable or NULL.
 */
int bp_scan_cancel_ranges(struct bp_scan_channel channel,
                          const struct bp_scan_range *ranges,
                          size_t range_count,
                          uint64_t *cancelled);

/*
 Gives a descriptor that poll(), epoll and similar calls report as readable when bp_scan_get_page() would return anything else
 than BP_SCAN_NOT_YET. It may be readable once in vain, until bp_scan_get_page() has returned that. It belongs to the channel,
 and is closed with it: do not read from it or close it.

 # Safety
 `descriptor` is writable or NULL.
 */
int bp_scan_descriptor(struct bp_scan_channel channel,
                       int *descriptor);

/*
 Adds ranges to the scan (zicio_notify_ranges), after its present ranges. At most 1048576 may be announced and not read yet,
 and each call counts as one more. Pools do not support this.

 # Safety
 `ranges` points to `range_count` ranges, or is NULL.
 */
int bp_scan_notify_ranges(struct bp_scan_channel channel,
                          const struct bp_scan_range *ranges,
                          size_t range_count);

/*
 Tells whether reads of a file of the scan bypass the page cache.

 # Safety
 `direct` is writable or NULL.
 */
int bp_scan_is_direct(struct bp_scan_channel channel, uint32_t file, bool *direct);

/*
 Gives the properties of a channel, and its counts so far. `size` is sizeof the structure.

 # Safety
 `statistics` has `size` writable bytes, or is NULL.
 */
int bp_scan_get_statistics(struct bp_scan_channel channel,
                           struct bp_scan_statistics *statistics,
                           size_t size);

/*
 Returns the meaning of a code as text, never NULL.
 */
const char *bp_scan_strerror(int code);

/*
 Returns the error text of this thread's last call that failed; "" if none did. It is valid until the next such call.
 */
const char *bp_scan_error(void);

/*
 Returns the error number (errno) of this thread's last call that failed; 0 if no system call failed.
 */
int bp_scan_error_number(void);

/*
 Makes a pool.

 # Safety
 `options` is NULL or as long as its size says, with arrays of the stated lengths; `made` is writable or NULL.
 */
int bp_scan_create_pool(struct bp_scan_service service,
                        const struct bp_scan_pool_options *options,
                        struct bp_scan_pool *made);

/*
 Gives the key by which workers join.

 # Safety
 `key` is writable or NULL.
 */
int bp_scan_pool_key(struct bp_scan_pool pool, struct bp_scan_key *key);

/*
 Closes a pool. No further worker can join, and the workers in the pool continue.
 */
int bp_scan_close_pool(struct bp_scan_pool pool);

/*
 Joins a pool. The channel delivers every page of the pool's files once, in the pool's order. Pages have `page_size` bytes: a
 power of two from 4 KiB to 2 MiB; 0: 2 MiB.

 # Safety
 `key` is readable or NULL, and `joined` is writable or NULL.
 */
int bp_scan_join(struct bp_scan_service service,
                 const struct bp_scan_key *key,
                 size_t page_size,
                 struct bp_scan_channel *joined);

/*
 Counts the bytes of a range of a file that are in the page cache, in whole pages of 4 KiB, but never more than the range has.
 A program reads these bytes faster through the page cache than past it. The call reads no data. The kernel only answers a
 process that may write the file or owns it; to others the result is BP_SCAN_ERROR_SYSTEM, with EPERM. If the file is neither a
 regular file nor a block device, the result is BP_SCAN_ERROR_FILE.

 # Safety
 `source` is readable or NULL, with a name that is a C string or NULL, and `bytes` is writable or NULL.
 */
int bp_scan_resident_bytes(const struct bp_scan_source *source,
                           uint64_t start,
                           uint64_t end,
                           uint64_t *bytes);

/*
 Starts a service in addition to BP_SCAN_DEFAULT. `options` may be NULL.

 Most programs use BP_SCAN_DEFAULT, which needs no call and lives as long as the process. Start a service to choose its engine,
 or to end its thread with bp_scan_stop(). Each service has a thread, and channels of two services share nothing, so a process
 needs one service.

 # Safety
 `options` is NULL or as long as its size says, and `started` is writable or NULL.
 */
int bp_scan_start(const struct bp_scan_service_options *options,
                  struct bp_scan_service *started);

/*
 Connects to the service of another process, which listens at a path. That process reads for all objects that are opened
 through it, and its clients share the reads. Each step may take 30 s: see bp_scan_connect_within().

 # Safety
 `path` is a C string or NULL, and `connected` is writable or NULL.
 */
int bp_scan_connect(const char *path,
                    struct bp_scan_service *connected);

/*
 Does the same as bp_scan_connect(), with a time limit in nanoseconds for each step: to connect, to send one message, and to
 receive the answer to it. The limit is from 1 ms to an hour (otherwise BP_SCAN_ERROR_INVALID). It applies to all uses of the
 service and its channels. Signals do not extend it. A step that takes longer fails with the error number ETIMEDOUT. If a
 request of a channel is not answered in time, the channel's calls return BP_SCAN_ERROR_GONE from then on. Waits for pages have
 no such limit.

 # Safety
 `path` is a C string or NULL, and `connected` is writable or NULL.
 */
int bp_scan_connect_within(const char *path,
                           uint64_t patience_ns,
                           struct bp_scan_service *connected);

/*
 Stops a service. Nothing more can be opened through it, and open objects continue. The process's own service cannot be
 stopped.
 */
int bp_scan_stop(struct bp_scan_service service);

/*
 Gives a description of the engine and of its operation here, cut off after `bytes` bytes, with a zero at the end.

 # Safety
 `text` has room for `bytes` bytes.
 */
int bp_scan_about(struct bp_scan_service service,
                  char *text,
                  size_t bytes);

/*
 Gives the counts of a service. `size` is sizeof the structure.

 # Safety
 `statistics` has `size` writable bytes.
 */
int bp_scan_get_service_statistics(struct bp_scan_service service,
                                   struct bp_scan_service_statistics *statistics,
                                   size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
