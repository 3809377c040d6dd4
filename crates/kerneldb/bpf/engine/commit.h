/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Committing, for both engines: markers of uncommitted versions, whether writes are allowed, the latch
 * under which commit timestamps are assigned, errors.
 */
#ifndef BEDPLATE_ENGINE_COMMIT_H
#define BEDPLATE_ENGINE_COMMIT_H

#include "maps.h"

/* Single-version mode (paper 6.9): there are no snapshots; readers that need a stable view lock. */
#define SINGLE_VERSION (kdb_config.versions == 1)

#define MARKER_SEQ_MASK ((1ull << KDB_MARKER_SEQ_BITS) - 1)
#define TS_LATEST (KDB_MARKER - 1)

static __always_inline __u64 marker_of(const struct kdb_ctx *ctx)
{
	return KDB_MARKER | (__u64)ctx->session << KDB_MARKER_SEQ_BITS | (ctx->tx_seq & MARKER_SEQ_MASK);
}

/* Commit timestamp of the transaction behind a marker, if it has committed and the context is still its
 * own; else 0. */
static __always_inline __u64 marker_commit_ts(__u64 marker)
{
	__u32 session = (marker & ~KDB_MARKER) >> KDB_MARKER_SEQ_BITS;
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);

	if (ctx && (READ_ONCE(ctx->tx_seq) & MARKER_SEQ_MASK) == (marker & MARKER_SEQ_MASK))
		return READ_ONCE(ctx->commit_ts);
	return 0;
}

static __always_inline int check_writable(struct kdb_state *state)
{
	if (kdb_config.wal && READ_ONCE(state->wal_failed))
		return KDB_ERR_WAL_FAILED;
	return READ_ONCE(state->writes_paused) ? KDB_ERR_BUSY : KDB_OK;
}

static __always_inline __u64 now_ms(struct kdb_state *state)
{
	return bpf_ktime_get_ns() / 1000000 + state->clock_offset_ms;
}

static __always_inline int latch_try(struct kdb_state *state)
{
	return !READ_ONCE(state->commit_latch) && !__sync_val_compare_and_swap(&state->commit_latch, 0, 1);
}

struct latch_wait {
	struct kdb_state *state;
	__u64 held;
};

static long latch_step(__u32 i, struct latch_wait *wait)
{
	wait->held = latch_try(wait->state);
	return wait->held;
}

static __always_inline int latch_acquire(struct kdb_state *state)
{
	struct latch_wait wait = { .state = state };

	if (latch_try(state))
		return 1;
	bpf_loop(1 << 20, latch_step, &wait, 0);
	return wait.held;
}

/* Publishes `ts`; the exchange is a full barrier between it and the read of active snapshots. */
static __always_inline void latch_publish(struct kdb_state *state, __u64 ts)
{
	__sync_lock_test_and_set(&state->clock, ts);
	barrier();
	WRITE_ONCE(state->commit_latch, 0);
}

static __always_inline int count_error(struct kdb_state *state, int status)
{
	struct kdb_cpu_stats *stats = kdb_stats(state);

	if (status == KDB_ERR_CONFLICT)
		stats->conflicts++;
	else if (status == KDB_ERR_NO_MEMORY)
		stats->no_memory++;
	else if (status == KDB_ERR_NO_VERSION)
		stats->no_version++;
	else if (status == KDB_ERR_WAL_FULL)
		stats->wal_full++;
	else if (status == KDB_ERR_TX_TOO_LARGE)
		stats->tx_too_large++;
	return status;
}

#endif
