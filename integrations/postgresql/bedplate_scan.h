/*
 * bedplate_scan.h
 *	  What the files of bedplate_scan share: the state of a scan, its parts, and their functions.
 *
 * README.md has the rule by which the image of a block may be used, and its proof. Read it before changing anything here.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BEDPLATE_SCAN_H
#define BEDPLATE_SCAN_H

#include "postgres.h"

#include <bedplate/scan.h>

#include "access/htup_details.h"
#include "access/relscan.h"
#include "nodes/execnodes.h"
#include "nodes/extensible.h"
#include "port/atomics.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

/* ---- limits ---- */

/* The service reads into frames of this size; a chunk is never larger. */
#define BPS_FRAME_BYTES			((uint64) 2 * 1024 * 1024)
#define BPS_CHUNK_BLOCKS		((int) (BPS_FRAME_BYTES / BLCKSZ))
#define BPS_ABSENT_WORDS		((BPS_CHUNK_BLOCKS + 63) / 64)
/* The smallest chunk of a parallel scan: near the end of the table, participants claim less at a time. */
#define BPS_CHUNK_BLOCKS_MIN	Min(32, BPS_CHUNK_BLOCKS)
/* Chunks that a participant has claimed and not finished, at most. */
#define BPS_CLAIMS_MAX			30
/* As many for each participant of a parallel scan, because others would wait for what it has not begun. */
#define BPS_CLAIMS_MAX_PARALLEL	4
/* Frames of a ring beside those of claimed chunks. */
#define BPS_SPARE_FRAMES		2
/* Megabytes of the smallest and of the largest ring. */
#define BPS_RING_MEGABYTES_MIN	8
#define BPS_RING_MEGABYTES_MAX	64
/* Segments of a table that one channel has open. A table of more segments takes one channel after the other. */
#define BPS_CHANNEL_SEGMENTS	16
/* Descriptors of a channel beside those of segments: the ring, its memory, its doorbells. */
#define BPS_CHANNEL_DESCRIPTORS	8
/* Blocks that a scan reads through the buffer manager before it opens a channel; doubled after each scan that stopped earlier. */
#define BPS_START_BLOCKS		16
#define BPS_START_BLOCKS_MAX	4096
/* How long a wait for a page lasts before the backend looks whether it was interrupted. */
#define BPS_WAIT_NS				INT64CONST(10000000)
/* Slots of the cache of transactions' outcomes. */
#define BPS_OUTCOMES			256

/* ---- what is counted ---- */

/*
 * The reasons for which a block comes from the buffer manager are BPS_AT_START to BPS_NOT_READ; their sum is
 * BPS_BLOCKS_BUFFERED.
 */
typedef enum BpsCounter
{
	BPS_CHUNKS_DIRECT,			/* chunks that a channel read */
	BPS_BLOCKS_DIRECT,			/* blocks whose image was used */
	BPS_BLOCKS_BUFFERED,		/* blocks that came from the buffer manager */
	BPS_AT_START,				/* because a scan begins with the buffer manager, or went backward */
	BPS_PRESENT,				/* because they were in shared buffers */
	BPS_CACHED,					/* because most of their chunk was in the page cache */
	BPS_TORN,					/* because the image may be half old and half new */
	BPS_UNDECIDED,				/* because the image does not say which of its tuples are visible */
	BPS_CHANGED,				/* because the block's file changed after a shared image was read */
	BPS_NOT_READ,				/* because the channel did not give them */
	BPS_WAITS,					/* times that a page was waited for */
	BPS_WAIT_NANOSECONDS,
	BPS_BYTES_READ,				/* bytes that were read for this scan alone */
	BPS_BYTES_SHARED,			/* bytes that a pool gave */
	BPS_COUNTERS
} BpsCounter;

typedef struct BpsCounts
{
	uint64		of[BPS_COUNTERS];
} BpsCounts;

/* ---- a table's files (channel.c) ---- */

