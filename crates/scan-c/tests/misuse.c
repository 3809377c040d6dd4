/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Tests of every misuse that the library promises to detect, except those in for_engines.c. */
#include "check.h"

static void pages(void)
{
	struct bp_scan_channel a = opened(path), b = opened(path);
	struct bp_scan_page page, old, foreign, copy;
	uint64_t bytes = 0;
	int code;

	memset(&page, 0, sizeof page);
	IS(bp_scan_put_page(a, &page), BP_SCAN_ERROR_PAGE);
	IS(bp_scan_put_page(a, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_get_page(a, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_next_page(a, NULL, BP_SCAN_FOREVER), BP_SCAN_ERROR_NULL);
	IS(bp_scan_next_page(a, &page, -2), BP_SCAN_ERROR_INVALID);

	IS(bp_scan_next_page(a, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	copy = page;
	/* A page is out. A request for another one is an error, and does not lose the first. */
	IS(bp_scan_get_page(a, &page), BP_SCAN_ERROR_HELD);
	IS(bp_scan_next_page(a, &page, BP_SCAN_FOREVER), BP_SCAN_ERROR_HELD);
	HOLDS(memcmp(&page, &copy, sizeof page) == 0 && right(&page));
	IS(bp_scan_close(a), BP_SCAN_ERROR_HELD);

	/* Each channel refuses a page of the other one, which stays out. */
	IS(bp_scan_next_page(b, &foreign, BP_SCAN_FOREVER), BP_SCAN_OK);
	IS(bp_scan_put_page(a, &foreign), BP_SCAN_ERROR_PAGE);
	IS(bp_scan_put_page(b, &page), BP_SCAN_ERROR_PAGE);
	HOLDS(right(&page) && right(&foreign));

	/* A page cannot be returned twice. */
	IS(bp_scan_put_page(a, &page), BP_SCAN_OK);
	IS(bp_scan_put_page(a, &page), BP_SCAN_ERROR_NOT_HELD);
	/* An earlier page cannot be returned while another is out. */
	old = page;
	IS(bp_scan_next_page(a, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	IS(bp_scan_put_page(a, &old), BP_SCAN_ERROR_PAGE);
	copy = page;
	copy.ticket += 1;
	IS(bp_scan_put_page(a, &copy), BP_SCAN_ERROR_PAGE);
	IS(bp_scan_put_page(a, &page), BP_SCAN_OK);
	bytes = page.offset + page.len;

	while ((code = bp_scan_next_page(a, &page, BP_SCAN_FOREVER)) == BP_SCAN_OK) {
		HOLDS(right(&page) && page.offset == bytes);
		bytes += page.len;
		IS(bp_scan_put_page(a, &page), BP_SCAN_OK);
	}
	IS(code, BP_SCAN_END);
	HOLDS(bytes == 5 << 20 && page.data == NULL && page.len == 0);
	IS(bp_scan_get_page(a, &page), BP_SCAN_END);
	IS(bp_scan_put_page(a, &page), BP_SCAN_ERROR_PAGE);

	/* A closed channel refuses all calls. */
	IS(bp_scan_close(a), BP_SCAN_OK);
	IS(bp_scan_close(a), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_abandon(a), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_get_page(a, &page), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_next_page(a, &page, 0), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_put_page(a, &old), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_notify_ranges(a, NULL, 0), BP_SCAN_ERROR_CLOSED);
	/* The next channel reuses the table's slot, but is a different channel. */
	a = opened(path);
	IS(bp_scan_put_page(a, &old), BP_SCAN_ERROR_PAGE);
	IS(bp_scan_close(a), BP_SCAN_OK);
	/* A channel can be abandoned with a page out. */
	IS(bp_scan_abandon(b), BP_SCAN_OK);
	IS(bp_scan_put_page(b, &foreign), BP_SCAN_ERROR_CLOSED);
}

static void handles(void)
{
	struct bp_scan_channel wrong = {0}, channel = opened(path);
	struct bp_scan_page page;
	struct bp_scan_statistics statistics;
	struct bp_scan_service no_service;
	struct bp_scan_pool no_pool;
	struct bp_scan_key key;
	uint64_t tries[] = {0, 1, UINT64_MAX, channel.handle + 1, channel.handle ^ UINT64_C(1) << 40,
			    channel.handle ^ UINT64_C(1) << 60, service.handle, (uint64_t)(uintptr_t)&page};
	bool direct;
	char text[200];
	size_t i;

	for (i = 0; i < sizeof tries / sizeof *tries; i++) {
		wrong.handle = tries[i];
		IS(bp_scan_get_page(wrong, &page), BP_SCAN_ERROR_HANDLE);
		IS(bp_scan_close(wrong), BP_SCAN_ERROR_HANDLE);
	}
	IS(bp_scan_is_direct(wrong, 0, &direct), BP_SCAN_ERROR_HANDLE);
	IS(bp_scan_get_statistics(wrong, &statistics, sizeof statistics), BP_SCAN_ERROR_HANDLE);
	IS(bp_scan_get_statistics(channel, NULL, sizeof statistics), BP_SCAN_ERROR_NULL);
	IS(bp_scan_is_direct(channel, 1, &direct), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_is_direct(channel, 0, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_is_direct(channel, 0, &direct), BP_SCAN_OK);

	/* The structures may have the sizes of other versions. */
	memset(&statistics, 0xff, sizeof statistics);
	IS(bp_scan_get_statistics(channel, &statistics, 16), BP_SCAN_OK);
	HOLDS(statistics.total_bytes == 5 << 20 && statistics.page_size == 8192 && statistics.memory == UINT32_MAX);

	no_service.handle = channel.handle;
	no_pool.handle = channel.handle;
	IS(bp_scan_about(no_service, text, sizeof text), BP_SCAN_ERROR_HANDLE);
	IS(bp_scan_stop(no_service), BP_SCAN_ERROR_HANDLE);
	IS(bp_scan_pool_key(no_pool, &key), BP_SCAN_ERROR_HANDLE);
	IS(bp_scan_close_pool(no_pool), BP_SCAN_ERROR_HANDLE);
	IS(bp_scan_stop(BP_SCAN_DEFAULT), BP_SCAN_ERROR_HANDLE);
	IS(bp_scan_about(service, NULL, 5), BP_SCAN_ERROR_NULL);
	memset(text, 'x', sizeof text);
	IS(bp_scan_about(service, text, 5), BP_SCAN_OK);
	HOLDS(strlen(text) == 4 && text[5] == 'x');
	IS(bp_scan_close(channel), BP_SCAN_OK);
	HOLDS(strcmp(bp_scan_strerror(12345), "no such code") == 0);
}

static void options_are_checked(void)
{
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options good = options_of(&source), bad;
	struct bp_scan_channel channel = {77};
	struct bp_scan_range range, ranges[2];
	struct bp_scan_page page;
	struct {
		struct bp_scan_options options;
		uint64_t later;
	} newer;
	int fd;

	IS(bp_scan_open(service, NULL, &channel), BP_SCAN_ERROR_NULL);
	IS(bp_scan_open(service, &good, NULL), BP_SCAN_ERROR_NULL);
	bad = good, bad.size = 0;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_INVALID);
	newer.options = good, newer.options.size = sizeof newer, newer.later = 1;
	IS(bp_scan_open(service, &newer.options, &channel), BP_SCAN_ERROR_INVALID);
	bad = good, bad.sources = NULL;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_NULL);
	bad = good, bad.source_count = 0;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_INVALID);
	bad = good, bad.source_count = SIZE_MAX;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_INVALID);
	bad = good, bad.page_size = 5000;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_INVALID);
	bad = good, bad.ring_bytes = 1;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_INVALID);
	bad = good, bad.range_count = 1;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_NULL);
	memset(&range, 0, sizeof range);
	range.end = UINT64_MAX;
	bad.ranges = &range;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_INVALID);
	/* The ranges have more bytes in total than 64 bits can count. */
	ranges[0] = ranges[1] = range;
	bad.ranges = ranges, bad.range_count = 2;
	IS(bp_scan_open(service, &bad, &channel), BP_SCAN_ERROR_INVALID);
	source.path = NULL;
	IS(bp_scan_open(service, &good, &channel), BP_SCAN_ERROR_NULL);
	source.flags = BP_SCAN_FD, source.fd = -1;
	IS(bp_scan_open(service, &good, &channel), BP_SCAN_ERROR_FILE);
	HOLDS(bp_scan_error_number() == EBADF);
	source.path = path;
	IS(bp_scan_open(service, &good, &channel), BP_SCAN_ERROR_INVALID);
	source.flags = 8;
	IS(bp_scan_open(service, &good, &channel), BP_SCAN_ERROR_INVALID);
	source.flags = 0, source.path = "/no/such/file";
	IS(bp_scan_open(service, &good, &channel), BP_SCAN_ERROR_FILE);
	HOLDS(bp_scan_error_number() == ENOENT && strstr(bp_scan_error(), "/no/such/file"));
	HOLDS(channel.handle == 77);

	/* A later version's structure is accepted if its new fields are 0. The program must still close its descriptor. */
	newer.later = 0;
	fd = open(path, O_RDONLY);
	source.path = NULL, source.flags = BP_SCAN_FD, source.fd = fd;
	IS(bp_scan_open(service, &newer.options, &channel), BP_SCAN_OK);
	HOLDS(close(fd) == 0);
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	HOLDS(right(&page) && page.len == 8192);
	IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	range.start = 5, range.end = 4;
	IS(bp_scan_notify_ranges(channel, &range, 1), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_notify_ranges(channel, NULL, 1), BP_SCAN_ERROR_NULL);
	IS(bp_scan_close(channel), BP_SCAN_OK);

	/* Ranges may be added later. A wait without any range left ends. */
	source.path = path, source.flags = 0;
	good.ranges = &range;
	IS(bp_scan_open(service, &good, &channel), BP_SCAN_OK);
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_END);
	range.start = 8192, range.end = 8200;
	IS(bp_scan_notify_ranges(channel, &range, 1), BP_SCAN_OK);
	IS(bp_scan_next_page(channel, &page, INT64_MAX), BP_SCAN_OK);
	HOLDS(right(&page) && page.len == 8 && page.offset == 8192);
	IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	IS(bp_scan_close(channel), BP_SCAN_OK);
}

