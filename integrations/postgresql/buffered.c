/*
 * buffered.c
 *	  A block through the buffer manager.
 *
 * The visible tuples are found as in images, without hint bits, and pages are not pruned: a page that this scan made dirty would
 * soon be written, and a write makes images of the same file look torn. The ordinary code decides where an image could not.
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

/* The visible tuples of a page in a buffer, as heapgetpage() finds them. It sets hint bits. */
static int
OrdinaryVisibleLines(BpsScan *scan, Page page, OffsetNumber *visible)
{
	Relation	rel = scan->css.ss.ss_currentRelation;
	Snapshot	snapshot = scan->css.ss.ps.state->es_snapshot;
	int			lines = PageGetMaxOffsetNumber(page);
	int			count = 0;

	for (OffsetNumber line = FirstOffsetNumber; line <= lines; line++)
	{
		ItemId		item = PageGetItemId(page, line);
		HeapTupleData tuple;

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_tableOid = RelationGetRelid(rel);
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		ItemPointerSet(&tuple.t_self, scan->block.number, line);
		if (HeapTupleSatisfiesVisibility(&tuple, snapshot, scan->block.pin))
			visible[count++] = line;
	}
	return count;
}

/* Makes a block the scan's block in hand. `reason` says why the block does not come from an image. */
void
BpsReadBuffered(BpsScan *scan, BlockNumber number, BpsCounter reason)
{
	BpsBlock   *block = &scan->block;

	BpsReleaseBlock(scan);
	block->pin = ReadBufferExtended(scan->css.ss.ss_currentRelation, MAIN_FORKNUM, number, RBM_NORMAL, scan->strategy);
	LockBuffer(block->pin, BUFFER_LOCK_SHARE);
	block->number = number;
	block->page = BufferGetPage(block->pin);
	block->visible = scan->block_visible;
	block->index = -1;
	block->count = 0;
	if (!PageIsNew(block->page))
		block->count = BpsVisibleLines(scan, block->page, CompatOldestClogXid(), scan->block_visible);
	if (block->count < 0)
		block->count = OrdinaryVisibleLines(scan, block->page, scan->block_visible);
	LockBuffer(block->pin, BUFFER_LOCK_UNLOCK);
	block->is_valid = true;
	scan->counts.of[BPS_BLOCKS_BUFFERED]++;
	scan->counts.of[reason]++;
}
