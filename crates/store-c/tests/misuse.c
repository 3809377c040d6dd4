/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every way to use the library wrongly that it promises to find out. */
#include "check.h"

#include <sched.h>

static struct bp_store store;
static struct bp_store_tree tree;

static void nulls(const char *folder)
{
	struct bp_store_options options = options_of(BP_STORE_CREATE);
	struct bp_store other = {77};
	struct bp_store_transaction transaction = begun(store, 0);
	struct bp_store_range range;
	struct bp_store_cursor cursor;
	struct bp_store_bytes value;
	char name[256];

	IS(bp_store_open(NULL, &options, &other), BP_STORE_ERROR_NULL);
	IS(bp_store_open(folder, NULL, &other), BP_STORE_ERROR_NULL);
	IS(bp_store_open(folder, &options, NULL), BP_STORE_ERROR_NULL);
	HOLDS(other.handle == 77);
	IS(bp_store_open_tree(store, NULL, 0, &tree), BP_STORE_ERROR_NULL);
	IS(bp_store_open_tree(store, "t", 0, NULL), BP_STORE_ERROR_NULL);
	IS(bp_store_drop_tree(store, NULL), BP_STORE_ERROR_NULL);
	IS(bp_store_next_tree(store, NULL, NULL, 256), BP_STORE_ERROR_NULL);
	IS(bp_store_next_tree(store, NULL, name, 0), BP_STORE_ERROR_INVALID);
	IS(bp_store_begin(store, 0, NULL), BP_STORE_ERROR_NULL);
	IS(bp_store_get(transaction, tree, NULL, 1, &value), BP_STORE_ERROR_NULL);
	IS(bp_store_put(transaction, tree, NULL, 1, "", 0), BP_STORE_ERROR_NULL);
	IS(bp_store_put(transaction, tree, "", 0, NULL, 1), BP_STORE_ERROR_NULL);
	IS(bp_store_insert(transaction, tree, "", 0, NULL, 1), BP_STORE_ERROR_NULL);
	IS(bp_store_delete(transaction, tree, NULL, 1), BP_STORE_ERROR_NULL);
	IS(bp_store_open_cursor(transaction, tree, NULL, NULL), BP_STORE_ERROR_NULL);
	IS(bp_store_open_cursor(transaction, tree, NULL, &cursor), BP_STORE_OK);
	IS(bp_store_seek(cursor, NULL, 1), BP_STORE_ERROR_NULL);
	memset(&range, 0, sizeof range);
	range.from.len = 1;
	IS(bp_store_delete_range(transaction, tree, &range, NULL), BP_STORE_ERROR_NULL);
	IS(bp_store_get_statistics(store, NULL, 8), BP_STORE_ERROR_NULL);
	IS(bp_store_update(store, NULL, NULL), BP_STORE_ERROR_NULL);
	/* More bytes than there can be. */
	IS(bp_store_get(transaction, tree, "", SIZE_MAX, &value), BP_STORE_ERROR_INVALID);
	IS(bp_store_put(transaction, tree, "", 0, "", SIZE_MAX), BP_STORE_ERROR_INVALID);
	IS(bp_store_abort(transaction), BP_STORE_OK);
	HOLDS(strcmp(bp_store_strerror(12345), "no such code") == 0);
}

