/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Transactions that conflict, and are begun again. */
#include "check.h"

#include <semaphore.h>

static struct bp_store store;
static struct bp_store_tree tree;

static uint64_t number_in(struct bp_store_bytes value)
{
	uint64_t number = 0;

	if (value.len == sizeof number)
		memcpy(&number, value.data, sizeof number);
	return number;
}

/* Adds 1 to the number of a key. */
static int add(struct bp_store_transaction transaction, const char *key)
{
	struct bp_store_bytes value;
	uint64_t number;
	int code = bp_store_get(transaction, tree, key, strlen(key), &value);

	if (code < 0)
		return code;
	number = code == BP_STORE_OK ? number_in(value) + 1 : 1;
	return bp_store_put(transaction, tree, key, strlen(key), &number, sizeof number);
}

static uint64_t number_of(const char *key)
{
	struct bp_store_transaction transaction = begun(store, BP_STORE_READ_ONLY);
	struct bp_store_bytes value;
	uint64_t number = 0;

	if (bp_store_get(transaction, tree, key, strlen(key), &value) == BP_STORE_OK)
		number = number_in(value);
	IS(bp_store_abort(transaction), BP_STORE_OK);
	return number;
}

/* Another transaction changes a record that this one has read, before this one commits. */
static void one_conflict(void)
{
	struct bp_store_transaction first = begun(store, 0), second = begun(store, 0);
	struct bp_store_range range;
	struct bp_store_cursor cursor;

	IS(add(first, "one"), BP_STORE_OK);
	IS(add(second, "one"), BP_STORE_OK);
	IS(bp_store_commit(second), BP_STORE_OK);
	IS(bp_store_commit(first), BP_STORE_ERROR_CONFLICT);
	/* It has ended. */
	IS(bp_store_abort(first), BP_STORE_ERROR_CLOSED);
	HOLDS(number_of("one") == 1);

	/* A key that was not there is a part of the range. */
	first = begun(store, 0), second = begun(store, 0);
	memset(&range, 0, sizeof range);
	range.prefix.data = "phantom", range.prefix.len = 7;
	IS(bp_store_open_cursor(first, tree, &range, &cursor), BP_STORE_OK);
	IS(bp_store_next(cursor, NULL, NULL), BP_STORE_END);
	IS(put(first, tree, "none", ""), BP_STORE_OK);
	IS(put(second, tree, "phantom 1", ""), BP_STORE_OK);
	IS(bp_store_commit(second), BP_STORE_OK);
	IS(bp_store_commit(first), BP_STORE_ERROR_CONFLICT);

	/* Blind writes never conflict; nor do transactions that read other keys. */
	first = begun(store, 0), second = begun(store, 0);
	IS(put(first, tree, "blind", "1"), BP_STORE_OK);
	IS(put(second, tree, "blind", "2"), BP_STORE_OK);
	IS(bp_store_commit(second), BP_STORE_OK);
	IS(bp_store_commit(first), BP_STORE_OK);
	HOLDS(statistics_of(store).conflicts == 2);
}

enum { ROUNDS = 300 };

/* The loop of the manual. */
static int add_with_retry(const char *key)
{
	for (;;) {
		struct bp_store_transaction transaction;
		int code = bp_store_begin(store, 0, &transaction);

		if (code < 0)
			return code;
		code = add(transaction, key);
		if (code < 0)
			bp_store_abort(transaction);
		else
			code = bp_store_commit(transaction);
		if (code != BP_STORE_ERROR_CONFLICT && code != BP_STORE_ERROR_SNAPSHOT_TOO_OLD)
			return code;
	}
}

static void *adds(void *argument)
{
	int i;

	(void)argument;
	for (i = 0; i < ROUNDS; i++)
		HOLDS(add_with_retry("sum") == BP_STORE_OK);
	return NULL;
}

static int work(struct bp_store_transaction transaction, void *key)
{
	return add(transaction, key);
}

static void *updates(void *argument)
{
	int i;

	(void)argument;
	for (i = 0; i < ROUNDS; i++)
		HOLDS(bp_store_update(store, work, (char[]){"sum"}) == BP_STORE_OK);
	return NULL;
}

static void threads(void)
{
	pthread_t threads[4];
	int i;

	for (i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, i < 2 ? adds : updates, NULL);
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	HOLDS(number_of("sum") == 4 * ROUNDS);
}

static sem_t asked, changed;

static void *interferes(void *argument)
{
	int i;

	(void)argument;
	for (i = 0; i < 8; i++) {
		while (sem_wait(&asked) != 0)
			;
		HOLDS(add_with_retry("contended") == BP_STORE_OK);
		sem_post(&changed);
	}
	return NULL;
}

/* Each of 8 attempts has a conflict; the ninth runs alone. */
static int contended(struct bp_store_transaction transaction, void *attempts)
{
	int code = add(transaction, "contended");

	if (++*(int *)attempts <= 8) {
		sem_post(&asked);
		while (sem_wait(&changed) != 0)
			;
	}
	return code;
}

static void an_update_ends(void)
{
	uint64_t before = statistics_of(store).conflicts;
	pthread_t thread;
	int attempts = 0;

	sem_init(&asked, 0, 0);
	sem_init(&changed, 0, 0);
	pthread_create(&thread, NULL, interferes, NULL);
	IS(bp_store_update(store, contended, &attempts), BP_STORE_OK);
	pthread_join(thread, NULL);
	HOLDS(attempts == 9 && number_of("contended") == 9);
	HOLDS(statistics_of(store).conflicts == before + 8);
}

static int fails(struct bp_store_transaction transaction, void *number)
{
	HOLDS(add(transaction, "undone") == BP_STORE_OK);
	return *(int *)number;
}

/* A snapshot whose values were dropped is begun again, too. */
static int too_old_once(struct bp_store_transaction transaction, void *attempts)
{
	return ++*(int *)attempts == 1 ? BP_STORE_ERROR_SNAPSHOT_TOO_OLD : add(transaction, "again");
}

static void what_an_update_returns(void)
{
	int own = 77, attempts = 0;

	IS(bp_store_update(store, fails, &own), 77);
	own = -1000;
	IS(bp_store_update(store, fails, &own), -1000);
	HOLDS(number_of("undone") == 0);
	IS(bp_store_update(store, too_old_once, &attempts), BP_STORE_OK);
	HOLDS(attempts == 2 && number_of("again") == 1);
	/* It runs again as long as it says so, but not for ever. */
	own = BP_STORE_ERROR_CONFLICT;
	IS(bp_store_update(store, fails, &own), BP_STORE_ERROR_CONFLICT);
	HOLDS(number_of("undone") == 0);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	store = opened(argv[1]);
	tree = tree_of(store, "numbers");
	one_conflict();
	threads();
	an_update_ends();
	what_an_update_returns();
	IS(bp_store_close(store), BP_STORE_OK);
	return failures != 0;
}
