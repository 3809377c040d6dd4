/*
 * sharing.c
 *	  Scans of the same table that run at the same time read it once: pools of a daemon, found by relation.
 *
 * The daemon is `bedplate scan serve`: the cluster's own (daemon.c), or another one at a path. It never opens files: backends
 * hand over descriptors. It may end at any time: scans then read what is missing through the buffer manager.
 *
 * A pool is known to other backends by an entry in shared memory, so sharing takes shared_preload_libraries. The first
 * scan of a relation makes its pool; scans that begin while that one runs join it. When the scan that made the pool ends, the
 * pool is closed to new scans, and those that are in it go on.
 *
 * Serial scans share. The participants of a parallel scan do not, because they divide the table between them and a pool gives
 * each of its members all of it. Neither do scans that may go backward, because a pool's order is its own.
 *
 * Locks: pools->lock protects the entries. Nothing else is acquired, and nothing waits, while it is held. An entry that is being
 * made is marked, and others look again later, because making a pool talks to the daemon.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "compat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

/* Relations that are shared at a time; scans of others read for themselves. */
#define POOLS_MAX		64
/* Segments of a table that is shared. */
#define POOL_SEGMENTS_MAX 64
/* How long a scan waits for the pool that another one is making. */
#define MAKING_NS		(UINT64CONST(2) * 1000 * 1000 * 1000)
/* How long the daemon may take for an answer; a backend cannot be interrupted meanwhile. */
#define PATIENCE_NS		(UINT64CONST(1) * 1000 * 1000 * 1000)
/* How long a backend does not ask a daemon again that took longer. */
#define PAUSE_NS		(UINT64CONST(60) * 1000 * 1000 * 1000)
/* Blocks that are looked up between two looks for interrupts; a multiple of 64. */
#define LOOK_UP_BLOCKS	4096

typedef enum PoolState
{
	POOL_NONE,
	POOL_MAKING,
	POOL_READY
} PoolState;

typedef struct PoolEntry
{
	PoolState	state;
	Oid			identity[3];
	uint32		segments;
	int			pid;			/* of the backend that made it */
	struct bp_scan_key key;
} PoolEntry;

typedef struct Pools
{
	LWLock	   *lock;
	PoolEntry	entries[POOLS_MAX];
} Pools;

static Pools *pools = NULL;		/* NULL without shared memory */
/* This backend's connection to the daemon. */
static struct bp_scan_service daemon_service;
static char *daemon_path = NULL; /* NULL if there is none */
static uint64 slow_ns = 0;		/* when the daemon took too long; 0: never */

/* ---- the connection ---- */

static const char *
WantedPath(void)
{
	if (bps_sharing == NULL || strcmp(bps_sharing, "off") == 0)
		return NULL;
	return strcmp(bps_sharing, "auto") == 0 ? BPS_DAEMON_SOCKET : bps_sharing;
}

bool
BpsSharingWanted(void)
{
	return pools != NULL && WantedPath() != NULL;
}

static void
Disconnect(int code, Datum arg)
{
	(void) code;
	(void) arg;
	if (daemon_path == NULL)
		return;
	bp_scan_stop(daemon_service);
	free(daemon_path);
	daemon_path = NULL;
}

/* Breaks a connection on which something failed. A daemon that took too long is left alone for a while. */
static void
GiveUpDaemon(uint64 asked_ns)
{
	Disconnect(0, (Datum) 0);
	if (BpsNow() - asked_ns >= PATIENCE_NS)
		slow_ns = BpsNow();
}

static bool
Connect(struct bp_scan_service *service)
{
	static bool is_registered = false;
	const char *path = WantedPath();
	uint64		begin = BpsNow();

	if (slow_ns != 0 && begin - slow_ns < PAUSE_NS)
		return false;

	if (daemon_path != NULL && strcmp(daemon_path, path) != 0)
		Disconnect(0, (Datum) 0);
	if (daemon_path == NULL)
	{
		if (bp_scan_connect_within(path, PATIENCE_NS, &daemon_service) < 0)
		{
			BpsComplain("the daemon cannot be reached");
			GiveUpDaemon(begin);
			return false;
		}
		daemon_path = strdup(path);
		if (daemon_path == NULL)
		{
			bp_scan_stop(daemon_service);
			return false;
		}
		if (!is_registered)
			on_proc_exit(Disconnect, 0);
		is_registered = true;
	}
	*service = daemon_service;
	return true;
}

