/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Old snapshots give way to writers: a writer that finds every version slot in use revokes the snapshots that
 * need the version of the oldest snapshot that may be revoked. A snapshot may be revoked once it is older than
 * its grace period. A version that a younger snapshot needs as well stays.
 */
#ifndef BEDPLATE_ENGINE_REVOKE_H
#define BEDPLATE_ENGINE_REVOKE_H

#include "version.h"

/* Returns the version, as a bit of its slot, that is free once all snapshots that give way are revoked; 0 = none. If
 * there are several, the oldest snapshot decides. `kept` versions are not considered: snapshots that do not give way
 * need them. Each step reads the time for each snapshot instead of having it passed, because that takes less of the
 * stack. A snapshot that has begun to give way since `kept` was found has its version in `kept`, so it is not revoked. */
__noinline __u64 revocable_version(__u32 entry, __u64 kept)
{
	struct kdb_state *state = kdb_state();
	__u64 oldest = ~0ull, version = 0;
	__u32 s, high;

	USE_ARENA();
	if (!state)
		return 0;
	high = READ_ONCE(state->snapshot_high);
	if (high > KDB_SNAPSHOTS)
		high = KDB_SNAPSHOTS;
	bpf_for(s, 0, high) {
		__u64 snapshot = READ_ONCE(state->snapshots[s & (KDB_SNAPSHOTS - 1)]);
		__u64 ts = snapshot_timestamp(snapshot), bit;

		if (snapshot == KDB_SNAPSHOT_REVOKED || ts >= oldest ||
		    !snapshot_gives_way(state, s, snapshot, READ_ONCE(state->coarse_ns)))
			continue;
		bit = version_needed_at(entry, ts) & ~kept;
		if (!bit)
			continue;
		oldest = ts;
		version = bit;
	}
	return version;
}

/* Returns the version, as a bit of its slot, whose snapshots are to be revoked; 0 = none. `newest` is the slot of the newest
 * committed version, or NO_SLOT. */
__noinline __u64 version_to_reclaim(__u32 entry, __u32 newest)
{
	struct kdb_state *state = kdb_state();
	__u64 kept;

	USE_ARENA();
	if (!state)
		return 0;
	kept = versions_needed(entry, READ_ONCE(state->coarse_ns));
	if (newest < NO_SLOT)
		kept |= 1ull << (newest & 63);
	return revocable_version(entry, kept);
}

/* Revokes the snapshots that need a version, given as a bit of its slot, and that give way. */
__noinline int snapshots_revoke(__u32 entry, __u64 version)
{
	struct kdb_state *state = kdb_state();
	__u32 s, high;

	USE_ARENA();
	if (!state)
		return 0;
	high = READ_ONCE(state->snapshot_high);
	if (high > KDB_SNAPSHOTS)
		high = KDB_SNAPSHOTS;
	bpf_for(s, 0, high) {
		__u64 snapshot = READ_ONCE(state->snapshots[s & (KDB_SNAPSHOTS - 1)]);

		if (snapshot == KDB_SNAPSHOT_REVOKED ||
		    !snapshot_gives_way(state, s, snapshot, READ_ONCE(state->coarse_ns)))
			continue;
		if (version_needed_at(entry, snapshot_timestamp(snapshot)) == version)
			snapshot_revoke(state, s, snapshot);
	}
	return 0;
}

/* Revokes the snapshots that are in the way of a new version. The caller holds the entry's exclusive lock. Returns
 * whether pruning the entry again is worthwhile. `scan` is the entry's state after it was pruned. The steps are functions of
 * their own, because their variables would add up on the stack. */
__noinline int version_reclaim(__u32 entry, struct kdb_scan *scan)
{
	__u64 version;

	USE_ARENA();
	if (!scan)
		return 0;
	version = version_to_reclaim(entry, scan->newest);
	if (!version)
		return 0;
	snapshots_revoke(entry, version);
	return 1;
}

#endif