static void options_are_checked(const char *folder)
{
	struct bp_store_options good = options_of(BP_STORE_CREATE), bad;
	struct bp_store other = {77};
	struct bp_store_transaction transaction = {77};
	struct bp_store_statistics statistics;
	struct {
		struct bp_store_options options;
		uint64_t later;
	} newer;
	char path[4096], file[4096];

	path_in(folder, "options", path, sizeof path);
	bad = good, bad.size = 0;
	IS(bp_store_open(path, &bad, &other), BP_STORE_ERROR_INVALID);
	bad = good, bad.flags = 8;
	IS(bp_store_open(path, &bad, &other), BP_STORE_ERROR_INVALID);
	/* 3 is no engine: its number is between those of two engines. */
	bad = good, bad.engine = 3;
	IS(bp_store_open(path, &bad, &other), BP_STORE_ERROR_INVALID);
	bad = good, bad.engine = 9;
	IS(bp_store_open(path, &bad, &other), BP_STORE_ERROR_INVALID);
	newer.options = good, newer.options.size = sizeof newer, newer.later = 1;
	IS(bp_store_open(path, &newer.options, &other), BP_STORE_ERROR_INVALID);
	HOLDS(access(path, F_OK) != 0);
	bad = good, bad.memory_bytes = 1;
	IS(bp_store_open(path, &bad, &other), BP_STORE_ERROR_INVALID);
	IS(bp_store_open_tree(store, "t", 2, &tree), BP_STORE_ERROR_INVALID);
	IS(bp_store_open_tree(store, "\377", BP_STORE_CREATE, &tree), BP_STORE_ERROR_INVALID);
	IS(bp_store_begin(store, 2, &transaction), BP_STORE_ERROR_INVALID);
	HOLDS(other.handle == 77 && transaction.handle == 77);
	/* The directory is a file. */
	path_in(folder, "store/lock", file, sizeof file);
	IS(bp_store_open(file, &good, &other), BP_STORE_ERROR_SYSTEM);
	HOLDS(bp_store_error_number() != 0 && strstr(bp_store_error(), file) != NULL);

	/* A structure of a later version of which nothing is used. */
	newer.later = 0;
	IS(bp_store_open(path, &newer.options, &other), BP_STORE_OK);
	/* And one of an earlier version, which is shorter. */
	memset(&statistics, 0xff, sizeof statistics);
	IS(bp_store_get_statistics(other, &statistics, 16), BP_STORE_OK);
	HOLDS(statistics.commits == 0 && statistics.conflicts == 0 && statistics.version_bytes == UINT64_MAX);
	IS(bp_store_close(other), BP_STORE_OK);
}

static void handles(void)
{
	struct bp_store_transaction transaction = begun(store, 0), wrong;
	struct bp_store no_store;
	struct bp_store_tree no_tree = tree;
	struct bp_store_cursor cursor, no_cursor;
	struct bp_store_statistics statistics;
	uint64_t tries[] = {0, 1, UINT64_MAX, transaction.handle + 1, transaction.handle ^ UINT64_C(1) << 40,
			    transaction.handle ^ UINT64_C(1) << 60, store.handle, (uint64_t)(uintptr_t)&wrong};
	char name[256];
	size_t i;

	IS(bp_store_open_cursor(transaction, tree, NULL, &cursor), BP_STORE_OK);
	for (i = 0; i < sizeof tries / sizeof *tries; i++) {
		wrong.handle = tries[i];
		IS(bp_store_get(wrong, tree, "k", 1, NULL), BP_STORE_ERROR_HANDLE);
		IS(put(wrong, tree, "k", ""), BP_STORE_ERROR_HANDLE);
		IS(bp_store_commit(wrong), BP_STORE_ERROR_HANDLE);
		IS(bp_store_abort(wrong), BP_STORE_ERROR_HANDLE);
		no_cursor = cursor, no_cursor.transaction = tries[i];
		IS(bp_store_next(no_cursor, NULL, NULL), BP_STORE_ERROR_HANDLE);
		if (tries[i] == store.handle)
			continue;
		no_store.handle = tries[i];
		IS(bp_store_begin(no_store, 0, &wrong), BP_STORE_ERROR_HANDLE);
		IS(bp_store_close(no_store), BP_STORE_ERROR_HANDLE);
		IS(bp_store_sync(no_store), BP_STORE_ERROR_HANDLE);
		IS(bp_store_checkpoint(no_store), BP_STORE_ERROR_HANDLE);
		IS(bp_store_get_statistics(no_store, &statistics, sizeof statistics), BP_STORE_ERROR_HANDLE);
		IS(bp_store_open_tree(no_store, "t", 0, &no_tree), BP_STORE_ERROR_HANDLE);
		IS(bp_store_drop_tree(no_store, "t"), BP_STORE_ERROR_HANDLE);
		IS(bp_store_next_tree(no_store, NULL, name, sizeof name), BP_STORE_ERROR_HANDLE);
		no_tree = tree, no_tree.store = tries[i];
		IS(bp_store_get(transaction, no_tree, "k", 1, NULL), BP_STORE_ERROR_HANDLE);
	}
	no_store.handle = transaction.handle;
	IS(bp_store_close(no_store), BP_STORE_ERROR_HANDLE);
	no_tree = tree, no_tree.number = 0;
	IS(bp_store_get(transaction, no_tree, "k", 1, NULL), BP_STORE_ERROR_HANDLE);
	no_tree.number = 1000;
	IS(put(transaction, no_tree, "k", ""), BP_STORE_ERROR_HANDLE);
	memset(&no_tree, 0, sizeof no_tree);
	IS(bp_store_delete(transaction, no_tree, "k", 1), BP_STORE_ERROR_HANDLE);
	IS(bp_store_open_cursor(transaction, no_tree, NULL, &no_cursor), BP_STORE_ERROR_HANDLE);
	no_cursor = cursor, no_cursor.number = 0;
	IS(bp_store_seek_first(no_cursor), BP_STORE_ERROR_HANDLE);
	no_cursor.number = 2;
	IS(bp_store_close_cursor(no_cursor), BP_STORE_ERROR_HANDLE);
	IS(bp_store_close_cursor(cursor), BP_STORE_OK);
	IS(bp_store_close_cursor(cursor), BP_STORE_ERROR_CLOSED);
	IS(bp_store_seek(cursor, "", 0), BP_STORE_ERROR_CLOSED);
	IS(bp_store_previous(cursor, NULL, NULL), BP_STORE_ERROR_CLOSED);
	IS(bp_store_commit(transaction), BP_STORE_OK);

	/* After the end of the transaction, and while another has its place. */
	for (i = 0; i < 2; i++) {
		IS(bp_store_get(transaction, tree, "k", 1, NULL), BP_STORE_ERROR_CLOSED);
		IS(put(transaction, tree, "k", ""), BP_STORE_ERROR_CLOSED);
		IS(bp_store_commit(transaction), BP_STORE_ERROR_CLOSED);
		IS(bp_store_abort(transaction), BP_STORE_ERROR_CLOSED);
		IS(bp_store_next(cursor, NULL, NULL), BP_STORE_ERROR_CLOSED);
		if (i == 0)
			wrong = begun(store, 0);
	}
	IS(bp_store_abort(wrong), BP_STORE_OK);
}

