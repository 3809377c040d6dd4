/*
 * parallel.c
 *	  What the participants of a parallel scan share: the leader's decision, the next block to claim, and counts.
 *
 * The leader decides before workers start, and all do as it decided: the number of blocks, chunks or ordinary scan. Memory for
 * the ordinary scan is reserved in either case. Claims are made by compare-and-swap on `next_block`; every block is claimed
 * by exactly one participant, which returns its tuples whatever happens to its channel.
 *
 * Near the end of the table claims become smaller, so that participants finish at about the same time.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "access/parallel.h"
#include "access/tableam.h"
#include "storage/shm_toc.h"

/* A participant claims at most this part of what is left for each participant. */
#define CLAIMS_LEFT		4

Size
BpsEstimateShared(CustomScanState *node, ParallelContext *context)
{
	(void) context;
	return add_size(MAXALIGN(sizeof(BpsShared)),
					table_parallelscan_estimate(node->ss.ss_currentRelation, node->ss.ps.state->es_snapshot));
}

void
BpsInitializeShared(CustomScanState *node, ParallelContext *context, void *coordinate)
{
	BpsScan    *scan = (BpsScan *) node;
	BpsShared  *shared = coordinate;
	Relation	rel = node->ss.ss_currentRelation;

	memset(shared, 0, sizeof(*shared));
	shared->blocks = RelationGetNumberOfBlocks(rel);
	shared->decline = BpsDecide(scan, shared->blocks, true);
	shared->is_ordinary = shared->decline != BPS_NOT_DECLINED;
	shared->is_forced = bps_force;
	shared->uses_residency = bps_residency && !bps_force;
	shared->participants = context->nworkers + 1;
	shared->ordinary_offset = MAXALIGN(sizeof(BpsShared));
	pg_atomic_init_u64(&shared->next_block, 0);
	for (int i = 0; i < BPS_COUNTERS; i++)
		pg_atomic_init_u64(&shared->counts[i], 0);
	table_parallelscan_initialize(rel, BpsOrdinaryShared(shared), node->ss.ps.state->es_snapshot);
	scan->shared = shared;
}

/* Before workers are started again, after a rescan. */
void
BpsReinitializeShared(CustomScanState *node, ParallelContext *context, void *coordinate)
{
	BpsShared  *shared = coordinate;

	(void) context;
	pg_atomic_write_u64(&shared->next_block, 0);
	table_parallelscan_reinitialize(node->ss.ss_currentRelation, BpsOrdinaryShared(shared));
}

void
BpsInitializeWorker(CustomScanState *node, shm_toc *toc, void *coordinate)
{
	(void) toc;
	((BpsScan *) node)->shared = coordinate;
}

ParallelTableScanDesc
BpsOrdinaryShared(BpsShared *shared)
{
	return (ParallelTableScanDesc) ((char *) shared + shared->ordinary_offset);
}

/* Claims blocks [*first, *first + *count) for this participant. False: all have been claimed. */
bool
BpsClaimShared(BpsShared *shared, bool at_start, uint32 start_blocks, BlockNumber *first, int *count)
{
	uint64		next = pg_atomic_read_u64(&shared->next_block);

	for (;;)
	{
		uint64		left;
		uint64		most;

		if (next >= shared->blocks)
			return false;
		left = shared->blocks - next;
		if (at_start)
			most = Min(start_blocks, RELSEG_SIZE - next % RELSEG_SIZE);
		else
		{
			most = left / ((uint64) CLAIMS_LEFT * shared->participants);
			most = Max(most / BPS_CHUNK_BLOCKS_MIN * BPS_CHUNK_BLOCKS_MIN, BPS_CHUNK_BLOCKS_MIN);
			most = Min(most, BPS_CHUNK_BLOCKS - next % BPS_CHUNK_BLOCKS);
		}
		most = Min(most, left);
		if (pg_atomic_compare_exchange_u64(&shared->next_block, &next, next + most))
		{
			*first = (BlockNumber) next;
			*count = (int) most;
			return true;
		}
	}
}
