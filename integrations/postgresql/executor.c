/*
 * executor.c
 *	  The custom scan's node: begin, tuples in both directions, rescan, end.
 *
 * A node decides at its first tuple whether it reads as an ordinary sequential scan does or by chunks (policy.c); in a
 * parallel scan the leader decides for all. Its expressions are for a scan slot of heap tuples. They also work on one of
 * tuples in buffers, so that the decision can be that late.
 *
 * Directions: going forward, blocks come from chunks.c. The first step backward ends that for good: from then on the node
 * goes from block to block through the buffer manager. That returns the same tuples, because an image has the same visible
 * tuples at the same line pointers as its block, as long as the snapshot lives.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "access/heapam.h"
#include "access/parallel.h"
#include "access/tableam.h"
#include "compat.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "pgstat.h"

/* ---- start ---- */

static void
StartOrdinary(BpsScan *scan)
{
	ScanState  *ss = &scan->css.ss;
	EState	   *estate = ss->ps.state;
	Relation	rel = ss->ss_currentRelation;

	/* It is the node's slot as long as the scan is ordinary; WHERE CURRENT OF looks there for the tuple in hand. */
	scan->own_slot = ss->ss_ScanTupleSlot;
	ss->ss_ScanTupleSlot = table_slot_create(rel, &estate->es_tupleTable);
	if (scan->shared != NULL)
		scan->ordinary = table_beginscan_parallel(rel, BpsOrdinaryShared(scan->shared));
	else
		scan->ordinary = table_beginscan(rel, estate->es_snapshot, 0, NULL);
}

static void
StartChunks(BpsScan *scan)
{
	Relation	rel = scan->css.ss.ss_currentRelation;

	/* As an ordinary scan does: blocks of a smaller table may stay in shared buffers. */
	if (scan->blocks > (BlockNumber) NBuffers / 4)
		scan->strategy = GetAccessStrategy(BAS_BULKREAD);
	scan->start_blocks = BPS_START_BLOCKS;
	scan->step = -1;
	scan->tuple.t_tableOid = RelationGetRelid(rel);
	pgstat_count_heap_scan(rel);
}

static void
Start(BpsScan *scan)
{
	EState	   *estate = scan->css.ss.ps.state;
	MemoryContext caller = MemoryContextSwitchTo(estate->es_query_cxt);

	scan->is_started = true;
	if (scan->shared != NULL)
	{
		scan->blocks = scan->shared->blocks;
		scan->decline = (BpsDecline) scan->shared->decline;
		scan->is_forced = scan->shared->is_forced;
		scan->uses_residency = scan->shared->uses_residency;
	}
	else
	{
		/* After the snapshot: no block that is added later has a tuple that it sees. */
		scan->blocks = RelationGetNumberOfBlocks(scan->css.ss.ss_currentRelation);
		scan->decline = BpsDecide(scan, scan->blocks, false);
		scan->is_forced = bps_force;
		scan->uses_residency = bps_residency && !bps_force;
	}
	scan->is_ordinary = scan->decline != BPS_NOT_DECLINED;
	if (scan->is_ordinary)
		StartOrdinary(scan);
	else
		StartChunks(scan);
	MemoryContextSwitchTo(caller);
}

/* ---- steps through the buffer manager ---- */

/* Leaves the order of chunks. The tuple in hand stays where it is. */
static void
BeginSteps(BpsScan *scan)
{
	BpsBlock   *block = &scan->block;

	Assert(scan->shared == NULL && scan->pending == NULL);
	if (block->is_valid && block->index >= 0)
	{
		OffsetNumber line = block->visible[block->index];
		BlockNumber number = block->number;

		BpsReadBuffered(scan, number, BPS_AT_START);
		/* The visible lines are the same; that is what the rule says. */
		block->index = 0;
		while (block->index < block->count && block->visible[block->index] < line)
			block->index++;
		scan->step = number;
	}
	else
		scan->step = scan->blocks;
	BpsReturnPage(scan);
	BpsCloseChannel(scan);
	scan->claims_count = 0;
	scan->announced = 0;
	scan->is_stepping = true;
}

static bool
StepBlock(BpsScan *scan, bool forward)
{
	for (;;)
	{
		scan->step += forward ? 1 : -1;
		if (scan->step < 0 || scan->step >= scan->blocks)
		{
			scan->step = forward ? (int64) scan->blocks : -1;
			BpsReleaseBlock(scan);
			return false;
		}
		CHECK_FOR_INTERRUPTS();
		BpsReadBuffered(scan, (BlockNumber) scan->step, BPS_AT_START);
		if (scan->block.count > 0)
			return true;
	}
}

/* ---- tuples ---- */

/* Goes to the next tuple in a direction. False: there is none. */
static bool
Advance(BpsScan *scan, bool forward)
{
	BpsBlock   *block = &scan->block;

	if (!forward && !scan->is_stepping)
	{
		ExecClearTuple(scan->css.ss.ss_ScanTupleSlot);
		BeginSteps(scan);
	}
	if (block->is_valid)
	{
		block->index += forward ? 1 : -1;
		if (block->index >= 0 && block->index < block->count)
			return true;
	}
	/* The slot's tuple is in the block that goes away. */
	ExecClearTuple(scan->css.ss.ss_ScanTupleSlot);
	if (!(scan->is_stepping ? StepBlock(scan, forward) : BpsNextBlock(scan)))
		return false;
	block->index = forward ? 0 : block->count - 1;
	return true;
}

/*
 * The ordinary scan's next tuple; an empty slot at the end. The server takes slots of heap tuples and of tuples in buffers for
 * each other, so the tuple needs not move to a slot of the other kind, which would cost 6 % of a cached scan.
 */
