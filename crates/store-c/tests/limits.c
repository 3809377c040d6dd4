/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every limit of the header: a call at the limit works, and a call one past it is an error that changes nothing. */
#include "check.h"

static void of_records(struct bp_store store, struct bp_store_tree tree)
{
	struct bp_store_transaction transaction = begun(store, 0);
	uint8_t *bytes = calloc(1, BP_STORE_VALUE_MAX + 1);
	struct bp_store_bytes value;
	size_t i;

	IS(bp_store_put(transaction, tree, bytes, BP_STORE_KEY_MAX + 1, "", 0), BP_STORE_ERROR_KEY_TOO_LONG);
	IS(bp_store_insert(transaction, tree, bytes, BP_STORE_KEY_MAX + 1, "", 0), BP_STORE_ERROR_KEY_TOO_LONG);
	IS(bp_store_get(transaction, tree, bytes, BP_STORE_KEY_MAX + 1, NULL), BP_STORE_NOT_FOUND);
	IS(bp_store_delete(transaction, tree, bytes, BP_STORE_KEY_MAX + 1), BP_STORE_NOT_FOUND);
	IS(bp_store_put(transaction, tree, "v", 1, bytes, BP_STORE_VALUE_MAX + 1), BP_STORE_ERROR_VALUE_TOO_LONG);
	IS(bp_store_insert(transaction, tree, "v", 1, bytes, BP_STORE_VALUE_MAX + 1), BP_STORE_ERROR_VALUE_TOO_LONG);
	HOLDS(has(transaction, tree, "v", NULL));
	IS(bp_store_put(transaction, tree, bytes, BP_STORE_KEY_MAX, "long", 4), BP_STORE_OK);
	IS(bp_store_put(transaction, tree, "v", 1, bytes, BP_STORE_VALUE_MAX), BP_STORE_OK);
	IS(bp_store_commit(transaction), BP_STORE_OK);
	transaction = begun(store, 0);
	IS(bp_store_get(transaction, tree, bytes, BP_STORE_KEY_MAX, &value), BP_STORE_OK);
	HOLDS(equal(value, "long"));
	IS(bp_store_get(transaction, tree, "v", 1, &value), BP_STORE_OK);
	HOLDS(value.len == BP_STORE_VALUE_MAX);
	IS(bp_store_delete(transaction, tree, "v", 1), BP_STORE_OK);
	IS(bp_store_commit(transaction), BP_STORE_OK);

	/* Keys of one byte, so that four of the longest values fit to the byte. */
	transaction = begun(store, 0);
	for (i = 0; i < 3; i++)
		IS(bp_store_put(transaction, tree, "abc" + i, 1, bytes, BP_STORE_VALUE_MAX - 1), BP_STORE_OK);
	IS(bp_store_put(transaction, tree, "d", 1, bytes, BP_STORE_VALUE_MAX), BP_STORE_ERROR_TOO_LARGE);
	IS(bp_store_put(transaction, tree, "d", 1, bytes, BP_STORE_VALUE_MAX - 1), BP_STORE_OK);
	IS(bp_store_put(transaction, tree, "e", 1, bytes, 0), BP_STORE_ERROR_TOO_LARGE);
	HOLDS(4 * BP_STORE_VALUE_MAX == BP_STORE_TRANSACTION_BYTES_MAX);
	/* The transaction can be committed without the record that was too much. */
	IS(bp_store_commit(transaction), BP_STORE_OK);
	transaction = begun(store, 0);
	IS(bp_store_get(transaction, tree, "d", 1, NULL), BP_STORE_OK);
	HOLDS(has(transaction, tree, "e", NULL));
	/* The values that are replaced count, too. */
	IS(bp_store_delete_range(transaction, tree, NULL, NULL), BP_STORE_OK);
	IS(bp_store_put(transaction, tree, "e", 1, bytes, 4096), BP_STORE_OK);
	IS(bp_store_commit(transaction), BP_STORE_ERROR_TOO_LARGE);
	free(bytes);
}

