/*
 * visibility.c
 *	  Decides whether an image is a page, and which of its tuples a snapshot sees, without writing to it.
 *
 * The server's HeapTupleSatisfiesVisibility() sets hint bits in the page and needs its buffer. Images are read-only memory
 * without a buffer, so this file has the same decisions for MVCC snapshots without hint bits. It must agree with
 * HeapTupleSatisfiesMVCC() in heapam_visibility.c; tests compare both on the same tables.
 *
 * Where the image alone cannot decide, the answer is "undecided" and the block is read through the buffer manager:
 *	- tuples with a multixact that updated or deleted them, whose members may have been truncated since the image was read;
 *	- tuples that were moved by a VACUUM FULL of before version 9.0;
 *	- transactions whose outcome the commit log may have lost since the image was read: VACUUM may have frozen their tuples
 *	  in the page and truncated the log, while the image has the tuples as they were;
 *	- line pointers that are out of bounds, which the ordinary code reports.
 *
 * Locks: XactTruncationLock, shared, while the commit log is looked at, as pg_xact_status() does.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "access/heapam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "compat.h"
#include "faults.h"
#include "storage/lwlock.h"

typedef enum Verdict
{
	INVISIBLE,
	VISIBLE,
	UNDECIDED
} Verdict;

/* What a judgment of a page needs of its scan. */
typedef struct Judge
{
	BpsOutcome *outcomes;
	Snapshot	snapshot;
	TransactionId oldest_clog_xid;
} Judge;

/*
 * Whether a transaction other than the current one committed before the snapshot was taken. The answer is the same for the
 * life of the snapshot: a transaction that it saw running stays invisible to it, and all others have ended.
 */
static Verdict
CommittedBefore(Judge *judge, TransactionId xid, bool is_known_committed)
{
	BpsOutcome *outcome = &judge->outcomes[xid % BPS_OUTCOMES];
	bool		is_visible;

	if (outcome->xid == xid && TransactionIdIsValid(xid))
		return outcome->is_visible ? VISIBLE : INVISIBLE;
	if (XidInMVCCSnapshot(xid, judge->snapshot))
		is_visible = false;
	else if (is_known_committed)
		is_visible = true;
	else
	{
		bool		is_there;

		LWLockAcquire(XactTruncationLock, LW_SHARED);
		is_there = CompatOldestClogXid() == judge->oldest_clog_xid;
		is_visible = is_there && TransactionIdDidCommit(xid);
		LWLockRelease(XactTruncationLock);
		if (!is_there)
			return UNDECIDED;
	}
	outcome->xid = xid;
	outcome->is_visible = is_visible;
	return is_visible ? VISIBLE : INVISIBLE;
}

/* Whether the current transaction's deletion of a tuple counts: by a command before the snapshot's. */
static Verdict
AfterOwnDeletion(HeapTupleHeader tuple, Snapshot snapshot)
{
	return HeapTupleHeaderGetCmax(tuple) >= snapshot->curcid ? VISIBLE : INVISIBLE;
}

static Verdict
JudgeTuple(Judge *judge, HeapTupleHeader tuple)
{
	uint16		mask = tuple->t_infomask;
	TransactionId xmin = HeapTupleHeaderGetRawXmin(tuple);
	TransactionId xmax = HeapTupleHeaderGetRawXmax(tuple);
	bool		is_deleted = !(mask & HEAP_XMAX_INVALID) && !HEAP_XMAX_IS_LOCKED_ONLY(mask);
	Verdict		verdict;

	if (mask & HEAP_MOVED)
		return UNDECIDED;

	/* Its creation. */
	if (!HeapTupleHeaderXminCommitted(tuple))
	{
		if (HeapTupleHeaderXminInvalid(tuple))
			return INVISIBLE;
		if (TransactionIdIsCurrentTransactionId(xmin))
		{
			if (HeapTupleHeaderGetCmin(tuple) >= judge->snapshot->curcid)
				return INVISIBLE;
			if (!is_deleted)
				return VISIBLE;
			if (mask & HEAP_XMAX_IS_MULTI)
				return UNDECIDED;
			/* Only a subtransaction of ours can have deleted it; if it is not current, it was rolled back. */
			if (!TransactionIdIsCurrentTransactionId(xmax))
				return VISIBLE;
			return AfterOwnDeletion(tuple, judge->snapshot);
		}
		verdict = CommittedBefore(judge, xmin, false);
	}
	else if (HeapTupleHeaderXminFrozen(tuple))
		verdict = VISIBLE;
	else
		verdict = CommittedBefore(judge, xmin, true);
	if (verdict != VISIBLE)
		return verdict;

	/* Its deletion. */
	if (!is_deleted)
		return VISIBLE;
	if (mask & HEAP_XMAX_IS_MULTI)
		return UNDECIDED;
	if (!(mask & HEAP_XMAX_COMMITTED) && TransactionIdIsCurrentTransactionId(xmax))
		return AfterOwnDeletion(tuple, judge->snapshot);
	verdict = CommittedBefore(judge, xmax, (mask & HEAP_XMAX_COMMITTED) != 0);
	if (verdict == UNDECIDED)
		return UNDECIDED;
	return verdict == VISIBLE ? INVISIBLE : VISIBLE;
}

