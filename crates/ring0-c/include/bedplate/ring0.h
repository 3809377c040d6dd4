/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * ring0: a privileged process on stock KVM. Link with -lbedplate_ring0.
 *
 * Functions that can fail return 0 or a negative errno; bp_ring0_error() says in words what was wrong.
 * All functions may be called from any thread; handlers run in ring 0 with interrupts off, between two
 * instructions of arbitrary code: they must not allocate, lock, or end by longjmp.
 *
 * Generated from the Rust sources.
 */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
 What went wrong in this thread's last call that failed, in words; "" if none did. Valid until the next one.
 */
const char *bp_ring0_error(void);

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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
