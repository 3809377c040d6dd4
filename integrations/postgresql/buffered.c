/*
 * buffered.c
 *	  A block through the buffer manager: the ordinary page code, as heapgetpage() has it.
 *
 * It is used for every block whose image the rule does not allow, for the first blocks of a scan, and after a scan went
 * backward. Errors of the device and damaged pages are reported here, by the server's own code.
 *
 * Locks: the buffer's content lock, shared, while visibility is judged. The pin is held until the next block.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "access/heapam.h"
#include "compat.h"
#include "executor/tuptable.h"

void
BpsReleaseBlock(BpsScan *scan)
{
	if (BufferIsValid(scan->block.pin))
		ReleaseBuffer(scan->block.pin);
	scan->block.pin = InvalidBuffer;
	scan->block.is_valid = false;
}

/* Makes a block the scan's block in hand. `reason` says why the block does not come from an image. */
void
BpsReadBuffered(BpsScan *scan, BlockNumber number, BpsCounter reason)
{
	Relation	rel = scan->css.ss.ss_currentRelation;
	Snapshot	snapshot = scan->css.ss.ps.state->es_snapshot;
	BpsBlock   *block = &scan->block;
	int			lines;
	bool		sees_all;

	BpsReleaseBlock(scan);
	block->pin = ReadBufferExtended(rel, MAIN_FORKNUM, number, RBM_NORMAL, scan->strategy);
	heap_page_prune_opt(rel, block->pin);
	LockBuffer(block->pin, BUFFER_LOCK_SHARE);
	block->number = number;
	block->page = BufferGetPage(block->pin);
	block->visible = scan->block_visible;
	block->count = 0;
	block->index = -1;
	lines = PageGetMaxOffsetNumber(block->page);
	sees_all = PageIsAllVisible(block->page) && !snapshot->takenDuringRecovery;
	for (OffsetNumber line = FirstOffsetNumber; line <= lines; line++)
	{
		ItemId		item = PageGetItemId(block->page, line);
		HeapTupleData tuple;

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_tableOid = RelationGetRelid(rel);
		tuple.t_data = (HeapTupleHeader) PageGetItem(block->page, item);
		tuple.t_len = ItemIdGetLength(item);
		ItemPointerSet(&tuple.t_self, number, line);
		if (sees_all || HeapTupleSatisfiesVisibility(&tuple, snapshot, block->pin))
			scan->block_visible[block->count++] = line;
	}
	LockBuffer(block->pin, BUFFER_LOCK_UNLOCK);
	block->is_valid = true;
	scan->counts.of[BPS_BLOCKS_BUFFERED]++;
	scan->counts.of[reason]++;
}
