/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The whole life of a store, from its creation to its last closing, with every function. */
#include "check.h"

static void records(struct bp_store store, struct bp_store_tree tree)
{
	struct bp_store_transaction writer = begun(store, 0), reader;
	struct bp_store_bytes value = {NULL, 0};
	struct bp_store_range range;
	uint64_t deleted = 0;

	HOLDS(has(writer, tree, "apple", NULL));
	IS(bp_store_get(writer, tree, "apple", 5, NULL), BP_STORE_NOT_FOUND);
	IS(put(writer, tree, "apple", "red"), BP_STORE_OK);
	HOLDS(has(writer, tree, "apple", "red"));
	IS(bp_store_get(writer, tree, "apple", 5, NULL), BP_STORE_OK);
	IS(bp_store_insert(writer, tree, "apple", 5, "green", 5), BP_STORE_EXISTS);
	IS(bp_store_insert(writer, tree, "pear", 4, "green", 5), BP_STORE_OK);
	HOLDS(has(writer, tree, "apple", "red") && has(writer, tree, "pear", "green"));

	/* A value stays where it is while the transaction writes, and may be passed to any function. */
	IS(bp_store_get(writer, tree, "pear", 4, &value), BP_STORE_OK);
	IS(put(writer, tree, "pear", "yellow"), BP_STORE_OK);
	HOLDS(equal(value, "green"));
	IS(bp_store_put(writer, tree, value.data, value.len, value.data, value.len), BP_STORE_OK);
	IS(bp_store_get(writer, tree, value.data, value.len, &value), BP_STORE_OK);
	HOLDS(equal(value, "green"));
	IS(bp_store_delete(writer, tree, value.data, value.len), BP_STORE_OK);
	IS(bp_store_delete(writer, tree, "green", 5), BP_STORE_NOT_FOUND);

	/* Keys and values may be empty, and have any bytes. */
	IS(bp_store_put(writer, tree, NULL, 0, NULL, 0), BP_STORE_OK);
	IS(bp_store_get(writer, tree, "", 0, &value), BP_STORE_OK);
	HOLDS(value.len == 0);
	IS(bp_store_put(writer, tree, "a\0b", 3, "\0\377", 2), BP_STORE_OK);
	IS(bp_store_get(writer, tree, "a\0b", 3, &value), BP_STORE_OK);
	HOLDS(value.len == 2 && memcmp(value.data, "\0\377", 2) == 0);
	HOLDS(has(writer, tree, "a", NULL));

	/* Nobody sees it before it is committed, and a snapshot does not see it afterwards. */
	reader = begun(store, BP_STORE_READ_ONLY);
	HOLDS(has(reader, tree, "apple", NULL));
	IS(bp_store_commit(writer), BP_STORE_OK);
	HOLDS(has(reader, tree, "apple", NULL));
	IS(bp_store_commit(reader), BP_STORE_OK);
	reader = begun(store, BP_STORE_READ_ONLY);
	HOLDS(has(reader, tree, "apple", "red") && has(reader, tree, "pear", "yellow") && has(reader, tree, "", ""));
	IS(bp_store_abort(reader), BP_STORE_OK);

	/* An abort undoes everything. */
	writer = begun(store, 0);
	IS(bp_store_delete_range(writer, tree, NULL, &deleted), BP_STORE_OK);
	HOLDS(deleted == 4 && has(writer, tree, "apple", NULL));
	IS(bp_store_abort(writer), BP_STORE_OK);

	/* Ranges. */
	writer = begun(store, 0);
	HOLDS(has(writer, tree, "apple", "red"));
	memset(&range, 0, sizeof range);
	range.prefix.data = "ap", range.prefix.len = 2;
	IS(bp_store_delete_range(writer, tree, &range, &deleted), BP_STORE_OK);
	HOLDS(deleted == 1 && has(writer, tree, "apple", NULL) && has(writer, tree, "pear", "yellow"));
	memset(&range, 0, sizeof range);
	/* An empty key is an end, and NULL is none. */
	range.before.data = "";
	IS(bp_store_delete_range(writer, tree, &range, &deleted), BP_STORE_OK);
	HOLDS(deleted == 0);
	range.before.data = "b", range.before.len = 1;
	IS(bp_store_delete_range(writer, tree, &range, NULL), BP_STORE_OK);
	HOLDS(has(writer, tree, "", NULL) && has(writer, tree, "pear", "yellow"));
	IS(bp_store_commit(writer), BP_STORE_OK);
}