static void other_stores(const char *folder)
{
	char path[4096];
	struct bp_store other, again;
	struct bp_store_options options = options_of(BP_STORE_CREATE);
	struct bp_store_tree others, dropped = tree_of(store, "dropped");
	struct bp_store_transaction transaction;

	other = opened(path_in(folder, "other", path, sizeof path));
	IS(bp_store_open(path, &options, &again), BP_STORE_ERROR_IN_USE);
	others = tree_of(other, "t");
	transaction = begun(store, 0);
	IS(bp_store_get(transaction, others, "k", 1, NULL), BP_STORE_ERROR_OTHER_STORE);
	IS(put(transaction, others, "k", ""), BP_STORE_ERROR_OTHER_STORE);
	IS(bp_store_drop_tree(store, "dropped"), BP_STORE_ERROR_ACTIVE);
	IS(bp_store_close(store), BP_STORE_ERROR_ACTIVE);
	HOLDS(strstr(bp_store_error(), "1 transactions") != NULL);
	/* It goes on. */
	IS(put(transaction, dropped, "k", ""), BP_STORE_OK);
	IS(bp_store_abort(transaction), BP_STORE_OK);
	IS(bp_store_drop_tree(store, "dropped"), BP_STORE_OK);
	IS(bp_store_close(other), BP_STORE_OK);
	IS(bp_store_close(other), BP_STORE_ERROR_CLOSED);
	IS(bp_store_begin(other, 0, &transaction), BP_STORE_ERROR_CLOSED);
	/* Handles of trees end with their store, also if it is opened again. */
	other = opened(path);
	transaction = begun(other, 0);
	IS(bp_store_get(transaction, others, "k", 1, NULL), BP_STORE_ERROR_OTHER_STORE);
	IS(bp_store_abort(transaction), BP_STORE_OK);
	IS(bp_store_close(other), BP_STORE_OK);
	/* One that was dropped. */
	transaction = begun(store, 0);
	IS(put(transaction, dropped, "k", ""), BP_STORE_ERROR_NO_TREE);
	IS(bp_store_abort(transaction), BP_STORE_OK);
	/* Writes in a read-only transaction. */
	transaction = begun(store, BP_STORE_READ_ONLY);
	IS(put(transaction, tree, "k", ""), BP_STORE_ERROR_READ_ONLY);
	IS(bp_store_insert(transaction, tree, "k", 1, "", 0), BP_STORE_ERROR_READ_ONLY);
	IS(bp_store_delete(transaction, tree, "k", 1), BP_STORE_ERROR_READ_ONLY);
	IS(bp_store_delete_range(transaction, tree, NULL, NULL), BP_STORE_ERROR_READ_ONLY);
	IS(bp_store_commit(transaction), BP_STORE_OK);
}

