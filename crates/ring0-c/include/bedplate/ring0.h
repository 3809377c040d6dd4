/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * ring0: a privileged process on stock KVM. Link with -lbedplate_ring0.
 *
 * Functions that can fail return 0 or a negative errno; bp_ring0_error() says in words what was wrong with those that
 * handlers cannot call. Handlers may call what is said to be for them, and page tables, flushes, and what is between
 * processors: bp_ring0_map() to bp_ring0_tables_free(), bp_ring0_set_root() to bp_ring0_stop_ticks().
 * All functions may be called from any thread; handlers run in ring 0 with interrupts off, between two
 * instructions of arbitrary code: they must not allocate, lock, or end by longjmp.
 *
 * Generated from the Rust sources.
 */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Flags of a page: it can be written to; ring 3 may use it; the processor has used its entry; has written to it. */
#define BP_RING0_WRITABLE UINT64_C(0x2)
#define BP_RING0_USER UINT64_C(0x4)
#define BP_RING0_ACCESSED UINT64_C(0x20)
#define BP_RING0_DIRTY UINT64_C(0x40)
/* The program's own bits: 9 to 11 and 52 to 57. */
#define BP_RING0_SOFTWARE UINT64_C(0x03f0000000000e00)
/* Instructions cannot be fetched from it. */
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
 What the host has behind a pool.
 */
enum bp_ring0_backing {
  /*
   The best of the others that can be had, the last one first.
   */
  BP_RING0_BEST = 0,
  /*
   Pages of 4 KiB.
   */
  BP_RING0_SMALL = 1,
  /*
   Huge pages as far as the host finds some.
   */
  BP_RING0_TRANSPARENT = 2,
  /*
   Huge pages that the administrator has reserved.
   */
  BP_RING0_RESERVED = 3,
};

/*
 A pool of frames: preallocated memory with guest-physical addresses in one piece, handed out in frames of 4 KiB. It
 exists as long as the process.
 */
struct bp_ring0_pool;

/*
 What can be chosen before the process is built; 0 everywhere is the default.
 */
struct bp_ring0_options {
  /*
   How many threads can be in ring 0 at the same time; 0: 1024, or as many as KVM allows.
   */
  uint32_t max_cpus;
  /*
   How many windows of 1 GiB there may be; 0: as many as there can be.
   */
  uint32_t max_windows;
};

/*
 The registers of interrupted code. What a handler leaves there is what the code goes on with.
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
   14 is a page fault.
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
 A handler of a vector: on a processor, with the interrupted code's registers and, of a page fault, its address.
 Returns true if the cause is gone, false if what happens by default is to happen.
 */
typedef bool (*bp_ring0_handler)(uint32_t cpu, struct bp_ring0_trap_frame *frame, uint64_t address);

/*
 A handler of system calls: on a processor, with the call's number and its six arguments, which it may change.
 Returns true if `result` is the call's result (errors are negative errnos), false if Linux is to be asked.
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
   The guest-physical address of what was asked for.
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
 Builds the process's ring 0. Once per process: -EEXIST if it has been built.

 `options` may be NULL.

 # Safety
 `options` is NULL or points to such a structure.
 */
int bp_ring0_build(const struct bp_ring0_options *options);

/*
 Lets this thread go on in ring 0; nothing happens if it is there. -ENXIO before bp_ring0_build().
 */
int bp_ring0_enter(void);

/*
 Lets this thread go on in ring 3; nothing happens if it is there.
 */
void bp_ring0_leave(void);

/*
 Runs `function(argument)` in ring 0, and returns to where the thread was.

 # Safety
 The function may be called with the argument.
 */
int bp_ring0_run(void (*function)(void*), void *argument);

/*
 Whether this thread is in ring 0.
 */
bool bp_ring0_is_inside(void);

/*
 The number of this thread's processor, from 0 on; -EPERM in ring 3.
 */
int bp_ring0_cpu(void);

/*
 Drops what this thread's processor has cached of the page at an address. -EPERM in ring 3.
 */
int bp_ring0_flush_page(uint64_t address);

/*
 Drops all translations that this thread's processor has cached. -EPERM in ring 3.
 */
int bp_ring0_flush(void);

/*
 The guest-physical address at which ring 0 has an address of the process; 0 if its window is not there.
 */
uint64_t bp_ring0_physical_address(uint64_t address);

