/*
 * bedplate_scan.c
 *	  The extension's entry: it registers the settings, the node and the hooks.
 *
 * LOAD, session_preload_libraries and shared_preload_libraries all work. Sharing between backends, and totals of other
 * backends, take shared_preload_libraries.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "fmgr.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	BpsDefineSettings();
	BpsRegisterNode();
	BpsInstallPlannerHook();
	BpsInstallMemory();
	BpsInstallSharing();
}
