/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memories, handles and options, and every misuse of them that the library promises to detect. */
#include "check.h"

static void options_are_checked(void)
{
	struct {
		struct bp_snapshot_options options;
		uint64_t later;
	} newer;
	struct bp_snapshot_options options = options_of(MIB, 0), bad;
	struct bp_snapshot_memory memory = {0};
	char text[400], little[4];

	IS(bp_snapshot_create(NULL, &memory), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_create(&options, NULL), BP_SNAPSHOT_ERROR_NULL);
	bad = options, bad.size = 0;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.size = SIZE_MAX;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.bytes = 0;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.bytes = ((size_t)1 << 46) + 1;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.bytes = SIZE_MAX;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.reserve = MIB - 1;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.reserve = ((size_t)1 << 46) + 1;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.engine = 5;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.flags = 0x20;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.reserved = 1;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	bad = options, bad.flags = BP_SNAPSHOT_NOT_AHEAD, bad.ahead = 1;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_INVALID);
	/* An engine that supports fewer snapshots at once is not chosen. */
	bad = options, bad.snapshots_at_once = 17, bad.engine = BP_SNAPSHOT_ENGINE_UFFD;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_UNAVAILABLE);
	bad = options, bad.flags = BP_SNAPSHOT_TRACK_CHANGES, bad.engine = BP_SNAPSHOT_ENGINE_FORK;
	IS(bp_snapshot_create(&bad, &memory), BP_SNAPSHOT_ERROR_UNAVAILABLE);
	HOLDS(strstr(bp_snapshot_error(), "fork") != NULL && memory.handle == 0);

	memset(&newer, 0, sizeof newer);
	newer.options = options, newer.options.size = sizeof newer, newer.later = 1;
	IS(bp_snapshot_create(&newer.options, &memory), BP_SNAPSHOT_ERROR_INVALID);
	newer.later = 0;
	IS(bp_snapshot_create(&newer.options, &memory), BP_SNAPSHOT_OK);
	IS(bp_snapshot_about(memory, NULL, 10), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_about(memory, text, sizeof text), BP_SNAPSHOT_OK);
	HOLDS(strncmp(text, chosen == BP_SNAPSHOT_ENGINE_REMAP  ? "remap"
			    : chosen == BP_SNAPSHOT_ENGINE_UFFD ? "uffd"
								: "fork",
		      4) == 0);
	IS(bp_snapshot_about(memory, little, sizeof little), BP_SNAPSHOT_OK);
	HOLDS(strlen(little) == 3 && memcmp(little, text, 3) == 0);
	IS(bp_snapshot_settle(memory), BP_SNAPSHOT_OK);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);

	memory = created(4 * MIB, 0, BP_SNAPSHOT_HUGE_PAGES | BP_SNAPSHOT_IN_CHILD | BP_SNAPSHOT_NOT_AHEAD);
	HOLDS(info_of(memory).flags == (BP_SNAPSHOT_HUGE_PAGES | BP_SNAPSHOT_IN_CHILD | BP_SNAPSHOT_NOT_AHEAD));
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
	/* The request determines the engine. */
	options.snapshots_at_once = 17;
	if (engine == BP_SNAPSHOT_ENGINE_AUTO) {
		IS(bp_snapshot_create(&options, &memory), BP_SNAPSHOT_OK);
		HOLDS(info_of(memory).engine == BP_SNAPSHOT_ENGINE_FORK);
		IS(bp_snapshot_about(memory, text, sizeof text), BP_SNAPSHOT_OK);
		HOLDS(strstr(text, "17 are asked for") != NULL);
		IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
	}
}

