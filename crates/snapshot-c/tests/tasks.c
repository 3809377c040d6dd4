/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Tasks, in children and in threads. */
#include "check.h"

/* The argument of a task, and its results. */
struct order {
	struct bp_snapshot_memory memory;
	struct bp_snapshot snapshot;
	struct bp_snapshot_task task;
	uint8_t expected;
	size_t len;
	int at_home, status;
};

static struct bp_snapshot_output old_output;

static int looks(void *argument, const struct bp_snapshot_view *view, struct bp_snapshot_output output)
{
	struct order *order = argument;
	uint8_t *many;
	size_t i;

	if (!all_are(view->data, view->len, order->expected) || (view->data == view->home) != order->at_home)
		return -1;
	old_output = output;
	if (bp_snapshot_write(output, NULL, 1) != BP_SNAPSHOT_ERROR_NULL ||
	    bp_snapshot_write(output, view, SIZE_MAX) != BP_SNAPSHOT_ERROR_SYSTEM ||
	    bp_snapshot_error_number() != ENOMEM || bp_snapshot_write(output, NULL, 0))
		return -2;
	many = malloc(order->len + 1);
	for (i = 0; i < order->len; i++)
		many[i] = (uint8_t)(i / 3);
	/* The output is written in two parts. */
	if (bp_snapshot_write(output, many, order->len / 2) ||
	    bp_snapshot_write(output, many + order->len / 2, order->len - order->len / 2))
		return -3;
	free(many);
	return order->status;
}

static int is_order(const struct bp_snapshot_result *result, size_t len)
{
	size_t i;

	for (i = 0; i < result->len; i++)
		if (result->data[i] != (uint8_t)(i / 3))
			return 0;
	return result->len == len;
}

static int looks_at_handles(void *argument, const struct bp_snapshot_view *view, struct bp_snapshot_output output)
{
	struct order *order = argument;
	struct bp_snapshot_memory_info info;
	struct bp_snapshot_info about;
	struct bp_snapshot_view other;
	struct bp_snapshot another;
	struct bp_snapshot_task task;
	struct bp_snapshot_result result;

	(void)output;
	failures = 0;
	/* The address of its own memory. */
	IS(bp_snapshot_get_memory_info(order->memory, &info, sizeof info), BP_SNAPSHOT_OK);
	HOLDS(info.base == view->data && info.len == view->len);
	IS(bp_snapshot_take(order->memory, &another), BP_SNAPSHOT_ERROR_FORKED);
	IS(bp_snapshot_grow(order->memory, 1, NULL), BP_SNAPSHOT_ERROR_FORKED);
	IS(bp_snapshot_spawn_in_child(order->memory, returns_at_once, NULL, &task), BP_SNAPSHOT_ERROR_FORKED);
	IS(bp_snapshot_destroy(order->memory), BP_SNAPSHOT_ERROR_FORKED);
	if (order->snapshot.handle) {
		IS(bp_snapshot_get_view(order->snapshot, &other, sizeof other), BP_SNAPSHOT_ERROR_FORKED);
		IS(bp_snapshot_release(order->snapshot), BP_SNAPSHOT_ERROR_FORKED);
	}
	if (order->task.handle) {
		IS(bp_snapshot_get_task_info(order->task, &about, sizeof about), BP_SNAPSHOT_ERROR_FORKED);
		IS(bp_snapshot_join(order->task, &result, sizeof result), BP_SNAPSHOT_ERROR_FORKED);
		IS(bp_snapshot_close_task(order->task), BP_SNAPSHOT_ERROR_FORKED);
	}
	fflush(stdout);
	return failures;
}

static int is_killed(void *argument, const struct bp_snapshot_view *view, struct bp_snapshot_output output)
{
	(void)argument, (void)view;
	bp_snapshot_write(output, "lost", 4);
	return raise(SIGKILL);
}

static int exits(void *argument, const struct bp_snapshot_view *view, struct bp_snapshot_output output)
{
	(void)argument, (void)view, (void)output;
	_exit(7);
}

static void polled(struct bp_snapshot_task task)
{
	struct timespec moment = {0, 1000000};
	int code;

	while ((code = bp_snapshot_poll(task)) == BP_SNAPSHOT_NOT_YET)
		nanosleep(&moment, NULL);
	IS(code, BP_SNAPSHOT_OK);
}

static void *joins(void *argument)
{
	struct bp_snapshot_result result;
	struct order *order = argument;

	IS(bp_snapshot_join(order->task, &result, sizeof result), BP_SNAPSHOT_OK);
	HOLDS(is_order(&result, order->len));
	return NULL;
}

