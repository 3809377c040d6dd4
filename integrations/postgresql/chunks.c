/*
 * chunks.c
 *	  The order of a direct scan: which blocks a participant claims, where each comes from, and which comes next.
 *
 * A chunk goes through these steps, and the order of the first three is what the rule in README.md rests on:
 *
 *	1. claimed: no other participant of a parallel scan has its blocks. The snapshot and the number of blocks are older.
 *	2. prepared: its blocks are looked up in the buffer table. Then the time is taken (looked_up_ns).
 *	3. announced: only now the channel may read it, unless most of it is cached elsewhere.
 *	4. judged: when its image is in hand, all of its blocks are judged at once, so that a cursor that pauses in the middle
 *	   of it needs nothing of the past later.
 *	5. its tuples are returned, block by block. Blocks whose image may not be used come from the buffer manager.
 *
 * Chunks are prepared ahead, as many as the ring has room for, so that their reads overlap with the work of the query.
 * A scan begins with chunks from the buffer manager and opens its channel after the first of them, because many scans end
 * after a few tuples.
 *
 * Invariants: claims are finished in the order in which they were made. `announced` is the number of claims with
 * source BPS_FROM_CHANNEL. All announced claims are within the channel's segments.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "compat.h"
#include "executor/instrument.h"
#include "faults.h"
#include "miscadmin.h"
#include "pgstat.h"

static BpsChunk *
Claimed(BpsScan *scan, int index)
{
	return &scan->claims[(scan->claims_first + index) % BPS_CLAIMS_MAX];
}

/* How many claims there may be now. */
static int
ClaimsWanted(BpsScan *scan)
{
	int			frames = (int) (((uint64) bps_ring_megabytes << 20) / BPS_FRAME_BYTES);
	int			most = scan->shared ? BPS_CLAIMS_MAX_PARALLEL : BPS_CLAIMS_MAX;

	/* Until the first chunk has been returned, the scan may be one of those that end after a few tuples. */
	if (!scan->has_finished_chunk && !scan->is_forced)
		return 1;
	if (scan->channel.has_failed)
		return 1;
	return Max(1, Min(most, frames - BPS_SPARE_FRAMES));
}

/* The part of a serial scan that is next. */
static bool
ClaimSerial(BpsScan *scan, bool at_start, uint32 start_blocks, BlockNumber *first, int *count)
{
	BlockNumber next = scan->next_block;
	BlockNumber most = at_start ? start_blocks : BPS_CHUNK_BLOCKS - next % BPS_CHUNK_BLOCKS;

	if (next >= scan->blocks)
		return false;
	most = Min(most, scan->blocks - next);
	most = Min(most, RELSEG_SIZE - next % RELSEG_SIZE);
	*first = next;
	*count = (int) most;
	scan->next_block = next + most;
	return true;
}

/* Adds a claim. False: all blocks of the table have been claimed. */
static bool
Claim(BpsScan *scan)
{
	/* The second part is read by the buffer manager while the channel reads the third. */
	bool		at_start = !scan->is_forced && scan->claimed_blocks < scan->start_blocks * 2;
	uint32		blocks = scan->claimed_blocks == 0 ? scan->start_blocks : scan->start_blocks * 3;
	BpsChunk   *chunk = Claimed(scan, scan->claims_count);
	bool		is_claimed;

	if (scan->has_claimed_all)
		return false;
	is_claimed = scan->shared ?
		BpsClaimShared(scan->shared, at_start, blocks, &chunk->first, &chunk->count) :
		ClaimSerial(scan, at_start, blocks, &chunk->first, &chunk->count);
	if (!is_claimed)
	{
		scan->has_claimed_all = true;
		return false;
	}
	chunk->source = at_start ? BPS_FROM_BUFFERS : BPS_UNPREPARED;
	chunk->reason = BPS_AT_START;
	scan->claimed_blocks += chunk->count;
	scan->claims_count++;
	return true;
}

static void
ReadFromBuffers(BpsChunk *chunk, BpsCounter reason)
{
	chunk->source = BPS_FROM_BUFFERS;
	chunk->reason = reason;
}

