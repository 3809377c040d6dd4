/*
 * faults.h
 *	  Faults that tests inject: delays and gates between look-up, read and use, torn images, channels that fail, and
 *	  deliberately wrong versions of the rule ("mutants") that the tests must notice.
 *
 * All of it exists with -DBEDPLATE_SCAN_FAULTS only. Otherwise these functions are empty.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BEDPLATE_SCAN_FAULTS_H
#define BEDPLATE_SCAN_FAULTS_H

#include "bedplate_scan.h"

/* Versions of the rule without one of its parts. */
typedef enum BpsMutant
{
	BPS_MUTANT_NONE,
	BPS_MUTANT_LOOKUP_AFTER,	/* blocks are looked up only after they were read */
	BPS_MUTANT_STALE_POOL,		/* images that are older than the scan are not compared with their file */
	BPS_MUTANT_NO_TEAR_TEST		/* neither STABLE nor the checksum is looked at */
} BpsMutant;

typedef enum BpsGate
{
	BPS_GATE_BEFORE_LOOK_UP,	/* a chunk was claimed */
	BPS_GATE_BEFORE_READ,		/* its blocks were looked up; the channel has not been told */
	BPS_GATE_AFTER_READ,		/* the image is in hand, and nothing has been judged */
	BPS_GATE_BEFORE_USE			/* the image may be used; which tuples are visible has not been judged */
} BpsGate;

#ifdef BEDPLATE_SCAN_FAULTS
extern void BpsDefineFaults(void);
extern void BpsFaultGate(BpsGate gate);
extern bool BpsFaultChannel(const BpsChannel *channel);
extern Page BpsFaultTear(BpsScan *scan, int index, Page page, Page neighbour, bool *is_stable);
extern bool BpsIsMutant(BpsMutant mutant);
#else
static inline void
BpsDefineFaults(void)
{
}

static inline void
BpsFaultGate(BpsGate gate)
{
	(void) gate;
}

static inline bool
BpsFaultChannel(const BpsChannel *channel)
{
	(void) channel;
	return false;
}

static inline Page
BpsFaultTear(BpsScan *scan, int index, Page page, Page neighbour, bool *is_stable)
{
	(void) scan;
	(void) index;
	(void) neighbour;
	(void) is_stable;
	return page;
}

static inline bool
BpsIsMutant(BpsMutant mutant)
{
	(void) mutant;
	return false;
}
#endif

#endif							/* BEDPLATE_SCAN_FAULTS_H */
