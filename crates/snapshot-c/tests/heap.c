/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Heaps: blocks, and pointers that are not blocks. */
#include "check.h"

struct list {
	struct list *next;
	uint64_t number;
};

static struct bp_snapshot_memory heap, other_heap;

static int walks(void *argument, const struct bp_snapshot_view *view, struct bp_snapshot_output output)
{
	uint64_t sum = 0;
	void *block;
	const struct list *at;

	(void)view;
	for (at = argument; at; at = at->next)
		sum += at->number;
	failures = 0;
	/* The task can allocate from free memory, in its own memory only. */
	IS(bp_snapshot_allocate(heap, 100, 0, &block), BP_SNAPSHOT_OK);
	memset(block, 1, 100);
	IS(bp_snapshot_resize(heap, block, 200, &block), BP_SNAPSHOT_OK);
	IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_OK);
	IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_free(heap, argument), BP_SNAPSHOT_OK);
	IS(bp_snapshot_allocate(other_heap, 100, 0, &block), BP_SNAPSHOT_ERROR_FORKED);
	IS(bp_snapshot_write(output, &sum, sizeof sum), BP_SNAPSHOT_OK);
	fflush(stdout);
	return failures;
}

static void *contended;
static int freed;

static void *frees(void *unused)
{
	int code = bp_snapshot_free(heap, contended);

	if (code == BP_SNAPSHOT_OK)
		__atomic_fetch_add(&freed, 1, __ATOMIC_RELAXED);
	else
		IS(code, BP_SNAPSHOT_ERROR_BLOCK);
	return unused;
}

