/*
 * policy.c
 *	  When a node reads directly, and when it leaves a table, or a part of one, to the ordinary scan and the page cache.
 *
 * Two kinds of conditions:
 *	- The rule of README.md, or the server's own features, forbid images: BPS_DECLINE_DISABLED to BPS_DECLINE_DIRECT_WRITES.
 *	  They hold whatever the settings are.
 *	- Reading past the page cache would not pay. Direct reads never warm the cache, so a table that fits into it would be
 *	  read from the device at each scan, where the ordinary scan reads it once. So the node leaves tables to the ordinary scan
 *	  that are mostly in the page cache, or that are smaller than bedplate_scan.cache_share of the memory that the
 *	  kernel can give to the page cache for this process. Partitions that a plan appends to each other are one table in this. `residency` off, or `force`, switches this off.
 *
 *	  Nor would several direct scans of one table pay that do not share what they read: see readers.c.
 *
 * The memory is what /proc/meminfo calls available, limited by the memory control groups (versions 1 and 2) that the process
 * is in. The kernel charges the page cache to the group of the process that reads.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/heapam.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "compat.h"
#include "executor/executor.h"
#include "storage/fd.h"

/* The memory is asked for again after this time. */
#define MEMORY_INTERVAL_NS	(UINT64CONST(2) * 1000 * 1000 * 1000)
/* Bytes of a file below /proc or /sys that are looked at. */
#define FILE_TEXT_MAX		16384

bool
BpsRelationIsEligible(Relation rel)
{
	return (rel->rd_rel->relkind == RELKIND_RELATION || rel->rd_rel->relkind == RELKIND_MATVIEW) &&
		rel->rd_tableam == GetHeapamTableAmRoutine() &&
		!RelationUsesLocalBuffers(rel) &&
		!IsCatalogRelation(rel);
}

/* ---- memory ---- */

/* Reads a small file. False: there is none, or it cannot be read. */
static bool
ReadText(const char *path, char *text, size_t size)
{
	int			fd = BasicOpenFile(path, O_RDONLY);
	ssize_t		length;

	if (fd < 0)
		return false;
	/* The kernel gives the whole text at once. */
	length = read(fd, text, size - 1);
	close(fd);
	text[Max(length, 0)] = '\0';
	return length > 0;
}

/* The number after a key at the beginning of a line; 0 if there is no such line. */
static uint64
NumberAfter(const char *text, const char *key)
{
	size_t		length = strlen(key);

	for (const char *line = text; line != NULL; line = strchr(line, '\n'))
	{
		if (*line == '\n')
			line++;
		if (strncmp(line, key, length) == 0)
			return strtoull(line + length, NULL, 10);
		if (*line == '\0')
			break;
	}
	return 0;
}

/* What one control group leaves for the page cache. Its cache is counted as free, because the kernel replaces it. */
static uint64
GroupMemory(const char *folder, bool is_v2)
{
	char		path[MAXPGPATH];
	char		text[FILE_TEXT_MAX];
	uint64		limit;
	uint64		used;
	uint64		cache;

	snprintf(path, sizeof(path), "%s/%s", folder, is_v2 ? "memory.max" : "memory.limit_in_bytes");
	if (!ReadText(path, text, sizeof(text)) || strncmp(text, "max", 3) == 0)
		return PG_UINT64_MAX;
	limit = strtoull(text, NULL, 10);
	snprintf(path, sizeof(path), "%s/%s", folder, is_v2 ? "memory.current" : "memory.usage_in_bytes");
	if (!ReadText(path, text, sizeof(text)))
		return PG_UINT64_MAX;
	used = strtoull(text, NULL, 10);
	snprintf(path, sizeof(path), "%s/memory.stat", folder);
	if (!ReadText(path, text, sizeof(text)))
		return PG_UINT64_MAX;
	cache = is_v2 ? NumberAfter(text, "inactive_file ") + NumberAfter(text, "active_file ") :
		NumberAfter(text, "total_inactive_file ") + NumberAfter(text, "total_active_file ");
	used -= Min(used, cache);
	return limit - Min(limit, used);
}

/* The least that a group and those above it leave. `group` is a path within the hierarchy, which is mounted at `mount`. */
static uint64
GroupsMemory(const char *mount, const char *group, bool is_v2)
{
	char		path[MAXPGPATH];
	size_t		top = strlen(mount);
	uint64		memory = PG_UINT64_MAX;

	snprintf(path, sizeof(path), "%s%s", mount, group);
	for (;;)
	{
		char	   *slash;

		memory = Min(memory, GroupMemory(path, is_v2));
		slash = strrchr(path, '/');
		if (slash == NULL || (size_t) (slash - path) < top)
			return memory;
		*slash = '\0';
	}
}