/* Decides where a chunk comes from. False: that takes another channel, and the one there is has not ended yet. */
static bool
Prepare(BpsScan *scan, BpsChunk *chunk)
{
	Relation	rel = scan->css.ss.ss_currentRelation;
	BpsChannel *channel = &scan->channel;
	int			absent;

	if (channel->has_failed)
	{
		ReadFromBuffers(chunk, BPS_NOT_READ);
		return true;
	}
	if (channel->is_open && !BpsChannelCovers(channel, chunk->first))
	{
		if (scan->announced > 0)
			return false;
		BpsReturnPage(scan);
		BpsCloseChannel(scan);
	}
	BpsFaultGate(BPS_GATE_BEFORE_LOOK_UP);
	/* Older than the image, so that a truncation of the commit log in between shows. */
	chunk->oldest_clog_xid = CompatOldestClogXid();
	if (BpsIsMutant(BPS_MUTANT_LOOKUP_AFTER))
		absent = chunk->count;
	else
		absent = BpsLookUp(rel, chunk->first, chunk->count, chunk->absent);
	chunk->looked_up_ns = BpsNow();
	if (absent == 0 || (!scan->is_forced && absent * 2 < chunk->count))
		ReadFromBuffers(chunk, BPS_PRESENT);
	else if (scan->uses_residency && BpsRangeIsCached(rel, chunk->first, chunk->count))
		ReadFromBuffers(chunk, BPS_CACHED);
	else if (!channel->is_open && !BpsOpenChannel(scan, chunk->first))
		ReadFromBuffers(chunk, BPS_NOT_READ);
	else
	{
		BpsFaultGate(BPS_GATE_BEFORE_READ);
		if (!BpsAnnounce(scan, chunk))
			ReadFromBuffers(chunk, BPS_NOT_READ);
		else
		{
			chunk->source = BPS_FROM_CHANNEL;
			scan->announced++;
		}
	}
	return true;
}

/* Claims and prepares as many chunks as there may be. */
static void
ClaimAhead(BpsScan *scan)
{
	while (scan->claims_count < ClaimsWanted(scan) && Claim(scan))
		continue;
	for (int i = 0; i < scan->claims_count; i++)
	{
		BpsChunk   *chunk = Claimed(scan, i);

		if (chunk->source == BPS_UNPREPARED && !Prepare(scan, chunk))
			break;
	}
}

/* The blocks that the channel was to read come from the buffer manager; they have been claimed and must be returned. */
static void
GiveUpChannel(BpsScan *scan)
{
	BpsReturnPage(scan);
	BpsCloseChannel(scan);
	scan->channel.has_failed = true;
	for (int i = 0; i < scan->claims_count; i++)
	{
		BpsChunk   *chunk = Claimed(scan, i);

		if (chunk->source == BPS_FROM_CHANNEL)
			ReadFromBuffers(chunk, BPS_NOT_READ);
	}
	scan->announced = 0;
}

/*
 * Judges the part of the page in hand that is [first, end). The blocks must be those of the chunk, which has their look-ups.
 */
static void
JudgePage(BpsScan *scan, BpsChunk *chunk, BlockNumber first, BlockNumber end)
{
	Relation	rel = scan->css.ss.ss_currentRelation;
	BpsChannel *channel = &scan->channel;
	char	   *images = unconstify(char *, (const char *) channel->page.data) +
		(Size) (first - channel->page_first) * BLCKSZ;
	bool		is_stable = (channel->page.flags & BP_SCAN_PAGE_STABLE) != 0;
	bool		is_changed = false;
	int			count = (int) (end - first);
	int			offset = (int) (first - chunk->first);
	int			used = 0;

	BpsFaultGate(BPS_GATE_AFTER_READ);
	if (BpsIsMutant(BPS_MUTANT_LOOKUP_AFTER))
		BpsLookUp(rel, chunk->first, chunk->count, chunk->absent);
	else if (channel->page.read_began_ns < chunk->looked_up_ns)
	{
		/* Not Fresh: the read began before the look-up. The image is used if it is Current; the order matters. */
		chunk->oldest_clog_xid = CompatOldestClogXid();
		BpsLookUp(rel, chunk->first, chunk->count, chunk->absent);
		is_changed = !BpsIsMutant(BPS_MUTANT_STALE_POOL) && !BpsPageIsUnchanged(scan);
	}
	BpsFaultGate(BPS_GATE_BEFORE_USE);
	scan->judged_first = first;
	for (int i = 0; i < count; i++)
	{
		BpsJudgment *judgment = &scan->judgments[i];
		char	   *image = images + (Size) i * BLCKSZ;
		char	   *neighbour = i > 0 ? image - BLCKSZ : count > 1 ? image + BLCKSZ : NULL;
		bool		stable = is_stable;

		judgment->is_usable = false;
		if (!BpsIsAbsent(chunk->absent, offset + i))
			judgment->reason = BPS_PRESENT;
		else if (is_changed)
			judgment->reason = BPS_CHANGED;
		else
		{
			judgment->page = BpsFaultTear(scan, i, (Page) image, (Page) neighbour, &stable);
			BpsJudgeImage(scan, judgment->page, first + i, stable, chunk->oldest_clog_xid, judgment, &used);
		}
	}
}

