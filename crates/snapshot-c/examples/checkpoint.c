/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A checkpoint file that is updated with the pages that changed. A real database writes to a journal or to a second file first,
 * because a crash in the middle leaves the file between two checkpoints.
 *
 *   cc checkpoint.c $(pkg-config --cflags --libs bedplate-snapshot) -o checkpoint
 *   ./checkpoint FILE
 */
#include <bedplate/snapshot.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES ((size_t)64 << 20)

static void must(int code)
{
	if (code < 0) {
		fprintf(stderr, "%s\n", bp_snapshot_error());
		exit(code == BP_SNAPSHOT_ERROR_UNAVAILABLE ? 3 : 1);
	}
}

/* Writes the changes since the previous checkpoint. Returns the number of bytes. */
static size_t write_changes(struct bp_snapshot snapshot, const struct bp_snapshot_bookmark *before, int file)
{
	struct bp_snapshot_range ranges[64];
	struct bp_snapshot_view view;
	size_t from = 0, written = 0, count, i;
	int code;

	must(bp_snapshot_get_view(snapshot, &view, sizeof view));
	do {
		must(code = bp_snapshot_changed_since(snapshot, before, from, ranges, 64, &count));
		for (i = 0; i < count; i++) {
			from = ranges[i].end;
			written += from - ranges[i].start;
			if (pwrite(file, view.data + ranges[i].start, from - ranges[i].start, (off_t)ranges[i].start) < 0)
				exit(1);
		}
	} while (code == BP_SNAPSHOT_MORE);
	return written;
}

int main(int argc, char **argv)
{
	struct bp_snapshot_options options = {
		.size = sizeof options, .bytes = BYTES, .flags = BP_SNAPSHOT_TRACK_CHANGES};
	int file = argc == 2 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644) : -1, number;
	struct bp_snapshot_bookmark bookmark;
	struct bp_snapshot_memory_info info;
	struct bp_snapshot_memory memory;
	struct bp_snapshot snapshot;
	struct bp_snapshot_view view;
	size_t i;

	if (file < 0) {
		fprintf(stderr, "usage: %s FILE\n", argv[0]);
		return 2;
	}
	must(bp_snapshot_create(&options, &memory));
	must(bp_snapshot_get_memory_info(memory, &info, sizeof info));
	for (number = 0; number < 4; number++) {
		/* This is the database's own work: the first time everywhere, later in a few places. */
		for (i = 0; i < BYTES; i += number ? BYTES / 16 : 4096)
			info.base[i + (size_t)number]++;
		must(bp_snapshot_take(memory, &snapshot));
		if (number == 0) {
			must(bp_snapshot_get_view(snapshot, &view, sizeof view));
			if (write(file, view.data, view.len) != (ssize_t)view.len)
				return 1;
			printf("checkpoint 0: all\n");
		} else {
			size_t written = write_changes(snapshot, &bookmark, file);

			printf("checkpoint %d: %s\n", number, written < BYTES / 4 ? "a part" : "too much");
		}
		/* A checkpoint counts only after this check. If it failed, the next one is compared with the previous one again.
		 */
		must(bp_snapshot_check(snapshot));
		must(bp_snapshot_get_bookmark(snapshot, &bookmark));
		must(bp_snapshot_release(snapshot));
	}
	for (i = 0; i < BYTES; i += 4096) {
		uint8_t page[4096];

		if (pread(file, page, sizeof page, (off_t)i) != sizeof page || memcmp(page, info.base + i, sizeof page)) {
			printf("the file is not what the memory is\n");
			return 1;
		}
	}
	printf("the file is what the memory is\n");
	must(bp_snapshot_destroy(memory));
	return close(file) != 0;
}
