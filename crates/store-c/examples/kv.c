/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A store on the command line.
 *
 *   cc kv.c $(pkg-config --cflags --libs bedplate-store) -o kv
 *   ./kv DIRECTORY set KEY VALUE
 *   ./kv DIRECTORY get KEY
 *   ./kv DIRECTORY add KEY NUMBER       adds to a number, which is 0 at first
 *   ./kv DIRECTORY delete KEY
 *   ./kv DIRECTORY list [PREFIX]        in the order of keys
 *   ./kv DIRECTORY last [PREFIX]        the last record only
 *   ./kv DIRECTORY import               lines of standard input: key, tab, value; all of them or none
 */
#include <bedplate/store.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Results of the functions of updates, besides the library's codes. */
enum { NOT_A_NUMBER = 1000, NOT_A_RECORD = 1001 };

struct job {
	struct bp_store_tree tree;
	const char *key;
	const char *value;
	int64_t sum;
	uint64_t lines;
};

static int set(struct bp_store_transaction transaction, void *argument)
{
	const struct job *job = argument;

	return bp_store_put(transaction, job->tree, job->key, strlen(job->key), job->value, strlen(job->value));
}

static int number_of(const char *text, int64_t *number)
{
	char *end;

	errno = 0;
	*number = strtoll(text, &end, 10);
	return errno == 0 && end != text && *end == 0;
}

static int add(struct bp_store_transaction transaction, void *argument)
{
	struct job *job = argument;
	struct bp_store_bytes value;
	char text[24] = "0";
	int64_t old, more;
	int code = bp_store_get(transaction, job->tree, job->key, strlen(job->key), &value);

	if (code < 0)
		return code;
	if (code == BP_STORE_OK) {
		if (value.len >= sizeof text)
			return NOT_A_NUMBER;
		memcpy(text, value.data, value.len);
		text[value.len] = 0;
	}
	if (!number_of(text, &old) || !number_of(job->value, &more) ||
	    __builtin_add_overflow(old, more, &job->sum))
		return NOT_A_NUMBER;
	snprintf(text, sizeof text, "%" PRId64, job->sum);
	return bp_store_put(transaction, job->tree, job->key, strlen(job->key), text, strlen(text));
}

static int delete(struct bp_store_transaction transaction, void *argument)
{
	const struct job *job = argument;

	return bp_store_delete(transaction, job->tree, job->key, strlen(job->key));
}

static void print(struct bp_store_bytes key, struct bp_store_bytes value)
{
	fwrite(key.data, 1, key.len, stdout);
	putchar('\t');
	fwrite(value.data, 1, value.len, stdout);
	putchar('\n');
}

/* Reads in a snapshot: a record, the last record of a prefix, or all of them. */
static int read_only(struct bp_store store, const struct job *job, const char *command)
{
	struct bp_store_transaction snapshot;
	struct bp_store_cursor cursor;
	struct bp_store_range range;
	struct bp_store_bytes key, value;
	int code = bp_store_begin(store, BP_STORE_READ_ONLY, &snapshot);

	if (code < 0)
		return code;
	if (strcmp(command, "get") == 0) {
		code = bp_store_get(snapshot, job->tree, job->key, strlen(job->key), &value);
		if (code == BP_STORE_OK) {
			fwrite(value.data, 1, value.len, stdout);
			putchar('\n');
		}
		bp_store_abort(snapshot);
		return code;
	}
	memset(&range, 0, sizeof range);
	range.prefix.data = job->key;
	range.prefix.len = strlen(job->key);
	code = bp_store_open_cursor(snapshot, job->tree, &range, &cursor);
	if (code == BP_STORE_OK && strcmp(command, "last") == 0) {
		bp_store_seek_last(cursor);
		code = bp_store_previous(cursor, &key, &value);
		if (code == BP_STORE_OK)
			print(key, value);
	} else if (code == BP_STORE_OK) {
		while ((code = bp_store_next(cursor, &key, &value)) == BP_STORE_OK)
			print(key, value);
	}
	bp_store_abort(snapshot);
	return code < 0 ? code : BP_STORE_OK;
}

/* One transaction without bp_store_update(): standard input cannot be read again. Puts alone never conflict. */
static int import(struct bp_store store, struct job *job)
{
	struct bp_store_transaction transaction;
	char *line = NULL, *tab;
	size_t room = 0;
	ssize_t len;
	int code = bp_store_begin(store, 0, &transaction);

	if (code < 0)
		return code;
	while (code == BP_STORE_OK && (len = getline(&line, &room, stdin)) >= 0) {
		if (len > 0 && line[len - 1] == '\n')
			len--;
		tab = memchr(line, '\t', (size_t)len);
		if (!tab) {
			code = NOT_A_RECORD;
			break;
		}
		code = bp_store_put(transaction, job->tree, line, (size_t)(tab - line), tab + 1,
				    (size_t)(line + len - tab - 1));
		job->lines++;
	}
	free(line);
	if (code == BP_STORE_OK)
		return bp_store_commit(transaction);
	bp_store_abort(transaction);
	return code;
}

static int run(struct bp_store store, struct job *job, int argc, char **argv)
{
	const char *command = argv[2];
	int code;

	job->key = argc > 3 ? argv[3] : "";
	job->value = argc > 4 ? argv[4] : "";
	if (strcmp(command, "set") == 0 && argc == 5)
		return bp_store_update(store, set, job);
	if (strcmp(command, "add") == 0 && argc == 5) {
		code = bp_store_update(store, add, job);
		if (code == BP_STORE_OK)
			printf("%" PRId64 "\n", job->sum);
		return code;
	}
	if (strcmp(command, "delete") == 0 && argc == 4)
		return bp_store_update(store, delete, job);
	if (strcmp(command, "get") == 0 && argc == 4)
		return read_only(store, job, command);
	if ((strcmp(command, "list") == 0 || strcmp(command, "last") == 0) && argc <= 4)
		return read_only(store, job, command);
	if (strcmp(command, "import") == 0 && argc == 3) {
		code = import(store, job);
		if (code == BP_STORE_OK)
			printf("%" PRIu64 " lines\n", job->lines);
		return code;
	}
	fprintf(stderr, "%s: no such command, or not so many arguments\n", command);
	return BP_STORE_END;
}

/* Says why something is not done. */
static int failed(int code)
{
	switch (code) {
	case BP_STORE_OK:
		return 0;
	case BP_STORE_NOT_FOUND:
		fprintf(stderr, "there is no such key\n");
		return 1;
	case NOT_A_NUMBER:
		fprintf(stderr, "this is no number, or would be too large a one\n");
		return 1;
	case NOT_A_RECORD:
		fprintf(stderr, "a line has no tab\n");
		return 1;
	default:
		if (code < 0)
			fprintf(stderr, "%s: %s\n", bp_store_strerror(code), bp_store_error());
		return 1;
	}
}

int main(int argc, char **argv)
{
	struct bp_store_options options;
	struct bp_store store;
	struct job job;
	int code;

	if (argc < 3) {
		fprintf(stderr, "usage: %s DIRECTORY set|get|add|delete|list|last|import ...\n", argv[0]);
		return 2;
	}
	memset(&job, 0, sizeof job);
	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.flags = BP_STORE_CREATE;
	code = bp_store_open(argv[1], &options, &store);
	if (code < 0)
		return failed(code);
	code = bp_store_open_tree(store, "records", BP_STORE_CREATE, &job.tree);
	if (code == BP_STORE_OK)
		code = run(store, &job, argc, argv);
	code = failed(code);
	return failed(bp_store_close(store)) || code;
}
