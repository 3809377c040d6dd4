/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The common parts of the tests in C. Each test runs with the name of an engine, or "auto". It prints each failed check, and then
 * fails. It returns 3 if the engine does not work here.
 */
#ifndef CHECK_H
#define CHECK_H

#include <bedplate/snapshot.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BP_CHECK_STRERROR bp_snapshot_strerror
#define BP_CHECK_ERROR bp_snapshot_error
#include "bedplate_check.h"

#define MIB ((size_t)1 << 20)

static enum bp_snapshot_engine engine;
/* The properties of the memories of this run. */
static enum bp_snapshot_engine chosen;

static struct bp_snapshot_options options_of(size_t bytes, uint32_t flags)
{
	struct bp_snapshot_options options;

	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.bytes = bytes;
	options.engine = engine;
	options.flags = flags;
	return options;
}

static inline struct bp_snapshot_memory created(size_t bytes, size_t reserve, uint32_t flags)
{
	struct bp_snapshot_options options = options_of(bytes, flags);
	struct bp_snapshot_memory memory = {0};

	options.reserve = reserve;
	IS(bp_snapshot_create(&options, &memory), BP_SNAPSHOT_OK);
	return memory;
}

static inline struct bp_snapshot_memory_info info_of(struct bp_snapshot_memory memory)
{
	struct bp_snapshot_memory_info info;

	memset(&info, 0, sizeof info);
	IS(bp_snapshot_get_memory_info(memory, &info, sizeof info), BP_SNAPSHOT_OK);
	return info;
}

static inline int has_snapshots(void)
{
	return chosen == BP_SNAPSHOT_ENGINE_REMAP || chosen == BP_SNAPSHOT_ENGINE_UFFD;
}

static inline int all_are(const uint8_t *bytes, size_t len, uint8_t value)
{
	size_t i;

	for (i = 0; i < len; i++)
		if (bytes[i] != value)
			return 0;
	return 1;
}

static inline int returns_at_once(void *argument, const struct bp_snapshot_view *view, struct bp_snapshot_output output)
{
	(void)argument, (void)view, (void)output;
	return 0;
}

/* Chooses the engine by the program's argument. Returns 0, or the value that main() must return. */
static int begin(int argc, char **argv)
{
	static const char *names[] = {"auto", "remap", "uffd", "fork", "ring0"};
	struct bp_snapshot_options options;
	struct bp_snapshot_memory memory;
	int code;

	if (argc != 2)
		return 2;
	while (strcmp(argv[1], names[engine]) != 0)
		if (++engine > BP_SNAPSHOT_ENGINE_RING0)
			return 2;
	options = options_of(MIB, 0);
	code = bp_snapshot_create(&options, &memory);
	if (code == BP_SNAPSHOT_ERROR_UNAVAILABLE) {
		printf("%s\n", bp_snapshot_error());
		return 3;
	}
	IS(code, BP_SNAPSHOT_OK);
	chosen = info_of(memory).engine;
	HOLDS(engine == BP_SNAPSHOT_ENGINE_AUTO || chosen == engine);
	IS(bp_snapshot_destroy(memory), BP_SNAPSHOT_OK);
	return failures;
}

#endif