/*
 A count of what happened, by its name: "system_calls", "page_faults", "ipis_sent" and so on.
 -ENOENT if there is none of that name.

 # Safety
 `name` is a C string, and `value` is writable.
 */
int bp_ring0_statistic(const char *name, uint64_t *value);

/*
 Lets this thread's processor use other page tables from now on, until its thread ends; 0: the process's. -EPERM in
 ring 3.

 # Safety
 The root is one that bp_ring0_tables_create() made, or 0.
 */
int bp_ring0_set_root(uint64_t root);

/*
 Has all processors drop what they have cached of `pages` pages of this size from `address` on; of everything if
 `pages` is 0. When it returns, none of them uses it any more. The page tables are changed before. -EPERM in ring 3.

 A processor with interrupts off holds this up until it has them on or calls bp_ring0_relax().
 */
int bp_ring0_shoot_down(uint64_t address,
                        uint64_t pages,
                        enum bp_ring0_page_size size);

/*
 Sends an interrupt (vectors 32 to 239) to a processor, whose handler of this vector runs at once if that processor is
 in the guest, and before its next instruction there otherwise. -EPERM in ring 3, -ESRCH if no thread has that
 processor.
 */
int bp_ring0_send(uint32_t cpu,
                  uint8_t vector);

/*
 Has `function(its processor, argument)` called on a processor, like an interrupt handler, and waits until it has
 returned: as long as that processor's thread is in a system call, or natively. -EPERM in ring 3, -ESRCH if no thread
 has that processor.

 # Safety
 The function may be called there with the argument.
 */
int bp_ring0_call(uint32_t cpu,
                  void (*function)(uint32_t, void*),
                  void *argument);

/*
 One turn of a loop that waits for another processor: what others wait for here is done meanwhile.
 */
void bp_ring0_relax(void);

/*
 How many processors there are: as many as threads were in ring 0 at the same time. They are numbered from 0 on.
 */
uint32_t bp_ring0_cpus(void);

/*
 Has `handler` called about every `nanoseconds` (200 000 to 4 000 000 000) while this thread is in ring 0, until
 bp_ring0_stop_ticks(). -EPERM in ring 3.
 */
int bp_ring0_start_ticks(uint64_t nanoseconds,
                         bp_ring0_tick_handler handler);

/*
 Ends the ticks of this thread. -EPERM in ring 3.
 */
int bp_ring0_stop_ticks(void);

/*
 What went wrong in this thread's last call that failed, in words; "" if none did. Valid until the next one.
 */
const char *bp_ring0_error(void);

/*
 Makes a pool of at least `bytes`, which the host provides at once, so that no first use waits for it. -ENOMEM where
 there is not so much.

 # Safety
 `made` is writable.
 */
int bp_ring0_pool_create(size_t bytes,
                         enum bp_ring0_backing backing,
                         struct bp_ring0_pool **made);

/*
 Takes a frame: its guest-physical address, or 0 if there is none left. It has the contents that its last user left.
 May be called in handlers.

 # Safety
 `from` is a pool.
 */
uint64_t bp_ring0_frame_take(const struct bp_ring0_pool *from);

/*
 Takes 512 frames, 2 MiB on a boundary of 2 MiB: the address of the first, or 0. May be called in handlers.

 # Safety
 `from` is a pool.
 */
uint64_t bp_ring0_run_take(const struct bp_ring0_pool *from);

/*
 Gives a frame back. -EINVAL if it was not taken from this pool, or not by bp_ring0_frame_take(). May be called in
 handlers.

 # Safety
 `to` is a pool, and nobody uses the frame any more.
 */
int bp_ring0_frame_give(const struct bp_ring0_pool *to,
                        uint64_t frame);

/*
 Gives back what bp_ring0_run_take() returned; otherwise as bp_ring0_frame_give().

 # Safety
 `to` is a pool, and nobody uses the frames any more.
 */
int bp_ring0_run_give(const struct bp_ring0_pool *to, uint64_t frame);

/*
 Where the process sees a frame, for I/O and for handlers; NULL if it is not of this pool. May be called in handlers.

 # Safety
 `of` is a pool.
 */
void *bp_ring0_frame_memory(const struct bp_ring0_pool *of,
                            uint64_t frame);