static void blocks(void)
{
	const size_t largest = BP_SNAPSHOT_LARGEST_ALIGNMENT;
	struct bp_snapshot_memory plain = created(MIB, 0, 0);
	struct bp_snapshot_memory_info info;
	struct bp_snapshot_result result;
	struct bp_snapshot_task task;
	struct list *list = NULL;
	uint8_t *bytes, *old;
	void *block, *moved, *untouched = &info, *many[300];
	uint64_t sum = 0, header;
	size_t alignment, i, count;

	heap = created(4096, 16 * MIB, BP_SNAPSHOT_HEAP);
	other_heap = created(MIB, 0, BP_SNAPSHOT_HEAP);
	IS(bp_snapshot_allocate(plain, 1, 0, &block), BP_SNAPSHOT_ERROR_NOT_A_HEAP);
	IS(bp_snapshot_resize(plain, NULL, 1, &block), BP_SNAPSHOT_ERROR_NOT_A_HEAP);
	IS(bp_snapshot_free(plain, NULL), BP_SNAPSHOT_ERROR_NOT_A_HEAP);
	IS(bp_snapshot_grow(heap, 1, NULL), BP_SNAPSHOT_ERROR_A_HEAP);
	/* A task in a thread would follow pointers to the current content. */
	if (has_snapshots())
		IS(bp_snapshot_spawn(heap, walks, NULL, &task), BP_SNAPSHOT_ERROR_A_HEAP);
	IS(bp_snapshot_allocate(heap, 1, 0, NULL), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_resize(heap, NULL, 1, NULL), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_free(heap, NULL), BP_SNAPSHOT_OK);
	block = untouched;
	IS(bp_snapshot_allocate(heap, 1, 3, &block), BP_SNAPSHOT_ERROR_INVALID);
	IS(bp_snapshot_allocate(heap, 1, largest * 2, &block), BP_SNAPSHOT_ERROR_INVALID);
	IS(bp_snapshot_allocate(heap, 1, SIZE_MAX, &block), BP_SNAPSHOT_ERROR_INVALID);
	IS(bp_snapshot_allocate(heap, 17 * MIB, 0, &block), BP_SNAPSHOT_ERROR_NO_ROOM);
	IS(bp_snapshot_allocate(heap, SIZE_MAX, 0, &block), BP_SNAPSHOT_ERROR_NO_ROOM);
	IS(bp_snapshot_allocate(heap, SIZE_MAX / 2, 0, &block), BP_SNAPSHOT_ERROR_NO_ROOM);
	IS(bp_snapshot_allocate_zeroed(heap, SIZE_MAX - 8, 8, &block), BP_SNAPSHOT_ERROR_NO_ROOM);
	HOLDS(block == untouched);

	/* Every alignment works with every size. */
	for (alignment = 1; alignment <= largest; alignment *= 2) {
		IS(bp_snapshot_allocate(heap, 100, alignment, &block), BP_SNAPSHOT_OK);
		HOLDS((uintptr_t)block % alignment == 0 && (uintptr_t)block % 16 == 0);
		memset(block, 5, 100);
		IS(bp_snapshot_resize(heap, block, 50000, &block), BP_SNAPSHOT_OK);
		HOLDS((uintptr_t)block % alignment == 0 && all_are(block, 100, 5));
		memset(block, 6, 50000);
		IS(bp_snapshot_resize(heap, block, 10, &block), BP_SNAPSHOT_OK);
		HOLDS((uintptr_t)block % alignment == 0 && all_are(block, 10, 6));
		IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_OK);
	}
	/* Blocks of 0 bytes are blocks. */
	IS(bp_snapshot_allocate(heap, 0, 0, &block), BP_SNAPSHOT_OK);
	IS(bp_snapshot_allocate(heap, 0, 0, &moved), BP_SNAPSHOT_OK);
	HOLDS(block && moved && block != moved);
	IS(bp_snapshot_resize(heap, block, 10, &block), BP_SNAPSHOT_OK);
	memset(block, 9, 10);
	IS(bp_snapshot_resize(heap, block, 0, &block), BP_SNAPSHOT_OK);
	IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_OK);
	IS(bp_snapshot_free(heap, moved), BP_SNAPSHOT_OK);
	/* The block has zeros where other content was before. */
	IS(bp_snapshot_allocate(heap, 5000, 64, &block), BP_SNAPSHOT_OK);
	memset(block, 9, 5000);
	IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_OK);
	IS(bp_snapshot_allocate_zeroed(heap, 5000, 64, &block), BP_SNAPSHOT_OK);
	HOLDS(all_are(block, 5000, 0));

	/* These pointers are not blocks of this heap. */
	info = info_of(heap);
	IS(bp_snapshot_free(heap, &info), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_free(heap, (void *)16), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_free(heap, (void *)(UINTPTR_MAX - 15)), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_free(heap, info.base - 4096), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_free(heap, info.base + info.len + 4096), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_free(heap, info.base + info.len), BP_SNAPSHOT_ERROR_BLOCK);
	for (i = 0; i < 4096; i++)
		if (info.base + i != (uint8_t *)block)
			IS(bp_snapshot_free(heap, info.base + i), BP_SNAPSHOT_ERROR_BLOCK);
	for (i = 1; i < 5000; i++)
		IS(bp_snapshot_free(heap, (uint8_t *)block + i), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_free(other_heap, block), BP_SNAPSHOT_ERROR_BLOCK);
	moved = untouched;
	IS(bp_snapshot_resize(heap, (uint8_t *)block + 16, 10, &moved), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_resize(other_heap, block, 10, &moved), BP_SNAPSHOT_ERROR_BLOCK);
	/* A copy of a block is not a block. */
	bytes = block;
	memcpy(bytes + 1024 - 16, bytes - 16, 16);
	IS(bp_snapshot_free(heap, bytes + 1024), BP_SNAPSHOT_ERROR_BLOCK);
	/* The bytes in front of it are overwritten. */
	memcpy(&header, bytes - 16, 8);
	bytes[-16] ^= 1;
	IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_resize(heap, block, 10, &moved), BP_SNAPSHOT_ERROR_BLOCK);
	memcpy(bytes - 16, &header, 8);
	/* A resize that does not fit leaves the block unchanged. */
	memset(block, 3, 5000);
	IS(bp_snapshot_resize(heap, block, 20 * MIB, &moved), BP_SNAPSHOT_ERROR_NO_ROOM);
	IS(bp_snapshot_resize(heap, block, SIZE_MAX, &moved), BP_SNAPSHOT_ERROR_NO_ROOM);
	HOLDS(moved == untouched && all_are(block, 5000, 3));
	/* After a move, the old address is not a block. */
	old = block;
	IS(bp_snapshot_allocate(heap, 10, 0, &many[0]), BP_SNAPSHOT_OK);
	IS(bp_snapshot_resize(heap, block, MIB, &block), BP_SNAPSHOT_OK);
	HOLDS(all_are(block, 5000, 3));
	if (old != (uint8_t *)block)
		IS(bp_snapshot_free(heap, old), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_free(heap, many[0]), BP_SNAPSHOT_OK);
	IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_OK);
	IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_ERROR_BLOCK);
	IS(bp_snapshot_resize(heap, block, 10, &block), BP_SNAPSHOT_ERROR_BLOCK);

	/* The heap is filled twice, because freed blocks are used again. */
	for (i = 0; i < 2; i++) {
		int code = BP_SNAPSHOT_OK;

		for (count = 0; count < 300 && code == BP_SNAPSHOT_OK; count++)
			code = bp_snapshot_allocate(heap, 100000, 0, &many[count]);
		IS(code, BP_SNAPSHOT_ERROR_NO_ROOM);
		HOLDS(count > 100 && strstr(bp_snapshot_error(), "bp_snapshot_options.reserve") != NULL);
		for (count--; count > 0; count--)
			IS(bp_snapshot_free(heap, many[count - 1]), BP_SNAPSHOT_OK);
	}

	/* A child reads a list with pointers. */
	for (i = 0; i < 1000; i++) {
		IS(bp_snapshot_resize(heap, NULL, sizeof *list, &block), BP_SNAPSHOT_OK);
		*(struct list *)block = (struct list){list, i};
		list = block;
	}
	fflush(stdout);
	IS(bp_snapshot_spawn_in_child(heap, walks, list, &task), BP_SNAPSHOT_OK);
	while (list) {
		struct list *next = list->next;

		IS(bp_snapshot_free(heap, list), BP_SNAPSHOT_OK);
		list = next;
	}
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	HOLDS(result.status == 0 && result.len == sizeof sum);
	if (result.len == sizeof sum)
		memcpy(&sum, result.data, sizeof sum);
	HOLDS(sum == 499500);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);

	IS(bp_snapshot_destroy(other_heap), BP_SNAPSHOT_OK);
	other_heap = created(MIB, 0, BP_SNAPSHOT_HEAP | BP_SNAPSHOT_IN_CHILD);
	IS(bp_snapshot_spawn(other_heap, returns_at_once, NULL, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);

	/* If threads free the same block, one of them succeeds. */
	for (i = 0; i < 50; i++) {
		pthread_t threads[3];
		int thread;

		IS(bp_snapshot_allocate(heap, 64, 0, &contended), BP_SNAPSHOT_OK);
		freed = 0;
		for (thread = 0; thread < 3; thread++)
			pthread_create(&threads[thread], NULL, frees, NULL);
		for (thread = 0; thread < 3; thread++)
			pthread_join(threads[thread], NULL);
		HOLDS(freed == 1);
	}
	/* A snapshot reads flat data of a heap. */
	if (has_snapshots()) {
		struct bp_snapshot snapshot;
		struct bp_snapshot_view view;
		const uint8_t *then;

		IS(bp_snapshot_allocate(heap, 10000, 0, &block), BP_SNAPSHOT_OK);
		memset(block, 4, 10000);
		IS(bp_snapshot_take(heap, &snapshot), BP_SNAPSHOT_OK);
		memset(block, 5, 10000);
		IS(bp_snapshot_get_view(snapshot, &view, sizeof view), BP_SNAPSHOT_OK);
		then = bp_snapshot_bytes_at(&view, block, 10000);
		HOLDS(then && all_are(then, 10000, 4));
		IS(bp_snapshot_release(snapshot), BP_SNAPSHOT_OK);
	}
	IS(bp_snapshot_destroy(plain), BP_SNAPSHOT_OK);
	IS(bp_snapshot_destroy(other_heap), BP_SNAPSHOT_OK);
	IS(bp_snapshot_destroy(heap), BP_SNAPSHOT_OK);
	IS(bp_snapshot_free(heap, block), BP_SNAPSHOT_ERROR_CLOSED);
}

int main(int argc, char **argv)
{
	int code;

	code = begin(argc, argv);
	if (code)
		return code;
	blocks();
	return failures != 0;
}