/* ---- entries ---- */

/* The caller must hold pools->lock. */
static PoolEntry *
FindEntry(const Oid identity[3], uint32 segments)
{
	for (int i = 0; i < POOLS_MAX; i++)
	{
		PoolEntry  *entry = &pools->entries[i];

		if (entry->state != POOL_NONE && entry->segments == segments &&
			memcmp(entry->identity, identity, sizeof(entry->identity)) == 0)
			return entry;
	}
	return NULL;
}

/*
 * The key of the relation's pool, or, with *is_ours, the duty to make it. False: neither, because there are too many pools, or
 * another backend takes too long.
 */
static bool
FindPool(const Oid identity[3], uint32 segments, struct bp_scan_key *key, bool *is_ours)
{
	uint64		begin = BpsNow();

	for (;;)
	{
		PoolEntry  *entry;

		LWLockAcquire(pools->lock, LW_EXCLUSIVE);
		entry = FindEntry(identity, segments);
		if (entry == NULL)
		{
			for (int i = 0; i < POOLS_MAX && entry == NULL; i++)
				if (pools->entries[i].state == POOL_NONE)
					entry = &pools->entries[i];
			if (entry != NULL)
			{
				entry->state = POOL_MAKING;
				memcpy(entry->identity, identity, sizeof(entry->identity));
				entry->segments = segments;
				entry->pid = MyProcPid;
			}
			LWLockRelease(pools->lock);
			*is_ours = entry != NULL;
			return entry != NULL;
		}
		if (entry->state == POOL_READY)
		{
			*key = entry->key;
			*is_ours = false;
			LWLockRelease(pools->lock);
			return true;
		}
		LWLockRelease(pools->lock);
		if (BpsNow() - begin > MAKING_NS)
			return false;
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
	}
}

/* Ends the making of a pool: others may join it, or there is none. */
static void
FinishEntry(const Oid identity[3], uint32 segments, const struct bp_scan_key *key)
{
	PoolEntry  *entry;

	LWLockAcquire(pools->lock, LW_EXCLUSIVE);
	entry = FindEntry(identity, segments);
	if (entry != NULL && entry->pid == MyProcPid)
	{
		entry->state = key != NULL ? POOL_READY : POOL_NONE;
		if (key != NULL)
			entry->key = *key;
	}
	LWLockRelease(pools->lock);
}

/* Takes away the entry of a pool that nobody can join any more. */
static void
ForgetEntry(const Oid identity[3], const struct bp_scan_key *key)
{
	LWLockAcquire(pools->lock, LW_EXCLUSIVE);
	for (int i = 0; i < POOLS_MAX; i++)
	{
		PoolEntry  *entry = &pools->entries[i];

		if (entry->state == POOL_READY && memcmp(entry->identity, identity, sizeof(entry->identity)) == 0 &&
			memcmp(&entry->key, key, sizeof(*key)) == 0)
			entry->state = POOL_NONE;
	}
	LWLockRelease(pools->lock);
}

/* ---- joining and leaving ---- */

/* Makes a pool of the table's segments. It raises no error, because others wait for its end. */
static bool
MakePool(BpsScan *scan, struct bp_scan_service service, const struct bp_scan_source *sources, uint32 segments,
		 struct bp_scan_key *key)
{
	struct bp_scan_pool_options options = {0};

	options.size = sizeof(options);
	options.sources = sources;
	options.source_count = segments;
	options.flags = BP_SCAN_UNWATCHED;
	options.pages_held = 1;
	if (bp_scan_create_pool(service, &options, &scan->channel.pool) >= 0)
	{
		if (bp_scan_pool_key(scan->channel.pool, key) >= 0)
			return true;
		bp_scan_close_pool(scan->channel.pool);
	}
	scan->channel.pool.handle = 0;
	BpsComplain("a pool cannot be made");
	return false;
}

