/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The engine ring0: a task in a thread sees the memory as it was, at its own address. */
#include "check.h"

static void fill(uint8_t *base, uint8_t value)
{
	volatile uint8_t *bytes = base;
	size_t i;

	for (i = 0; i < 2 * MIB; i++)
		bytes[i] = value;
}

static int finds_old_content(void *argument, const struct bp_snapshot_view *view, struct bp_snapshot_output output)
{
	const uint8_t *base = *(uint8_t *const *)argument;
	int is_old = view->data == view->home && view->data == base && all_are(view->data, view->len, 1);

	if (bp_snapshot_write(output, "seen", 4))
		return -1;
	return is_old;
}

int main(int argc, char **argv)
{
	static uint8_t *base;
	struct bp_snapshot_memory memory;
	struct bp_snapshot_result result;
	struct bp_snapshot snapshot;
	struct bp_snapshot_task task;
	int code = begin(argc, argv), round;

	if (code)
		return code;
	memory = created(2 * MIB, 0, 0);
	base = info_of(memory).base;
	for (round = 0; round < 3; round++) {
		fill(base, 1);
		IS(bp_snapshot_spawn(memory, finds_old_content, &base, &task), BP_SNAPSHOT_OK);
		fill(base, 2);
		IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
		HOLDS(result.status == 1 && result.len == 4 && memcmp(result.data, "seen", 4) == 0);
		IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	}
	/* The engine does not support these. */
	IS(bp_snapshot_spawn_in_child(memory, finds_old_content, &base, &task), BP_SNAPSHOT_ERROR_UNAVAILABLE);
	IS(bp_snapshot_take(memory, &snapshot), BP_SNAPSHOT_ERROR_UNAVAILABLE);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
	return failures != 0;
}
