/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Tests of right and wrong uses of the functions for database engines. Programs hold, judge, cancel and await pages of the
 * process's own service and of a daemon's.
 */
#include "check.h"

#include <poll.h>

/* A program holds several pages at a time, and returns them in any order. */
static void held(struct bp_scan_service at)
{
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options options = options_of(&source);
	struct bp_scan_channel channel;
	struct bp_scan_page pages[4], more;
	struct bp_scan_statistics statistics;
	int i;

	options.pages_held = BP_SCAN_PAGES_HELD_MAX + 1;
	IS(bp_scan_open(at, &options, &channel), BP_SCAN_ERROR_INVALID);
	options.pages_held = BP_SCAN_PAGES_HELD_MAX;
	IS(bp_scan_open(at, &options, &channel), BP_SCAN_ERROR_INVALID);
	HOLDS(strstr(bp_scan_error(), "needs 512") != NULL);
	options.pages_held = 4, options.ring_bytes = 10 << 20;
	IS(bp_scan_open(at, &options, &channel), BP_SCAN_ERROR_INVALID);
	options.ring_bytes = 12 << 20;
	IS(bp_scan_open(at, &options, &channel), BP_SCAN_OK);
	for (i = 0; i < 4; i++)
		IS(bp_scan_next_page(channel, &pages[i], BP_SCAN_FOREVER), BP_SCAN_OK);
	memset(&more, 0xee, sizeof more);
	IS(bp_scan_get_page(channel, &more), BP_SCAN_ERROR_HELD);
	HOLDS(more.ticket == UINT64_C(0xeeeeeeeeeeeeeeee));
	for (i = 0; i < 4; i++)
		HOLDS(right(&pages[i]) && pages[i].offset == (uint64_t)i * 8192);
	IS(bp_scan_put_page(channel, &pages[2]), BP_SCAN_OK);
	IS(bp_scan_put_page(channel, &pages[2]), BP_SCAN_ERROR_PAGE);
	IS(bp_scan_put_page(channel, &pages[0]), BP_SCAN_OK);
	IS(bp_scan_close(channel), BP_SCAN_ERROR_HELD);
	IS(bp_scan_next_page(channel, &pages[0], BP_SCAN_FOREVER), BP_SCAN_OK);
	HOLDS(right(&pages[0]) && right(&pages[1]) && right(&pages[3]) && pages[0].offset == 4 * 8192);
	IS(bp_scan_get_statistics(channel, &statistics, sizeof statistics), BP_SCAN_OK);
	HOLDS(statistics.pages_held == 4 && statistics.cancelled == 0 && statistics.unstable == 0);
	IS(bp_scan_put_page(channel, &pages[3]), BP_SCAN_OK);
	IS(bp_scan_put_page(channel, &pages[1]), BP_SCAN_OK);
	IS(bp_scan_put_page(channel, &pages[0]), BP_SCAN_OK);
	IS(bp_scan_put_page(channel, &pages[0]), BP_SCAN_ERROR_NOT_HELD);
	IS(bp_scan_next_page(channel, &pages[0], BP_SCAN_FOREVER), BP_SCAN_OK);
	IS(bp_scan_next_page(channel, &pages[1], BP_SCAN_FOREVER), BP_SCAN_OK);
	/* Abandoning the channel invalidates all of its pages. */
	IS(bp_scan_abandon(channel), BP_SCAN_OK);
	IS(bp_scan_put_page(channel, &pages[1]), BP_SCAN_ERROR_CLOSED);
}

