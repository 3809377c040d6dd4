/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * ring0: a privileged process on stock KVM. Link with -lbedplate_ring0.
 *
 * Functions that can fail return 0 or a negative errno. For functions that handlers cannot call, bp_ring0_error() returns
 * the text of the error. Handlers may call the functions whose descriptions say so, and the functions for page tables,
 * flushes and other processors: bp_ring0_map() to bp_ring0_tables_free(), bp_ring0_set_root() to bp_ring0_stop_ticks().
 * All functions may be called from any thread. Handlers run in ring 0 with interrupts off, between two
 * instructions of arbitrary code. They must not allocate, lock, or end by longjmp.
 *
 * Generated from the Rust sources.
 */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Flags of a page: the page can be written to; ring 3 may use it; the processor has used its entry; the processor has
 * written to the page.
 */
#define BP_RING0_WRITABLE UINT64_C(0x2)
#define BP_RING0_USER UINT64_C(0x4)
#define BP_RING0_ACCESSED UINT64_C(0x20)
#define BP_RING0_DIRTY UINT64_C(0x40)
/* The program's own bits: 9 to 11 and 52 to 57. */
#define BP_RING0_SOFTWARE UINT64_C(0x03f0000000000e00)
/* Instructions cannot be fetched from the page. */
#define BP_RING0_NO_EXECUTE UINT64_C(0x8000000000000000)


/*
 The sizes of pages.
 */
enum bp_ring0_page_size {
  /*
   4 KiB.
   */
  BP_RING0_4K = 0,
  /*
   2 MiB.
   */
  BP_RING0_2M = 1,
  /*
   1 GiB.
   */
  BP_RING0_1G = 2,
};

/*
 The kind of the host's pages behind a pool.
 */
enum bp_ring0_backing {
  /*
   The first available kind of the others, from the last one to the first.
   */
  BP_RING0_BEST = 0,
  /*
   Pages of 4 KiB.
   */
  BP_RING0_SMALL = 1,
  /*
   Huge pages of 2 MiB where the host finds free ones, and pages of 4 KiB elsewhere.
   */
  BP_RING0_TRANSPARENT = 2,
  /*
   Huge pages of 2 MiB that the administrator has reserved.
   */
  BP_RING0_RESERVED = 3,
};

/*
 A pool of frames: preallocated memory with contiguous guest-physical addresses, handed out in frames of 4 KiB.
 It is never freed.
 */
struct bp_ring0_pool;

/*
 Options of the process. A value of 0 selects the default.
 */
struct bp_ring0_options {
  /*
   Limit of virtual processors, that is, of threads that own one. The default is 256, or fewer if KVM
   allows fewer.
   */
  uint32_t max_cpus;
  /*
   Limit of windows of 1 GiB. The default is as many as possible.
   */
  uint32_t max_windows;
};

/*
 The registers of interrupted code. The code continues with the values that a handler leaves there.
 */
struct bp_ring0_trap_frame {
  uint64_t r15;
  uint64_t r14;
  uint64_t r13;
  uint64_t r12;
  uint64_t rbp;
  uint64_t rbx;
  uint64_t r11;
  uint64_t r10;
  uint64_t r9;
  uint64_t r8;
  uint64_t rdi;
  uint64_t rsi;
  uint64_t rdx;
  uint64_t rcx;
  uint64_t rax;
  /*
   The vector; 14 is a page fault.
   */
  uint64_t vector;
  /*
   The processor's error code; 0 for vectors without one.
   */
  uint64_t error;
  uint64_t rip;
  uint64_t cs;
  uint64_t rflags;
  uint64_t rsp;
  uint64_t ss;
};

/*
 Called at each tick, with the interrupted code's registers, which it may change.
 */
typedef void (*bp_ring0_tick_handler)(uint32_t cpu, struct bp_ring0_trap_frame *frame);

