/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Snapshots of read-only transactions (ROMV, paper 4.2) and the versions that they need.
 *
 * Registering: a session counts up `active_snapshots`, claims a slot with the value 1 ("keeps everything"), reads
 * the clock, and stores timestamp + 2. The two atomic steps come before the clock is read. A writer that saw no
 * active snapshot, or scanned the slots before, had therefore published its commit before the clock was read. The
 * versions that it pruned were invisible to this snapshot. User space registers by the same protocol.
 *
 * Revoking: a writer that finds no free version slot because of old snapshots changes their slots to
 * KDB_SNAPSHOT_REVOKED by compare-and-swap, and only then prunes. A reader checks after copying a value that its
 * slot has not changed, so it never returns a value that was replaced while it was copied. Only the owner of a
 * slot frees it.
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
	/* Slots at and above `snapshot_high` are not looked at, so it is raised before the clock is read. */
	bpf_loop(1 << 16, snapshot_raise_step, &claim, 0);
	found = claim.found & (KDB_SNAPSHOTS - 1);
	ctx->snapshot_slot = found;
	WRITE_ONCE(state->snapshot_ns[found], ctx->last_ns);
	ctx->snapshot_ts = READ_ONCE(state->clock);
	barrier();
	WRITE_ONCE(state->snapshots[found], ctx->snapshot_ts + 2);
	return KDB_OK;
}

/* Whether the session's snapshot was revoked before this call, so that values read since then must not be used. */
static __always_inline int snapshot_revoked(struct kdb_state *state, struct kdb_ctx *ctx)
{
	barrier();
	return READ_ONCE(state->snapshots[ctx->snapshot_slot & (KDB_SNAPSHOTS - 1)]) != ctx->snapshot_ts + 2;
}

/* The timestamp in a slot that is neither free nor being registered nor revoked. */
static __always_inline __u64 snapshot_timestamp(__u64 slot)
{
	return (slot & ~KDB_SNAPSHOT_SCAN) - 2;
}

/* Whether a writer may revoke the snapshot in slot `s`, which has the value `slot`. */
static __always_inline int snapshot_gives_way(struct kdb_state *state, __u32 s, __u64 slot, __u64 now_ns)
{
	__u64 grace = slot & KDB_SNAPSHOT_SCAN ? READ_ONCE(state->scan_grace_ns) : READ_ONCE(state->snapshot_grace_ns);
	__u64 since = READ_ONCE(state->snapshot_ns[s & (KDB_SNAPSHOTS - 1)]);

	return slot > 1 && since < now_ns && now_ns - since > grace;
}

/* Revokes the snapshot, unless its owner has released it meanwhile. */
static __always_inline void snapshot_revoke(struct kdb_state *state, __u32 s, __u64 slot)
{
	if (__sync_val_compare_and_swap(&state->snapshots[s & (KDB_SNAPSHOTS - 1)], slot, KDB_SNAPSHOT_REVOKED) == slot)
		kdb_stats(state)->snapshots_revoked++;
}

static __always_inline void snapshot_release(struct kdb_state *state, struct kdb_ctx *ctx)
{
	barrier();
	WRITE_ONCE(state->snapshots[ctx->snapshot_slot & (KDB_SNAPSHOTS - 1)], 0);
	__sync_fetch_and_add(&state->active_snapshots, -1ull);
}

#endif