/* Makes a block of the page in hand, which was judged, the scan's block. */
static void
TakeBlock(BpsScan *scan, BlockNumber number)
{
	BpsJudgment *judgment = &scan->judgments[number - scan->judged_first];
	BpsBlock   *block = &scan->block;

	if (!judgment->is_usable)
	{
		BpsReadBuffered(scan, number, judgment->reason);
		return;
	}
	BpsReleaseBlock(scan);
	block->number = number;
	block->page = judgment->page;
	block->visible = scan->visible + judgment->begin;
	block->count = judgment->end - judgment->begin;
	block->index = -1;
	block->is_valid = true;
	scan->used_images = true;
	scan->counts.of[BPS_BLOCKS_DIRECT]++;
	/* As a read that shared buffers did not have, which it is. */
	pgBufferUsage.shared_blks_read++;
	pgstat_count_buffer_read(scan->css.ss.ss_currentRelation);
}

/* Makes the next block of a chunk that the channel reads the scan's block. */
static void
TakeFromChannel(BpsScan *scan, BpsChunk *chunk, BlockNumber number)
{
	BpsChannel *channel = &scan->channel;

	if (channel->has_page && number >= channel->page_end)
		BpsReturnPage(scan);
	if (!channel->has_page && !channel->has_failed)
	{
		switch (BpsNextPage(scan))
		{
			case BPS_PAGE:
				if (channel->page_first == number && channel->page_end <= chunk->first + chunk->count)
				{
					JudgePage(scan, chunk, channel->page_first, channel->page_end);
					break;
				}
				ereport(LOG, (errmsg("bedplate_scan: block %u was expected and block %u came", number,
									 channel->page_first)));
				GiveUpChannel(scan);
				break;
			case BPS_PAGE_LOST:
				/* The rest of the chunk; the channel goes on with the next one. */
				ReadFromBuffers(chunk, BPS_NOT_READ);
				scan->announced--;
				break;
			case BPS_PAGE_END:
			case BPS_CHANNEL_FAILED:
				GiveUpChannel(scan);
				break;
		}
	}
	else if (channel->has_failed)
		GiveUpChannel(scan);
	if (chunk->source == BPS_FROM_CHANNEL)
		TakeBlock(scan, number);
	else
		BpsReadBuffered(scan, number, chunk->reason);
}

/* ---- pools ---- */

static bool
IsPending(BpsScan *scan, BlockNumber block)
{
	return (scan->pending[block / 64] >> (block % 64)) & 1;
}

/* The next block of a pool: of the page in hand, of the next one, or, when there is no more, one that the pool did not give. */
static bool
NextOfPool(BpsScan *scan)
{
	BpsChannel *channel = &scan->channel;
	BpsChunk   *chunk = &scan->claims[0];

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (channel->has_page && !channel->has_failed)
		{
			BlockNumber end = chunk->first + chunk->count;

			while (chunk->first + scan->chunk_next < end)
			{
				BlockNumber number = chunk->first + scan->chunk_next++;

				if (!IsPending(scan, number))
					continue;
				scan->pending[number / 64] &= ~(UINT64CONST(1) << (number % 64));
				TakeBlock(scan, number);
				if (scan->block.count > 0)
					return true;
			}
			BpsReleaseBlock(scan);
			BpsReturnPage(scan);
		}
		if (channel->is_open && !channel->has_failed)
		{
			BpsPageResult result = BpsNextPage(scan);

			if (result == BPS_PAGE_LOST)
				continue;
			if (result == BPS_PAGE && channel->page_first < scan->blocks)
			{
				chunk->first = channel->page_first;
				chunk->count = (int) (Min(channel->page_end, scan->blocks) - chunk->first);
				chunk->oldest_clog_xid = scan->pool_oldest_clog_xid;
				chunk->looked_up_ns = scan->pool_looked_up_ns;
				for (int i = 0; i < chunk->count; i++)
				{
					BlockNumber block = chunk->first + i;
					uint64		bit = (scan->absent_at_start[block / 64] >> (block % 64)) & 1;

					if (i % 64 == 0)
						chunk->absent[i / 64] = 0;
					chunk->absent[i / 64] |= bit << (i % 64);
				}
				scan->chunk_next = 0;
				JudgePage(scan, chunk, chunk->first, chunk->first + chunk->count);
				continue;
			}
			if (result == BPS_PAGE)
			{
				BpsReturnPage(scan);
				continue;
			}
			/* The pool ended, or failed. */
			BpsCloseChannel(scan);
		}
		for (; scan->pool_next < scan->blocks; scan->pool_next++)
		{
			if (!IsPending(scan, scan->pool_next))
				continue;
			CHECK_FOR_INTERRUPTS();
			BpsReadBuffered(scan, scan->pool_next++, BPS_NOT_READ);
			if (scan->block.count > 0)
				return true;
		}
		return false;
	}
}

