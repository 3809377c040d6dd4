/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Processes that are killed, file systems that are full, and directories of somebody else. */
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* The process that is killed: commits numbers, and reports each. */
static void commits(const char *path, int report)
{
	struct bp_store store = opened(path);
	struct bp_store_tree tree = tree_of(store, "t");
	uint64_t number;

	for (number = 1; failures == 0; number++) {
		struct bp_store_transaction transaction = begun(store, 0);

		/* Two records, of which one is never there without the other. */
		IS(bp_store_put(transaction, tree, "first", 5, &number, sizeof number), BP_STORE_OK);
		IS(bp_store_put(transaction, tree, "second", 6, &number, sizeof number), BP_STORE_OK);
		IS(bp_store_commit(transaction), BP_STORE_OK);
		if (write(report, &number, sizeof number) != sizeof number)
			break;
	}
	_exit(1);
}

static void a_kill(const char *folder)
{
	struct bp_store store;
	struct bp_store_tree tree;
	struct bp_store_transaction transaction;
	struct bp_store_bytes value;
	uint64_t reported = 0, first = 0, second = 0, read_one;
	char path[4096];
	int report[2], status = 0;
	pid_t child;

	path_in(folder, "killed", path, sizeof path);
	HOLDS(pipe(report) == 0);
	fflush(stdout);
	child = fork();
	if (child == 0)
		commits(path, report[1]);
	close(report[1]);
	while (reported < 100 && read(report[0], &read_one, sizeof read_one) == sizeof read_one)
		reported = read_one;
	HOLDS(reported == 100 && kill(child, SIGKILL) == 0);
	/* The process may have reported more until it died. */
	while (read(report[0], &read_one, sizeof read_one) == sizeof read_one)
		reported = read_one;
	close(report[0]);
	HOLDS(waitpid(child, &status, 0) == child && WIFSIGNALED(status));

	store = opened(path);
	tree = tree_of(store, "t");
	transaction = begun(store, BP_STORE_READ_ONLY);
	IS(bp_store_get(transaction, tree, "first", 5, &value), BP_STORE_OK);
	memcpy(&first, value.data, sizeof first);
	IS(bp_store_get(transaction, tree, "second", 6, &value), BP_STORE_OK);
	memcpy(&second, value.data, sizeof second);
	HOLDS(first == second && first >= reported && first <= reported + 1);
	IS(bp_store_abort(transaction), BP_STORE_OK);
	IS(bp_store_close(store), BP_STORE_OK);
}

/* A file system of 16 MiB that only this process sees. */
static int mounted(const char *path)
{
	if (mkdir(path, 0755) != 0)
		return 0;
	if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
		return 0;
	return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("bedplate", path, "tmpfs", 0, "size=16m") == 0;
}