/* No function accepts a handle that was never given out, is of another kind, or was closed. */
static void handles_are_checked(struct bp_snapshot_memory memory, struct bp_snapshot snapshot,
				struct bp_snapshot_task task, int wanted)
{
	struct bp_snapshot_memory_info memory_info;
	struct bp_snapshot_statistics statistics;
	struct bp_snapshot_bookmark bookmark;
	struct bp_snapshot_result result;
	struct bp_snapshot_range range;
	struct bp_snapshot_info info;
	struct bp_snapshot_view view;
	struct bp_snapshot_output output = {task.handle};
	struct bp_snapshot other = {7};
	struct bp_snapshot_task new_task = {7};
	void *block = &view;
	size_t count;
	char text[4];

	memset(&bookmark, 0, sizeof bookmark);
	IS(bp_snapshot_get_memory_info(memory, &memory_info, sizeof memory_info), wanted);
	IS(bp_snapshot_about(memory, text, sizeof text), wanted);
	IS(bp_snapshot_grow(memory, 1, NULL), wanted);
	IS(bp_snapshot_settle(memory), wanted);
	IS(bp_snapshot_get_statistics(memory, &statistics, sizeof statistics), wanted);
	IS(bp_snapshot_take(memory, &other), wanted);
	IS(bp_snapshot_spawn(memory, returns_at_once, NULL, &new_task), wanted);
	IS(bp_snapshot_spawn_in_child(memory, returns_at_once, NULL, &new_task), wanted);
	IS(bp_snapshot_allocate(memory, 1, 0, &block), wanted);
	IS(bp_snapshot_allocate_zeroed(memory, 1, 0, &block), wanted);
	IS(bp_snapshot_resize(memory, &view, 1, &block), wanted);
	IS(bp_snapshot_free(memory, &view), wanted);
	IS(bp_snapshot_destroy(memory), wanted);
	IS(bp_snapshot_clone(snapshot, &other), wanted);
	IS(bp_snapshot_get_view(snapshot, &view, sizeof view), wanted);
	IS(bp_snapshot_check(snapshot), wanted);
	IS(bp_snapshot_get_info(snapshot, &info, sizeof info), wanted);
	IS(bp_snapshot_get_bookmark(snapshot, &bookmark), wanted);
	IS(bp_snapshot_changed_since(snapshot, &bookmark, 0, &range, 1, &count), wanted);
	IS(bp_snapshot_release(snapshot), wanted);
	IS(bp_snapshot_poll(task), wanted);
	IS(bp_snapshot_join(task, &result, sizeof result), wanted);
	IS(bp_snapshot_get_task_info(task, &info, sizeof info), wanted);
	IS(bp_snapshot_close_task(task), wanted);
	IS(bp_snapshot_write(output, "x", 1), BP_SNAPSHOT_ERROR_HANDLE);
	/* The calls have changed nothing. */
	HOLDS(other.handle == 7 && new_task.handle == 7 && block == &view);
}

static void handles(void)
{
	struct bp_snapshot_memory memory = created(MIB, 0, 0), none;
	struct bp_snapshot snapshot = {0}, no_snapshot;
	struct bp_snapshot_task task = {0}, no_task;
	struct bp_snapshot_result result;
	uint64_t wrong[] = {0, 1, UINT64_MAX, (uint64_t)'M' << 56, (uint64_t)'V' << 56 | 1 << 30, (uint64_t)'T' << 56 | 5};
	size_t i;

	for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		none.handle = no_snapshot.handle = no_task.handle = wrong[i];
		handles_are_checked(none, no_snapshot, no_task, BP_SNAPSHOT_ERROR_HANDLE);
	}
	IS(bp_snapshot_spawn_in_child(memory, returns_at_once, NULL, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	if (has_snapshots())
		IS(bp_snapshot_take(memory, &snapshot), BP_SNAPSHOT_OK);
	/* These handles are of another kind, or do not exist yet. */
	none.handle = task.handle, no_snapshot.handle = memory.handle, no_task.handle = memory.handle;
	handles_are_checked(none, no_snapshot, no_task, BP_SNAPSHOT_ERROR_HANDLE);
	none.handle = memory.handle + 1, no_snapshot.handle = snapshot.handle + 1, no_task.handle = task.handle + 1;
	handles_are_checked(none, no_snapshot, no_task, BP_SNAPSHOT_ERROR_HANDLE);
	if (has_snapshots())
		IS(bp_snapshot_release(snapshot), BP_SNAPSHOT_OK);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
	if (has_snapshots())
		handles_are_checked(memory, snapshot, task, BP_SNAPSHOT_ERROR_CLOSED);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_ERROR_CLOSED);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_ERROR_CLOSED);
	HOLDS(strstr(bp_snapshot_error(), "closed") != NULL);
}