/* The memory that the kernel can use to cache files that this process reads. */
static uint64
CacheMemory(void)
{
	static uint64 known = 0;
	static uint64 asked_ns = 0;
	uint64		now = BpsNow();
	char		text[FILE_TEXT_MAX];

	if (asked_ns != 0 && now - asked_ns < MEMORY_INTERVAL_NS)
		return known;
	asked_ns = now;
	known = ReadText("/proc/meminfo", text, sizeof(text)) ? NumberAfter(text, "MemAvailable:") * 1024 : 0;
	if (ReadText("/proc/self/cgroup", text, sizeof(text)))
	{
		char	   *rest = NULL;

		/* Each line is number:controllers:path; version 2 has number 0 and no controllers. */
		for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
		{
			char	   *controllers = strchr(line, ':');
			char	   *group = controllers ? strchr(controllers + 1, ':') : NULL;

			if (group == NULL)
				continue;
			*group++ = '\0';
			if (strcmp(line, "0:") == 0)
				known = Min(known, GroupsMemory("/sys/fs/cgroup", group, true));
			else if (strcmp(controllers + 1, "memory") == 0)
				known = Min(known, GroupsMemory("/sys/fs/cgroup/memory", group, false));
		}
	}
	return known;
}

/* ---- residency ---- */

/* How much of a range of blocks the page cache has, in bytes; 0 if the kernel does not say. */
static uint64
CachedBytes(Relation rel, BlockNumber first, BlockNumber blocks)
{
	uint64		bytes = 0;
	uint64		block = first;
	uint64		end = (uint64) first + blocks;

	while (block < end)
	{
		uint64		segment_end = Min(end, (block / RELSEG_SIZE + 1) * RELSEG_SIZE);
		char	   *path = BpsSegmentPath(rel, (uint32) (block / RELSEG_SIZE));
		struct bp_scan_source source = {0};
		uint64_t	here = 0;

		source.path = path;
		if (bp_scan_resident_bytes(&source, block % RELSEG_SIZE * BLCKSZ,
								   (segment_end - block / RELSEG_SIZE * RELSEG_SIZE) * BLCKSZ, &here) >= 0)
			bytes += here;
		pfree(path);
		block = segment_end;
	}
	return bytes;
}

/* Whether most of a range of blocks is in the page cache. */
bool
BpsRangeIsCached(Relation rel, BlockNumber first, BlockNumber blocks)
{
	return CachedBytes(rel, first, blocks) > (uint64) blocks * BLCKSZ / 2;
}

/* ---- the decision ---- */

/* Whether a node reads as an ordinary sequential scan, and why. It is asked at the scan's first tuple. */
BpsDecline
BpsDecide(BpsScan *scan, BlockNumber blocks, bool is_parallel)
{
	EState	   *estate = scan->css.ss.ps.state;
	Relation	rel = scan->css.ss.ss_currentRelation;
	Index		index = ((Scan *) scan->css.ss.ps.plan)->scanrelid;
	double		bytes;

	if (!bps_enabled)
		return BPS_DECLINE_DISABLED;
	if (estate->es_snapshot == NULL || estate->es_snapshot->snapshot_type != SNAPSHOT_MVCC)
		return BPS_DECLINE_SNAPSHOT;
	if (IsolationIsSerializable())
		return BPS_DECLINE_SERIALIZABLE;
	if (!BpsRelationIsEligible(rel))
		return BPS_DECLINE_RELATION;
	if (ExecFindRowMark(estate, index, true) != NULL || ExecRelationIsTargetRelation(estate, index))
		return BPS_DECLINE_ROW_MARKS;
	if (estate->es_epq_active != NULL)
		return BPS_DECLINE_RECHECK;
	if (CompatSnapshotsExpire())
		return BPS_DECLINE_OLD_SNAPSHOTS;
	if (CompatWritesDirectly())
		return BPS_DECLINE_DIRECT_WRITES;
	if (bps_force || !bps_residency)
		return BPS_NOT_DECLINED;
	bytes = Max((double) blocks * BLCKSZ, BpsAppendedBytes((CustomScan *) scan->css.ss.ps.plan));
	if (bytes <= bps_cache_share * (double) CacheMemory())
		return BPS_DECLINE_FITS;
	if (BpsRangeIsCached(rel, 0, blocks))
		return BPS_DECLINE_CACHED;
	/* Serial scans may share a pool. */
	if ((is_parallel || !BpsSharingWanted()) && !BpsBeginReading(rel))
		return BPS_DECLINE_READ_ALREADY;
	return BPS_NOT_DECLINED;
}

/* What EXPLAIN says of it. */
const char *
BpsDeclineText(BpsDecline decline)
{
	switch (decline)
	{
		case BPS_NOT_DECLINED:
			break;
		case BPS_DECLINE_DISABLED:
			return "bedplate_scan.enabled is off";
		case BPS_DECLINE_SNAPSHOT:
			return "not an MVCC snapshot";
		case BPS_DECLINE_SERIALIZABLE:
			return "serializable transaction";
		case BPS_DECLINE_RELATION:
			return "temporary table, catalog, or other kind of table";
		case BPS_DECLINE_ROW_MARKS:
			return "rows are changed or locked";
		case BPS_DECLINE_RECHECK:
			return "rows are checked again after an update";
		case BPS_DECLINE_OLD_SNAPSHOTS:
			return "old_snapshot_threshold is set";
		case BPS_DECLINE_DIRECT_WRITES:
			return "debug_io_direct is set for data";
		case BPS_DECLINE_CACHED:
			return "most of the table is in the page cache";
		case BPS_DECLINE_FITS:
			return "the page cache has room for the table";
		case BPS_DECLINE_READ_ALREADY:
			return "another session reads the table directly";
	}
	return NULL;
}
