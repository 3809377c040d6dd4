/*
 * settings.c
 *	  The settings of bedplate_scan.
 *
 * A setting that decides whether a node reads directly is looked at when the node returns its first tuple, not when the query
 * is planned, because prepared plans outlive settings. In a parallel scan the leader's values count.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "faults.h"
#include "utils/guc.h"

bool		bps_enabled = true;
bool		bps_force = false;
bool		bps_residency = true;
int			bps_min_table_megabytes = 64;
int			bps_ring_megabytes = 20;
double		bps_cache_share = 0.5;
char	   *bps_sharing = NULL;
char	   *bps_program = NULL;

/* off, auto, or the absolute path of a socket */
static bool
CheckSharing(char **value, void **extra, GucSource source)
{
	(void) extra;
	(void) source;
	if (strcmp(*value, "off") == 0 || strcmp(*value, "auto") == 0 || (*value)[0] == '/')
		return true;
	GUC_check_errdetail("It is \"off\", \"auto\", or the absolute path of the socket that \"bedplate scan serve\" listens at.");
	return false;
}

void
BpsDefineSettings(void)
{
	DefineCustomBoolVariable("bedplate_scan.enabled",
							 "Replaces sequential scans of large tables by scans that read past the page cache.",
							 NULL, &bps_enabled, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("bedplate_scan.min_table_size",
							"The smallest table whose sequential scans are replaced.",
							NULL, &bps_min_table_megabytes, 64, 0, MAX_KILOBYTES / 1024,
							PGC_USERSET, GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomIntVariable("bedplate_scan.ring_size",
							"The memory that each scan, and each worker of a parallel one, reads into.",
							NULL, &bps_ring_megabytes, 20, BPS_RING_MEGABYTES_MIN, BPS_RING_MEGABYTES_MAX,
							PGC_USERSET, GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomBoolVariable("bedplate_scan.residency",
							 "Leaves tables, and parts of them, to the page cache where it has them or has room for them.",
							 NULL, &bps_residency, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomRealVariable("bedplate_scan.cache_share",
							 "Tables that are smaller than this share of the memory that is free for the page cache are left to it.",
							 "Reading past the page cache never warms it, so that the next scan of such a table would be slower.",
							 &bps_cache_share, 0.5, 0.0, 1.0, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("bedplate_scan.force",
							 "Replaces sequential scans of every eligible table and reads it directly from its first block.",
							 "For tests: it ignores the size of tables and what the page cache has.",
							 &bps_force, false, PGC_SUSET, GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomStringVariable("bedplate_scan.sharing",
							   "Lets scans of the same table that run at the same time share what they read.",
							   "\"off\"; \"auto\" for the server's own daemon; or the path of a daemon's socket.",
							   &bps_sharing, "off", PGC_SUSET, 0, CheckSharing, NULL, NULL);
	DefineCustomStringVariable("bedplate_scan.program",
							   "The program \"bedplate\", which the server's own daemon runs.",
							   NULL, &bps_program, "bedplate", PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	BpsDefineFaults();
	MarkGUCPrefixReserved("bedplate_scan");
}