static void pools(void)
{
	struct bp_scan_source source = source_of(path);
	struct bp_scan_pool_options options;
	struct bp_scan_pool pool = {0};
	struct bp_scan_key key, guess;
	struct bp_scan_channel channel;
	struct bp_scan_page page, other, none;
	struct bp_scan_range range;
	bool unchanged;

	memset(&guess, 0, sizeof guess);
	memset(&range, 0, sizeof range);
	memset(&options, 0, sizeof options);
	options.sources = &source;
	options.source_count = 1;
	IS(bp_scan_create_pool(service, &options, &pool), BP_SCAN_ERROR_INVALID);
	options.size = sizeof options;
	IS(bp_scan_create_pool(service, NULL, &pool), BP_SCAN_ERROR_NULL);
	IS(bp_scan_create_pool(service, &options, NULL), BP_SCAN_ERROR_NULL);
	options.memory_bytes = 1;
	IS(bp_scan_create_pool(service, &options, &pool), BP_SCAN_ERROR_INVALID);
	options.memory_bytes = 16 << 20;
	options.flags = 4;
	IS(bp_scan_create_pool(service, &options, &pool), BP_SCAN_ERROR_INVALID);
	options.flags = 0, options.pages_held = 6;
	IS(bp_scan_create_pool(service, &options, &pool), BP_SCAN_ERROR_INVALID);
	options.pages_held = BP_SCAN_POOL_PAGES_HELD_MAX + 1;
	IS(bp_scan_create_pool(service, &options, &pool), BP_SCAN_ERROR_INVALID);
	HOLDS(strstr(bp_scan_error(), "1 to 509") && BP_SCAN_POOL_PAGES_HELD_MAX == 509);
	options.flags = BP_SCAN_UNWATCHED, options.pages_held = 2;
	IS(bp_scan_pool_key(pool, &key), BP_SCAN_ERROR_HANDLE);
	IS(bp_scan_create_pool(service, &options, &pool), BP_SCAN_OK);
	IS(bp_scan_pool_key(pool, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_pool_key(pool, &key), BP_SCAN_OK);
	IS(bp_scan_join(service, NULL, 0, &channel), BP_SCAN_ERROR_NULL);
	IS(bp_scan_join(service, &key, 0, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_join(service, &key, 17, &channel), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_join(service, &guess, 0, &channel), BP_SCAN_ERROR_INVALID);
	/* A key is valid for one service only. */
	IS(bp_scan_join(another_service(), &key, 0, &channel), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_join(service, &key, 0, &channel), BP_SCAN_OK);
	IS(bp_scan_notify_ranges(channel, &range, 1), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_cancel_ranges(channel, &range, 1, NULL), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_close_pool(pool), BP_SCAN_OK);
	IS(bp_scan_close_pool(pool), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_pool_key(pool, &key), BP_SCAN_ERROR_CLOSED);
	/* Workers in the pool continue after it is closed. */
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	HOLDS(right(&page) && page.read_began_ns > 0);
	/* A worker may hold two pages, and can judge each page that it holds. */
	IS(bp_scan_next_page(channel, &other, BP_SCAN_FOREVER), BP_SCAN_OK);
	IS(bp_scan_get_page(channel, &none), BP_SCAN_ERROR_HELD);
	IS(bp_scan_unchanged(channel, &page, &unchanged), BP_SCAN_OK);
	HOLDS(unchanged || !(page.flags & BP_SCAN_PAGE_STABLE));
	IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	HOLDS(right(&other));
	IS(bp_scan_put_page(channel, &other), BP_SCAN_OK);
	IS(bp_scan_close(channel), BP_SCAN_OK);
}

static struct bp_scan_channel contended;

static void *in_the_way(void *argument)
{
	struct bp_scan_page page;
	int *counts = argument, i;

	for (i = 0; i < 200000; i++) {
		int code = bp_scan_next_page(contended, &page, 1000);

		if (code == BP_SCAN_OK)
			code = bp_scan_put_page(contended, &page);
		if (code == BP_SCAN_ERROR_BUSY)
			counts[0]++;
		else if (code < 0 && code != BP_SCAN_ERROR_HELD && code != BP_SCAN_ERROR_CLOSED &&
			 code != BP_SCAN_ERROR_NOT_HELD)
			counts[1]++;
		if (code == BP_SCAN_ERROR_CLOSED)
			break;
	}
	return NULL;
}

/* Keeps the channel busy for a long time by adding many empty ranges. */
static void *adds_ranges(void *argument)
{
	enum { MANY = 300000 };
	struct bp_scan_range *ranges = calloc(MANY, sizeof *ranges);
	int i, *done = argument;

	for (i = 0; i < 20 && ranges; i++) {
		int code = bp_scan_notify_ranges(contended, ranges, MANY);

		HOLDS(code == BP_SCAN_OK || code == BP_SCAN_ERROR_BUSY);
	}
	free(ranges);
	__atomic_store_n(done, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void threads(void)
{
	pthread_t threads[2];
	int counts[2][2] = {{0, 0}, {0, 0}}, i, done = 0, busy = 0;
	struct timespec moment = {0, 1000000};
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options options = options_of(&source);
	struct bp_scan_range none;
	struct bp_scan_page page;

	memset(&none, 0, sizeof none);
	options.ranges = &none;
	IS(bp_scan_open(service, &options, &contended), BP_SCAN_OK);
	pthread_create(&threads[0], NULL, adds_ranges, &done);
	while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
		int code = bp_scan_get_page(contended, &page);

		HOLDS(code == BP_SCAN_END || code == BP_SCAN_ERROR_BUSY);
		if (code == BP_SCAN_ERROR_BUSY) {
			busy++;
		}
		nanosleep(&moment, NULL);
		if (busy > 0)
			break;
	}
	pthread_join(threads[0], NULL);
	HOLDS(busy > 0);
	IS(bp_scan_close(contended), BP_SCAN_OK);

	/* Two threads use one channel at the same time, and it is closed while they do. */
	contended = opened(path);
	for (i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, in_the_way, counts[i]);
	for (i = 0; i < 300; i++)
		nanosleep(&moment, NULL);
	while (bp_scan_abandon(contended) == BP_SCAN_ERROR_BUSY)
		nanosleep(&moment, NULL);
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	HOLDS(counts[0][1] == 0 && counts[1][1] == 0);
	IS(bp_scan_close(contended), BP_SCAN_ERROR_CLOSED);
}

static void *scans(void *argument)
{
	struct bp_scan_page page;

	(void)argument;
	while (bp_scan_next_page(contended, &page, BP_SCAN_FOREVER) != BP_SCAN_END)
		bp_scan_put_page(contended, &page);
	return NULL;
}

static void errors_are_of_threads(void)
{
	pthread_t thread;
	struct bp_scan_page page;

	IS(bp_scan_put_page(contended, NULL), BP_SCAN_ERROR_NULL);
	HOLDS(strlen(bp_scan_error()) > 0);
	contended = opened(path);
	pthread_create(&thread, NULL, scans, NULL);
	pthread_join(thread, NULL);
	HOLDS(strstr(bp_scan_error(), "no page") != NULL);
	IS(bp_scan_get_page(contended, &page), BP_SCAN_END);
	IS(bp_scan_close(contended), BP_SCAN_OK);
}

static void files_that_change(void)
{
	struct bp_scan_channel channel;
	struct bp_scan_page page;
	int code, seen = 0;

	/* The file is larger than the ring, so its end has not been read when it is truncated. */
	channel = opened(other_path);
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	HOLDS(truncate(other_path, 8192) == 0);
	IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	while ((code = bp_scan_next_page(channel, &page, BP_SCAN_FOREVER)) != BP_SCAN_END) {
		if (code == BP_SCAN_OK) {
			IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
			continue;
		}
		seen++;
		IS(code, BP_SCAN_ERROR_TRUNCATED);
		HOLDS(page.data == NULL && page.file == 0 && page.offset >= 8192);
		if (seen > 1000)
			break;
	}
	HOLDS(seen > 0);
	IS(bp_scan_close(channel), BP_SCAN_OK);
}

static void forks(void)
{
	struct bp_scan_channel channel = opened(path), mine;
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options options = options_of(&source);
	struct bp_scan_page page, again;
	pid_t child;
	int status = -1, before = failures;

	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		IS(bp_scan_get_page(channel, &again), BP_SCAN_ERROR_FORKED);
		IS(bp_scan_put_page(channel, &page), BP_SCAN_ERROR_FORKED);
		IS(bp_scan_close(channel), BP_SCAN_ERROR_FORKED);
		IS(bp_scan_open(service, &options, &mine), BP_SCAN_ERROR_FORKED);
		IS(bp_scan_stop(service), BP_SCAN_ERROR_FORKED);
		/* The child gets a service of its own. */
		IS(bp_scan_open(another_service(), &options, &mine), BP_SCAN_OK);
		IS(bp_scan_next_page(mine, &again, BP_SCAN_FOREVER), BP_SCAN_OK);
		HOLDS(right(&again));
		IS(bp_scan_put_page(mine, &again), BP_SCAN_OK);
		IS(bp_scan_close(mine), BP_SCAN_OK);
		fflush(stdout);
		_exit(failures != before);
	}
	HOLDS(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	HOLDS(right(&page));
	IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	IS(bp_scan_close(channel), BP_SCAN_OK);
}

static void services(void)
{
	struct bp_scan_service_options options;
	struct bp_scan_service_statistics statistics;
	struct bp_scan_service mine = {0};
	struct bp_scan_channel channel;
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options scan = options_of(&source);
	struct bp_scan_page page;

	memset(&options, 0, sizeof options);
	IS(bp_scan_start(&options, &mine), BP_SCAN_ERROR_INVALID);
	options.size = sizeof options;
	options.engine = 9;
	IS(bp_scan_start(&options, &mine), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_start(NULL, NULL), BP_SCAN_ERROR_NULL);
	options.engine = BP_SCAN_ENGINE_THREADS, options.kernel_clock = 1;
	options.reserved = 1;
	IS(bp_scan_start(&options, &mine), BP_SCAN_ERROR_INVALID);
	options.reserved = 0, options.reserved_pages = 1;
	IS(bp_scan_start(&options, &mine), BP_SCAN_OK);
	IS(bp_scan_open(mine, &scan, &channel), BP_SCAN_OK);
	IS(bp_scan_stop(mine), BP_SCAN_OK);
	IS(bp_scan_stop(mine), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_open(mine, &scan, &channel), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_get_service_statistics(mine, &statistics, sizeof statistics), BP_SCAN_ERROR_CLOSED);
	IS(bp_scan_get_service_statistics(service, NULL, sizeof statistics), BP_SCAN_ERROR_NULL);
	IS(bp_scan_get_service_statistics(service, &statistics, sizeof statistics), BP_SCAN_OK);
	HOLDS(statistics.bytes_read >= 5 << 20);
	/* Open channels continue after their service is stopped. */
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	HOLDS(right(&page));
	IS(bp_scan_abandon(channel), BP_SCAN_OK);
}

/* Tests a service in a daemon. */
static void daemons(const char *socket)
{
	struct bp_scan_service one = {0}, two = {0};
	struct bp_scan_source source = source_of(path);
	struct bp_scan_options scan = options_of(&source);
	struct bp_scan_pool_options options;
	struct bp_scan_pool pool;
	struct bp_scan_key key;
	struct bp_scan_channel channel;
	struct bp_scan_page page;
	uint64_t bytes = 0;
	int code;

	IS(bp_scan_connect(NULL, &one), BP_SCAN_ERROR_NULL);
	IS(bp_scan_connect(socket, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_connect("/no/such/socket", &one), BP_SCAN_ERROR_FILE);
	HOLDS(bp_scan_error_number() == ENOENT && one.handle == 0);
	IS(bp_scan_connect(socket, &one), BP_SCAN_OK);
	IS(bp_scan_connect(socket, &two), BP_SCAN_OK);
	IS(bp_scan_open(one, &scan, &channel), BP_SCAN_OK);
	IS(bp_scan_next_page(channel, &page, BP_SCAN_FOREVER), BP_SCAN_OK);
	HOLDS(right(&page));
	IS(bp_scan_close(channel), BP_SCAN_ERROR_HELD);
	IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	IS(bp_scan_close(channel), BP_SCAN_OK);

	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.sources = &source;
	options.source_count = 1;
	options.memory_bytes = 16 << 20;
	IS(bp_scan_create_pool(one, &options, &pool), BP_SCAN_OK);
	IS(bp_scan_pool_key(pool, &key), BP_SCAN_OK);
	/* A key is valid for the daemon, over any connection to it. */
	IS(bp_scan_join(two, &key, 8192, &channel), BP_SCAN_OK);
	IS(bp_scan_stop(one), BP_SCAN_OK);
	IS(bp_scan_stop(two), BP_SCAN_OK);
	while ((code = bp_scan_next_page(channel, &page, BP_SCAN_FOREVER)) == BP_SCAN_OK) {
		HOLDS(right(&page));
		bytes += page.len;
		IS(bp_scan_put_page(channel, &page), BP_SCAN_OK);
	}
	IS(code, BP_SCAN_END);
	HOLDS(bytes == 5 << 20);
	IS(bp_scan_close(channel), BP_SCAN_OK);
	IS(bp_scan_close_pool(pool), BP_SCAN_OK);
}

int main(int argc, char **argv)
{
	int code = begin(argc, argv);

	if (code)
		return code;
	HOLDS(strlen(bp_scan_error()) == 0 && bp_scan_error_number() == 0 && strlen(bp_scan_version()) >= 5);
	pages();
	handles();
	options_are_checked();
	pools();
	threads();
	errors_are_of_threads();
	files_that_change();
	forks();
	services();
	daemons(argv[4]);
	IS(bp_scan_stop(service), BP_SCAN_OK);
	return failures != 0;
}
