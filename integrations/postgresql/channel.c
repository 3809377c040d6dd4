/*
 * channel.c
 *	  Streams of images from the library `scan`: its service in this process, channels on a table's segments, their pages.
 *
 * The service starts with the first channel of a process, never in the postmaster, and ends with its last one: a backend that is
 * idle has no thread. Its threads block all signals, so no handler of the server ever runs in them, and they touch no memory of
 * the server's.
 *
 * A channel belongs to one BpsScan. It is closed at the end of the scan, at the end of the node, or by a callback of the
 * executor's memory context after an ERROR; whichever comes first. A page is returned before its channel is closed, except
 * by that callback, after which nobody looks at it.
 *
 * No function here raises an ERROR because of something that the library said: it sets has_failed, and the caller reads the
 * rest through the buffer manager. The only errors that leave are those of CHECK_FOR_INTERRUPTS() and of memory.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include <time.h>

#include "compat.h"
#include "faults.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

/* A backend writes no more than one complaint to the log in this time. */
#define COMPLAINT_INTERVAL_NS	(UINT64CONST(60) * 1000 * 1000 * 1000)

StaticAssertDecl(RELSEG_SIZE % (BPS_FRAME_BYTES / BLCKSZ) == 0, "chunks do not cross the borders of segments");

static struct bp_scan_service own_service;
static bool own_service_runs = false;
static int	own_channels = 0;	/* channels that it reads for */

uint64
BpsNow(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64) now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Says in the log that the library could not do something, and why. The scan goes on through the buffer manager. */
void
BpsComplain(const char *what)
{
	static uint64 last = 0;
	uint64		now = BpsNow();

	bool		is_due = last == 0 || now - last >= COMPLAINT_INTERVAL_NS;

	ereport(is_due ? LOG : DEBUG1,
			(errmsg("bedplate_scan: %s: %s", what, bp_scan_error()),
			 errdetail("The scan goes on without it.")));
	if (is_due)
		last = now;
}

static void
StopService(int code, Datum arg)
{
	(void) code;
	(void) arg;
	if (own_service_runs)
		bp_scan_stop(own_service);
	own_service_runs = false;
}

/* This process's own service. */
static bool
StartService(struct bp_scan_service *service)
{
	static bool is_registered = false;

	if (!own_service_runs)
	{
		Assert(IsUnderPostmaster || !IsPostmasterEnvironment);
		if (bp_scan_start(NULL, &own_service) < 0)
		{
			BpsComplain("its service cannot be started");
			return false;
		}
		own_service_runs = true;
		if (!is_registered)
			on_proc_exit(StopService, 0);
		is_registered = true;
	}
	*service = own_service;
	return true;
}

/* The path of a segment, relative to the data directory, which is every backend's working directory. */
char *
BpsSegmentPath(Relation rel, uint32 segment)
{
	char	   *path = CompatMainForkPath(rel);
	char	   *full;

	if (segment == 0)
		return path;
	full = psprintf("%s.%u", path, segment);
	pfree(path);
	return full;
}

bool
BpsChannelCovers(const BpsChannel *channel, BlockNumber block)
{
	uint32		segment = block / RELSEG_SIZE;

	return channel->is_open && segment >= channel->first_segment &&
		segment - channel->first_segment < channel->segments;
}

/* The memory of a channel: as the settings say, but not more than the scan has chunks for. */
static size_t
RingBytes(const BpsScan *scan)
{
	size_t		most = scan->shared ? BPS_CLAIMS_MAX_PARALLEL : BPS_CLAIMS_MAX;

	return Min((size_t) bps_ring_megabytes << 20, (most + BPS_SPARE_FRAMES) * BPS_FRAME_BYTES);
}

/* Runs when the executor's memory goes away; after an ERROR nothing else closes the channel. */
static void
CleanUp(void *arg)
{
	BpsCloseChannel((BpsScan *) arg);
}

/* Counts a channel's descriptors as the server counts its own, so that it does not run out of them. */
static bool
ReserveDescriptors(BpsChannel *channel, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (!AcquireExternalFD())
		{
			ereport(DEBUG1, (errmsg("bedplate_scan: there are no descriptors for a channel")));
			return false;
		}
		channel->descriptors++;
	}
	return true;
}

/* What every channel needs beside its handle. */
void
BpsPrepareToOpen(BpsScan *scan)
{
	MemoryContext context = scan->css.ss.ps.state->es_query_cxt;

	if (scan->cleanup.func == NULL)
	{
		scan->cleanup.func = CleanUp;
		scan->cleanup.arg = scan;
		MemoryContextRegisterResetCallback(context, &scan->cleanup);
	}
	if (scan->judgments == NULL)
		scan->judgments = MemoryContextAlloc(context, sizeof(BpsJudgment) * BPS_CHUNK_BLOCKS);
	if (scan->visible == NULL)
		scan->visible = MemoryContextAlloc(context, sizeof(OffsetNumber) * BPS_CHUNK_BLOCKS * MaxHeapTuplesPerPage);
}