/* A stream of images. It is a private channel, or a place in a pool. */
typedef struct BpsChannel
{
	bool		is_open;
	bool		has_failed;		/* the rest of this scan is read through the buffer manager */
	bool		cannot_open;	/* no channel of this node could be opened, and none is tried again */
	bool		is_pool;		/* images come in the pool's order, of all of the table */
	struct bp_scan_channel handle;
	struct bp_scan_pool pool;	/* the pool that this backend made; 0 if it joined another one's */
	Oid			pool_identity[3];
	uint32		first_segment;	/* what the channel calls file 0 */
	uint32		segments;
	int			descriptors;	/* that are reserved with the server's bookkeeping */
	bool		has_page;
	struct bp_scan_page page;
	BlockNumber page_first;		/* the blocks of the page: [page_first, page_end) */
	BlockNumber page_end;
	uint64		pages;			/* that it gave so far */
} BpsChannel;

typedef enum BpsPageResult
{
	BPS_PAGE,					/* channel->page is valid */
	BPS_PAGE_LOST,				/* this page cannot be had; channel->page_first says where it begins */
	BPS_PAGE_END,				/* of a pool: there is no more */
	BPS_CHANNEL_FAILED
} BpsPageResult;

/* ---- chunks (chunks.c) ---- */

typedef enum BpsSource
{
	BPS_UNPREPARED,				/* claimed; nothing has been decided */
	BPS_FROM_BUFFERS,
	BPS_FROM_CHANNEL
} BpsSource;

/* Blocks that this participant has claimed: [first, first + count), in one segment. */
typedef struct BpsChunk
{
	BlockNumber first;
	int			count;
	BpsSource	source;
	BpsCounter	reason;			/* with BPS_FROM_BUFFERS */
	TransactionId oldest_clog_xid;	/* when the chunk was prepared */
	uint64		looked_up_ns;	/* CLOCK_MONOTONIC, after the last look-up */
	uint64		absent[BPS_ABSENT_WORDS];	/* bit i: block first + i was absent from the buffer table */
} BpsChunk;

static inline bool
BpsIsAbsent(const uint64 *absent, int block)
{
	return (absent[block / 64] >> (block % 64)) & 1;
}

/* What was found out about one block of the image in hand. */
typedef struct BpsJudgment
{
	bool		is_usable;
	BpsCounter	reason;			/* if not */
	Page		page;
	int			begin;			/* its visible tuples: visible[begin .. end) */
	int			end;
} BpsJudgment;

/* ---- parallel scans (parallel.c) ---- */

typedef struct BpsShared
{
	/* The leader's decision binds the workers, because settings may change before those begin. */
	bool		is_ordinary;
	bool		is_forced;
	bool		uses_residency;
	int			decline;		/* a BpsDecline */
	BlockNumber blocks;
	int			participants;
	Size		ordinary_offset;	/* of the ParallelTableScanDesc */
	pg_atomic_uint64 next_block;
	pg_atomic_uint64 counts[BPS_COUNTERS];
} BpsShared;

/* ---- why a node reads as an ordinary sequential scan does (policy.c) ---- */

typedef enum BpsDecline
{
	BPS_NOT_DECLINED,
	BPS_DECLINE_DISABLED,
	BPS_DECLINE_SNAPSHOT,
	BPS_DECLINE_SERIALIZABLE,
	BPS_DECLINE_RELATION,
	BPS_DECLINE_ROW_MARKS,
	BPS_DECLINE_RECHECK,
	BPS_DECLINE_OLD_SNAPSHOTS,
	BPS_DECLINE_DIRECT_WRITES,
	BPS_DECLINE_CACHED,
	BPS_DECLINE_FITS,
	BPS_DECLINE_READ_ALREADY
} BpsDecline;

/* ---- the scan ---- */

/* The outcome of a transaction for one snapshot. It never changes, so it is looked up once. */
typedef struct BpsOutcome
{
	TransactionId xid;
	bool		is_visible;		/* it committed before the snapshot */
} BpsOutcome;

