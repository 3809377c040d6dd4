/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Snapshots that threads read, and the changes between two of them. */
#include "check.h"

static void snapshots(void)
{
	struct bp_snapshot_memory memory = created(MIB, 2 * MIB, 0);
	struct bp_snapshot_memory_info info = info_of(memory);
	struct bp_snapshot_bookmark bookmark;
	struct bp_snapshot_view view, other_view, empty;
	struct bp_snapshot_info about;
	struct bp_snapshot snapshot, other, many[20];
	size_t most = chosen == BP_SNAPSHOT_ENGINE_REMAP ? 1 : 16, i;

	IS(bp_snapshot_take(memory, NULL), BP_SNAPSHOT_ERROR_NULL);
	if (!has_snapshots()) {
		IS(bp_snapshot_take(memory, &snapshot), BP_SNAPSHOT_ERROR_UNAVAILABLE);
		HOLDS(strstr(bp_snapshot_error(), "bp_snapshot_spawn") != NULL);
		IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
		return;
	}
	memset(info.base, 1, info.len);
	IS(bp_snapshot_take(memory, &snapshot), BP_SNAPSHOT_OK);
	memset(info.base, 2, info.len);
	IS(bp_snapshot_grow(memory, MIB, NULL), BP_SNAPSHOT_OK);
	IS(bp_snapshot_get_view(snapshot, NULL, sizeof view), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_get_view(snapshot, &view, sizeof view), BP_SNAPSHOT_OK);
	HOLDS(view.len == MIB && view.home == info.base && view.data != info.base && all_are(view.data, view.len, 1));

	/* The owner's content at one of its addresses. */
	HOLDS(bp_snapshot_bytes_at(&view, info.base, view.len) == view.data);
	HOLDS(bp_snapshot_bytes_at(&view, info.base + 5, view.len - 5) == view.data + 5);
	HOLDS(bp_snapshot_bytes_at(&view, info.base + view.len, 0) == view.data + view.len);
	HOLDS(bp_snapshot_bytes_at(&view, info.base, view.len + 1) == NULL);
	HOLDS(bp_snapshot_bytes_at(&view, info.base + 1, view.len) == NULL);
	HOLDS(bp_snapshot_bytes_at(&view, info.base + 1, SIZE_MAX) == NULL);
	HOLDS(bp_snapshot_bytes_at(&view, info.base - 1, 1) == NULL);
	HOLDS(bp_snapshot_bytes_at(&view, NULL, 1) == NULL);
	HOLDS(bp_snapshot_bytes_at(NULL, info.base, 1) == NULL);
	memset(&empty, 0, sizeof empty);
	HOLDS(bp_snapshot_bytes_at(&empty, info.base, 1) == NULL);

	IS(bp_snapshot_get_info(snapshot, NULL, sizeof about), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_get_info(snapshot, &about, sizeof about), BP_SNAPSHOT_OK);
	HOLDS(about.epoch > 0 && about.pause_ns > 0);
	IS(bp_snapshot_get_bookmark(snapshot, NULL), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_get_bookmark(snapshot, &bookmark), BP_SNAPSHOT_ERROR_NOT_TRACKED);
	HOLDS(strstr(bp_snapshot_error(), "BP_SNAPSHOT_TRACK_CHANGES") != NULL);

	/* The snapshot ends with its last handle. */
	IS(bp_snapshot_clone(snapshot, NULL), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_clone(snapshot, &other), BP_SNAPSHOT_OK);
	IS(bp_snapshot_release(snapshot), BP_SNAPSHOT_OK);
	IS(bp_snapshot_release(snapshot), BP_SNAPSHOT_ERROR_CLOSED);
	IS(bp_snapshot_check(snapshot), BP_SNAPSHOT_ERROR_CLOSED);
	IS(bp_snapshot_get_view(other, &other_view, sizeof other_view), BP_SNAPSHOT_OK);
	HOLDS(other_view.data == view.data && all_are(view.data, view.len, 1));
	IS(bp_snapshot_check(other), BP_SNAPSHOT_OK);
	IS(bp_snapshot_release(other), BP_SNAPSHOT_OK);

	/* The maximum number of snapshots, and one more. */
	for (i = 0; i < most; i++) {
		memset(info.base, (int)i + 10, info.len);
		IS(bp_snapshot_take(memory, &many[i]), BP_SNAPSHOT_OK);
	}
	snapshot.handle = 7;
	IS(bp_snapshot_take(memory, &snapshot), BP_SNAPSHOT_ERROR_TOO_MANY);
	HOLDS(snapshot.handle == 7);
	/* Snapshots outlive the memory. */
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
	for (i = 0; i < most; i++) {
		IS(bp_snapshot_get_view(many[i], &view, sizeof view), BP_SNAPSHOT_OK);
		HOLDS(all_are(view.data, MIB, (uint8_t)(i + 10)));
		IS(bp_snapshot_check(many[i]), BP_SNAPSHOT_OK);
		IS(bp_snapshot_release(many[i]), BP_SNAPSHOT_OK);
	}
}

