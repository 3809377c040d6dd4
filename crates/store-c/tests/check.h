/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions that the tests in C share. Each test is run with the path of an empty folder. It prints the checks that fail.
 */
#ifndef CHECK_H
#define CHECK_H

#define BP_CHECK_STRERROR bp_store_strerror
#define BP_CHECK_ERROR bp_store_error

#include <bedplate/store.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bedplate_check.h"

static inline struct bp_store_options options_of(uint32_t flags)
{
	struct bp_store_options options;

	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.memory_bytes = 1 << 20;
	options.capacity_bytes = UINT64_C(256) << 20;
	options.flags = flags;
	return options;
}

/* The store in a folder, which is created if it is not there. */
static inline struct bp_store opened(const char *folder)
{
	struct bp_store_options options = options_of(BP_STORE_CREATE);
	struct bp_store store = {0};

	IS(bp_store_open(folder, &options, &store), BP_STORE_OK);
	return store;
}

static inline struct bp_store_tree tree_of(struct bp_store store, const char *name)
{
	struct bp_store_tree tree = {0, 0};

	IS(bp_store_open_tree(store, name, BP_STORE_CREATE, &tree), BP_STORE_OK);
	return tree;
}

static inline struct bp_store_transaction begun(struct bp_store store, uint32_t flags)
{
	struct bp_store_transaction transaction = {0};

	IS(bp_store_begin(store, flags, &transaction), BP_STORE_OK);
	return transaction;
}

/* Puts a record of texts. */
static inline int put(struct bp_store_transaction transaction, struct bp_store_tree tree, const char *key, const char *value)
{
	return bp_store_put(transaction, tree, key, strlen(key), value, strlen(value));
}

static inline int equal(struct bp_store_bytes bytes, const char *text)
{
	return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

/* Whether a key has this value; NULL: is not there. */
static inline int has(struct bp_store_transaction transaction, struct bp_store_tree tree, const char *key, const char *value)
{
	struct bp_store_bytes found = {"", 99};
	int code = bp_store_get(transaction, tree, key, strlen(key), &found);

	if (value == NULL)
		return code == BP_STORE_NOT_FOUND && found.data == NULL && found.len == 0;
	return code == BP_STORE_OK && equal(found, value);
}

static inline struct bp_store_statistics statistics_of(struct bp_store store)
{
	struct bp_store_statistics statistics;

	memset(&statistics, 0, sizeof statistics);
	IS(bp_store_get_statistics(store, &statistics, sizeof statistics), BP_STORE_OK);
	return statistics;
}

/* A path in a folder. */
static inline const char *path_in(const char *folder, const char *name, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/%s", folder, name);
	return path;
}

#endif