/* Looks up all of the table's blocks that are still to be read, before the pool is joined: images that are read later are Fresh. */
static void
LookUpAll(BpsScan *scan)
{
	MemoryContext context = scan->css.ss.ps.state->es_query_cxt;
	Size		bytes = ((Size) scan->blocks + 63) / 64 * sizeof(uint64);
	BlockNumber first = scan->next_block / 64 * 64;

	scan->absent_at_start = MemoryContextAllocExtended(context, bytes, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	scan->pending = MemoryContextAllocExtended(context, bytes, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (BlockNumber block = scan->next_block; block < scan->blocks; block++)
		scan->pending[block / 64] |= UINT64CONST(1) << (block % 64);
	scan->pool_oldest_clog_xid = CompatOldestClogXid();
	while (first < scan->blocks)
	{
		int			count = (int) Min(scan->blocks - first, LOOK_UP_BLOCKS);

		CHECK_FOR_INTERRUPTS();
		BpsLookUp(scan->css.ss.ss_currentRelation, first, count, scan->absent_at_start + first / 64);
		first += count;
		if (count < LOOK_UP_BLOCKS)
			break;
	}
	scan->pool_looked_up_ns = BpsNow();
}

/* One attempt at joining the relation's pool, or making it. With *again, another one may succeed. */
static bool
TryPool(BpsScan *scan, struct bp_scan_service service, const struct bp_scan_source *sources, uint32 segments, bool *again)
{
	BpsChannel *channel = &scan->channel;
	struct bp_scan_key key;
	bool		is_ours;
	bool		is_over;
	uint64		begin;

	*again = false;
	if (!FindPool(channel->pool_identity, segments, &key, &is_ours))
		return false;
	begin = BpsNow();
	if (is_ours)
	{
		bool		is_made = MakePool(scan, service, sources, segments, &key);

		FinishEntry(channel->pool_identity, segments, is_made ? &key : NULL);
		if (!is_made)
		{
			GiveUpDaemon(begin);
			return false;
		}
	}
	LookUpAll(scan);
	begin = BpsNow();
	if (BpsOpenPooled(scan, service, &key, segments, &is_over))
		return true;
	BpsForgetPending(scan);
	BpsCloseChannel(scan);
	if (!is_over)
		return false;
	/* The pool's maker has left it, or the daemon is another one. */
	ForgetEntry(channel->pool_identity, &key);
	if (is_ours || BpsNow() - begin >= PATIENCE_NS)
		GiveUpDaemon(begin);
	else
		*again = true;
	return false;
}

/* Joins the relation's pool, or makes it. False: the scan reads for itself. */
bool
BpsJoinPool(BpsScan *scan)
{
	uint32		segments = scan->blocks / RELSEG_SIZE + (scan->blocks % RELSEG_SIZE != 0);
	struct bp_scan_source sources[POOL_SEGMENTS_MAX];
	struct bp_scan_service service;
	bool		is_joined;
	bool		again;

	if (segments > POOL_SEGMENTS_MAX || !Connect(&service))
		return false;
	/* What may raise an error comes first. */
	BpsPrepareToOpen(scan);
	memset(sources, 0, sizeof(sources));
	for (uint32 i = 0; i < segments; i++)
		sources[i].path = BpsSegmentPath(scan->css.ss.ss_currentRelation, i);
	CompatFileIdentity(scan->css.ss.ss_currentRelation, scan->channel.pool_identity);
	is_joined = TryPool(scan, service, sources, segments, &again);
	if (again)
	{
		BpsPrepareToOpen(scan);
		is_joined = TryPool(scan, service, sources, segments, &again);
	}
	for (uint32 i = 0; i < segments; i++)
		pfree(unconstify(char *, sources[i].path));
	return is_joined;
}

/* What is done when a channel is closed, whether it is a pool's or not. */
void
BpsLeavePool(BpsChannel *channel)
{
	struct bp_scan_key key;

	channel->is_pool = false;
	if (channel->pool.handle == 0)
		return;
	if (bp_scan_pool_key(channel->pool, &key) >= 0)
		ForgetEntry(channel->pool_identity, &key);
	bp_scan_close_pool(channel->pool);
	channel->pool.handle = 0;
}

/* ---- shared memory ---- */

Size
BpsPoolsSize(void)
{
	return MAXALIGN(sizeof(Pools));
}

/* The caller must hold AddinShmemInitLock. */
void
BpsStartPools(void)
{
	bool		is_there;

	pools = ShmemInitStruct("bedplate_scan pools", sizeof(Pools), &is_there);
	if (!is_there)
	{
		memset(pools, 0, sizeof(Pools));
		pools->lock = &(GetNamedLWLockTranche(BPS_TRANCHE))->lock;
	}
}

/* Has the postmaster run a daemon, if it is wanted when the server starts. */
void
BpsInstallSharing(void)
{
	if (process_shared_preload_libraries_in_progress && bps_sharing != NULL && strcmp(bps_sharing, "auto") == 0)
		BpsRegisterDaemon();
}