static void changes(void)
{
	enum { PAGES = 1000, PAGE = 4096 };
	struct bp_snapshot_options options = options_of(PAGES * PAGE, BP_SNAPSHOT_TRACK_CHANGES);
	struct bp_snapshot_memory memory = {0};
	struct bp_snapshot_memory_info info;
	struct bp_snapshot_bookmark bookmark, later, forged;
	struct bp_snapshot_range ranges[10], all[10];
	struct bp_snapshot first, second;
	size_t count, total = 0, from = 0, i;
	int code;

	options.reserve = (PAGES + 10) * PAGE;
	if (engine != BP_SNAPSHOT_ENGINE_AUTO && engine != BP_SNAPSHOT_ENGINE_UFFD) {
		IS(bp_snapshot_create(&options, &memory), BP_SNAPSHOT_ERROR_UNAVAILABLE);
		return;
	}
	code = bp_snapshot_create(&options, &memory);
	if (code == BP_SNAPSHOT_ERROR_UNAVAILABLE) {
		printf("skipped: changes: %s\n", bp_snapshot_error());
		return;
	}
	IS(code, BP_SNAPSHOT_OK);
	info = info_of(memory);
	HOLDS(info.engine == BP_SNAPSHOT_ENGINE_UFFD && info.flags == BP_SNAPSHOT_TRACK_CHANGES);
	IS(bp_snapshot_take(memory, &first), BP_SNAPSHOT_OK);
	IS(bp_snapshot_get_bookmark(first, &bookmark), BP_SNAPSHOT_OK);
	IS(bp_snapshot_release(first), BP_SNAPSHOT_OK);
	for (i = 0; i < 5; i++)
		info.base[i * 200 * PAGE + 1] = 1;
	IS(bp_snapshot_grow(memory, 3 * PAGE, NULL), BP_SNAPSHOT_OK);
	IS(bp_snapshot_take(memory, &second), BP_SNAPSHOT_OK);
	info.base[100 * PAGE] = 1;

	IS(bp_snapshot_changed_since(second, NULL, 0, ranges, 10, &count), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_changed_since(second, &bookmark, 0, NULL, 10, &count), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_changed_since(second, &bookmark, 0, ranges, 10, NULL), BP_SNAPSHOT_ERROR_NULL);
	IS(bp_snapshot_changed_since(second, &bookmark, 0, ranges, 0, &count), BP_SNAPSHOT_ERROR_INVALID);
	/* All ranges at once: five pages, and the part by which the memory has grown. */
	IS(bp_snapshot_changed_since(second, &bookmark, 0, all, 10, &total), BP_SNAPSHOT_OK);
	HOLDS(total == 6 && all[5].start == PAGES * PAGE && all[5].end == (PAGES + 3) * PAGE);
	for (i = 0; i < 5; i++)
		HOLDS(all[i].start <= i * 200 * PAGE && all[i].end > i * 200 * PAGE);
	/* Two ranges at a time. */
	i = 0;
	do {
		code = bp_snapshot_changed_since(second, &bookmark, from, ranges, 2, &count);
		HOLDS(code >= 0 && i + count <= total && memcmp(ranges, all + i, count * sizeof *all) == 0);
		i += count;
		from = count ? ranges[count - 1].end : from;
	} while (code == BP_SNAPSHOT_MORE);
	HOLDS(i == total);
	IS(bp_snapshot_changed_since(second, &bookmark, SIZE_MAX, ranges, 10, &count), BP_SNAPSHOT_OK);
	HOLDS(count == 0);

	/* Nothing has changed since this very moment, and a later moment is not an earlier one. */
	IS(bp_snapshot_get_bookmark(second, &later), BP_SNAPSHOT_OK);
	IS(bp_snapshot_changed_since(second, &later, 0, ranges, 10, &count), BP_SNAPSHOT_OK);
	HOLDS(count == 0);
	IS(bp_snapshot_take(memory, &first), BP_SNAPSHOT_OK);
	IS(bp_snapshot_get_bookmark(first, &later), BP_SNAPSHOT_OK);
	IS(bp_snapshot_changed_since(second, &later, 0, ranges, 10, &count), BP_SNAPSHOT_ERROR_NOT_EARLIER);

	/* These values are not bookmarks. */
	memset(&forged, 0, sizeof forged);
	IS(bp_snapshot_changed_since(second, &forged, 0, ranges, 10, &count), BP_SNAPSHOT_ERROR_BOOKMARK);
	memset(&forged, 0xff, sizeof forged);
	IS(bp_snapshot_changed_since(second, &forged, 0, ranges, 10, &count), BP_SNAPSHOT_ERROR_BOOKMARK);
	for (i = 0; i < 4; i++) {
		forged = bookmark, forged.word[i] ^= 0x1000;
		IS(bp_snapshot_changed_since(second, &forged, 0, ranges, 10, &count), BP_SNAPSHOT_ERROR_BOOKMARK);
	}
	IS(bp_snapshot_release(first), BP_SNAPSHOT_OK);
	IS(bp_snapshot_release(second), BP_SNAPSHOT_OK);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
}