static int calls_what_it_must_not(struct bp_store_transaction transaction, void *argument)
{
	struct bp_store_transaction other;
	struct bp_store_tree made;

	(void)argument;
	IS(bp_store_commit(transaction), BP_STORE_ERROR_IN_UPDATE);
	IS(bp_store_abort(transaction), BP_STORE_ERROR_IN_UPDATE);
	IS(bp_store_update(store, calls_what_it_must_not, NULL), BP_STORE_ERROR_IN_UPDATE);
	IS(bp_store_checkpoint(store), BP_STORE_ERROR_IN_UPDATE);
	IS(bp_store_close(store), BP_STORE_ERROR_IN_UPDATE);
	IS(bp_store_open_tree(store, "new", BP_STORE_CREATE, &made), BP_STORE_ERROR_IN_UPDATE);
	IS(bp_store_drop_tree(store, "t"), BP_STORE_ERROR_IN_UPDATE);
	/* These calls take no lock that the update may hold. */
	IS(bp_store_open_tree(store, "t", BP_STORE_CREATE, &made), BP_STORE_OK);
	other = begun(store, 0);
	IS(put(other, tree, "k", ""), BP_STORE_OK);
	IS(bp_store_commit(other), BP_STORE_ERROR_IN_UPDATE);
	IS(bp_store_abort(other), BP_STORE_OK);
	IS(bp_store_sync(store), BP_STORE_OK);
	return put(transaction, tree, "written", "by an update");
}

static void updates(void)
{
	struct bp_store_transaction transaction;

	IS(bp_store_update(store, calls_what_it_must_not, NULL), BP_STORE_OK);
	transaction = begun(store, BP_STORE_READ_ONLY);
	HOLDS(has(transaction, tree, "written", "by an update"));
	IS(bp_store_abort(transaction), BP_STORE_OK);
	IS(bp_store_checkpoint(store), BP_STORE_OK);
}

enum { MANY = 3000 };
static struct bp_store_transaction contended;
static int stop;

/* Is in the transaction most of the time. */
static void *deletes(void *argument)
{
	int *busy = argument;

	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		int code = bp_store_delete_range(contended, tree, NULL, NULL);

		HOLDS(code == BP_STORE_OK || code == BP_STORE_ERROR_BUSY);
		*busy += code == BP_STORE_ERROR_BUSY;
	}
	return NULL;
}

static void *reads(void *argument)
{
	int *code = argument;

	*code = bp_store_get(contended, tree, "k", 1, NULL);
	HOLDS(*code == BP_STORE_OK);
	IS(bp_store_get(contended, tree, NULL, 1, NULL), BP_STORE_ERROR_NULL);
	HOLDS(strlen(bp_store_error()) > 0);
	return NULL;
}

