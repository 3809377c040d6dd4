/*
 * faults.c
 *	  Faults that tests inject. Empty unless built with -DBEDPLATE_SCAN_FAULTS.
 *
 * A gate holds a scan at a point of the rule until the test lets it go on: at gate P the backend removes the file
 * "<fault_gate>.<P>", if there is one, creates "<fault_gate>.<P>.reached", and waits until that has been removed.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "faults.h"

#ifdef BEDPLATE_SCAN_FAULTS

#include <fcntl.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/guc.h"

static int	before_read_us = 0;
static int	after_read_us = 0;
static int	tear_every = 0;
static int	channel_fails_after = 0;
static int	mutant = BPS_MUTANT_NONE;
static char *gate_prefix = NULL;
static uint64 images = 0;

static const struct config_enum_entry mutants[] = {
	{"none", BPS_MUTANT_NONE, false},
	{"lookup_after", BPS_MUTANT_LOOKUP_AFTER, false},
	{"stale_pool", BPS_MUTANT_STALE_POOL, false},
	{"no_tear_test", BPS_MUTANT_NO_TEAR_TEST, false},
	{NULL, 0, false}
};

void
BpsDefineFaults(void)
{
	DefineCustomIntVariable("bedplate_scan.fault_before_read", "Delay between the look-up of blocks and their read.",
							NULL, &before_read_us, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("bedplate_scan.fault_after_read", "Delay between the read of blocks and their use.",
							NULL, &after_read_us, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("bedplate_scan.fault_tear", "Tears every so many images; 0 for none.",
							NULL, &tear_every, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("bedplate_scan.fault_channel", "Lets a channel fail after so many pages; 0 for never.",
							NULL, &channel_fails_after, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("bedplate_scan.fault_gate", "Files by which a test holds a scan begin so.",
							   NULL, &gate_prefix, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("bedplate_scan.mutant", "A wrong version of the rule, which tests must notice.",
							 NULL, &mutant, BPS_MUTANT_NONE, mutants, PGC_USERSET, 0, NULL, NULL, NULL);
}

bool
BpsIsMutant(BpsMutant which)
{
	return mutant == (int) which;
}

static void
Hold(const char *name)
{
	char	   *gate = psprintf("%s.%s", gate_prefix, name);
	char	   *reached = psprintf("%s.reached", gate);

	if (unlink(gate) == 0)
	{
		int			fd = OpenTransientFile(reached, O_CREAT | O_WRONLY);

		if (fd >= 0)
			CloseTransientFile(fd);
		while (access(reached, F_OK) == 0)
		{
			CHECK_FOR_INTERRUPTS();
			pg_usleep(1000);
		}
	}
	pfree(reached);
	pfree(gate);
}

void
BpsFaultGate(BpsGate gate)
{
	static const char *const names[] = {"before_look_up", "before_read", "after_read", "before_use"};
	int			delay_us = gate == BPS_GATE_BEFORE_READ ? before_read_us :
		gate == BPS_GATE_AFTER_READ ? after_read_us : 0;

	if (gate_prefix != NULL && gate_prefix[0] != '\0')
		Hold(names[gate]);
	if (delay_us > 0)
		pg_usleep(delay_us);
}

bool
BpsFaultChannel(const BpsChannel *channel)
{
	return channel_fails_after > 0 && channel->pages >= (uint64) channel_fails_after;
}

/*
 * Returns the image, or a torn copy of it: its second half is that of another block, as after a write that was half done, and
 * it is not stable, as it would not be then.
 */
Page
BpsFaultTear(BpsScan *scan, int index, Page page, Page neighbour, bool *is_stable)
{
	char	   *copy;

	if (tear_every == 0 || neighbour == NULL || ++images % tear_every != 0)
		return page;
	if (scan->torn == NULL)
		scan->torn = MemoryContextAlloc(scan->css.ss.ps.state->es_query_cxt, (Size) BPS_CHUNK_BLOCKS * BLCKSZ);
	copy = scan->torn + (Size) index * BLCKSZ;
	memcpy(copy, page, BLCKSZ / 2);
	memcpy(copy + BLCKSZ / 2, (char *) neighbour + BLCKSZ / 2, BLCKSZ / 2);
	*is_stable = false;
	return (Page) copy;
}

#endif							/* BEDPLATE_SCAN_FAULTS */