static struct bp_snapshot shared;
static int cloned;

/* Reads with a handle of its own, and tries to release the shared one. */
static void *reads(void *unused)
{
	struct bp_snapshot_view view;
	struct bp_snapshot own;
	int i, code;

	IS(bp_snapshot_clone(shared, &own), BP_SNAPSHOT_OK);
	__atomic_add_fetch(&cloned, 1, __ATOMIC_ACQ_REL);
	for (i = 0; i < 20; i++) {
		IS(bp_snapshot_get_view(own, &view, sizeof view), BP_SNAPSHOT_OK);
		HOLDS(all_are(view.data, view.len, 1));
		IS(bp_snapshot_check(own), BP_SNAPSHOT_OK);
	}
	/* This happens after all threads have their own handles. */
	if (__atomic_load_n(&cloned, __ATOMIC_ACQUIRE) == 4) {
		code = bp_snapshot_release(shared);
		HOLDS(code == BP_SNAPSHOT_OK || code == BP_SNAPSHOT_ERROR_CLOSED);
	}
	IS(bp_snapshot_release(own), BP_SNAPSHOT_OK);
	return unused;
}

static void threads(void)
{
	struct bp_snapshot_memory memory = created(MIB, 0, 0);
	struct bp_snapshot_memory_info info = info_of(memory);
	struct bp_snapshot_statistics statistics;
	pthread_t threads[4];
	int i, round;

	for (round = 0; has_snapshots() && round < 5; round++) {
		memset(info.base, 1, info.len);
		cloned = 0;
		IS(bp_snapshot_take(memory, &shared), BP_SNAPSHOT_OK);
		for (i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, reads, NULL);
		for (i = 0; i < 20; i++)
			memset(info.base, i + 2, info.len);
		for (i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
		IS(bp_snapshot_release(shared), BP_SNAPSHOT_ERROR_CLOSED);
		IS(bp_snapshot_get_statistics(memory, &statistics, sizeof statistics), BP_SNAPSHOT_OK);
		HOLDS(statistics.active == 0);
	}
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
}

int main(int argc, char **argv)
{
	int code;

	code = begin(argc, argv);
	if (code)
		return code;
	snapshots();
	changes();
	threads();
	return failures != 0;
}
