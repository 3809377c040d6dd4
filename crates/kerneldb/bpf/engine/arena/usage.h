/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * How recently, or how often, each key is used. User space evicts by it when memory is short.
 *
 * The usage of a key is one byte of its entry. Operators write it without a lock, also readers that hold none, so an
 * access may get lost, or count for the key that has taken the entry's memory. An access in KDB_USAGE_IDLE writes the
 * byte only if it is not 0 yet: keys that are read all the time stay in the caches of all processors.
 */
#ifndef BEDPLATE_ENGINE_USAGE_H
#define BEDPLATE_ENGINE_USAGE_H

#include "arena.h"

/* The usage of a new entry. */
static __always_inline __u8 usage_of_new(void)
{
	return super()->usage_kind == KDB_USAGE_COUNT ? KDB_USAGE_COUNT_NEW : 0;
}

/*
 * Changes the usage of a key that is accessed. KDB_USAGE_COUNT counts an access with the probability
 * 1 / ((usage - KDB_USAGE_COUNT_NEW) * usage_factor + 1).
 */
__noinline int usage_change(__u32 entry)
{
	__u32 usage = LOAD(&entry_at(entry)->usage);

	USE_ARENA();
	if (super()->usage_kind == KDB_USAGE_IDLE) {
		if (usage)
			STORE(&entry_at(entry)->usage, 0);
	} else if (usage < KDB_USAGE_MAX) {
		__u64 above = usage > KDB_USAGE_COUNT_NEW ? usage - KDB_USAGE_COUNT_NEW : 0;
		if (!(bpf_get_prandom_u32() * (above * super()->usage_factor + 1) >> 32))
			STORE(&entry_at(entry)->usage, usage + 1);
	}
	return 0;
}

/* Notes an access to the key of an entry. */
static __always_inline void usage_note(__u32 entry)
{
	if (LOAD(&super()->usage_kind) != KDB_USAGE_NONE)
		usage_change(entry);
}

#endif
