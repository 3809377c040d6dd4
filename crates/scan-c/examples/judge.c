/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Scans a file that other processes may write at the same time. The service does not read it again for that. The program judges
 * each page: a page is current if it is not torn, and its file has not been changed since. A database would read the other
 * pages itself. Up to eight pages are out at a time, and the program waits by poll().
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
		/* The highest number of pages is out, or no page is ready. */
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
