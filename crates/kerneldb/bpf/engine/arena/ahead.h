/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Looking ahead: a program that runs several operators first touches the memory that all of them need. A single
 * operator has its cache misses one after the other (bucket, entry, value), and each takes longer than all of
 * its instructions. The misses of different keys overlap.
 *
 * These functions affect the cache only: the values that they load are not used, and may be stale. eBPF has no
 * prefetch instruction. A load whose result is not used has the same effect if only few instructions precede
 * the next one. The caller therefore touches the buckets of all keys first, then their entries, then their
 * values.
 */
#ifndef BEDPLATE_ENGINE_AHEAD_H
#define BEDPLATE_ENGINE_AHEAD_H

#include "version.h"

#define KDB_AHEAD 16u /* keys at once: a power of two; their lines fit into the first-level cache */
#define AHEAD_LINES 17u /* cache lines of a value, at most: a block of 1 KiB */

static __always_inline __u32 ahead_entry(__u64 hash)
{
	return (__u32)ALOAD64(kdb_config.buckets + ((__u32)hash & kdb_config.bucket_mask) * 8);
}

static __always_inline void kdb_ahead_bucket(__u64 hash)
{
	ahead_entry(hash);
}

/* The first entry of the chain; it is the right one more often than not. */
static __always_inline void kdb_ahead_entry(__u64 hash)
{
	__u32 entry = ahead_entry(hash);

	ALOAD64(entry);
	ALOAD64(entry + KDB_CACHE_LINE);
}

/* The newest value, if it is in a block. */
static __always_inline void kdb_ahead_value(__u64 hash)
{
	__u32 entry = ahead_entry(hash), block = 0, len = 0;
	__u64 newest = 0;

#pragma unroll
	for (int i = 0; i < KDB_INLINE_VERSIONS; i++) {
		struct kdb_version __arena *v = slot_in(entry, 0, i);
		__u64 ts = LOAD(&v->ts);
		__u64 newer = mask_negative(newest - ts) & ~mask_negative(ts);

		newest = PICK(newer, ts, newest);
		block = PICK(newer, LOAD(&v->block), block);
		len = PICK(newer, LOAD(&v->len), len);
	}
	if (!block || (len & KDB_LEN_INLINE))
		return;
	len &= KDB_LEN_MASK;
#pragma unroll
	for (int line = 0; line < AHEAD_LINES; line++) {
		if (line * KDB_CACHE_LINE > len)
			break;
		ALOAD64(block + line * KDB_CACHE_LINE);
	}
}

#endif