/* Reads through the page cache gain nothing, and the library cannot tell whether they are torn. */
static bool
ReadsDirectly(BpsChannel *channel)
{
	for (uint32 i = 0; i < channel->segments; i++)
	{
		bool		is_direct = false;

		if (bp_scan_is_direct(channel->handle, i, &is_direct) < 0 || !is_direct)
		{
			ereport(DEBUG1, (errmsg("bedplate_scan: the file system of segment %u has no O_DIRECT",
									channel->first_segment + i)));
			return false;
		}
	}
	return true;
}

static bool
OpenFiles(BpsScan *scan, uint32 first, uint32 count)
{
	Relation	rel = scan->css.ss.ss_currentRelation;
	BpsChannel *channel = &scan->channel;
	struct bp_scan_service service;
	struct bp_scan_source sources[BPS_CHANNEL_SEGMENTS];
	struct bp_scan_range none = {0};
	struct bp_scan_options options = {0};
	int			code;

	if (!ReserveDescriptors(channel, (int) count + BPS_CHANNEL_DESCRIPTORS) || !StartService(&service))
		return false;
	memset(sources, 0, sizeof(sources));
	for (uint32 i = 0; i < count; i++)
		sources[i].path = BpsSegmentPath(rel, first + i);
	options.size = sizeof(options);
	options.sources = sources;
	options.source_count = count;
	options.ranges = &none;		/* and range_count 0: they are announced later */
	options.ring_bytes = RingBytes(scan);
	options.flags = BP_SCAN_UNWATCHED;
	options.pages_held = 1;
	code = bp_scan_open(service, &options, &channel->handle);
	for (uint32 i = 0; i < count; i++)
		pfree(unconstify(char *, sources[i].path));
	if (code < 0)
	{
		BpsComplain("a table cannot be read past the page cache");
		return false;
	}
	channel->is_open = true;
	own_channels++;
	channel->first_segment = first;
	channel->segments = count;
	return ReadsDirectly(channel);
}

/* Opens a channel on the segment of a block and the ones after it. Otherwise the channel has failed for this scan. */
bool
BpsOpenChannel(BpsScan *scan, BlockNumber block)
{
	BpsChannel *channel = &scan->channel;
	uint32		segments = scan->blocks / RELSEG_SIZE + (scan->blocks % RELSEG_SIZE != 0);
	uint32		first = block / RELSEG_SIZE;

	Assert(!channel->is_open);
	BpsPrepareToOpen(scan);
	if (OpenFiles(scan, first, Min(segments - first, BPS_CHANNEL_SEGMENTS)))
		return true;
	BpsCloseChannel(scan);
	channel->has_failed = channel->cannot_open = true;
	return false;
}

/* Opens a channel in a pool of all segments of the table. False: it cannot be used, and with *is_over, by nobody. */
bool
BpsOpenPooled(BpsScan *scan, struct bp_scan_service service, const struct bp_scan_key *key, uint32 segments, bool *is_over)
{
	BpsChannel *channel = &scan->channel;

	Assert(!channel->is_open);
	*is_over = false;
	BpsPrepareToOpen(scan);
	if (!ReserveDescriptors(channel, (int) segments + BPS_CHANNEL_DESCRIPTORS))
		return false;
	if (bp_scan_join(service, key, 0, &channel->handle) < 0)
	{
		*is_over = true;
		BpsComplain("a pool cannot be joined");
		return false;
	}
	channel->is_open = true;
	channel->is_pool = true;
	channel->first_segment = 0;
	channel->segments = segments;
	return ReadsDirectly(channel);
}

/* Tells the channel that a chunk will be wanted. Every block of it must have been looked up before. */
bool
BpsAnnounce(BpsScan *scan, const BpsChunk *chunk)
{
	BpsChannel *channel = &scan->channel;
	struct bp_scan_range range = {0};

	range.file = chunk->first / RELSEG_SIZE - channel->first_segment;
	range.start = (uint64) (chunk->first % RELSEG_SIZE) * BLCKSZ;
	range.end = range.start + (uint64) chunk->count * BLCKSZ;
	if (bp_scan_notify_ranges(channel->handle, &range, 1) >= 0)
		return true;
	BpsComplain("a range cannot be announced");
	channel->has_failed = true;
	return false;
}

