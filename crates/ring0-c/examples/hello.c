/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Runs in ring 0, handles a breakpoint, answers a system call that Linux does not have, and prints the results.
 *
 *   cc hello.c -I crates/ring0-c/include -L target/release -lbedplate_ring0 -o hello
 */
#include <bedplate/ring0.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BREAKPOINT 3
#define OUR_CALL 100000

static bool on_breakpoint(uint32_t cpu, struct bp_ring0_trap_frame *frame, uint64_t address)
{
	(void)cpu;
	(void)address;
	frame->rax = 42;
	return true;
}

static bool on_syscall(uint32_t cpu, uint64_t *number, uint64_t *arguments, int64_t *result)
{
	(void)cpu;
	if (*number != OUR_CALL)
		return false;
	*result = (int64_t)(arguments[0] + arguments[1]);
	return true;
}

static void in_ring0(void *argument)
{
	unsigned long answer = 0;
	int *done = argument;

	/* A system call: Linux makes it. */
	printf("in ring 0: %s, on processor %d\n", bp_ring0_is_inside() ? "yes" : "no", bp_ring0_cpu());
	asm volatile("int3" : "+a"(answer));
	printf("the breakpoint's handler says %lu\n", answer);
	printf("the system call's handler says %ld\n", syscall(OUR_CALL, 30, 12));
	*done = 1;
}

int main(void)
{
	uint64_t calls = 0;
	int done = 0;
	int error = bp_ring0_build(NULL);

	if (error) {
		fprintf(stderr, "no ring 0: %s (%s)\n", bp_ring0_error(), strerror(-error));
		return 77;
	}
	bp_ring0_set_handler(BREAKPOINT, on_breakpoint);
	bp_ring0_set_syscall_handler(on_syscall);
	error = bp_ring0_run(in_ring0, &done);
	if (error || !done) {
		fprintf(stderr, "ring 0 could not be entered: %s\n", bp_ring0_error());
		return 1;
	}
	if (bp_ring0_statistic("system_calls", &calls) == 0 && calls > 0)
		puts("Linux made the other system calls");
	return bp_ring0_is_inside();
}
