/*
 * compat.h
 *	  The differences between the server versions that bedplate_scan supports: 15 to 18.
 *
 * No other file tests PG_VERSION_NUM. Each name below says what it does; the versions only differ in how.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BEDPLATE_SCAN_COMPAT_H
#define BEDPLATE_SCAN_COMPAT_H

#include "access/transam.h"
#include "commands/explain.h"
#include "common/relpath.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/buf_internals.h"
#include "storage/fd.h"
#include "storage/proc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "bedplate_scan supports PostgreSQL 15 to 18"
#endif

#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif

/* The tag by which the buffer table knows a block of a relation's main fork. */
static inline void
CompatMainForkTag(BufferTag *tag, Relation rel, BlockNumber block)
{
#if PG_VERSION_NUM >= 160000
	InitBufferTag(tag, &rel->rd_locator, MAIN_FORKNUM, block);
#else
	INIT_BUFFERTAG(*tag, rel->rd_node, MAIN_FORKNUM, block);
#endif
}

/* The path of the first segment of a relation's main fork, in memory of the current context. */
static inline char *
CompatMainForkPath(Relation rel)
{
#if PG_VERSION_NUM >= 180000
	return pstrdup(relpathperm(rel->rd_locator, MAIN_FORKNUM).str);
#elif PG_VERSION_NUM >= 160000
	return relpathperm(rel->rd_locator, MAIN_FORKNUM);
#else
	return relpathperm(rel->rd_node, MAIN_FORKNUM);
#endif
}

/* What identifies a relation's files: tablespace, database and number. */
static inline void
CompatFileIdentity(Relation rel, Oid identity[3])
{
#if PG_VERSION_NUM >= 160000
	identity[0] = rel->rd_locator.spcOid;
	identity[1] = rel->rd_locator.dbOid;
	identity[2] = rel->rd_locator.relNumber;
#else
	identity[0] = rel->rd_node.spcNode;
	identity[1] = rel->rd_node.dbNode;
	identity[2] = rel->rd_node.relNode;
#endif
}

/* The oldest transaction whose outcome the commit log still has. The caller must hold XactTruncationLock to rely on it. */
static inline TransactionId
CompatOldestClogXid(void)
{
#if PG_VERSION_NUM >= 170000
	return TransamVariables->oldestClogXid;
#else
	return ShmemVariableCache->oldestClogXid;
#endif
}

/* Whether snapshots may be too old for the pages that they see. The setting is gone since version 17. */
static inline bool
CompatSnapshotsExpire(void)
{
#if PG_VERSION_NUM >= 170000
	return false;
#else
	return old_snapshot_threshold >= 0;
#endif
}

/* Whether the server writes tables past the page cache. Then a stamp does not say that a write is under way. */
static inline bool
CompatWritesDirectly(void)
{
#if PG_VERSION_NUM >= 160000
	return (io_direct_flags & IO_DIRECT_DATA) != 0;
#else
	return false;
#endif
}

/* This process's place among the backends, counted from 0; -1 for a process that is none. */
static inline int
CompatBackendNumber(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProcNumber == INVALID_PROC_NUMBER ? -1 : MyProcNumber;
#else
	return MyBackendId == InvalidBackendId ? -1 : MyBackendId - 1;
#endif
}

/* Counts bytes that this process read from a relation's file (pg_stat_io, since version 16). */
static inline void
CompatCountRead(BufferAccessStrategy strategy, uint64 bytes)
{
#if PG_VERSION_NUM >= 180000
	pgstat_count_io_op(IOOBJECT_RELATION, IOContextForStrategy(strategy), IOOP_READ, 1, bytes);
#elif PG_VERSION_NUM >= 160000
	pgstat_count_io_op_n(IOOBJECT_RELATION, IOContextForStrategy(strategy), IOOP_READ, (uint32) (bytes / BLCKSZ));
#else
	(void) strategy;
	(void) bytes;
#endif
}

/* Counts the time since `begin` as spent reading blocks (track_io_timing). */
static inline void
CompatCountReadTime(BufferAccessStrategy strategy, instr_time begin)
{
#if PG_VERSION_NUM >= 180000
	pgstat_count_io_op_time(IOOBJECT_RELATION, IOContextForStrategy(strategy), IOOP_READ, begin, 0, 0);
#elif PG_VERSION_NUM >= 160000
	pgstat_count_io_op_time(IOOBJECT_RELATION, IOContextForStrategy(strategy), IOOP_READ, begin, 0);
#else
	instr_time	time;

	(void) strategy;
	INSTR_TIME_SET_CURRENT(time);
	INSTR_TIME_SUBTRACT(time, begin);
	pgstat_count_buffer_read_time(INSTR_TIME_GET_MICROSEC(time));
	INSTR_TIME_ADD(pgBufferUsage.blk_read_time, time);
#endif
}

/*
 * Version 15 gives custom scans a virtual scan slot and compiles their expressions for it; later ones let the provider name
 * the kind of slot before.
 */
#if PG_VERSION_NUM >= 160000
#define COMPAT_SLOT_KIND_IS_GIVEN 1
#else
#define COMPAT_SLOT_KIND_IS_GIVEN 0
#endif

#endif							/* BEDPLATE_SCAN_COMPAT_H */