static void memories(void)
{
	struct bp_snapshot_memory memory = created(MIB, MIB + 8 * 4096, 0), fixed = created(5000, 0, 0);
	struct bp_snapshot_memory_info info = info_of(memory), less;
	struct bp_snapshot_statistics statistics, more[2];
	struct bp_snapshot_range grown;
	struct bp_snapshot_result result;
	struct bp_snapshot_task task;

	HOLDS(info.base != NULL && info.len == MIB && info.engine == chosen && info.flags == 0);
	HOLDS(all_are(info.base, info.len, 0));
	IS(bp_snapshot_get_memory_info(memory, NULL, sizeof info), BP_SNAPSHOT_ERROR_NULL);
	/* A program was compiled with a shorter structure. */
	memset(&less, 7, sizeof less);
	IS(bp_snapshot_get_memory_info(memory, &less, sizeof less.base), BP_SNAPSHOT_OK);
	HOLDS(less.base == info.base && all_are((uint8_t *)&less.len, sizeof less.len, 7));

	IS(bp_snapshot_grow(memory, 5000, &grown), BP_SNAPSHOT_OK);
	HOLDS(grown.start == MIB && grown.end == MIB + 8192);
	IS(bp_snapshot_grow(memory, 6 * 4096 + 1, &grown), BP_SNAPSHOT_ERROR_NO_ROOM);
	IS(bp_snapshot_grow(memory, SIZE_MAX, &grown), BP_SNAPSHOT_ERROR_NO_ROOM);
	HOLDS(strstr(bp_snapshot_error(), "bp_snapshot_options.reserve") != NULL && grown.start == MIB);
	IS(bp_snapshot_grow(memory, 6 * 4096, NULL), BP_SNAPSHOT_OK);
	info = info_of(memory);
	HOLDS(info.len == MIB + 8 * 4096 && all_are(info.base, info.len, 0));
	memset(info.base, 1, info.len);
	IS(bp_snapshot_grow(memory, 1, NULL), BP_SNAPSHOT_ERROR_NO_ROOM);
	HOLDS(info_of(fixed).len == 8192);
	IS(bp_snapshot_grow(fixed, 1, NULL), BP_SNAPSHOT_ERROR_NO_ROOM);

	IS(bp_snapshot_get_statistics(memory, NULL, sizeof statistics), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_get_statistics(memory, &statistics, sizeof statistics), BP_SNAPSHOT_OK);
	HOLDS(statistics.snapshots == 0);
	IS(bp_snapshot_spawn_in_child(memory, returns_at_once, NULL, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	memset(more, 7, sizeof more);
	IS(bp_snapshot_get_statistics(memory, more, sizeof more), BP_SNAPSHOT_OK);
	HOLDS(more[0].snapshots == 1 && all_are((uint8_t *)&more[1], sizeof more[1], 0));
	if (has_snapshots()) {
		uint64_t pauses = 0;
		size_t i;

		for (i = 0; i < sizeof statistics.pauses / sizeof *statistics.pauses; i++)
			pauses += more[0].pauses[i];
		HOLDS(pauses == 1 && more[0].pauses_ns == more[0].latest_pause_ns && more[0].latest_pause_ns > 0);
	}
	IS(bp_snapshot_destroy(fixed), BP_SNAPSHOT_OK);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
}

static void *fails_otherwise(void *unused)
{
	HOLDS(strlen(bp_snapshot_error()) == 0);
	IS(bp_snapshot_check((struct bp_snapshot){1}), BP_SNAPSHOT_ERROR_HANDLE);
	return unused;
}

static void errors_are_of_threads(void)
{
	pthread_t thread;

	IS(bp_snapshot_create(NULL, NULL), BP_SNAPSHOT_ERROR_NULL);
	pthread_create(&thread, NULL, fails_otherwise, NULL);
	pthread_join(thread, NULL);
	HOLDS(strstr(bp_snapshot_error(), "no place") != NULL);
	HOLDS(strcmp(bp_snapshot_strerror(12345), "no such code") == 0);
	HOLDS(strcmp(bp_snapshot_strerror(0), "done") == 0);
}

/* A child of the program's own fork() cannot use the program's handles, but can make its own. */
static void forks(void)
{
	struct bp_snapshot_memory memory = created(MIB, 0, 0), mine;
	struct bp_snapshot_memory_info info = info_of(memory);
	struct bp_snapshot snapshot = {0};
	struct bp_snapshot_task task = {0};
	struct bp_snapshot_result result;
	pid_t child;
	int status = -1;

	IS(bp_snapshot_spawn_in_child(memory, returns_at_once, NULL, &task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
	memset(info.base, 1, info.len);
	if (has_snapshots())
		IS(bp_snapshot_take(memory, &snapshot), BP_SNAPSHOT_OK);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		failures = 0;
		if (has_snapshots())
			handles_are_checked(memory, snapshot, task, BP_SNAPSHOT_ERROR_FORKED);
		IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_ERROR_FORKED);
		IS(bp_snapshot_close_task(task), BP_SNAPSHOT_ERROR_FORKED);
		mine = created(MIB, 0, 0);
		info = info_of(mine);
		memset(info.base, 3, info.len);
		IS(bp_snapshot_spawn_in_child(mine, returns_at_once, NULL, &task), BP_SNAPSHOT_OK);
		IS(bp_snapshot_join(task, &result, sizeof result), BP_SNAPSHOT_OK);
		IS(bp_snapshot_destroy(mine), BP_SNAPSHOT_OK);
		fflush(stdout);
		_exit(failures != 0);
	}
	HOLDS(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	HOLDS(all_are(info.base, info.len, 1));
	if (has_snapshots()) {
		IS(bp_snapshot_check(snapshot), BP_SNAPSHOT_OK);
		IS(bp_snapshot_release(snapshot), BP_SNAPSHOT_OK);
	}
	IS(bp_snapshot_close_task(task), BP_SNAPSHOT_OK);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
}

/* The maximum number of handles, and one more. */
static void too_many_handles(void)
{
	enum { MOST = 65536 };
	struct bp_snapshot_memory memory = created(MIB, 0, 0);
	struct bp_snapshot *all = calloc(MOST, sizeof *all), snapshot, one_more = {7};
	size_t i, count = 0;

	if (has_snapshots() && all) {
		IS(bp_snapshot_take(memory, &snapshot), BP_SNAPSHOT_OK);
		while (count < MOST && bp_snapshot_clone(snapshot, &all[count]) == BP_SNAPSHOT_OK)
			count++;
		IS(bp_snapshot_clone(snapshot, &one_more), BP_SNAPSHOT_ERROR_FULL);
		HOLDS(count == MOST - 1 && one_more.handle == 7);
		for (i = 0; i < count; i++)
			IS(bp_snapshot_release(all[i]), BP_SNAPSHOT_OK);
		IS(bp_snapshot_release(snapshot), BP_SNAPSHOT_OK);
	}
	free(all);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
}

int main(int argc, char **argv)
{
	int code;

	HOLDS(strlen(bp_snapshot_error()) == 0 && bp_snapshot_error_number() == 0 && strlen(bp_snapshot_version()) >= 5);
	code = begin(argc, argv);
	if (code)
		return code;
	options_are_checked();
	handles();
	memories();
	errors_are_of_threads();
	forks();
	too_many_handles();
	return failures != 0;
}