/*
 A handler of a vector. It gets the processor's number, the interrupted code's registers and, for a page fault,
 the address. It returns true if the cause is removed, and false to let the default action happen.
 */
typedef bool (*bp_ring0_handler)(uint32_t cpu, struct bp_ring0_trap_frame *frame, uint64_t address);

/*
 A handler of system calls. It gets the processor's number, the call's number, and its six arguments, and may
 change number and arguments. It returns true if `result` is the call's result (an error is a negative errno),
 and false to pass the call to Linux.
 */
typedef bool (*bp_ring0_syscall_handler)(uint32_t cpu,
                                         uint64_t *number,
                                         uint64_t *arguments,
                                         int64_t *result);

/*
 A mapped page.
 */
struct bp_ring0_page {
  /*
   Its page-table entry.
   */
  uint64_t entry;
  /*
   The guest-physical address that the requested address translates to.
   */
  uint64_t physical;
  /*
   The page's size in bytes.
   */
  uint64_t bytes;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Builds the process's ring 0. Returns -EEXIST if it has been built already.

 # Safety
 `options` must be NULL or point to such a structure. NULL selects the defaults.
 */
int bp_ring0_build(const struct bp_ring0_options *options);

/*
 Makes this thread continue in ring 0. Does nothing if it is there already. Returns -ENXIO before
 bp_ring0_build().
 */
int bp_ring0_enter(void);

/*
 Makes this thread continue in ring 3. Does nothing if it is there already.
 */
void bp_ring0_leave(void);

/*
 Runs `function(argument)` in ring 0. Afterwards the thread is in the same ring as before. Returns -ENXIO
 before bp_ring0_build().

 # Safety
 The function may be called with the argument.
 */
int bp_ring0_run(void (*function)(void*),
                 void *argument);

/*
 Whether this thread is in ring 0.
 */
bool bp_ring0_is_inside(void);

/*
 The number of this thread's processor, from 0 on. Returns -EPERM in ring 3.
 */
int bp_ring0_cpu(void);

/*
 Drops the translation of the page at an address that this thread's processor has cached. Returns -EPERM in
 ring 3.
 */
int bp_ring0_flush_page(uint64_t address);

/*
 Drops all translations that this thread's processor has cached. Returns -EPERM in ring 3.
 */
int bp_ring0_flush(void);

/*
 The guest-physical address of an address of the process; 0 if it has no window.
 */
uint64_t bp_ring0_physical_address(uint64_t address);

/*
 Reads a statistic by its name: "system_calls", "page_faults", "ipis_sent" and so on. Returns -ENOENT if
 there is no statistic of that name.

 # Safety
 `name` must be a C string, and `value` must be writable.
 */
int bp_ring0_statistic(const char *name,
                       uint64_t *value);

/*
 Switches this thread's processor to other page tables, until its thread ends. 0 stands for the process's page
 tables. Returns -EPERM in ring 3.

 # Safety
 `root` must be 0, or page tables that bp_ring0_tables_create() made.
 */
int bp_ring0_set_root(uint64_t root);

/*
 Makes all processors drop the cached translations of `pages` pages of this size from `address` on, or all
 translations if `pages` is 0. When it returns, no processor uses these translations any more. The caller must
 change the page tables before. Returns -EPERM in ring 3.

 A processor with interrupts off delays this call until it enables them or calls bp_ring0_relax().
 */
int bp_ring0_shoot_down(uint64_t address,
                        uint64_t pages,
                        enum bp_ring0_page_size size);

/*
 Sends an interrupt (vectors 32 to 239) to a processor. Its handler of this vector runs at once if that processor
 is in the guest, and otherwise before its next instruction there. Returns -EPERM in ring 3, -EINVAL for another
 vector, and -ESRCH if no thread owns the processor.
 */
int bp_ring0_send(uint32_t cpu,
                  uint8_t vector);

/*
 Calls `function(number of the processor, argument)` on a processor, like an interrupt handler, and waits until
 it has returned. That takes at least as long as the processor's thread stays in a system call or in ring 3.
 Returns -EPERM in ring 3, and -ESRCH if no thread owns the processor.

 # Safety
 The function may be called there with the argument.
 */
int bp_ring0_call(uint32_t cpu,
                  void (*function)(uint32_t, void*),
                  void *argument);

/*
 One iteration of a loop that waits for another processor. Serves the requests that other processors have for
 this one.
 */
void bp_ring0_relax(void);

/*
 Number of processors: the largest number of threads that owned one at the same time. They are numbered from 0
 on.
 */
uint32_t bp_ring0_cpus(void);

/*
 Calls `handler` about every `nanoseconds` (200 000 to 4 000 000 000) while this thread is in ring 0, until
 bp_ring0_stop_ticks(). Returns -EPERM in ring 3.
 */
int bp_ring0_start_ticks(uint64_t nanoseconds,
                         bp_ring0_tick_handler handler);

/*
 Stops the ticks of this thread. Returns -EPERM in ring 3.
 */
int bp_ring0_stop_ticks(void);

/*
 The text of this thread's last error; "" if there was none. It is valid until the next error of this thread.
 */
const char *bp_ring0_error(void);

/*
 Creates a pool of at least `bytes` bytes. The host provides the memory at once, so that no first access waits
 for it. Returns -ENOMEM if there is not enough memory.

 # Safety
 `made` must be writable.
 */
int bp_ring0_pool_create(size_t bytes,
                         enum bp_ring0_backing backing,
                         struct bp_ring0_pool **made);

/*
 Takes a frame. Returns its guest-physical address, or 0 if none is left. The frame has the contents that its
 last user left. May be called in handlers.

 # Safety
 `from` must be a pool.
 */
uint64_t bp_ring0_frame_take(const struct bp_ring0_pool *from);

/*
 Takes 512 contiguous frames (2 MiB) on a boundary of 2 MiB. Returns the guest-physical address of the first, or
 0 if there are none. May be called in handlers.

 # Safety
 `from` must be a pool.
 */
uint64_t bp_ring0_run_take(const struct bp_ring0_pool *from);

/*
 Gives a frame back. Returns -EINVAL if it was not taken from this pool by bp_ring0_frame_take(). May be called
 in handlers.

 # Safety
 `to` must be a pool, and no code may use the frame any more.
 */
int bp_ring0_frame_give(const struct bp_ring0_pool *to,
                        uint64_t frame);

/*
 Gives back the frames that bp_ring0_run_take() returned. Returns -EINVAL if they were not taken from this pool
 by that function. May be called in handlers.

 # Safety
 `to` must be a pool, and no code may use the frames any more.
 */
int bp_ring0_run_give(const struct bp_ring0_pool *to,
                      uint64_t frame);

/*
 The address of a frame in the process, for I/O and for handlers. NULL if the frame is not of this pool. May be
 called in handlers.

 # Safety
 `of` must be a pool.
 */
void *bp_ring0_frame_memory(const struct bp_ring0_pool *of,
                            uint64_t frame);

/*
 Makes a range private to ring 0: only the page tables determine its contents. The range must consist of whole
 gigabytes that the caller has reserved (PROT_NONE). A program may change page-table entries only in private
 ranges.
 */
int bp_ring0_keep_private(uint64_t address,
                          uint64_t bytes);

/*
 Ends the privacy of a range. Ring 0 must have removed its mappings there, and flushed them.
 */
int bp_ring0_release_private(uint64_t address, uint64_t bytes);

/*
 Sets the handler of an exception (vectors 0 to 31) or an interrupt; NULL removes it. Returns -EINVAL for a
 vector that cannot have a handler.
 */
int bp_ring0_set_handler(uint8_t vector,
                         bp_ring0_handler handler);

/*
 Sets the handler of system calls; NULL removes it. It takes effect for this thread at once. A thread that was
 already in ring 0 while there was no handler uses it when it enters again.
 */
void bp_ring0_set_syscall_handler(bp_ring0_syscall_handler handler);

/*
 The root of the page tables that this thread's processor uses. In ring 3, the root of the process's page tables,
 or 0 before bp_ring0_build().
 */
uint64_t bp_ring0_root(void);

/*
 Maps a page of this size at a private address to the frames from `frame` on, with flags like BP_RING0_WRITABLE.
 `frame` is a guest-physical address. Missing tables are taken from `from`, which may be NULL if no table is
 missing.

 In all these functions, `root` is 0 for the process's page tables, or page tables that bp_ring0_tables_create()
 made. They return -EEXIST if something is mapped at the address, -EBUSY if a huge page is in the way, -ENOMEM if
 a frame for a table is missing, and -EAGAIN if another thread has locked the entry (bit 58).

 # Safety
 The address must be private, `root` must be 0 or the root of page tables, and `from` NULL or a pool.
 */
int bp_ring0_map(uint64_t root,
                 uint64_t address,
                 uint64_t frame,
                 enum bp_ring0_page_size size,
                 uint64_t flags,
                 const struct bp_ring0_pool *from);

/*
 Unmaps the page that begins at `address`, and stores its old entry in `before` unless that is NULL. Processors
 may use cached translations of it until bp_ring0_shoot_down(). Returns -ENOENT if nothing is mapped there.

 # Safety
 The same as for bp_ring0_map(); `before` must be NULL or writable.
 */
int bp_ring0_unmap(uint64_t root,
                   uint64_t address,
                   uint64_t *before);

/*
 Sets and clears flags of all pages of a range. Huge pages that are only partly in the range are split, with
 tables from `from`. Processors may use the old rights until bp_ring0_shoot_down().

 # Safety
 The same as for bp_ring0_map().
 */
int bp_ring0_protect(uint64_t root,
                     uint64_t address,
                     uint64_t bytes,
                     uint64_t set,
                     uint64_t clear,
                     const struct bp_ring0_pool *from);

/*
 Stores the translation of any address in `found`. Returns -ENOENT if nothing is mapped there.

 # Safety
 `root` must be 0 or the root of page tables, and `found` must be writable.
 */
int bp_ring0_walk(uint64_t root, uint64_t address, struct bp_ring0_page *found);

/*
 The entry of the page of this size at an address, present or not, in the page table itself. It must be changed
 by compare-and-swap. Missing tables above it are added from `from`, unless that is NULL. Returns NULL if a table
 is missing, or a huge page is in the way.

 # Safety
 The same as for bp_ring0_map().
 */
uint64_t *bp_ring0_entry(uint64_t root,
                         uint64_t address,
                         enum bp_ring0_page_size size,
                         const struct bp_ring0_pool *from);

/*
 Creates page tables that share everything with the process's, except for a range of one or more whole units of
 512 GiB. The new tables have a copy of the entries of that range. If `protect` is set, both lose
 BP_RING0_WRITABLE there: after bp_ring0_shoot_down(), the first write to each page faults, which allows
 copy-on-write. No other code may change the range meanwhile.

 # Safety
 The range must be private, `from` must be a pool, and `root` must be writable.
 */
int bp_ring0_tables_create(uint64_t address,
                           uint64_t bytes,
                           bool protect,
                           const struct bp_ring0_pool *from,
                           uint64_t *root);

/*
 Frees page tables that bp_ring0_tables_create() made for this range. The caller must give back the frames that
 only these tables map before.

 # Safety
 No processor may use these tables (bp_ring0_set_root()), and no code may change them. `to` must be the pool they
 came from.
 */
int bp_ring0_tables_free(uint64_t root,
                         uint64_t address,
                         uint64_t bytes,
                         const struct bp_ring0_pool *to);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