/*
 * Lets the rest of a serial scan come from a pool, if scans share. The blocks that were claimed before are done; all others
 * are pending.
 */
static bool
ContinueInPool(BpsScan *scan)
{
	if (scan->has_tried_pool || scan->shared != NULL || scan->may_go_backward || scan->next_block >= scan->blocks ||
		!(scan->has_finished_chunk || scan->is_forced))
		return false;
	scan->has_tried_pool = true;
	if (scan->channel.is_open || scan->channel.has_failed || !BpsSharingWanted() || !BpsJoinPool(scan))
		return false;
	scan->has_claimed_all = true;
	scan->pool_next = scan->next_block;
	return true;
}

/* ---- */

/*
 * Makes the next block with a visible tuple the scan's block, in the forward direction. False: there is none, and the memory
 * of the scan is free. The caller has cleared the slot, because the block before goes away.
 */
bool
BpsNextBlock(BpsScan *scan)
{
	for (;;)
	{
		BpsChunk   *chunk;
		BlockNumber number;

		CHECK_FOR_INTERRUPTS();
		if (scan->claims_count == 0)
		{
			if (scan->pending == NULL && !ContinueInPool(scan))
				ClaimAhead(scan);
			if (scan->pending != NULL && NextOfPool(scan))
				return true;
			if (scan->claims_count == 0)
				break;
		}
		chunk = Claimed(scan, 0);
		if (scan->chunk_next == chunk->count)
		{
			BpsReleaseBlock(scan);
			if (chunk->source == BPS_FROM_CHANNEL)
			{
				BpsReturnPage(scan);
				scan->announced--;
				BpsGoOnReading(scan->css.ss.ss_currentRelation);
			}
			scan->claims_first = (scan->claims_first + 1) % BPS_CLAIMS_MAX;
			scan->claims_count--;
			scan->chunk_next = 0;
			scan->has_finished_chunk = true;
			BpsReportCounts(scan);
			if (scan->claims_count > 0)
				ClaimAhead(scan);
			continue;
		}
		if (chunk->source == BPS_UNPREPARED)
		{
			/* It waited for the claims before it. */
			ClaimAhead(scan);
			Assert(chunk->source != BPS_UNPREPARED);
		}
		number = chunk->first + scan->chunk_next++;
		if (chunk->source == BPS_FROM_BUFFERS)
			BpsReadBuffered(scan, number, chunk->reason);
		else
			TakeFromChannel(scan, chunk, number);
		if (scan->block.count > 0)
			return true;
	}
	BpsReleaseBlock(scan);
	BpsCloseChannel(scan);
	BpsReportCounts(scan);
	return false;
}

/* Frees what a scan in a pool remembers of the table's blocks. */
void
BpsForgetPending(BpsScan *scan)
{
	if (scan->pending != NULL)
		pfree(scan->pending);
	if (scan->absent_at_start != NULL)
		pfree(scan->absent_at_start);
	scan->pending = NULL;
	scan->absent_at_start = NULL;
}

/* Takes the scan back to its beginning. Its channel is closed: what was announced is not wanted now. */
void
BpsResetChunks(BpsScan *scan)
{
	/* A channel that gave nothing was opened too early; the next scan of this node waits longer. */
	if (scan->channel.is_open && !scan->used_images)
		scan->start_blocks = Min(scan->start_blocks * 2, BPS_START_BLOCKS_MAX);
	BpsReleaseBlock(scan);
	BpsReturnPage(scan);
	BpsCloseChannel(scan);
	scan->channel.has_failed = scan->channel.cannot_open;
	scan->claims_first = scan->claims_count = 0;
	scan->announced = 0;
	scan->has_claimed_all = false;
	scan->next_block = 0;
	scan->claimed_blocks = 0;
	scan->has_finished_chunk = false;
	scan->used_images = false;
	scan->has_tried_pool = false;
	scan->chunk_next = 0;
	BpsForgetPending(scan);
}
