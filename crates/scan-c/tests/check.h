/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The common parts of the tests in C. The arguments of each test are two files, "threads" or "auto", and the path of a daemon's
 * socket. The first file has 5 MiB, and every byte is the number of its page of 8 KiB. A test prints each failed check, and
 * then fails.
 */
#ifndef CHECK_H
#define CHECK_H

#define BP_CHECK_STRERROR bp_scan_strerror
#define BP_CHECK_ERROR bp_scan_error

#include <bedplate/scan.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "bedplate_check.h"

static struct bp_scan_service service;
static const char *path;
/* The second file, which is longer. */
static const char *other_path;
static enum bp_scan_engine engine;

/* Returns the process's own service. valgrind hangs while io_uring waits, so with threads this starts a service of threads. */
static inline struct bp_scan_service another_service(void)
{
	struct bp_scan_service_options options;
	struct bp_scan_service other = BP_SCAN_DEFAULT;

	if (engine == BP_SCAN_ENGINE_THREADS) {
		memset(&options, 0, sizeof options);
		options.size = sizeof options;
		options.engine = BP_SCAN_ENGINE_THREADS;
		IS(bp_scan_start(&options, &other), BP_SCAN_OK);
	}
	return other;
}

static struct bp_scan_options options_of(const struct bp_scan_source *source)
{
	struct bp_scan_options options;

	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.sources = source;
	options.source_count = 1;
	options.page_size = 8192;
	options.ring_bytes = 4 << 20;
	return options;
}

static struct bp_scan_source source_of(const char *name)
{
	struct bp_scan_source source;

	memset(&source, 0, sizeof source);
	source.path = name;
	return source;
}

static inline struct bp_scan_channel opened(const char *name)
{
	struct bp_scan_source source = source_of(name);
	struct bp_scan_options options = options_of(&source);
	struct bp_scan_channel channel = {0};

	IS(bp_scan_open(service, &options, &channel), BP_SCAN_OK);
	return channel;
}

static int right(const struct bp_scan_page *page)
{
	size_t i;

	for (i = 0; i < page->len; i++)
		if (page->data[i] != (uint8_t)((page->offset + i) / 8192))
			return 0;
	return 1;
}

/* Starts the service that the arguments select. Returns 0, or the value that main() must return. */
static int begin(int argc, char **argv)
{
	struct bp_scan_service_options options;

	if (argc != 5)
		return 2;
	path = argv[1];
	other_path = argv[2];
	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	engine = strcmp(argv[3], "threads") == 0 ? BP_SCAN_ENGINE_THREADS : BP_SCAN_ENGINE_AUTO;
	options.engine = engine;
	IS(bp_scan_start(&options, &service), BP_SCAN_OK);
	return failures;
}

#endif