/*
 Keeps addresses, whole gigabytes that the caller has reserved (PROT_NONE), for ring 0 alone: what they mean is up to
 the page tables. Only such addresses may be changed there.
 */
int bp_ring0_keep_private(uint64_t address,
                          uint64_t bytes);

/*
 Gives addresses back that were kept private. Ring 0 has nothing mapped there any more, and has flushed.
 */
int bp_ring0_release_private(uint64_t address,
                             uint64_t bytes);

/*
 Sets the handler of an exception (vectors 0 to 31) or an interrupt, or with NULL takes it away. -EINVAL for a
 vector that cannot have one.
 */
int bp_ring0_set_handler(uint8_t vector,
                         bp_ring0_handler handler);

/*
 Sets the handler of system calls, or with NULL takes it away. This thread uses it from now on; others that are
 in ring 0 while there was none before, when they enter again.
 */
void bp_ring0_set_syscall_handler(bp_ring0_syscall_handler handler);

/*
 The root of the page tables that this thread's processor uses, or of the process's in ring 3; 0 before
 bp_ring0_build().
 */
uint64_t bp_ring0_root(void);

/*
 Maps a page of this size at a private address to the frames from `frame` (a guest-physical address) on, with flags
 BP_RING0_WRITABLE and so on. Tables that are missing are taken from `from`, which may be NULL if none are.

 In all these functions `root` is 0 for the process's page tables, or what bp_ring0_tables_create() made. -EEXIST if
 something is mapped there, -EBUSY if a huge page is in the way, -ENOMEM without a frame for a table, -EAGAIN if
 somebody has locked the entry (bit 58).

 # Safety
 The address is private, the root one of page tables, and `from` NULL or a pool.
 */
int bp_ring0_map(uint64_t root,
                 uint64_t address,
                 uint64_t frame,
                 enum bp_ring0_page_size size,
                 uint64_t flags,
                 const struct bp_ring0_pool *from);

/*
 Takes the page that begins at `address` away, and says in `before`, unless that is NULL, what its entry was. Processors
 use what they have cached of it until bp_ring0_shoot_down(). -ENOENT if nothing is mapped there.

 # Safety
 As of bp_ring0_map(); `before` is NULL or writable.
 */
int bp_ring0_unmap(uint64_t root,
                   uint64_t address,
                   uint64_t *before);

/*
 Sets and clears flags of all pages of a range. Huge pages that are only partly in it are split, with tables from
 `from`. Rights that were taken away are used until bp_ring0_shoot_down().

 # Safety
 As of bp_ring0_map().
 */
int bp_ring0_protect(uint64_t root,
                     uint64_t address,
                     uint64_t bytes,
                     uint64_t set,
                     uint64_t clear,
                     const struct bp_ring0_pool *from);

/*
 What an address translates to; any address. -ENOENT if nothing is mapped there.

 # Safety
 The root is one of page tables, and `found` is writable.
 */
int bp_ring0_walk(uint64_t root, uint64_t address, struct bp_ring0_page *found);

/*
 The entry itself of the page of this size at an address, present or not, to be changed by compare-and-swap; tables
 above it are added from `from`, unless that is NULL. NULL if the tables do not reach down to it.

 # Safety
 As of bp_ring0_map().
 */
uint64_t *bp_ring0_entry(uint64_t root,
                         uint64_t address,
                         enum bp_ring0_page_size size,
                         const struct bp_ring0_pool *from);

/*
 Makes page tables that share everything with the process's, but for a range of 512 GiB, or some, from a multiple of
 that on. There, they get a copy; with `protect`, both lose BP_RING0_WRITABLE, such that the first write after
 bp_ring0_shoot_down() faults: copy-on-write. Nobody else changes the range meanwhile.

 # Safety
 The range is private, `from` is a pool, and `root` is writable.
 */
int bp_ring0_tables_create(uint64_t address,
                           uint64_t bytes,
                           bool protect,
                           const struct bp_ring0_pool *from,
                           uint64_t *root);

/*
 Frees page tables that bp_ring0_tables_create() made for this range. Frames that only they map are the caller's to
 give back, before.

 # Safety
 No processor uses them (bp_ring0_set_root()), nobody changes them, and `to` is the pool they came from.
 */
int bp_ring0_tables_free(uint64_t root,
                         uint64_t address,
                         uint64_t bytes,
                         const struct bp_ring0_pool *to);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