static TupleTableSlot *
NextOrdinary(BpsScan *scan, ScanDirection direction)
{
	TupleTableSlot *slot = scan->css.ss.ss_ScanTupleSlot;

	table_scan_getnextslot(scan->ordinary, direction, slot);
	return slot;
}

static TupleTableSlot *
NextTuple(ScanState *node)
{
	BpsScan    *scan = (BpsScan *) node;
	ScanDirection direction = node->ps.state->es_direction;
	BpsBlock   *block = &scan->block;
	OffsetNumber line;
	ItemId		item;

	if (!scan->is_started)
		Start(scan);
	if (scan->is_ordinary)
		return NextOrdinary(scan, direction);
	if (!Advance(scan, !ScanDirectionIsBackward(direction)))
		return node->ss_ScanTupleSlot;
	line = block->visible[block->index];
	item = PageGetItemId(block->page, line);
	scan->tuple.t_data = (HeapTupleHeader) PageGetItem(block->page, item);
	scan->tuple.t_len = ItemIdGetLength(item);
	ItemPointerSet(&scan->tuple.t_self, block->number, line);
	pgstat_count_heap_getnext(node->ss_currentRelation);
	return ExecStoreHeapTuple(&scan->tuple, node->ss_ScanTupleSlot, false);
}

/* EvalPlanQual has no condition of this node's own to test. */
static bool
Recheck(ScanState *node, TupleTableSlot *slot)
{
	(void) node;
	(void) slot;
	return true;
}

static TupleTableSlot *
Execute(CustomScanState *node)
{
	return ExecScan(&node->ss, NextTuple, Recheck);
}

/* ---- begin, rescan, end ---- */

static void
Begin(CustomScanState *node, EState *estate, int eflags)
{
	BpsScan    *scan = (BpsScan *) node;

	scan->may_go_backward = (eflags & EXEC_FLAG_BACKWARD) != 0;
#if !COMPAT_SLOT_KIND_IS_GIVEN
	{
		Scan	   *plan = (Scan *) node->ss.ps.plan;

		/* The expressions were compiled for a virtual slot; their subplans register with the node once more. */
		node->ss.ps.subPlan = NIL;
		ExecInitScanTupleSlot(estate, &node->ss, RelationGetDescr(node->ss.ss_currentRelation), &TTSOpsHeapTuple);
		ExecAssignScanProjectionInfoWithVarno(&node->ss, plan->scanrelid);
		node->ss.ps.qual = ExecInitQual(plan->plan.qual, (PlanState *) node);
	}
#else
	(void) estate;
#endif
}

static void
Rescan(CustomScanState *node)
{
	BpsScan    *scan = (BpsScan *) node;

	ExecClearTuple(node->ss.ss_ScanTupleSlot);
	ExecScanReScan(&node->ss);
	if (!scan->is_started)
		return;
	if (scan->is_ordinary)
	{
		table_rescan(scan->ordinary, NULL);
		return;
	}
	BpsResetChunks(scan);
	scan->is_stepping = false;
	scan->step = -1;
	pgstat_count_heap_scan(node->ss.ss_currentRelation);
}

/* Lets go of everything that the scan holds, as before its first tuple. */
static void
Stop(BpsScan *scan)
{
	ExecClearTuple(scan->css.ss.ss_ScanTupleSlot);
	if (scan->ordinary != NULL)
	{
		table_endscan(scan->ordinary);
		scan->ordinary = NULL;
		scan->css.ss.ss_ScanTupleSlot = scan->own_slot;
	}
	else if (scan->is_started)
		BpsEndReading(scan->css.ss.ss_currentRelation);
	BpsResetChunks(scan);
	if (scan->strategy != NULL)
		FreeAccessStrategy(scan->strategy);
	scan->strategy = NULL;
	scan->is_stepping = false;
	scan->is_started = false;
}

/*
 * Runs before the shared memory of a parallel query goes away, in the leader and in each worker. The leader may begin anew
 * later, with other shared memory; it must not look at this one again.
 */
static void
Shutdown(CustomScanState *node)
{
	BpsScan    *scan = (BpsScan *) node;

	BpsReportCounts(scan);
	if (scan->shared == NULL || IsParallelWorker())
		return;
	BpsCollectShared(scan);
	Stop(scan);
	scan->shared = NULL;
}

static void
End(CustomScanState *node)
{
	BpsScan    *scan = (BpsScan *) node;

	Stop(scan);
	BpsReportCounts(scan);
}

static void
Explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	(void) ancestors;
	BpsExplain((BpsScan *) node, es);
}

static const CustomExecMethods exec_methods = {
	.CustomName = "BedplateScan",
	.BeginCustomScan = Begin,
	.ExecCustomScan = Execute,
	.EndCustomScan = End,
	.ReScanCustomScan = Rescan,
	.EstimateDSMCustomScan = BpsEstimateShared,
	.InitializeDSMCustomScan = BpsInitializeShared,
	.ReInitializeDSMCustomScan = BpsReinitializeShared,
	.InitializeWorkerCustomScan = BpsInitializeWorker,
	.ShutdownCustomScan = Shutdown,
	.ExplainCustomScan = Explain
};

static Node *
CreateState(CustomScan *plan)
{
	BpsScan    *scan = (BpsScan *) newNode(sizeof(BpsScan), T_CustomScanState);

	(void) plan;
	scan->css.methods = &exec_methods;
#if COMPAT_SLOT_KIND_IS_GIVEN
	scan->css.slotOps = &TTSOpsHeapTuple;
#endif
	return (Node *) scan;
}

const CustomScanMethods bps_scan_methods = {
	.CustomName = "BedplateScan",
	.CreateCustomScanState = CreateState
};

void
BpsRegisterNode(void)
{
	RegisterCustomScanMethods(&bps_scan_methods);
}