/* Whether a page's header makes sense, as PageIsVerified() tests it, and its checksum is right where there are any. */
static bool
HeaderIsSane(const PageHeaderData *header)
{
	return (header->pd_flags & ~PD_VALID_FLAG_BITS) == 0 &&
		header->pd_lower <= header->pd_upper &&
		header->pd_upper <= header->pd_special &&
		header->pd_special <= BLCKSZ &&
		header->pd_special == MAXALIGN(header->pd_special) &&
		header->pd_lower >= SizeOfPageHeaderData;
}

static bool
IsZero(const char *page)
{
	const uint64 *words = (const uint64 *) page;

	for (size_t i = 0; i < BLCKSZ / sizeof(uint64); i++)
		if (words[i] != 0)
			return false;
	return true;
}

/*
 * Whether the image is untorn: the file did not change while it was read, or the page's checksum is right. A new page is
 * all zeroes and has no checksum; an image that is all zeroes is one, because any part of a later page would show.
 */
static bool
IsUntorn(const char *page, BlockNumber block, bool is_stable)
{
	if (BpsIsMutant(BPS_MUTANT_NO_TEAR_TEST))
		return true;
	if (PageIsNew((Page) page))
		return IsZero(page);
	if (DataChecksumsEnabled())
		return BpsChecksum(page, block) == ((const PageHeaderData *) page)->pd_checksum;
	return is_stable;
}

/*
 * Stores the line pointers of a page whose tuples the scan's snapshot sees, and returns how many there are; -1 if the page does
 * not say which they are, or makes no sense. The array has room for MaxHeapTuplesPerPage.
 */
int
BpsVisibleLines(BpsScan *scan, Page page, TransactionId oldest_clog_xid, OffsetNumber *visible)
{
	Snapshot	snapshot = scan->css.ss.ps.state->es_snapshot;
	Judge		judge = {scan->outcomes, snapshot, oldest_clog_xid};
	int			lines = PageGetMaxOffsetNumber(page);
	int			count = 0;
	bool		sees_all;

	if (!HeaderIsSane((const PageHeaderData *) page) || lines > MaxHeapTuplesPerPage)
		return -1;
	/* A standby's pages may be marked before all of its snapshots see their tuples. */
	sees_all = PageIsAllVisible(page) && !snapshot->takenDuringRecovery;
	for (OffsetNumber line = FirstOffsetNumber; line <= lines; line++)
	{
		ItemId		item = PageGetItemId(page, line);
		Verdict		verdict = VISIBLE;

		if (!ItemIdIsNormal(item))
			continue;
		if (ItemIdGetOffset(item) + ItemIdGetLength(item) > BLCKSZ ||
			ItemIdGetLength(item) < SizeofHeapTupleHeader)
			return -1;
		if (!sees_all)
			verdict = JudgeTuple(&judge, (HeapTupleHeader) PageGetItem(page, item));
		if (verdict == UNDECIDED)
			return -1;
		if (verdict == VISIBLE)
			visible[count++] = line;
	}
	return count;
}

/*
 * Judges one block's image. The caller has established that the image is Fresh or Current. The visible tuples are added to
 * scan->visible from *used on. If the image is not usable, the judgment has the reason, and nothing is added.
 */
bool
BpsJudgeImage(BpsScan *scan, Page page, BlockNumber block, bool is_stable,
			  TransactionId oldest_clog_xid, BpsJudgment *judgment, int *used)
{
	int			count;

	judgment->is_usable = false;
	judgment->reason = BPS_TORN;
	judgment->begin = judgment->end = *used;
	if (!IsUntorn((const char *) page, block, is_stable))
		return false;
	if (PageIsNew(page))
		return judgment->is_usable = true;
	judgment->reason = BPS_UNDECIDED;
	count = BpsVisibleLines(scan, page, oldest_clog_xid, scan->visible + *used);
	if (count < 0)
		return false;
	*used = judgment->end = *used + count;
	return judgment->is_usable = true;
}
