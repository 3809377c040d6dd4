/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* A session's transaction and its list of locks, for both engines. */
#ifndef BEDPLATE_ENGINE_SESSION_H
#define BEDPLATE_ENGINE_SESSION_H

#include "commit.h"
#include "snapshot.h"

#define MODE_SHARED 1
#define MODE_EXCLUSIVE 2

static __always_inline struct kdb_lock *lock_at(struct kdb_ctx *ctx, __u32 i)
{
	return &ctx->locks[i & (KDB_TX_LOCKS - 1)];
}

static __always_inline __u64 owner_word(const struct kdb_ctx *ctx, __u32 index)
{
	return (ctx->session + 1) | (__u64)index << KDB_LOCK_IDX_SHIFT;
}

static __always_inline int tx_fail(struct kdb_state *state, struct kdb_ctx *ctx, int status)
{
	ctx->state = KDB_TX_FAILED;
	ctx->error = status;
	return count_error(state, status);
}

static __always_inline int tx_check(struct kdb_ctx *ctx, __u32 want)
{
	if (ctx->state == want)
		return KDB_OK;
	return ctx->state == KDB_TX_FAILED ? KDB_ERR_ABORTED : KDB_ERR_STATE;
}

static __always_inline void tx_start(struct kdb_ctx *ctx, __u32 tx_state)
{
	/* Markers of the last transaction are gone from all entries by now; see marker_commit_ts(). */
	WRITE_ONCE(ctx->commit_ts, 0);
	barrier();
	WRITE_ONCE(ctx->tx_seq, ctx->tx_seq + 1);
	ctx->nlocks = 0;
	ctx->nwrites = 0;
	ctx->partitions = 0;
	ctx->error = 0;
	ctx->state = tx_state;
}

/* BEGIN: OK, Error. */
__noinline int kdb_begin(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();

	if (!ctx || !state || ctx->state != KDB_TX_NONE)
		return KDB_ERR_STATE;
	tx_start(ctx, KDB_TX_ACTIVE);
	ctx->snapshot_ts = READ_ONCE(state->clock);
	kdb_stats(state)->begins++;
	return KDB_OK;
}

/* BEGIN (read-only): OK; KDB_ERR_BUSY when KDB_SNAPSHOTS are active. */
__noinline int kdb_begin_ro(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();

	if (!ctx || !state || ctx->state != KDB_TX_NONE)
		return KDB_ERR_STATE;
	if (!SINGLE_VERSION && snapshot_register(state, ctx))
		return KDB_ERR_BUSY;
	tx_start(ctx, KDB_TX_READ_ONLY);
	kdb_stats(state)->begins_ro++;
	return KDB_OK;
}

static __always_inline int tx_has_writes(struct kdb_ctx *ctx)
{
	__u32 i, n = ctx->nlocks;
	int writes = 0;

	for (i = 0; i < KDB_TX_LOCKS; i++) {
		if (i >= n)
			break;
		if (lock_at(ctx, i)->slot) {
			writes = 1;
			break;
		}
	}
	return writes;
}

#endif
