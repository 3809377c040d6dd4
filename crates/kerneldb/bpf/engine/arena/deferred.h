/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Blocks that no version has any more, but that the log's reader may still need. The records of large
 * auto-commit writes refer to their block instead of having a copy of the value, because a copy would cost
 * more than the rest of the write.
 *
 * A block of a commit after `drained_ts` waits in a list, which is linked through the values' heads (with a
 * log, every block has one). The collector takes the whole list and notes the clock, which is not before any
 * commit in the list. It frees the blocks when the reader has reached that timestamp.
 */
#ifndef BEDPLATE_ENGINE_DEFERRED_H
#define BEDPLATE_ENGINE_DEFERRED_H

#include "alloc.h"

/* Whether the log's reader is done with a commit. The function first tries a value that this CPU has seen. */
static __always_inline int log_drained(struct kdb_state *state, __u64 ts)
{
	struct kdb_cpu_stats *stats = kdb_stats(state);

	if (ts <= stats->drained_seen)
		return 1;
	stats->drained_seen = READ_ONCE(state->drained_ts);
	return ts <= stats->drained_seen;
}

#define DEFERRED_BIG (1ull << 32) /* The value's head is in its slab's descriptor. */

static __always_inline __u32 deferred_len(__u64 link)
{
	return KDB_LEN_HEAD | (link & DEFERRED_BIG ? KDB_VAL_MAX : 0);
}

/* Frees the block of a version that was committed at `ts`. */
static __always_inline void block_retire(struct kdb_state *state, __u32 block, __u32 len, __u64 ts)
{
	struct kdb_arena __arena *s = super();
	__u64 link = block | ((len & KDB_LEN_MASK) > KDB_HEADED_MAX ? DEFERRED_BIG : 0);
	__u32 i;

	if (!kdb_config.wal || log_drained(state, ts)) {
		block_free(block, len);
		return;
	}
	bpf_for(i, 0, 1 << 20) {
		__u64 head = LOAD(&s->deferred_head);

		ASTORE64(head_at(block, len), head);
		if (CAS(&s->deferred_head, head, link) == head)
			return;
	}
}

/* Frees up to `budget` blocks that the reader is done with, and counts them. The caller holds the collector's
 * latch. */
__noinline int deferred_collect(__u32 budget)
{
	struct kdb_state *state = kdb_state();
	struct kdb_arena __arena *s = super();
	__u32 i;

	USE_ARENA();
	if (!state)
		return 0;
	if (!s->deferred_rest) {
		s->deferred_rest = __sync_lock_test_and_set(&s->deferred_head, 0);
		barrier();
		s->deferred_ts = READ_ONCE(state->clock);
	}
	if (READ_ONCE(state->drained_ts) < s->deferred_ts)
		return 0;
	bpf_for(i, 0, budget) {
		__u64 link = LOAD(&s->deferred_rest);

		if (!link)
			break;
		STORE(&s->deferred_rest, ALOAD64(head_at(link, deferred_len(link))));
		block_free(link, deferred_len(link));
		kdb_stats(state)->deferred_freed++;
	}
	return 0;
}

#endif