static void a_full_file_system(const char *folder)
{
	struct bp_store_options options = options_of(BP_STORE_CREATE);
	struct bp_store store = {0};
	struct bp_store_tree tree;
	struct bp_store_transaction transaction;
	uint8_t *value = malloc(1 << 20);
	uint64_t number, committed = 0;
	char path[4096], inside[4200];
	FILE *filler;
	int code = BP_STORE_OK;

	path_in(folder, "small", path, sizeof path);
	if (!mounted(path)) {
		printf("skipped: no file system can be mounted here\n");
		free(value);
		return;
	}
	memset(value, 1, 1 << 20);
	path_in(path, "store", inside, sizeof inside);
	IS(bp_store_open(inside, &options, &store), BP_STORE_OK);
	tree = tree_of(store, "t");
	for (number = 1; number < 100; number++) {
		transaction = begun(store, 0);
		IS(bp_store_put(transaction, tree, &number, sizeof number, value, 1 << 20), BP_STORE_OK);
		code = bp_store_commit(transaction);
		if (code != BP_STORE_OK)
			break;
		committed = number;
	}
	HOLDS(committed > 1 && number < 100);
	printf("after %d commits: %s: %s\n", (int)committed, bp_store_strerror(code), bp_store_error());
	HOLDS(code == BP_STORE_ERROR_NO_SPACE || code == BP_STORE_ERROR_IN_DOUBT);
	HOLDS(bp_store_error_number() == ENOSPC);
	if (code == BP_STORE_ERROR_IN_DOUBT) {
		IS(bp_store_begin(store, 0, &transaction), BP_STORE_ERROR_REOPEN);
		HOLDS(bp_store_close(store) < 0);
	} else {
		/* The commit has changed nothing, and the records before it can be read. */
		transaction = begun(store, 0);
		IS(bp_store_get(transaction, tree, &committed, sizeof committed, NULL), BP_STORE_OK);
		IS(bp_store_get(transaction, tree, &number, sizeof number, NULL), BP_STORE_NOT_FOUND);
		IS(bp_store_abort(transaction), BP_STORE_OK);
		bp_store_close(store);
	}
	IS(bp_store_close(store), BP_STORE_ERROR_CLOSED);
	/* With room again, all that was reported is there. */
	HOLDS(mount("bedplate", path, "tmpfs", MS_REMOUNT, "size=128m") == 0);
	store = opened(inside);
	tree = tree_of(store, "t");
	transaction = begun(store, 0);
	for (number = 1; number <= committed; number++)
		IS(bp_store_get(transaction, tree, &number, sizeof number, NULL), BP_STORE_OK);
	IS(put(transaction, tree, "k", "v"), BP_STORE_OK);
	IS(bp_store_commit(transaction), BP_STORE_OK);
	IS(bp_store_close(store), BP_STORE_OK);

	/* Where not even an empty store has room. */
	HOLDS(mount("bedplate", path, "tmpfs", MS_REMOUNT, "size=64m") == 0);
	filler = fopen(path_in(path, "filler", inside, sizeof inside), "w");
	while (filler && fwrite(value, 1, 1 << 20, filler) == 1 << 20)
		;
	if (filler)
		fclose(filler);
	IS(bp_store_open(path_in(path, "empty", inside, sizeof inside), &options, &store), BP_STORE_ERROR_NO_SPACE);
	HOLDS(bp_store_error_number() == ENOSPC);
	printf("no room for a store: %s\n", bp_store_error());
	free(value);
}

/* As an ordinary user. */
static void no_permission(const char *folder)
{
	struct bp_store_options options = options_of(BP_STORE_CREATE);
	struct bp_store store = {77};
	char path[4096], file[4200];
	int status = -1, before = failures;
	pid_t child;

	store = opened(path_in(folder, "readable", path, sizeof path));
	IS(bp_store_close(store), BP_STORE_OK);
	HOLDS(chmod(folder, 0755) == 0 && chmod(path, 0755) == 0);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		if (geteuid() == 0)
			HOLDS(setgid(65534) == 0 && setuid(65534) == 0);
		else
			HOLDS(chmod(path, 0555) == 0 && chmod(path_in(path, "lock", file, sizeof file), 0444) == 0);
		if (access(folder, X_OK) == 0) {
			IS(bp_store_open(path, &options, &store), BP_STORE_ERROR_SYSTEM);
			HOLDS(bp_store_error_number() == EACCES && strstr(bp_store_error(), path) != NULL);
			printf("no permission: %s\n", bp_store_error());
			if (geteuid() == 65534) {
				IS(bp_store_open(path_in(folder, "new", path, sizeof path), &options, &store),
				   BP_STORE_ERROR_SYSTEM);
				HOLDS(bp_store_error_number() == EACCES && strstr(bp_store_error(), path) != NULL);
			}
		} else {
			printf("skipped: an ordinary user cannot come to %s\n", folder);
		}
		fflush(stdout);
		_exit(failures != before);
	}
	HOLDS(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	a_kill(argv[1]);
	no_permission(argv[1]);
	a_full_file_system(argv[1]);
	return failures != 0;
}