enum { KEYS = 400 };

static void key_of(int number, uint8_t key[2])
{
	key[0] = (uint8_t)(number >> 8);
	key[1] = (uint8_t)number;
}

static uint64_t seed;

static int random_below(int limit)
{
	seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
	return (int)(seed % (uint64_t)limit);
}

/* A cursor that moves at random, while its transaction writes, returns the records of a model. Keys are numbers below KEYS. */
static void walk(struct bp_store store, struct bp_store_tree tree, uint32_t flags, uint8_t present[KEYS])
{
	struct bp_store_transaction transaction = begun(store, flags);
	int low = random_below(KEYS / 2), high = low + random_below(KEYS - low), step, code;
	/* The position is between `below` and `above`: keys up to the one and from the other on, with a key between them or not. */
	int below = low - 1, above = low;
	uint8_t key[2], first[2], last[2];
	struct bp_store_range range;
	struct bp_store_cursor cursor;
	struct bp_store_bytes found, value;

	key_of(low, first), key_of(high, last);
	memset(&range, 0, sizeof range);
	range.from.data = first, range.from.len = 2;
	range.before.data = last, range.before.len = 2;
	IS(bp_store_open_cursor(transaction, tree, &range, &cursor), BP_STORE_OK);
	/* The range was copied. */
	memset(first, 9, 2), memset(last, 9, 2);
	for (step = 0; step < 600; step++) {
		int choice = random_below(flags ? 12 : 14), number = random_below(KEYS), at;

		key_of(number, key);
		switch (choice) {
		case 0:
			IS(bp_store_seek(cursor, key, 2), BP_STORE_OK);
			above = number < low ? low : number > high ? high : number;
			below = above - 1;
			break;
		case 1:
			IS(bp_store_seek_first(cursor), BP_STORE_OK);
			below = low - 1, above = low;
			break;
		case 2:
			IS(bp_store_seek_last(cursor), BP_STORE_OK);
			below = high - 1, above = high;
			break;
		case 3: case 4: case 5: case 6:
			code = bp_store_previous(cursor, &found, NULL);
			for (at = below; at >= low && !present[at]; at--)
				;
			HOLDS(code == (at >= low ? BP_STORE_OK : BP_STORE_END));
			key_of(at, key);
			if (code == BP_STORE_OK)
				HOLDS(found.len == 2 && memcmp(found.data, key, 2) == 0);
			else
				HOLDS(found.data == NULL && found.len == 0);
			below = at - 1, above = at + 1;
			if (at < low)
				below = low - 1, above = low;
			break;
		case 12:
			IS(bp_store_put(transaction, tree, key, 2, key, 2), BP_STORE_OK);
			present[number] = 1;
			break;
		case 13:
			IS(bp_store_delete(transaction, tree, key, 2), present[number] ? BP_STORE_OK : BP_STORE_NOT_FOUND);
			present[number] = 0;
			break;
		default:
			code = bp_store_next(cursor, &found, &value);
			for (at = above; at < high && !present[at]; at++)
				;
			HOLDS(code == (at < high ? BP_STORE_OK : BP_STORE_END));
			key_of(at, key);
			if (code == BP_STORE_OK)
				HOLDS(found.len == 2 && memcmp(found.data, key, 2) == 0 && value.len == 2 &&
				      memcmp(value.data, key, 2) == 0);
			below = at - 1, above = at + 1;
			if (at >= high)
				below = high - 1, above = high;
			break;
		}
		if (failures) {
			printf("step %d of choice %d, range %d to %d\n", step, choice, low, high);
			break;
		}
	}
	IS(bp_store_commit(transaction), BP_STORE_OK);
}

