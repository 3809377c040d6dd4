/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * A session's transaction and its list of locks, for both engines.
 *
 * Every operator of a transaction holds `in_use` of the session's context while it runs: tx_enter() and
 * tx_leave(). The reaper (kdb_reap()) takes it to roll back a transaction that has exceeded a limit. The reaper
 * holds it with interrupts off and for a few locks at a time, so an operator waits for it instead of failing.
 */
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

/* Whether an operator that ends in this state has had no effect and may be repeated soon, so that the transaction goes
 * on. The log's reader makes room in a full ring, and an operator that holds a latch or a lock for a moment releases
 * it. Every operator therefore reserves its log record before it changes anything but locks. */
static __always_inline int tx_goes_on(int status)
{
	return status == KDB_ERR_WAL_FULL || status == KDB_ERR_BUSY;
}

/* Ends an operator in an Error state. It fails the transaction unless the transaction goes on. */
static __always_inline int tx_fail(struct kdb_state *state, struct kdb_ctx *ctx, int status)
{
	if (!tx_goes_on(status)) {
		ctx->state = KDB_TX_FAILED;
		ctx->error = status;
	}
	return count_error(state, status);
}

/* The same for an operator with a key. With KDB_IO_REPEATS a lack of memory leaves the transaction as it was, too. */
static __always_inline int tx_fail_io(struct kdb_state *state, struct kdb_ctx *ctx, struct kdb_io *io, int status)
{
	if (status == KDB_ERR_NO_MEMORY && (io->flags & KDB_IO_REPEATS))
		return count_error(state, status);
	return tx_fail(state, ctx, status);
}

/* Whether the transaction is in the state that an operator needs. */
static __always_inline int tx_check(struct kdb_ctx *ctx, __u32 want)
{
	if (ctx->state == want)
		return KDB_OK;
	if (ctx->state != KDB_TX_FAILED)
		return KDB_ERR_STATE;
	return ctx->error == KDB_ERR_TX_TIMED_OUT ? KDB_ERR_TX_TIMED_OUT : KDB_ERR_ABORTED;
}

static __always_inline int ctx_try(struct kdb_ctx *ctx)
{
	return __sync_val_compare_and_swap(&ctx->in_use, KDB_CTX_FREE, KDB_CTX_OPERATOR) == KDB_CTX_FREE;
}

struct ctx_wait {
	struct kdb_ctx *ctx;
	__u64 taken;
};

static long ctx_step(__u32 i, struct ctx_wait *wait)
{
	wait->taken = !READ_ONCE(wait->ctx->in_use) && ctx_try(wait->ctx);
	return wait->taken;
}

/* Waits for the reaper, or for an operator that should not be running; returns 0 if that takes too long. */
__noinline int ctx_wait(struct kdb_ctx *ctx)
{
	struct ctx_wait wait = { .ctx = ctx };

	if (!ctx)
		return 0;
	bpf_loop(1 << 20, ctx_step, &wait, 0);
	return wait.taken;
}

/* Takes the context for an operator; returns 0 if that takes too long. */
static __always_inline int ctx_take(struct kdb_state *state, struct kdb_ctx *ctx)
{
	if (!ctx_try(ctx) && !ctx_wait(ctx))
		return 0;
	WRITE_ONCE(ctx->last_ns, READ_ONCE(state->coarse_ns));
	return 1;
}

static __always_inline int tx_leave(struct kdb_ctx *ctx, int status)
{
	barrier();
	WRITE_ONCE(ctx->in_use, KDB_CTX_FREE);
	return status;
}

/* Begins an operator of a transaction that is in the state `want`; tx_leave() ends it unless this fails. */
static __always_inline int tx_enter(struct kdb_state *state, struct kdb_ctx *ctx, __u32 want)
{
	int status;

	if (!ctx_take(state, ctx))
		return KDB_ERR_BUSY;
	status = tx_check(ctx, want);
	return status ? tx_leave(ctx, status) : KDB_OK;
}

/* Bytes that a write counts against KDB_TX_BYTES: an upper bound of the size of its log record. */
static __always_inline __u32 tx_write_bytes(struct kdb_io *io, int delete)
{
	return KDB_TX_WRITE_BYTES + (io->klen & 0xffff) + (delete ? 0 : io->vlen & 0x1ffff);
}

static __always_inline void tx_start(struct kdb_ctx *ctx, __u32 tx_state)
{
	/* Markers of the last transaction are gone from all entries by now; see marker_commit_ts(). */
	WRITE_ONCE(ctx->commit_ts, 0);
	barrier();
	WRITE_ONCE(ctx->tx_seq, ctx->tx_seq + 1);
	ctx->nlocks = 0;
	ctx->nwrites = 0;
	ctx->bytes = 0;
	ctx->partitions = 0;
	ctx->error = 0;
	WRITE_ONCE(ctx->begin_ns, ctx->last_ns);
	barrier();
	WRITE_ONCE(ctx->state, tx_state);
}

/* BEGIN: OK, Error. */
__noinline int kdb_begin(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();

	if (!ctx || !state || ctx->state != KDB_TX_NONE)
		return KDB_ERR_STATE;
	if (!ctx_take(state, ctx))
		return KDB_ERR_BUSY;
	ctx->snapshot_ts = READ_ONCE(state->clock);
	tx_start(ctx, KDB_TX_ACTIVE);
	kdb_stats(state)->begins++;
	return tx_leave(ctx, KDB_OK);
}

/* BEGIN (read-only): OK; KDB_ERR_BUSY when KDB_SNAPSHOTS are active. */
__noinline int kdb_begin_ro(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();

	if (!ctx || !state || ctx->state != KDB_TX_NONE)
		return KDB_ERR_STATE;
	if (!ctx_take(state, ctx))
		return KDB_ERR_BUSY;
	if (!SINGLE_VERSION && snapshot_register(state, ctx))
		return tx_leave(ctx, KDB_ERR_BUSY);
	tx_start(ctx, KDB_TX_READ_ONLY);
	kdb_stats(state)->begins_ro++;
	return tx_leave(ctx, KDB_OK);
}

/* Fails a snapshot transaction whose snapshot was revoked, and releases its snapshot slot. */
static __always_inline int tx_too_old(struct kdb_state *state, struct kdb_ctx *ctx)
{
	snapshot_release(state, ctx);
	return tx_fail(state, ctx, KDB_ERR_SNAPSHOT_TOO_OLD);
}

/* Returns the state in which the reaper takes over the transaction, or KDB_TX_NONE if there is nothing to reap. The
 * reaper holds `in_use`. The state is read first, because the owner writes it last when it begins a transaction. */
static __always_inline __u32 tx_reapable(struct kdb_ctx *ctx, __u64 tx_seq, __u64 last_ns)
{
	__u32 tx_state = READ_ONCE(ctx->state);

	barrier();
	if (tx_state != KDB_TX_ACTIVE && tx_state != KDB_TX_READ_ONLY && tx_state != KDB_TX_FAILED)
		return KDB_TX_NONE;
	if (READ_ONCE(ctx->tx_seq) != tx_seq || READ_ONCE(ctx->last_ns) != last_ns)
		return KDB_TX_NONE;
	return tx_state;
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
