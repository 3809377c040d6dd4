/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Snapshots of read-only transactions (ROMV, paper 4.2) and which versions they need.
 *
 * Registering: count up `active_snapshots`, claim a slot with the value 1 ("keeps everything"), read the
 * clock, store timestamp + 2. The two atomic steps come before the clock is read, so a writer that saw
 * no active snapshot, or scanned the slots before, had published its commit before the clock was read,
 * and what it pruned was invisible to this snapshot. User space registers by the same protocol.
 */
#ifndef BEDPLATE_ENGINE_SNAPSHOT_H
#define BEDPLATE_ENGINE_SNAPSHOT_H

#include "maps.h"

struct snapshot_claim {
	struct kdb_state *state;
	__u64 found;
};

static long snapshot_claim_step(__u32 i, struct snapshot_claim *claim)
{
	struct kdb_state *state = claim->state;
	__u32 s = i & (KDB_SNAPSHOTS - 1);

	if (READ_ONCE(state->snapshots[s]) || __sync_val_compare_and_swap(&state->snapshots[s], 0, 1))
		return 0;
	claim->found = s;
	return 1;
}

static long snapshot_raise_step(__u32 i, struct snapshot_claim *claim)
{
	struct kdb_state *state = claim->state;
	__u32 high = READ_ONCE(state->snapshot_high), want = claim->found + 1;

	return high >= want || __sync_val_compare_and_swap(&state->snapshot_high, high, want) == high;
}

static __always_inline int snapshot_register(struct kdb_state *state, struct kdb_ctx *ctx)
{
	struct snapshot_claim claim = { .state = state, .found = KDB_SNAPSHOTS };
	__u32 found;

	__sync_fetch_and_add(&state->active_snapshots, 1);
	bpf_loop(KDB_SNAPSHOTS, snapshot_claim_step, &claim, 0);
	if (claim.found == KDB_SNAPSHOTS) {
		__sync_fetch_and_add(&state->active_snapshots, -1ull);
		return KDB_ERR_BUSY;
	}
	/* Slots at and above `snapshot_high` are not looked at: raise it before the clock is read. */
	bpf_loop(1 << 16, snapshot_raise_step, &claim, 0);
	found = claim.found & (KDB_SNAPSHOTS - 1);
	ctx->snapshot_slot = found;
	ctx->snapshot_ts = READ_ONCE(state->clock);
	barrier();
	WRITE_ONCE(state->snapshots[found], ctx->snapshot_ts + 2);
	return KDB_OK;
}

static __always_inline void snapshot_release(struct kdb_state *state, struct kdb_ctx *ctx)
{
	barrier();
	WRITE_ONCE(state->snapshots[ctx->snapshot_slot & (KDB_SNAPSHOTS - 1)], 0);
	__sync_fetch_and_add(&state->active_snapshots, -1ull);
}

#endif