static void threads(void)
{
	struct bp_store_transaction transaction = begun(store, 0);
	pthread_t thread;
	uint32_t i;
	int busy = 0, its_busy = 0, code;

	for (i = 0; i < MANY; i++)
		IS(bp_store_put(transaction, tree, &i, sizeof i, "", 0), BP_STORE_OK);
	IS(bp_store_commit(transaction), BP_STORE_OK);
	contended = begun(store, 0);
	pthread_create(&thread, NULL, deletes, &its_busy);
	while (!busy) {
		struct bp_store_cursor cursor;

		code = bp_store_get(contended, tree, "k", 1, NULL);
		HOLDS(code == BP_STORE_NOT_FOUND || code == BP_STORE_ERROR_BUSY);
		busy += code == BP_STORE_ERROR_BUSY;
		code = bp_store_open_cursor(contended, tree, NULL, &cursor);
		HOLDS(code == BP_STORE_OK || code == BP_STORE_ERROR_BUSY || code == BP_STORE_ERROR_FULL);
		/* valgrind runs one thread at a time, and not in turns unless they ask for it. */
		sched_yield();
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	IS(bp_store_abort(contended), BP_STORE_OK);

	/* One after the other is no mistake, and errors are of threads. */
	IS(bp_store_abort(contended), BP_STORE_ERROR_CLOSED);
	contended = begun(store, 0);
	IS(put(contended, tree, "k", "v"), BP_STORE_OK);
	pthread_create(&thread, NULL, reads, &code);
	pthread_join(thread, NULL);
	HOLDS(strstr(bp_store_error(), "closed") != NULL);
	HOLDS(has(contended, tree, "k", "v"));
	IS(bp_store_abort(contended), BP_STORE_OK);
}

static void forks(const char *folder)
{
	struct bp_store_transaction transaction = begun(store, 0), its;
	struct bp_store_options options = options_of(BP_STORE_CREATE);
	struct bp_store_cursor cursor;
	struct bp_store_bytes value;
	struct bp_store other;
	char path[4096], byte;
	int status = -1, before = failures, ready[2];
	pid_t child;

	HOLDS(pipe(ready) == 0);
	IS(put(transaction, tree, "of the parent", "1"), BP_STORE_OK);
	IS(bp_store_open_cursor(transaction, tree, NULL, &cursor), BP_STORE_OK);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		IS(bp_store_get(transaction, tree, "k", 1, &value), BP_STORE_ERROR_FORKED);
		IS(put(transaction, tree, "k", ""), BP_STORE_ERROR_FORKED);
		IS(bp_store_next(cursor, NULL, NULL), BP_STORE_ERROR_FORKED);
		IS(bp_store_commit(transaction), BP_STORE_ERROR_FORKED);
		IS(bp_store_abort(transaction), BP_STORE_ERROR_FORKED);
		IS(bp_store_begin(store, 0, &its), BP_STORE_ERROR_FORKED);
		IS(bp_store_close(store), BP_STORE_ERROR_FORKED);
		/* The directory is its parent's, and it may have another one. */
		IS(bp_store_open(path_in(folder, "store", path, sizeof path), &options, &other), BP_STORE_ERROR_IN_USE);
		other = opened(path_in(folder, "of-the-child", path, sizeof path));
		its = begun(other, 0);
		IS(put(its, tree_of(other, "t"), "k", "v"), BP_STORE_OK);
		IS(bp_store_commit(its), BP_STORE_OK);
		IS(bp_store_close(other), BP_STORE_OK);
		fflush(stdout);
		/* It stays until the parent has closed its end. */
		close(ready[1]);
		HOLDS(read(ready[0], &byte, 1) == 0);
		_exit(failures != before);
	}
	IS(bp_store_commit(transaction), BP_STORE_OK);
	IS(bp_store_close(store), BP_STORE_OK);
	/* The child has a copy of the descriptor that locks the directory, which nobody has until the child ends or executes. */
	path_in(folder, "store", path, sizeof path);
	IS(bp_store_open(path, &options, &store), BP_STORE_ERROR_IN_USE);
	close(ready[1]);
	HOLDS(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	close(ready[0]);
	store = opened(path);
	tree = tree_of(store, "t");
	transaction = begun(store, 0);
	HOLDS(has(transaction, tree, "of the parent", "1"));
	IS(bp_store_abort(transaction), BP_STORE_OK);
}

int main(int argc, char **argv)
{
	char path[4096];

	if (argc != 2)
		return 2;
	store = opened(path_in(argv[1], "store", path, sizeof path));
	tree = tree_of(store, "t");
	nulls(argv[1]);
	options_are_checked(argv[1]);
	handles();
	other_stores(argv[1]);
	updates();
	threads();
	forks(argv[1]);
	IS(bp_store_close(store), BP_STORE_OK);
	return failures != 0;
}