static void cursors(struct bp_store store)
{
	const char *given = getenv("BEDPLATE_TEST_SEED");
	struct bp_store_tree tree = tree_of(store, "walked");
	uint8_t present[KEYS] = {0};
	int round;

	seed = given ? strtoull(given, NULL, 10) : (uint64_t)getpid() + 1;
	printf("BEDPLATE_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (round = 0; round < 12 && !failures; round++)
		walk(store, tree, round % 3 == 2 ? BP_STORE_READ_ONLY : 0, present);
	IS(bp_store_drop_tree(store, "walked"), BP_STORE_OK);
}

/* A prefix is a range of its own, and with the two other conditions. */
static void prefixes(struct bp_store store)
{
	struct bp_store_tree tree = tree_of(store, "prefixes");
	struct bp_store_transaction transaction = begun(store, 0);
	struct bp_store_range range;
	struct bp_store_cursor cursor, all;
	struct bp_store_bytes key;

	IS(put(transaction, tree, "user", ""), BP_STORE_OK);
	IS(put(transaction, tree, "user:1", ""), BP_STORE_OK);
	IS(put(transaction, tree, "user:2", ""), BP_STORE_OK);
	IS(put(transaction, tree, "user:3", ""), BP_STORE_OK);
	IS(put(transaction, tree, "user;", ""), BP_STORE_OK);
	memset(&range, 0, sizeof range);
	range.prefix.data = "user:", range.prefix.len = 5;
	IS(bp_store_open_cursor(transaction, tree, &range, &cursor), BP_STORE_OK);
	IS(bp_store_next(cursor, &key, NULL), BP_STORE_OK);
	HOLDS(equal(key, "user:1"));
	IS(bp_store_seek_last(cursor), BP_STORE_OK);
	IS(bp_store_previous(cursor, &key, NULL), BP_STORE_OK);
	HOLDS(equal(key, "user:3"));
	/* The cursor is at a record that is deleted, and goes on from there. */
	IS(bp_store_delete(transaction, tree, key.data, key.len), BP_STORE_OK);
	HOLDS(equal(key, "user:3"));
	IS(bp_store_next(cursor, &key, NULL), BP_STORE_END);
	IS(bp_store_previous(cursor, &key, NULL), BP_STORE_OK);
	HOLDS(equal(key, "user:2"));
	IS(bp_store_close_cursor(cursor), BP_STORE_OK);

	range.from.data = "user:2", range.from.len = 6;
	IS(bp_store_open_cursor(transaction, tree, &range, &cursor), BP_STORE_OK);
	IS(bp_store_next(cursor, &key, NULL), BP_STORE_OK);
	HOLDS(equal(key, "user:2"));
	IS(bp_store_next(cursor, NULL, NULL), BP_STORE_END);
	range.from.data = "a", range.from.len = 1;
	range.before.data = "user:2", range.before.len = 6;
	IS(bp_store_open_cursor(transaction, tree, &range, &cursor), BP_STORE_OK);
	IS(bp_store_next(cursor, &key, NULL), BP_STORE_OK);
	HOLDS(equal(key, "user:1"));
	IS(bp_store_next(cursor, &key, NULL), BP_STORE_END);
	/* No key can be in it. */
	range.from.data = "z";
	IS(bp_store_open_cursor(transaction, tree, &range, &cursor), BP_STORE_OK);
	IS(bp_store_next(cursor, &key, NULL), BP_STORE_END);
	IS(bp_store_previous(cursor, &key, NULL), BP_STORE_END);
	IS(bp_store_open_cursor(transaction, tree, NULL, &all), BP_STORE_OK);
	IS(bp_store_seek(all, "user;", 5), BP_STORE_OK);
	IS(bp_store_next(all, &key, NULL), BP_STORE_OK);
	HOLDS(equal(key, "user;"));
	IS(bp_store_commit(transaction), BP_STORE_OK);
	/* Cursors end with their transaction. */
	IS(bp_store_next(all, &key, NULL), BP_STORE_ERROR_CLOSED);
	IS(bp_store_close_cursor(all), BP_STORE_ERROR_CLOSED);
}

static void trees(struct bp_store store)
{
	struct bp_store_tree one = {0, 0}, two = tree_of(store, "two"), again;
	struct bp_store_transaction transaction;
	char name[BP_STORE_TREE_NAME_MAX + 1] = "", all[200] = "";
	int code;

	IS(bp_store_open_tree(store, "one", 0, &one), BP_STORE_ERROR_NO_TREE);
	HOLDS(strstr(bp_store_error(), "one") != NULL && one.number == 0);
	one = tree_of(store, "one");
	IS(bp_store_open_tree(store, "one", 0, &again), BP_STORE_OK);
	HOLDS(memcmp(&one, &again, sizeof one) == 0);
	while ((code = bp_store_next_tree(store, name, name, sizeof name)) == BP_STORE_OK) {
		strcat(all, name);
		strcat(all, " ");
	}
	IS(code, BP_STORE_END);
	HOLDS(strcmp(all, "fruit one prefixes two ") == 0);
	HOLDS(statistics_of(store).trees == 4);

	transaction = begun(store, 0);
	IS(put(transaction, one, "k", "of one"), BP_STORE_OK);
	IS(put(transaction, two, "k", "of two"), BP_STORE_OK);
	IS(bp_store_commit(transaction), BP_STORE_OK);
	IS(bp_store_drop_tree(store, "one"), BP_STORE_OK);
	IS(bp_store_drop_tree(store, "one"), BP_STORE_ERROR_NO_TREE);
	again = tree_of(store, "one");
	HOLDS(again.number != one.number);
	transaction = begun(store, 0);
	HOLDS(has(transaction, again, "k", NULL) && has(transaction, two, "k", "of two"));
	IS(bp_store_get(transaction, one, "k", 1, NULL), BP_STORE_ERROR_NO_TREE);
	IS(bp_store_abort(transaction), BP_STORE_OK);
	IS(bp_store_drop_tree(store, "one"), BP_STORE_OK);
}

static void engines(const char *folder)
{
	static const uint32_t all[] = {BP_STORE_ENGINE_ARRAY, BP_STORE_ENGINE_STOCK, BP_STORE_ENGINE_HASHTABLE};
	char path[4096], name[20];
	size_t i;

	for (i = 0; i < sizeof all / sizeof all[0]; i++) {
		uint32_t engine = all[i];
		struct bp_store_options options = options_of(BP_STORE_CREATE | BP_STORE_ASYNC);
		struct bp_store store;
		struct bp_store_transaction transaction;
		struct bp_store_tree tree;

		snprintf(name, sizeof name, "engine-%u", engine);
		options.engine = engine;
		options.version_bytes = 1 << 20;
		options.checkpoint_bytes = 1 << 20;
		IS(bp_store_open(path_in(folder, name, path, sizeof path), &options, &store), BP_STORE_OK);
		HOLDS(statistics_of(store).engine == engine);
		tree = tree_of(store, "t");
		transaction = begun(store, 0);
		IS(put(transaction, tree, "k", "v"), BP_STORE_OK);
		IS(bp_store_commit(transaction), BP_STORE_OK);
		IS(bp_store_sync(store), BP_STORE_OK);
		IS(bp_store_close(store), BP_STORE_OK);
	}
}

int main(int argc, char **argv)
{
	struct bp_store_options options = options_of(0);
	struct bp_store store = {0};
	struct bp_store_tree tree;
	struct bp_store_transaction transaction;
	struct bp_store_statistics statistics;
	char path[4096];

	if (argc != 2)
		return 2;
	HOLDS(strlen(bp_store_error()) == 0 && bp_store_error_number() == 0 && strlen(bp_store_version()) >= 5);
	path_in(argv[1], "store", path, sizeof path);
	IS(bp_store_open(path, &options, &store), BP_STORE_ERROR_NO_STORE);
	HOLDS(access(path, F_OK) != 0 && strstr(bp_store_error(), path));
	store = opened(path);
	tree = tree_of(store, "fruit");
	records(store, tree);
	prefixes(store);
	trees(store);
	cursors(store);
	statistics = statistics_of(store);
	HOLDS(statistics.commits > 5 && statistics.checkpoints == 1 && statistics.conflicts == 0);
	HOLDS(statistics.pages_in_memory_max == (1 << 20) / 4096 && statistics.log_bytes > 0);
	HOLDS(statistics.commit_p50_ns > 0 && statistics.commit_p50_ns <= statistics.commit_p99_ns);
	HOLDS(statistics.commit_p99_ns <= statistics.commit_max_ns && statistics.log_write_max_ns > 0);
	HOLDS(statistics.checkpoint_p50_ns > 0 && statistics.checkpoint_p50_ns <= statistics.checkpoint_max_ns);
	IS(bp_store_checkpoint(store), BP_STORE_OK);
	HOLDS(statistics_of(store).checkpoints == 2 && statistics_of(store).pages_written > 0);
	IS(bp_store_close(store), BP_STORE_OK);

	IS(bp_store_open(path, &options, &store), BP_STORE_OK);
	IS(bp_store_open_tree(store, "fruit", 0, &tree), BP_STORE_OK);
	transaction = begun(store, BP_STORE_READ_ONLY);
	HOLDS(has(transaction, tree, "pear", "yellow") && has(transaction, tree, "apple", NULL));
	IS(bp_store_abort(transaction), BP_STORE_OK);
	IS(bp_store_close(store), BP_STORE_OK);
	engines(argv[1]);
	return failures != 0;
}