/* The block that tuples are returned from. */
typedef struct BpsBlock
{
	bool		is_valid;
	BlockNumber number;
	Page		page;			/* in a buffer that `pin` holds, or in the image in hand */
	Buffer		pin;			/* InvalidBuffer for an image */
	const OffsetNumber *visible;
	int			count;
	int			index;			/* of the tuple that was returned last */
} BpsBlock;

typedef struct BpsScan
{
	CustomScanState css;		/* must be first */

	/* Decided at the first tuple. */
	bool		is_started;
	bool		is_ordinary;
	bool		is_forced;
	bool		uses_residency;
	bool		may_go_backward;
	BpsDecline	decline;
	BpsShared  *shared;			/* NULL in a serial scan */
	BlockNumber blocks;			/* of the table; those that are added later have no visible tuple */

	/* An ordinary scan. */
	TableScanDesc ordinary;
	TupleTableSlot *own_slot;	/* the node's slot while the scan is not ordinary */

	/* Chunks: claims[(claims_first + i) % BPS_CLAIMS_MAX], in the order in which they are read. */
	BpsChunk	claims[BPS_CLAIMS_MAX];
	int			claims_first;
	int			claims_count;
	int			announced;		/* claims that the channel has been told and that are not finished */
	bool		has_claimed_all;
	BlockNumber next_block;		/* the next claim of a serial scan */
	uint64		claimed_blocks;
	uint32		start_blocks;
	bool		has_finished_chunk; /* since the last start */
	bool		used_images;	/* likewise */
	bool		has_tried_pool; /* likewise */
	int			chunk_next;		/* block of the first chunk that comes next */

	/* A pool gives images in its own order; the blocks that were absent when this scan joined. */
	uint64	   *absent_at_start;
	uint64	   *pending;		/* the blocks that the pool has not given yet */
	TransactionId pool_oldest_clog_xid;
	uint64		pool_looked_up_ns;
	BlockNumber pool_next;		/* where to look for pending blocks after the pool's end */

	BpsChannel	channel;
	MemoryContextCallback cleanup;

	/* The image in hand: judgments of its blocks from `judged_first` on. Allocated while a channel is open. */
	BpsJudgment *judgments;		/* BPS_CHUNK_BLOCKS of them */
	OffsetNumber *visible;		/* of all of its blocks */
	char	   *torn;			/* copies of images, for fault injection */
	BlockNumber judged_first;

	BpsBlock	block;
	OffsetNumber block_visible[MaxHeapTuplesPerPage];
	bool		is_stepping;	/* since it went backward: block by block through the buffer manager */
	int64		step;			/* the block in hand; -1 before the first, `blocks` after the last */

	HeapTupleData tuple;
	BufferAccessStrategy strategy;
	BpsOutcome	outcomes[BPS_OUTCOMES];
	BpsCounts	counts;			/* of this participant, since the last report */
	BpsCounts	reported;		/* of all participants */
} BpsScan;

/* ---- settings.c ---- */
extern bool bps_enabled;
extern bool bps_force;
extern bool bps_residency;
extern int	bps_min_table_megabytes;
extern int	bps_ring_megabytes;
extern double bps_cache_share;
extern char *bps_sharing;
extern char *bps_program;
extern void BpsDefineSettings(void);

/* ---- planner.c ---- */
extern double BpsAppendedBytes(const CustomScan *custom);
extern void BpsInstallPlannerHook(void);

/* ---- readers.c ---- */
extern bool BpsBeginReading(Relation rel);
extern void BpsGoOnReading(Relation rel);
extern void BpsEndReading(Relation rel);
extern Size BpsReadersSize(void);
extern void BpsStartReaders(void);

/* ---- memory.c ---- */
/* The name of the extension's lock. */
#define BPS_TRANCHE	"bedplate_scan"
extern void BpsInstallMemory(void);

/* ---- executor.c ---- */
extern void BpsRegisterNode(void);
extern const CustomScanMethods bps_scan_methods;

