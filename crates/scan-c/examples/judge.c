/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Scans a file that others may write meanwhile, without having it read again for that. Each page is judged: one that is not torn
 * and whose file was not changed since is current; the others a database would read by its own means. Up to eight pages are
 * out at a time, and the program waits by poll().
 *
 *   cc judge.c $(pkg-config --cflags --libs bedplate-scan) -o judge
 *   ./judge FILE
 */
#include <bedplate/scan.h>

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define HELD 8

int main(int argc, char **argv)
{
	struct bp_scan_source source;
	struct bp_scan_options options;
	struct bp_scan_channel channel;
	struct bp_scan_page pages[HELD];
	struct pollfd polled;
	uint64_t current = 0, other = 0;
	size_t out = 0, i;
	int code = BP_SCAN_NOT_YET;

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
	options.page_size = 8192;
	options.flags = BP_SCAN_UNWATCHED;
	options.pages_held = HELD;
	memset(&polled, 0, sizeof polled);
	polled.events = POLLIN;
	if (bp_scan_open(BP_SCAN_DEFAULT, &options, &channel) || bp_scan_descriptor(channel, &polled.fd)) {
		fprintf(stderr, "%s\n", bp_scan_error());
		return 1;
	}

	while (code != BP_SCAN_END) {
		code = bp_scan_get_page(channel, &pages[out]);
		if (code == BP_SCAN_OK && ++out < HELD)
			continue;
		/* As many are out as may be, or nothing is there now. */
		for (i = 0; i < out; i++) {
			bool unchanged = false;

			if (bp_scan_unchanged(channel, &pages[i], &unchanged) == BP_SCAN_OK && unchanged &&
			    pages[i].flags & BP_SCAN_PAGE_STABLE)
				current++;
			else
				other++;
			bp_scan_put_page(channel, &pages[i]);
		}
		out = 0;
		if (code == BP_SCAN_NOT_YET) {
			poll(&polled, 1, -1);
		} else if (code < 0) {
			fprintf(stderr, "%s\n", bp_scan_error());
			if (code < BP_SCAN_ERROR_REPLACED)
				break;
			other++;
		}
	}

	printf("%" PRIu64 " pages: %" PRIu64 " are current\n", current + other, current);
	bp_scan_close(channel);
	return code != BP_SCAN_END;
}