static void tasks(void)
{
	static struct order order;
	struct bp_snapshot_memory memory = created(MIB, 0, 0), in_children = created(MIB, 0, BP_SNAPSHOT_IN_CHILD);
	struct bp_snapshot_memory_info info = info_of(memory), other = info_of(in_children);
	struct bp_snapshot_result result, kept;
	struct bp_snapshot_task task, second;
	struct bp_snapshot_info about;
	pthread_t threads[2];
	int i;

	memset(info.base, 1, info.len);
	memset(other.base, 1, other.len);
	second.handle = 7;
	IS(bp_snapshot_spawn(memory, NULL, NULL, &second), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_spawn_in_child(memory, NULL, NULL, &second), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_spawn(memory, looks, NULL, NULL), BP_SNAPSHOT_ERROR_NULL);
	HOLDS(second.handle == 7);

	/* A child's output may exceed the capacity of a pipe. */
	order.expected = 1, order.len = 3 * MIB + 1, order.at_home = 1, order.status = 42;
	IS(bp_snapshot_spawn_in_child(memory, looks, &order, &task), BP_SNAPSHOT_OK);
	memset(info.base, 2, info.len);
	polled(task);
	IS(bp_snapshot_join(task, NULL, sizeof result), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	HOLDS(result.status == 42 && is_order(&result, order.len));
	IS(bp_snapshot_get_task_info(task, NULL, sizeof about), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_get_task_info(task, &about, sizeof about), BP_SNAPSHOT_OK);
	HOLDS(about.epoch > 0 && about.pause_ns > 0);
	/* A second call gives the same bytes at the same address. */
	IS(bp_snapshot_join(task, &kept, sizeof kept), BP_SNAPSHOT_OK);
	HOLDS(memcmp(&result, &kept, sizeof kept) == 0);
	IS(bp_snapshot_poll(task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);

	/* The task runs in the default way of the memory. A closed output accepts nothing. */
	order.expected = 2, order.len = 10, order.status = 0, order.at_home = !has_snapshots();
	old_output.handle = 0;
	IS(bp_snapshot_spawn(memory, looks, &order, &task), BP_SNAPSHOT_OK);
	order.expected = 2;
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	HOLDS(result.status == 0 && is_order(&result, 10));
	IS(bp_snapshot_write(old_output, "x", 1),
	   has_snapshots() ? BP_SNAPSHOT_ERROR_CLOSED : BP_SNAPSHOT_ERROR_HANDLE);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	order.expected = 1, order.at_home = 1;
	IS(bp_snapshot_spawn(in_children, looks, &order, &order.task), BP_SNAPSHOT_OK);
	/* Several threads may wait for a task. */
	for (i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, joins, &order);
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);

	/* The program's handles in a child. */
	order.memory = memory;
	if (has_snapshots())
		IS(bp_snapshot_take(memory, &order.snapshot), BP_SNAPSHOT_OK);
	/* A snapshot of remap does not disturb a child. */
	fflush(stdout);
	IS(bp_snapshot_spawn_in_child(memory, looks_at_handles, &order, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	HOLDS(result.status == 0 && result.len == 0);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_close_task(order.task), BP_SNAPSHOT_OK);
	if (has_snapshots())
		IS(bp_snapshot_release(order.snapshot), BP_SNAPSHOT_OK);

	order.memory = in_children, order.snapshot.handle = order.task.handle = 0;
	IS(bp_snapshot_spawn(in_children, looks_at_handles, &order, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	HOLDS(result.status == 0 && result.len == 0);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);

	/* Tasks that do not end normally. */
	kept = result;
	IS(bp_snapshot_spawn_in_child(memory, is_killed, NULL, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_ERROR_TASK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_ERROR_TASK);
	HOLDS(strstr(bp_snapshot_error(), "signal 9") != NULL && memcmp(&result, &kept, sizeof kept) == 0);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_spawn_in_child(memory, exits, NULL, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_ERROR_TASK);
	HOLDS(strstr(bp_snapshot_error(), "status 7") != NULL);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	/* A task for which no thread waits. */
	IS(bp_snapshot_spawn_in_child(memory, returns_at_once, NULL, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_ERROR_CLOSED);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
	IS(bp_snapshot_destroy(in_children), BP_SNAPSHOT_OK);
}

int main(int argc, char **argv)
{
	int code;

	code = begin(argc, argv);
	if (code)
		return code;
	tasks();
	return failures != 0;
}