/* Waits for the next page, and looks for interrupts meanwhile. */
static int
WaitForPage(BpsScan *scan)
{
	BpsChannel *channel = &scan->channel;
	instr_time	begin;
	instr_time	end;
	int			code;

	INSTR_TIME_SET_CURRENT(begin);
	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_READ);
	do
	{
		CHECK_FOR_INTERRUPTS();
		code = bp_scan_next_page(channel->handle, &channel->page, BPS_WAIT_NS);
	} while (code == BP_SCAN_NOT_YET);
	pgstat_report_wait_end();
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, begin);
	if (track_io_timing)
		CompatCountReadTime(scan->strategy, begin);
	scan->counts.of[BPS_WAITS]++;
	scan->counts.of[BPS_WAIT_NANOSECONDS] += (uint64) (INSTR_TIME_GET_DOUBLE(end) * 1e9);
	return code;
}

/* The next page of the channel. The one before must have been returned. */
BpsPageResult
BpsNextPage(BpsScan *scan)
{
	BpsChannel *channel = &scan->channel;
	int			code;

	Assert(channel->is_open && !channel->has_page);
	if (BpsFaultChannel(channel))
	{
		channel->has_failed = true;
		return BPS_CHANNEL_FAILED;
	}
	code = bp_scan_get_page(channel->handle, &channel->page);
	if (code == BP_SCAN_NOT_YET)
		code = WaitForPage(scan);
	if (code == BP_SCAN_END)
		return BPS_PAGE_END;
	switch (code)
	{
		case BP_SCAN_OK:
		case BP_SCAN_ERROR_READ:
		case BP_SCAN_ERROR_TRUNCATED:
		case BP_SCAN_ERROR_CHANGING:
		case BP_SCAN_ERROR_REPLACED:
			channel->page_first = (channel->first_segment + channel->page.file) * RELSEG_SIZE +
				(BlockNumber) (channel->page.offset / BLCKSZ);
			break;
		default:
			BpsComplain("its channel failed");
			channel->has_failed = true;
			return BPS_CHANNEL_FAILED;
	}
	if (code != BP_SCAN_OK)
	{
		/* The server's own read says what is wrong, if it still is. */
		BpsComplain("a page cannot be had");
		return BPS_PAGE_LOST;
	}
	channel->has_page = true;
	channel->pages++;
	/* A piece of a block at its end is none; in a private channel there is no such piece. */
	channel->page_end = channel->page_first + (BlockNumber) (channel->page.len / BLCKSZ);
	scan->counts.of[channel->is_pool ? BPS_BYTES_SHARED : BPS_BYTES_READ] += channel->page.len;
	/* What a pool gives, another process read. */
	if (!channel->is_pool)
		CompatCountRead(scan->strategy, channel->page.len);
	scan->counts.of[BPS_CHUNKS_DIRECT]++;
	if (channel->page.offset % BLCKSZ == 0 && channel->page_end > channel->page_first &&
		channel->page_end - channel->page_first <= (BlockNumber) BPS_CHUNK_BLOCKS)
		return BPS_PAGE;
	ereport(LOG, (errmsg("bedplate_scan: a page of %zu bytes at " UINT64_FORMAT " is not whole blocks",
						 channel->page.len, channel->page.offset)));
	channel->has_failed = true;
	return BPS_CHANNEL_FAILED;
}

/* Returns the page in hand, if there is one. No tuple in it may be looked at any more. */
void
BpsReturnPage(BpsScan *scan)
{
	BpsChannel *channel = &scan->channel;

	if (!channel->has_page)
		return;
	channel->has_page = false;
	if (bp_scan_put_page(channel->handle, &channel->page) < 0)
	{
		BpsComplain("a page cannot be returned");
		channel->has_failed = true;
	}
}

/* Whether the file of the page in hand is as it was before the page was read. */
bool
BpsPageIsUnchanged(BpsScan *scan)
{
	bool		is_unchanged = false;

	return bp_scan_unchanged(scan->channel.handle, &scan->channel.page, &is_unchanged) >= 0 && is_unchanged;
}

/* Closes the channel, if there is one, and frees its memory. May be called at any time, also twice. */
void
BpsCloseChannel(BpsScan *scan)
{
	BpsChannel *channel = &scan->channel;

	if (channel->is_open)
	{
		channel->is_open = false;
		channel->has_page = false;
		bp_scan_abandon(channel->handle);
		if (!channel->is_pool)
			own_channels--;
	}
	/* Also if it was started for a channel that could not be opened. */
	if (own_channels == 0)
		StopService(0, (Datum) 0);
	BpsLeavePool(channel);
	channel->pages = 0;
	for (; channel->descriptors > 0; channel->descriptors--)
		ReleaseExternalFD();
	if (scan->judgments != NULL)
		pfree(scan->judgments);
	if (scan->visible != NULL)
		pfree(scan->visible);
	if (scan->torn != NULL)
		pfree(scan->torn);
	scan->judgments = NULL;
	scan->visible = NULL;
	scan->torn = NULL;
}