static void of_transactions(struct bp_store store, struct bp_store_tree tree)
{
	struct bp_store_transaction transaction = begun(store, 0), *many;
	struct bp_store_cursor cursors[BP_STORE_CURSORS_MAX], one_more;
	uint32_t i;
	int wrong = 0;

	for (i = 0; i < BP_STORE_TRANSACTION_WRITES_MAX; i++) {
		uint8_t key[4] = {(uint8_t)(i >> 24), (uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};

		wrong += bp_store_put(transaction, tree, key, sizeof key, NULL, 0) != BP_STORE_OK;
	}
	HOLDS(wrong == 0);
	IS(put(transaction, tree, "one more", ""), BP_STORE_ERROR_TOO_LARGE);
	/* A second write of a key replaces the first. */
	IS(bp_store_put(transaction, tree, "\0\0\0\0", 4, "v", 1), BP_STORE_OK);
	IS(bp_store_abort(transaction), BP_STORE_OK);

	transaction = begun(store, 0);
	for (i = 0; i < BP_STORE_CURSORS_MAX; i++)
		IS(bp_store_open_cursor(transaction, tree, NULL, &cursors[i]), BP_STORE_OK);
	IS(bp_store_open_cursor(transaction, tree, NULL, &one_more), BP_STORE_ERROR_FULL);
	IS(bp_store_close_cursor(cursors[7]), BP_STORE_OK);
	IS(bp_store_open_cursor(transaction, tree, NULL, &one_more), BP_STORE_OK);
	IS(bp_store_next(cursors[7], NULL, NULL), BP_STORE_ERROR_CLOSED);
	IS(bp_store_abort(transaction), BP_STORE_OK);

	many = calloc(BP_STORE_HANDLES_MAX, sizeof *many);
	for (i = 0; i < BP_STORE_HANDLES_MAX; i++)
		wrong += bp_store_begin(store, BP_STORE_READ_ONLY, &many[i]) != BP_STORE_OK;
	HOLDS(wrong == 0);
	IS(bp_store_begin(store, 0, &transaction), BP_STORE_ERROR_FULL);
	IS(bp_store_close(store), BP_STORE_ERROR_ACTIVE);
	for (i = 0; i < BP_STORE_HANDLES_MAX; i++)
		wrong += bp_store_abort(many[i]) != BP_STORE_OK;
	HOLDS(wrong == 0);
	free(many);
}

/* A cursor that goes on after each write of its transaction counts what it has passed as one range. */
static void of_a_scan_that_writes(struct bp_store store, struct bp_store_tree tree)
{
	enum { COUNT = 64000, BATCH = 4000 };
	struct bp_store_transaction transaction;
	struct bp_store_cursor cursor;
	struct bp_store_bytes found;
	uint8_t key[500] = {0};
	uint32_t i, steps = 0;
	int wrong = 0, code;

	for (i = 0; i < COUNT; i++) {
		if (i % BATCH == 0)
			transaction = begun(store, 0);
		key[0] = (uint8_t)(i >> 16), key[1] = (uint8_t)(i >> 8), key[2] = (uint8_t)i;
		wrong += bp_store_put(transaction, tree, key, sizeof key, NULL, 0) != BP_STORE_OK;
		if (i % BATCH == BATCH - 1)
			wrong += bp_store_commit(transaction) != BP_STORE_OK;
	}
	HOLDS(wrong == 0);
	transaction = begun(store, 0);
	IS(bp_store_open_cursor(transaction, tree, NULL, &cursor), BP_STORE_OK);
	while ((code = bp_store_next(cursor, &found, NULL)) == BP_STORE_OK) {
		wrong += bp_store_put(transaction, tree, "one key", 7, NULL, 0) != BP_STORE_OK;
		steps++;
	}
	IS(code, BP_STORE_END);
	HOLDS(wrong == 0);
	/* The key that is put is passed as well. */
	HOLDS(steps == COUNT + 1);
	IS(bp_store_commit(transaction), BP_STORE_OK);
}

static void of_trees(struct bp_store store)
{
	struct bp_store_tree tree;
	char name[BP_STORE_TREE_NAME_MAX + 2], first[BP_STORE_TREE_NAME_MAX + 1];
	uint32_t i;

	memset(name, 'n', sizeof name);
	name[BP_STORE_TREE_NAME_MAX + 1] = 0;
	IS(bp_store_open_tree(store, name, BP_STORE_CREATE, &tree), BP_STORE_ERROR_TREE_NAME);
	IS(bp_store_open_tree(store, "", BP_STORE_CREATE, &tree), BP_STORE_ERROR_TREE_NAME);
	name[BP_STORE_TREE_NAME_MAX] = 0;
	IS(bp_store_open_tree(store, name, BP_STORE_CREATE, &tree), BP_STORE_OK);
	IS(bp_store_next_tree(store, NULL, first, sizeof first), BP_STORE_OK);
	HOLDS(strcmp(first, name) == 0);
	first[0] = 'x';
	IS(bp_store_next_tree(store, NULL, first, sizeof first - 1), BP_STORE_ERROR_INVALID);
	HOLDS(first[0] == 'x');
	for (i = 2; i < BP_STORE_TREES_MAX; i++) {
		snprintf(name, sizeof name, "%u", i);
		IS(bp_store_open_tree(store, name, BP_STORE_CREATE, &tree), BP_STORE_OK);
	}
	IS(bp_store_open_tree(store, "one more", BP_STORE_CREATE, &tree), BP_STORE_ERROR_TOO_MANY_TREES);
	/* One that is there can be opened all the same. */
	IS(bp_store_open_tree(store, "2", BP_STORE_CREATE, &tree), BP_STORE_OK);
	IS(bp_store_drop_tree(store, "2"), BP_STORE_OK);
	IS(bp_store_open_tree(store, "one more", BP_STORE_CREATE, &tree), BP_STORE_OK);
	HOLDS(statistics_of(store).trees == BP_STORE_TREES_MAX);
}

/* Larger pages have longer keys, and the store keeps their size. */
static void of_pages(const char *folder)
{
	struct bp_store_options options = options_of(BP_STORE_CREATE);
	struct bp_store_transaction transaction;
	struct bp_store store;
	struct bp_store_tree tree;
	uint8_t bytes[2049] = {0};

	options.page_bytes = 12288;
	IS(bp_store_open(folder, &options, &store), BP_STORE_ERROR_INVALID);
	options.page_bytes = 16384;
	IS(bp_store_open(folder, &options, &store), BP_STORE_OK);
	tree = tree_of(store, "t");
	transaction = begun(store, 0);
	IS(bp_store_put(transaction, tree, bytes, 2049, "", 0), BP_STORE_ERROR_KEY_TOO_LONG);
	IS(bp_store_put(transaction, tree, bytes, 2048, "", 0), BP_STORE_OK);
	IS(bp_store_commit(transaction), BP_STORE_OK);
	IS(bp_store_close(store), BP_STORE_OK);
	options.page_bytes = 4096;
	IS(bp_store_open(folder, &options, &store), BP_STORE_ERROR_INVALID);
	options.page_bytes = 0;
	IS(bp_store_open(folder, &options, &store), BP_STORE_OK);
	tree = tree_of(store, "t");
	transaction = begun(store, 0);
	IS(bp_store_get(transaction, tree, bytes, 2048, NULL), BP_STORE_OK);
	IS(bp_store_abort(transaction), BP_STORE_OK);
	IS(bp_store_close(store), BP_STORE_OK);
}

int main(int argc, char **argv)
{
	struct bp_store_options options = options_of(BP_STORE_CREATE | BP_STORE_ASYNC);
	struct bp_store store;
	struct bp_store_tree tree;
	char path[4096];

	if (argc != 2)
		return 2;
	options.memory_bytes = 16 << 20;
	IS(bp_store_open(path_in(argv[1], "records", path, sizeof path), &options, &store), BP_STORE_OK);
	tree = tree_of(store, "t");
	of_records(store, tree);
	of_transactions(store, tree);
	of_a_scan_that_writes(store, tree_of(store, "scanned"));
	IS(bp_store_close(store), BP_STORE_OK);
	IS(bp_store_open(path_in(argv[1], "trees", path, sizeof path), &options, &store), BP_STORE_OK);
	tree_of(store, "zero");
	of_trees(store);
	IS(bp_store_close(store), BP_STORE_OK);

	of_pages(path_in(argv[1], "pages", path, sizeof path));

	/* The capacity of the store. */
	options.capacity_bytes = 4 << 20;
	IS(bp_store_open(path_in(argv[1], "small", path, sizeof path), &options, &store), BP_STORE_OK);
	tree = tree_of(store, "t");
	{
		struct bp_store_transaction transaction = begun(store, 0);
		uint8_t *value = calloc(1, 8 << 20);

		IS(bp_store_put(transaction, tree, "k", 1, value, 8 << 20), BP_STORE_OK);
		IS(bp_store_commit(transaction), BP_STORE_ERROR_NO_SPACE);
		HOLDS(bp_store_error_number() == 0);
		free(value);
		transaction = begun(store, 0);
		HOLDS(has(transaction, tree, "k", NULL));
		IS(put(transaction, tree, "k", "small"), BP_STORE_OK);
		IS(bp_store_commit(transaction), BP_STORE_OK);
	}
	IS(bp_store_close(store), BP_STORE_OK);
	return failures != 0;
}
