/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * What the operators share: markers, checks, expiry, interrupts, the commit latch.
 *
 * Order of locks: entry lock (trylock, no-wait), then commit latch. Where the kernel lets programs
 * disable interrupts, both are held with interrupts off by auto-commit operations, so that neither an
 * interrupt nor preemption meets them held by its own processor. Elsewhere a waiter gives up after a
 * bounded time (KDB_ERR_CONFLICT, KDB_ERR_BUSY). bpf_spin_lock is no choice: tracing programs may not
 * use maps that have one.
 */
#ifndef BEDPLATE_HASHMAP_COMMON_H
#define BEDPLATE_HASHMAP_COMMON_H

#include "../snapshot.h"
#include "entry.h"

#define MARKER_SEQ_MASK ((1ull << KDB_MARKER_SEQ_BITS) - 1)
#define TS_LATEST (KDB_MARKER - 1)

/* Single-version mode (paper 6.9): no snapshots; readers that must not be disturbed lock. */
#define SINGLE_VERSION (kdb_config.versions == 1)

static __always_inline void irqs_off(unsigned long *flags)
{
	if (kdb_config.irqs)
		bpf_local_irq_save(flags);
}

static __always_inline void irqs_on(unsigned long *flags)
{
	if (kdb_config.irqs)
		bpf_local_irq_restore(flags);
}

static __always_inline __u64 marker_of(const struct kdb_ctx *ctx)
{
	return KDB_MARKER | (__u64)ctx->session << KDB_MARKER_SEQ_BITS | (ctx->tx_seq & MARKER_SEQ_MASK);
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

static __always_inline int latch_acquire(struct kdb_state *state)
{
	__u32 i;

	bpf_for(i, 0, 1 << 20) {
		if (!READ_ONCE(state->commit_latch) &&
		    !__sync_val_compare_and_swap(&state->commit_latch, 0, 1))
			return 1;
	}
	return 0;
}

/* Publishes `ts`; the exchange is a full barrier between it and the look at active snapshots. */
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
	return status;
}

#endif
