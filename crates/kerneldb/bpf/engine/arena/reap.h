/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Rolling back transactions that have exceeded their age or idle limit. User space decides which ones, by their
 * contexts, and runs kdb_reap() in every partition in which such a transaction holds locks.
 *
 * kdb_reap() holds the context's `in_use` with interrupts off, and releases a few locks only, so that an operator of
 * the session waits only microseconds for it. The transaction is KDB_TX_FAILED from the first call on. Its owner may
 * roll it back between two calls: locks that were released are no longer in the list.
 */
#ifndef BEDPLATE_ENGINE_REAP_H
#define BEDPLATE_ENGINE_REAP_H

#include "tx.h"

#define REAP_LOCKS 8u /* locks that one call releases, with interrupts off */

/*
 * Releases up to REAP_LOCKS locks of this partition and takes them off the list, from its end. The reaper holds
 * `in_use`. The loop has no counter besides its index, because the verifier would follow every value of a counter.
 */
__noinline int reap_locks(struct kdb_ctx *ctx)
{
	__u32 i, index, n;

	USE_ARENA();
	if (!ctx)
		return 0;
	n = ctx->nlocks;
	bpf_for(i, 0, n) {
		index = n - 1 - i;
		if (lock_at(ctx, index)->partition != kdb_config.partition)
			continue;
		if (n - READ_ONCE(ctx->nlocks) >= REAP_LOCKS)
			return 0;
		release_lock(ctx, index);
		/* No operator looks for a lock by its index any more. The last lock takes this place: it is this one,
		 * or one that stays. */
		*lock_at(ctx, index) = *lock_at(ctx, READ_ONCE(ctx->nlocks) - 1);
		WRITE_ONCE(ctx->nlocks, READ_ONCE(ctx->nlocks) - 1);
	}
	ctx->partitions &= ~PARTITION_BIT;
	return 0;
}

/*
 * Rolls back the transaction `tx_seq` of a session, whose last operator began at `last_ns`, or a part of it. The caller
 * must repeat the call until ctx->partitions is 0. Returns KDB_OK; KDB_MISMATCH if the transaction went on or ended;
 * KDB_ERR_BUSY if an operator of the session runs.
 */
__noinline int kdb_reap(struct kdb_ctx *ctx, __u64 tx_seq, __u64 last_ns)
{
	struct kdb_state *state = kdb_state();
	int status = KDB_OK;
	unsigned long irq;
	__u32 tx_state;

	USE_ARENA();
	if (!ctx || !state)
		return KDB_ERR_STATE;
	bpf_local_irq_save(&irq);
	if (__sync_val_compare_and_swap(&ctx->in_use, KDB_CTX_FREE, KDB_CTX_REAPER) != KDB_CTX_FREE) {
		status = KDB_ERR_BUSY;
		goto out;
	}
	tx_state = tx_reapable(ctx, tx_seq, last_ns);
	if (tx_state == KDB_TX_NONE) {
		status = KDB_MISMATCH;
		goto give;
	}
	if (tx_state != KDB_TX_FAILED || ctx->error != KDB_ERR_TX_TIMED_OUT) {
		if (tx_state == KDB_TX_READ_ONLY && !SINGLE_VERSION)
			snapshot_release(state, ctx);
		if (kdb_config.wal && ctx->nwrites)
			wal_abort(marker_of(ctx) & ~KDB_MARKER, ctx->nwrites);
		ctx->error = KDB_ERR_TX_TIMED_OUT;
		ctx->state = KDB_TX_FAILED;
		kdb_stats(state)->tx_timed_out++;
	}
	reap_locks(ctx);
give:
	barrier();
	WRITE_ONCE(ctx->in_use, KDB_CTX_FREE);
out:
	bpf_local_irq_restore(&irq);
	return status;
}

#endif
