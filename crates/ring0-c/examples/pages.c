/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory whose page tables the program manages: pages on demand, a huge page, and a snapshot by copy-on-write.
 * Also interrupts and calls between processors, and ticks. The program exits at the first check that fails.
 *
 *   cc -pthread pages.c -I crates/ring0-c/include -L target/release -lbedplate_ring0 -o pages
 */
#define _GNU_SOURCE
#include <bedplate/ring0.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_FAULT 14
#define OUR_VECTOR 64
#define PAGE 4096ull
#define PAGES 100
/* One entry of the topmost table: 512 GiB. */
#define SLOT (1ull << 39)
#define BASE (96 * SLOT)

#define CHECK(condition)                                                               \
	do {                                                                           \
		if (!(condition)) {                                                    \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);        \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

static struct bp_ring0_pool *pool;
static uint64_t snapshot;
static volatile int demanded, copied, interrupts, ticks, called_on = -1, stop, other = -1;

static volatile uint64_t *page(int number)
{
	return (volatile uint64_t *)(BASE + number * PAGE);
}

/* Maps a copy of the page into the snapshot, and makes the writer's page writable again. */
static bool copy_for_snapshot(uint64_t at)
{
	struct bp_ring0_page mine, theirs;
	uint64_t copy = bp_ring0_frame_take(pool);

	if (!copy || bp_ring0_walk(0, at, &mine) || bp_ring0_walk(snapshot, at, &theirs))
		return false;
	memcpy(bp_ring0_frame_memory(pool, copy), bp_ring0_frame_memory(pool, mine.physical), PAGE);
	if (bp_ring0_unmap(snapshot, at, NULL) || bp_ring0_map(snapshot, at, copy, BP_RING0_4K, 0, pool))
		return false;
	copied++;
	return bp_ring0_protect(0, at, PAGE, BP_RING0_WRITABLE, 0, NULL) == 0 && bp_ring0_flush_page(at) == 0;
}

static bool on_page_fault(uint32_t cpu, struct bp_ring0_trap_frame *frame, uint64_t address)
{
	uint64_t at = address & ~(PAGE - 1), new;
	bool present = frame->error & 1, write = frame->error & 2;

	(void)cpu;
	if (address < BASE || address >= BASE + PAGES * PAGE)
		return false;
	if (present)
		return write && snapshot && copy_for_snapshot(at);
	new = bp_ring0_frame_take(pool);
	demanded++;
	return new && bp_ring0_map(0, at, new, BP_RING0_4K, BP_RING0_WRITABLE, pool) == 0;
}

static bool on_interrupt(uint32_t cpu, struct bp_ring0_trap_frame *frame, uint64_t address)
{
	(void)cpu;
	(void)frame;
	(void)address;
	interrupts++;
	return true;
}

static void on_tick(uint32_t cpu, struct bp_ring0_trap_frame *frame)
{
	(void)cpu;
	(void)frame;
	ticks++;
}

static void note(uint32_t cpu, void *argument)
{
	*(volatile int *)argument = (int)cpu;
}

static void pages_on_demand(void)
{
	struct bp_ring0_page found;
	uint64_t before, *entry;
	int number;

	for (number = 0; number < PAGES; number++)
		*page(number) = number;
	CHECK(demanded == PAGES);
	CHECK(bp_ring0_walk(0, BASE + 8, &found) == 0 && found.bytes == PAGE);
	CHECK(found.entry & BP_RING0_WRITABLE && found.entry & BP_RING0_DIRTY && found.physical % PAGE == 8);
	CHECK(bp_ring0_walk(0, BASE + PAGES * PAGE, &found) == -ENOENT);
	CHECK(bp_ring0_map(0, BASE, found.physical & ~(PAGE - 1), BP_RING0_4K, 0, pool) == -EEXIST);
	CHECK(bp_ring0_map(0, BASE + 1, 0, BP_RING0_4K, 0, pool) == -EINVAL);

	/* An access to an unmapped page maps it again, with another frame. */
	entry = bp_ring0_entry(0, BASE, BP_RING0_4K, NULL);
	CHECK(entry && bp_ring0_unmap(0, BASE, &before) == 0 && *entry == 0);
	CHECK(bp_ring0_unmap(0, BASE, NULL) == -ENOENT);
	CHECK(bp_ring0_shoot_down(BASE, 1, BP_RING0_4K) == 0);
	*page(0) = 0;
	CHECK(demanded == PAGES + 1);
	CHECK(bp_ring0_frame_give(pool, before & 0xffffffffff000) == 0);
	CHECK(bp_ring0_frame_give(pool, 0) == -EINVAL);
}

static void a_huge_page(void)
{
	uint64_t run = bp_ring0_run_take(pool), at = BASE + (1ull << 30), before;
	volatile uint64_t *memory = (volatile uint64_t *)(at + 5 * PAGE);
	struct bp_ring0_page found;

	CHECK(run && bp_ring0_map(0, at, run, BP_RING0_2M, BP_RING0_WRITABLE, pool) == 0);
	*memory = 77;
	CHECK(*((uint64_t *)bp_ring0_frame_memory(pool, run) + 5 * PAGE / 8) == 77);
	CHECK(bp_ring0_walk(0, (uint64_t)memory, &found) == 0 && found.bytes == 2 << 20);
	CHECK(bp_ring0_unmap(0, at, &before) == 0 && bp_ring0_shoot_down(at, 1, BP_RING0_2M) == 0);
	CHECK(bp_ring0_run_give(pool, run) == 0);
}

static void a_snapshot(void)
{
	int number;

	CHECK(bp_ring0_tables_create(BASE, SLOT, true, pool, &snapshot) == 0);
	CHECK(bp_ring0_shoot_down(0, 0, BP_RING0_4K) == 0);
	for (number = 0; number < 10; number++)
		*page(number) = 1000 + number;
	CHECK(copied == 10);
	CHECK(bp_ring0_set_root(snapshot) == 0 && bp_ring0_root() == snapshot);
	for (number = 0; number < PAGES; number++)
		CHECK(*page(number) == (uint64_t)number);
	CHECK(bp_ring0_set_root(0) == 0);
	CHECK(*page(9) == 1009 && *page(10) == 10);
	for (number = 0; number < 10; number++) {
		struct bp_ring0_page theirs;

		CHECK(bp_ring0_walk(snapshot, BASE + number * PAGE, &theirs) == 0);
		CHECK(bp_ring0_frame_give(pool, theirs.physical) == 0);
	}
	CHECK(bp_ring0_tables_free(snapshot, BASE, SLOT, pool) == 0);
	snapshot = 0;
	CHECK(bp_ring0_protect(0, BASE, PAGES * PAGE, BP_RING0_WRITABLE, 0, pool) == 0);
}

static void *other_thread(void *argument)
{
	(void)argument;
	CHECK(bp_ring0_enter() == 0);
	other = bp_ring0_cpu();
	while (!stop)
		bp_ring0_relax();
	bp_ring0_leave();
	return NULL;
}

static void other_processors(void)
{
	CHECK(bp_ring0_cpus() == 2);
	CHECK(bp_ring0_send(other, OUR_VECTOR) == 0);
	while (interrupts < 1)
		bp_ring0_relax();
	CHECK(bp_ring0_send(bp_ring0_cpu(), OUR_VECTOR) == 0);
	while (interrupts < 2)
		bp_ring0_relax();
	CHECK(bp_ring0_send(99, OUR_VECTOR) == -ESRCH && bp_ring0_send(other, 14) == -EINVAL);
	CHECK(bp_ring0_call(other, note, (void *)&called_on) == 0 && called_on == other);
	CHECK(bp_ring0_start_ticks(1000000, on_tick) == 0);
	while (ticks < 3)
		bp_ring0_relax();
	CHECK(bp_ring0_stop_ticks() == 0);
}

static void in_ring0(void *argument)
{
	int *done = argument;

	a_huge_page();
	pages_on_demand();
	a_snapshot();
	other_processors();
	*done = bp_ring0_is_inside();
}

int main(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, done = 0;
	pthread_t thread;

	if (bp_ring0_build(NULL)) {
		fprintf(stderr, "no ring 0: %s\n", bp_ring0_error());
		return 77;
	}
	CHECK(bp_ring0_shoot_down(0, 0, BP_RING0_4K) == -EPERM && bp_ring0_set_root(0) == -EPERM);
	CHECK(mmap((void *)BASE, SLOT, PROT_NONE, flags, -1, 0) == (void *)BASE);
	CHECK(bp_ring0_keep_private(BASE, SLOT) == 0);
	CHECK(bp_ring0_pool_create(16 << 20, BP_RING0_SMALL, &pool) == 0);
	CHECK(bp_ring0_set_handler(PAGE_FAULT, on_page_fault) == 0);
	CHECK(bp_ring0_set_handler(OUR_VECTOR, on_interrupt) == 0);
	CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
	while (other < 0)
		bp_ring0_relax();
	CHECK(bp_ring0_run(in_ring0, &done) == 0 && done);
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	printf("%d pages on demand, %d copied for the snapshot, %d interrupts, a call, ticks\n", demanded, copied,
	       interrupts);
	return 0;
}