static void judgment(struct bp_scan_service at)
{
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options options = options_of(&source);
	struct bp_scan_channel channel, other, watched = opened(path);
	struct bp_scan_page page, old;
	struct timespec before;
	bool unchanged = true;

	options.flags = 2;
	IS(bp_scan_open(at, &options, &channel), BP_SCAN_ERROR_INVALID);
	options.flags = BP_SCAN_UNWATCHED;
	clock_gettime(CLOCK_MONOTONIC, &before);
	IS(bp_scan_open(at, &options, &channel), BP_SCAN_OK);
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	HOLDS(right(&page) && (page.flags & ~BP_SCAN_PAGE_STABLE) == 0);
	HOLDS(page.read_began_ns >= (uint64_t)before.tv_sec * 1000000000 + (uint64_t)before.tv_nsec);
	IS(bp_scan_unchanged(channel, &page, &unchanged), BP_SCAN_OK);
	HOLDS(unchanged || !(page.flags & BP_SCAN_PAGE_STABLE));
	IS(bp_scan_unchanged(channel, NULL, &unchanged), BP_SCAN_ERROR_NULL);
	IS(bp_scan_unchanged(channel, &page, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_unchanged(watched, &page, &unchanged), BP_SCAN_ERROR_PAGE);
	/* Another channel that does not watch its files also refuses the page, while a page of its own is out. */
	IS(bp_scan_open(at, &options, &other), BP_SCAN_OK);
	IS(bp_scan_next_page(other, &old, BP_SCAN_FOREVER), BP_SCAN_OK);
	IS(bp_scan_unchanged(other, &page, &unchanged), BP_SCAN_ERROR_PAGE);
	IS(bp_scan_unchanged(other, &old, &unchanged), BP_SCAN_OK);
	IS(bp_scan_abandon(other), BP_SCAN_OK);
	old = page;
	IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	IS(bp_scan_unchanged(channel, &old, &unchanged), BP_SCAN_ERROR_NOT_HELD);
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	IS(bp_scan_unchanged(channel, &old, &unchanged), BP_SCAN_ERROR_PAGE);
	IS(bp_scan_abandon(channel), BP_SCAN_OK);
	IS(bp_scan_unchanged(channel, &page, &unchanged), BP_SCAN_ERROR_CLOSED);
	/* A channel that watches its files cannot judge pages. */
	IS(bp_scan_next_page(watched, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	HOLDS(page.flags == 0 && page.read_began_ns == 0);
	IS(bp_scan_unchanged(watched, &page, &unchanged), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_abandon(watched), BP_SCAN_OK);
}

static void cancelling(struct bp_scan_service at)
{
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options options = options_of(&source);
	struct bp_scan_channel channel;
	struct bp_scan_range ranges[2];
	struct bp_scan_page page;
	struct bp_scan_statistics statistics;
	uint64_t cancelled = 77, bytes = 0;
	int code;

	memset(ranges, 0, sizeof ranges);
	IS(bp_scan_open(at, &options, &channel), BP_SCAN_OK);
	ranges[0].start = 5, ranges[0].end = 4;
	IS(bp_scan_cancel_ranges(channel, ranges, 1, &cancelled), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_cancel_ranges(channel, NULL, 1, &cancelled), BP_SCAN_ERROR_NULL);
	HOLDS(cancelled == 77);
	IS(bp_scan_cancel_ranges(channel, NULL, 0, &cancelled), BP_SCAN_OK);
	HOLDS(cancelled == 0);
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	/* Cancelling does not affect the page that is out. */
	ranges[0].start = 0, ranges[0].end = 16384;
	ranges[1].start = 1 << 20, ranges[1].end = 5 << 20;
	IS(bp_scan_cancel_ranges(channel, ranges, 2, &cancelled), BP_SCAN_OK);
	HOLDS(cancelled == 8192 + (4 << 20) && right(&page));
	IS(bp_scan_cancel_ranges(channel, ranges, 2, NULL), BP_SCAN_OK);
	do {
		HOLDS(right(&page) && (page.offset == 0 || (page.offset >= 16384 && page.offset < 1 << 20)));
		bytes += page.len;
		IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	} while ((code = bp_scan_next_page(channel, &page, BP_SCAN_FOREVER)) == BP_SCAN_OK);
	IS(code, BP_SCAN_END);
	IS(bp_scan_get_statistics(channel, &statistics, sizeof statistics), BP_SCAN_OK);
	HOLDS(bytes == (1 << 20) - 8192 && statistics.cancelled == cancelled && statistics.total_bytes == bytes);
	IS(bp_scan_close(channel), BP_SCAN_OK);
	IS(bp_scan_cancel_ranges(channel, ranges, 1, NULL), BP_SCAN_ERROR_CLOSED);
}

static void descriptors(struct bp_scan_service at)
{
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options options = options_of(&source);
	struct bp_scan_channel channel;
	struct bp_scan_page page;
	struct pollfd polled;
	uint64_t bytes = 0;
	int code = BP_SCAN_NOT_YET, again = -1;

	memset(&polled, 0, sizeof polled);
	polled.events = POLLIN;
	IS(bp_scan_open(at, &options, &channel), BP_SCAN_OK);
	IS(bp_scan_descriptor(channel, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_descriptor(channel, &polled.fd), BP_SCAN_OK);
	IS(bp_scan_descriptor(channel, &again), BP_SCAN_OK);
	HOLDS(again == polled.fd);
	while (code != BP_SCAN_END) {
		HOLDS(poll(&polled, 1, 30000) == 1);
		code = bp_scan_get_page(channel, &page);
		if (code == BP_SCAN_OK) {
			HOLDS(right(&page));
			bytes += page.len;
			IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
		} else if (code < 0) {
			IS(code, BP_SCAN_NOT_YET);
			break;
		}
	}
	HOLDS(bytes == 5 << 20);
	IS(bp_scan_close(channel), BP_SCAN_OK);
	HOLDS(fcntl(again, F_GETFD) == -1 && errno == EBADF);
	IS(bp_scan_descriptor(channel, &again), BP_SCAN_ERROR_CLOSED);
}

static void residency(void)
{
	struct bp_scan_source source = source_of(path);
	uint64_t bytes = 77;
	char buffer[8192], fifo[4096];
	int fd = open(path, O_RDONLY), code;

	HOLDS(pread(fd, buffer, sizeof buffer, 0) == sizeof buffer);
	IS(bp_scan_resident_bytes(NULL, 0, 1, &bytes), BP_SCAN_ERROR_NULL);
	IS(bp_scan_resident_bytes(&source, 0, 1, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_resident_bytes(&source, 2, 1, &bytes), BP_SCAN_ERROR_INVALID);
	source.path = "/no/such/file";
	IS(bp_scan_resident_bytes(&source, 0, 1, &bytes), BP_SCAN_ERROR_FILE);
	HOLDS(bp_scan_error_number() == ENOENT && bytes == 77);
	source.path = "/";
	IS(bp_scan_resident_bytes(&source, 0, 1, &bytes), BP_SCAN_ERROR_FILE);
	HOLDS(bp_scan_error_number() == EISDIR);
	source.path = "/dev/null";
	IS(bp_scan_resident_bytes(&source, 0, 1, &bytes), BP_SCAN_ERROR_FILE);
	/* The FIFO has no writer. The call must not wait for one. */
	snprintf(fifo, sizeof fifo, "%s.fifo", path);
	source.path = fifo;
	HOLDS(mkfifo(fifo, 0600) == 0);
	alarm(120);
	IS(bp_scan_resident_bytes(&source, 0, 1, &bytes), BP_SCAN_ERROR_FILE);
	alarm(0);
	HOLDS(strstr(bp_scan_error(), fifo) && bytes == 77 && unlink(fifo) == 0);
	source.path = NULL, source.flags = BP_SCAN_FD, source.fd = fd;
	/* valgrind does not know cachestat(), so the library uses a mapping and mincore() there. */
	code = bp_scan_resident_bytes(&source, 0, 8192, &bytes);
	IS(code, BP_SCAN_OK);
	HOLDS(bytes <= 8192);
	IS(bp_scan_resident_bytes(&source, 5, 5, &bytes), BP_SCAN_OK);
	HOLDS(bytes == 0 && close(fd) == 0);
}

int main(int argc, char **argv)
{
	struct bp_scan_service daemon = {0};
	int code = begin(argc, argv), at;

	if (code)
		return code;
	IS(bp_scan_connect(argv[4], &daemon), BP_SCAN_OK);
	for (at = 0; at < 2; at++) {
		struct bp_scan_service used = at == 0 ? service : daemon;

		held(used);
		judgment(used);
		cancelling(used);
		descriptors(used);
	}
	residency();
	IS(bp_scan_stop(daemon), BP_SCAN_OK);
	IS(bp_scan_stop(service), BP_SCAN_OK);
	return failures != 0;
}
