/*
 * statistics.c
 *	  What scans did: in EXPLAIN (ANALYZE), and in totals of backends.
 *
 * A scan counts in its own memory. Each participant of a parallel scan adds its counts to shared memory after each chunk and at
 * its end; the leader collects them before that memory goes away. Totals are those of the backend that ran the query: what
 * its workers did is counted there. A scan that each worker makes for itself is in the worker's totals alone.
 *
 * If the extension is in shared_preload_libraries, totals are in shared memory and bedplate_scan_statistics() returns a row
 * for each backend that is running. Otherwise they are in the backend's memory, and it returns the caller's own row.
 * Each slot is written by its backend alone; a reader may see the counts of a scan halfway.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "compat.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

typedef struct BackendTotals
{
	pg_atomic_uint32 pid;		/* 0: no backend has used the slot, or the one that did has ended */
	pg_atomic_uint64 counts[BPS_COUNTERS];
} BackendTotals;

static BackendTotals *shared_totals = NULL; /* one for each backend; NULL without shared memory */
static BackendTotals own_totals;
static BackendTotals *totals = NULL;

static void
ClearTotals(BackendTotals *slot, uint32 pid)
{
	pg_atomic_init_u32(&slot->pid, pid);
	for (int i = 0; i < BPS_COUNTERS; i++)
		pg_atomic_init_u64(&slot->counts[i], 0);
}

static void
EndTotals(int code, Datum arg)
{
	(void) code;
	(void) arg;
	pg_atomic_write_u32(&totals->pid, 0);
}

static BackendTotals *
Totals(void)
{
	int			number = CompatBackendNumber();

	if (totals != NULL)
		return totals;
	totals = shared_totals != NULL && number >= 0 && number < MaxBackends ? &shared_totals[number] : &own_totals;
	ClearTotals(totals, (uint32) MyProcPid);
	if (totals != &own_totals)
		before_shmem_exit(EndTotals, 0);
	return totals;
}

static void
AddToTotals(const BpsCounts *counts)
{
	BackendTotals *slot = Totals();

	for (int i = 0; i < BPS_COUNTERS; i++)
		if (counts->of[i] != 0)
			pg_atomic_write_u64(&slot->counts[i], pg_atomic_read_u64(&slot->counts[i]) + counts->of[i]);
}

static void
AddCounts(BpsCounts *to, const BpsCounts *from)
{
	for (int i = 0; i < BPS_COUNTERS; i++)
		to->of[i] += from->of[i];
}

/* Hands on what this participant counted since the last time. */
void
BpsReportCounts(BpsScan *scan)
{
	if (scan->shared != NULL)
	{
		for (int i = 0; i < BPS_COUNTERS; i++)
			if (scan->counts.of[i] != 0)
				pg_atomic_fetch_add_u64(&scan->shared->counts[i], scan->counts.of[i]);
	}
	else
	{
		AddCounts(&scan->reported, &scan->counts);
		AddToTotals(&scan->counts);
	}
	memset(&scan->counts, 0, sizeof(scan->counts));
}

/* Takes the counts of all participants out of the shared memory, which goes away soon. */
void
BpsCollectShared(BpsScan *scan)
{
	BpsCounts	counts;

	if (scan->shared == NULL)
		return;
	for (int i = 0; i < BPS_COUNTERS; i++)
		counts.of[i] = pg_atomic_exchange_u64(&scan->shared->counts[i], 0);
	AddCounts(&scan->reported, &counts);
	AddToTotals(&counts);
	scan->decline = (BpsDecline) scan->shared->decline;
}

void
BpsExplain(BpsScan *scan, ExplainState *es)
{
	static const struct
	{
		BpsCounter	counter;
		const char *label;
		bool		is_detail;	/* left out of the text if it is 0 */
	}			rows[] = {
		{BPS_CHUNKS_DIRECT, "Chunks Direct", false},
		{BPS_BLOCKS_DIRECT, "Blocks Direct", false},
		{BPS_BLOCKS_BUFFERED, "Blocks From Buffer Manager", false},
		{BPS_AT_START, "Blocks At Start", true},
		{BPS_PRESENT, "Blocks In Shared Buffers", true},
		{BPS_CACHED, "Blocks In Page Cache", true},
		{BPS_TORN, "Blocks Torn", true},
		{BPS_UNDECIDED, "Blocks Undecided", true},
		{BPS_CHANGED, "Blocks Changed", true},
		{BPS_NOT_READ, "Blocks Not Read", true},
		{BPS_WAITS, "Waits", false},
		{BPS_BYTES_READ, "Bytes Read", false},
		{BPS_BYTES_SHARED, "Bytes Shared", true},
	};
	BpsCounts	all = scan->reported;
	bool		is_text = es->format == EXPLAIN_FORMAT_TEXT;

	if (!es->analyze)
		return;
	AddCounts(&all, &scan->counts);
	if (scan->decline != BPS_NOT_DECLINED)
	{
		ExplainPropertyText("Ordinary Scan", BpsDeclineText(scan->decline), es);
		if (is_text)
			return;
	}
	for (size_t i = 0; i < lengthof(rows); i++)
	{
		if (!(is_text && rows[i].is_detail && all.of[rows[i].counter] == 0))
			ExplainPropertyUInteger(rows[i].label, NULL, all.of[rows[i].counter], es);
	}
	if (es->timing && !(is_text && all.of[BPS_WAITS] == 0))
		ExplainPropertyFloat("Wait Time", "ms", (double) all.of[BPS_WAIT_NANOSECONDS] / 1e6, 3, es);
}

/* ---- totals of backends ---- */

/* Adds a row for a slot, if a backend has it. */
static void
PutTotals(ReturnSetInfo *result, BackendTotals *slot)
{
	Datum		values[BPS_COUNTERS + 1];
	bool		nulls[BPS_COUNTERS + 1] = {false};
	uint32		pid = pg_atomic_read_u32(&slot->pid);

	if (pid == 0)
		return;
	values[0] = Int32GetDatum((int32) pid);
	for (int i = 0; i < BPS_COUNTERS; i++)
	{
		uint64		count = pg_atomic_read_u64(&slot->counts[i]);

		if (i == BPS_WAIT_NANOSECONDS)
			values[i + 1] = Float8GetDatum((double) count / 1e6);
		else
			values[i + 1] = Int64GetDatum((int64) count);
	}
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

PG_FUNCTION_INFO_V1(bedplate_scan_statistics);

Datum
bedplate_scan_statistics(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	Totals();
	if (shared_totals == NULL || totals == &own_totals)
		PutTotals(result, &own_totals);
	else
		for (int i = 0; i < MaxBackends; i++)
			PutTotals(result, &shared_totals[i]);
	return (Datum) 0;
}

Size
BpsTotalsSize(void)
{
	return mul_size(sizeof(BackendTotals), MaxBackends);
}

/* The caller must hold AddinShmemInitLock. */
void
BpsStartTotals(void)
{
	bool		is_there;

	shared_totals = ShmemInitStruct("bedplate_scan totals", BpsTotalsSize(), &is_there);
	if (!is_there)
		for (int i = 0; i < MaxBackends; i++)
			ClearTotals(&shared_totals[i], 0);
}
