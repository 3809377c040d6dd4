/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Four workers scan a file at the same time. The service reads the file once, as far as the workers keep pace.
 *
 *   cc -pthread share.c $(pkg-config --cflags --libs bedplate-scan) -o share
 *   ./share FILE
 */
#include <bedplate/scan.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define WORKERS 4

static struct bp_scan_key key;

struct result {
	uint64_t sum;
	uint64_t bytes;
};

static void *worker(void *argument)
{
	struct result *result = argument;
	struct bp_scan_channel channel;
	struct bp_scan_page page;
	int code;

	code = bp_scan_join(BP_SCAN_DEFAULT, &key, 65536, &channel);
	if (code) {
		fprintf(stderr, "joining: %s\n", bp_scan_error());
		return NULL;
	}
	/* Pages come in the pool's order. Each page has its offset in the file. */
	while ((code = bp_scan_next_page(channel, &page, BP_SCAN_FOREVER)) == BP_SCAN_OK) {
		size_t i;

		for (i = 0; i < page.len; i++)
			result->sum += page.data[i] * (page.offset + i + 1);
		result->bytes += page.len;
		bp_scan_put_page(channel, &page);
	}
	if (code != BP_SCAN_END)
		fprintf(stderr, "scanning: %s\n", bp_scan_error());
	bp_scan_close(channel);
	return NULL;
}

int main(int argc, char **argv)
{
	struct bp_scan_source source;
	struct bp_scan_pool_options options;
	struct bp_scan_pool pool;
	struct result results[WORKERS];
	pthread_t threads[WORKERS];
	int i, same = 1;

	if (argc != 2) {
		fprintf(stderr, "usage: %s FILE\n", argv[0]);
		return 2;
	}
	memset(&source, 0, sizeof source);
	source.path = argv[1];
	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.sources = &source;
	options.source_count = 1;
	options.memory_bytes = 16 << 20;
	if (bp_scan_create_pool(BP_SCAN_DEFAULT, &options, &pool) || bp_scan_pool_key(pool, &key)) {
		fprintf(stderr, "%s\n", bp_scan_error());
		return 1;
	}

	memset(results, 0, sizeof results);
	for (i = 0; i < WORKERS; i++)
		if (pthread_create(&threads[i], NULL, worker, &results[i]))
			return 1;
	for (i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	bp_scan_close_pool(pool);

	for (i = 1; i < WORKERS; i++)
		same &= memcmp(&results[i], &results[0], sizeof results[0]) == 0;
	printf("%d workers, %" PRIu64 " bytes each, %s sums\n", WORKERS, results[0].bytes, same ? "equal" : "different");
	return !same;
}
