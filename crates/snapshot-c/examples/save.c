/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A table of accounts in memory. A thread moves money between them. Meanwhile the table is saved to a file. The file has the
 * accounts of one moment, so its sum is right, whatever the thread does.
 *
 *   cc -pthread save.c $(pkg-config --cflags --libs bedplate-snapshot) -o save
 *   ./save FILE
 */
#include <bedplate/snapshot.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define ACCOUNTS 1000000
#define EACH 100

static _Atomic int64_t *accounts;
static atomic_bool over;

/* Moves one unit at a time. Between its two stores the sum is one too small. */
static void *transfer(void *unused)
{
	uint64_t random = 88172645463325252;

	while (!over) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		accounts[random % ACCOUNTS]--;
		accounts[(random >> 32) % ACCOUNTS]++;
	}
	return unused;
}

int main(int argc, char **argv)
{
	struct bp_snapshot_options options = {.size = sizeof options, .bytes = ACCOUNTS * sizeof *accounts};
	struct bp_snapshot_memory_info info;
	struct bp_snapshot_memory memory;
	struct bp_snapshot_view view;
	struct bp_snapshot snapshot;
	int64_t account, sum = 0;
	pthread_t thread;
	FILE *file = argc == 2 ? fopen(argv[1], "w+") : NULL;

	if (!file || bp_snapshot_create(&options, &memory) || bp_snapshot_get_memory_info(memory, &info, sizeof info)) {
		fprintf(stderr, "usage: %s FILE; %s\n", argv[0], bp_snapshot_error());
		return 1;
	}
	accounts = (void *)info.base;
	for (size_t i = 0; i < ACCOUNTS; i++)
		accounts[i] = EACH;
	if (pthread_create(&thread, NULL, transfer, NULL))
		return 1;

	if (bp_snapshot_take(memory, &snapshot) || bp_snapshot_get_view(snapshot, &view, sizeof view)) {
		fprintf(stderr, "%s\n", bp_snapshot_error());
		return 1;
	}
	fwrite(view.data, 1, view.len, file);
	/* The bytes that were read count only after this check. */
	if (bp_snapshot_check(snapshot) || bp_snapshot_release(snapshot)) {
		fprintf(stderr, "%s\n", bp_snapshot_error());
		return 1;
	}
	over = 1;
	pthread_join(thread, NULL);

	rewind(file);
	for (size_t i = 0; i < ACCOUNTS && fread(&account, sizeof account, 1, file) == 1; i++)
		sum += account;
	printf("saved %d accounts, the sum is %s\n", ACCOUNTS,
	       sum == (int64_t)ACCOUNTS * EACH || sum == (int64_t)ACCOUNTS * EACH - 1 ? "right" : "wrong");
	bp_snapshot_destroy(memory);
	return fclose(file) != 0;
}
