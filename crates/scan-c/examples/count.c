/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Counts the bytes and lines of files, in pages of 8 KiB, and prints the time that it waited for pages.
 *
 *   cc count.c $(pkg-config --cflags --libs bedplate-scan) -o count
 *   ./count FILE...
 */
#include <bedplate/scan.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t lines_of(const struct bp_scan_page *page)
{
	const uint8_t *at = page->data, *end = page->data + page->len;
	uint64_t lines = 0;

	while ((at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
		lines++;
		if (++at == end)
			break;
	}
	return lines;
}

int main(int argc, char **argv)
{
	struct bp_scan_options options;
	struct bp_scan_source *sources;
	struct bp_scan_channel channel;
	struct bp_scan_page page;
	struct bp_scan_statistics statistics;
	uint64_t bytes = 0, lines = 0;
	int i, code, failed = 0;

	if (argc < 2) {
		fprintf(stderr, "usage: %s FILE...\n", argv[0]);
		return 2;
	}
	sources = calloc((size_t)argc - 1, sizeof *sources);
	if (!sources)
		return 1;
	for (i = 1; i < argc; i++)
		sources[i - 1].path = argv[i];

	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.sources = sources;
	options.source_count = (size_t)argc - 1;
	options.page_size = 8192;
	code = bp_scan_open(BP_SCAN_DEFAULT, &options, &channel);
	free(sources);
	if (code) {
		fprintf(stderr, "%s\n", bp_scan_error());
		return 1;
	}

	for (;;) {
		code = bp_scan_next_page(channel, &page, BP_SCAN_FOREVER);
		if (code == BP_SCAN_END)
			break;
		if (code == BP_SCAN_OK) {
			bytes += page.len;
			lines += lines_of(&page);
			bp_scan_put_page(channel, &page);
			continue;
		}
		/* The page cannot be read. The scan continues with the next one. */
		fprintf(stderr, "%s: %s\n", bp_scan_strerror(code), bp_scan_error());
		failed = 1;
		if (code < BP_SCAN_ERROR_REPLACED)
			break;
	}

	printf("%" PRIu64 " bytes, %" PRIu64 " lines\n", bytes, lines);
	if (bp_scan_get_statistics(channel, &statistics, sizeof statistics) == 0)
		fprintf(stderr, "waited %" PRIu64 " us for %" PRIu64 " bytes; %" PRIu64 " system calls\n",
			statistics.starved_ns / 1000, statistics.bytes, statistics.calls);
	bp_scan_close(channel);
	return failed;
}
