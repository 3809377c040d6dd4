/*
 * memory.c
 *	  The extension's shared memory: one place that asks the postmaster for it, and has each owner set its part up.
 *
 * Shared memory can be had only while the postmaster starts, so the extension has some only if it is in
 * shared_preload_libraries. The owners are statistics.c, sharing.c and readers.c; each works without its part.
 *
 * Locks: AddinShmemInitLock, while the owners set up their parts.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

static shmem_startup_hook_type previous_startup_hook;
static shmem_request_hook_type previous_request_hook;

static void
RequestMemory(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(BpsTotalsSize());
	RequestAddinShmemSpace(BpsPoolsSize());
	RequestAddinShmemSpace(BpsReadersSize());
	RequestNamedLWLockTranche(BPS_TRANCHE, 1);
}

static void
StartMemory(void)
{
	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	BpsStartTotals();
	BpsStartPools();
	BpsStartReaders();
	LWLockRelease(AddinShmemInitLock);
}

void
BpsInstallMemory(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = RequestMemory;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = StartMemory;
}