/* ---- policy.c ---- */
extern bool BpsRelationIsEligible(Relation rel);
extern BpsDecline BpsDecide(BpsScan *scan, BlockNumber blocks, bool is_parallel);
extern const char *BpsDeclineText(BpsDecline decline);
extern bool BpsRangeIsCached(Relation rel, BlockNumber first, BlockNumber blocks);

/* ---- segments of files (channel.c) ---- */
extern char *BpsSegmentPath(Relation rel, uint32 segment);
extern bool BpsChannelCovers(const BpsChannel *channel, BlockNumber block);
extern void BpsPrepareToOpen(BpsScan *scan);
extern bool BpsOpenChannel(BpsScan *scan, BlockNumber block);
extern bool BpsOpenPooled(BpsScan *scan, struct bp_scan_service service, const struct bp_scan_key *key, uint32 segments, bool *is_over);
extern bool BpsAnnounce(BpsScan *scan, const BpsChunk *chunk);
extern BpsPageResult BpsNextPage(BpsScan *scan);
extern void BpsReturnPage(BpsScan *scan);
extern bool BpsPageIsUnchanged(BpsScan *scan);
extern void BpsCloseChannel(BpsScan *scan);
extern void BpsComplain(const char *what);
extern uint64 BpsNow(void);

/* ---- lookup.c ---- */
extern int	BpsLookUp(Relation rel, BlockNumber first, int count, uint64 *absent);

/* ---- visibility.c ---- */
extern int	BpsVisibleLines(BpsScan *scan, Page page, TransactionId oldest_clog_xid, OffsetNumber *visible);
extern bool BpsJudgeImage(BpsScan *scan, Page page, BlockNumber block, bool is_stable,
						  TransactionId oldest_clog_xid, BpsJudgment *judgment, int *used);

/* ---- checksum.c ---- */
extern uint16 BpsChecksum(const char *page, BlockNumber block);

/* ---- buffered.c ---- */
extern void BpsReadBuffered(BpsScan *scan, BlockNumber block, BpsCounter reason);
extern void BpsReleaseBlock(BpsScan *scan);

/* ---- chunks.c ---- */
extern bool BpsNextBlock(BpsScan *scan);
extern void BpsForgetPending(BpsScan *scan);
extern void BpsResetChunks(BpsScan *scan);

/* ---- parallel.c ---- */
extern Size BpsEstimateShared(CustomScanState *node, ParallelContext *context);
extern void BpsInitializeShared(CustomScanState *node, ParallelContext *context, void *coordinate);
extern void BpsReinitializeShared(CustomScanState *node, ParallelContext *context, void *coordinate);
extern void BpsInitializeWorker(CustomScanState *node, shm_toc *toc, void *coordinate);
extern bool BpsClaimShared(BpsShared *shared, bool at_start, uint32 start_blocks, BlockNumber *first, int *count);
extern void BpsCollectShared(BpsScan *scan);
extern ParallelTableScanDesc BpsOrdinaryShared(BpsShared *shared);

/* ---- statistics.c ---- */
extern Size BpsTotalsSize(void);
extern void BpsStartTotals(void);
extern void BpsReportCounts(BpsScan *scan);
extern void BpsExplain(BpsScan *scan, ExplainState *es);

/* ---- daemon.c ---- */
/* Where the cluster's own daemon listens, in the data directory. Base backups leave this folder out. */
#define BPS_DAEMON_SOCKET		PG_STAT_TMP_DIR "/bedplate_scan.sock"
extern void BpsRegisterDaemon(void);

/* ---- sharing.c ---- */
extern Size BpsPoolsSize(void);
extern void BpsStartPools(void);
extern void BpsInstallSharing(void);
extern bool BpsSharingWanted(void);
extern bool BpsJoinPool(BpsScan *scan);
extern void BpsLeavePool(BpsChannel *channel);

#endif							/* BEDPLATE_SCAN_H */
