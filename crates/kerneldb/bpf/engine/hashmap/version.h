/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The unordered version array of an entry (paper 4.1): scanning, reading, pruning.
 *
 * Only the holder of the entry's exclusive lock changes it. An uncommitted version carries a marker {session,
 * transaction number} in place of its timestamp. The session's context says whether, and when, that transaction
 * committed. Readers take no lock. The version that a reader chose is valid if its slot still has the same timestamp
 * and version id after the value was copied. A slot is emptied before its value is removed. "Nothing found" is valid if
 * `changes` did not move. Entry ids tell whether the element is still the same entry.
 */
#ifndef BEDPLATE_HASHMAP_VERSION_H
#define BEDPLATE_HASHMAP_VERSION_H

#include "common.h"

/* Commit timestamp behind a marker read from *slot; 0 = not committed. If *changed is set, the caller must look again. */
static __always_inline __u64 hm_resolve(__u64 marker, __u64 *slot, int *changed)
{
	__u64 ts = marker_commit_ts(marker);

	barrier();
	/* The context belongs to this transaction only while the slot still carries its marker. */
	if (LOAD(slot) != marker)
		*changed = 1;
	return ts;
}

static __always_inline int hm_is_live(struct kdb_state *state, __u64 vid, __u64 expire_ms)
{
	return vid && (!expire_ms || now_ms(state) < expire_ms);
}

/* One attempt at reading the newest version at or before `snapshot`. */
__noinline int hm_read_once(struct kdb_io *io, __u64 snapshot)
{
	struct kdb_state *state = kdb_state();
	struct hm_entry *e;
	__u64 best_ts = 0, best_word = 0, id, changes;
	__u32 best = 0;
	int changed = 0, live;

	if (!io || !state)
		return KDB_ERR_STATE;
	io = hm_io(io);
	if (!io)
		return KDB_ERR_STATE;
	e = hm_find(io);
	if (!e)
		return KDB_NOT_FOUND;
	id = LOAD(&e->id);
	changes = LOAD(&e->changes);
	barrier();
#pragma unroll
	for (__u32 i = 0; i < HM_MAX_SLOTS; i++) {
		if (i < kdb_config.slots) {
			__u64 word = LOAD(hm_ts(e, i)), ts = word;

			if (ts & KDB_MARKER)
				ts = hm_resolve(ts, hm_ts(e, i), &changed);
			if (ts > best_ts && ts <= snapshot) {
				best_ts = ts;
				best_word = word;
				best = i;
			}
		}
	}
	opaque(best);
	if (changed || !hm_is_io(e, io))
		return HM_AGAIN;
	if (!best_ts) {
		barrier();
		return LOAD(&e->changes) == changes && LOAD(&e->id) == id ? KDB_NOT_FOUND : HM_AGAIN;
	}
	if (best >= kdb_config.slots)
		return HM_AGAIN;
	struct hm_meta *meta = hm_meta(e, best);
	__u64 vid = LOAD(&meta->vid), expire_ms = LOAD(&meta->expire_ms);
	__u32 len = LOAD(&meta->len);

	live = hm_is_live(state, vid, expire_ms);
	if (live) {
		if (!hm_value_read(io, vid, len))
			return HM_AGAIN;
		io->commit_ts = best_ts;
		io->vlen = len;
		io->expire_ms = expire_ms;
	}
	barrier();
	/* The version may have been stamped meanwhile, or still carry its marker. Another marker is that of a
	 * transaction which has taken the slot since. */
	__u64 now = LOAD(hm_ts(e, best));
	if ((now != best_ts && now != best_word) || LOAD(&meta->vid) != vid || LOAD(&e->id) != id)
		return HM_AGAIN;
	return live ? KDB_OK : KDB_NOT_FOUND;
}

struct reading {
	struct kdb_io *io;
	struct kdb_state *state;
	__u64 snapshot;
	__s64 status;
};

static long read_step(__u32 i, struct reading *reading)
{
	kdb_stats(reading->state)->read_retries++;
	reading->status = hm_read_once(reading->io, reading->snapshot);
	return reading->status != HM_AGAIN;
}

/* Reads the newest version at or before `snapshot`, without a lock. */
__noinline int hm_read(struct kdb_io *io, __u64 snapshot)
{
	struct kdb_state *state = kdb_state();
	struct reading reading = { .io = io, .state = state, .snapshot = snapshot, .status = HM_AGAIN };
	int status;

	if (!io || !state)
		return KDB_ERR_STATE;
	status = hm_read_once(io, snapshot);
	if (status != HM_AGAIN)
		return status;
	bpf_loop(4096, read_step, &reading, 0);
	return reading.status == HM_AGAIN ? KDB_ERR_BUSY : reading.status;
}

/* Scans the slots. The caller holds the exclusive lock (or any lock, if it uses `newest` only). */
static __always_inline void hm_scan(struct hm_entry *e, struct hm_scan *scan)
{
	WRITE_ONCE(scan->newest_ts, 0);
	WRITE_ONCE(scan->newest, NO_SLOT);
	WRITE_ONCE(scan->free, NO_SLOT);
	WRITE_ONCE(scan->others, 0);
#pragma unroll
	for (__u32 i = 0; i < HM_MAX_SLOTS; i++) {
		if (i < kdb_config.slots) {
			__u64 ts = LOAD(hm_ts(e, i));

			if (!ts) {
				WRITE_ONCE(scan->free, i);
			} else if (!(ts & KDB_MARKER)) {
				WRITE_ONCE(scan->others, READ_ONCE(scan->others) + 1);
				if (ts > READ_ONCE(scan->newest_ts)) {
					WRITE_ONCE(scan->newest_ts, ts);
					WRITE_ONCE(scan->newest, i);
				}
			}
		}
	}
	if (READ_ONCE(scan->others))
		WRITE_ONCE(scan->others, READ_ONCE(scan->others) - 1);
}

/* Empties a slot, then removes its value. Does nothing for a slot that does not exist. */
static __always_inline void hm_drop(struct hm_entry *e, __u32 slot)
{
	opaque(slot);
	if (slot >= kdb_config.slots)
		return;
	struct hm_meta *meta = hm_meta(e, slot);
	__u64 vid = meta->vid;
	__u32 len = meta->len;

	STORE(hm_ts(e, slot), 0);
	barrier();
	if (vid)
		hm_value_drop(vid, len);
}

struct marking {
	struct kdb_state *state;
	struct hm_entry *e;
	struct hm_work *work;
	__u64 now_ns;  /* 0: all snapshots; else those that do not give way at that time */
	__u64 version; /* revoking: the version that is to become free */
	__u64 oldest;  /* revoking: the oldest snapshot that decides for `version` */
};

/* Sets work->best to the version that a snapshot at `snapshot` needs, as a bit of its slot; 0 = none. */
static __always_inline void hm_needed_at(struct hm_entry *e, struct hm_work *work, __u64 snapshot)
{
	WRITE_ONCE(work->best_ts, 0);
	WRITE_ONCE(work->best, 0);
#pragma unroll
	for (__u32 i = 0; i < HM_MAX_SLOTS; i++) {
		if (i < kdb_config.slots) {
			__u64 ts = LOAD(hm_ts(e, i));
			if (ts > READ_ONCE(work->best_ts) && ts <= snapshot) {
				WRITE_ONCE(work->best_ts, ts);
				WRITE_ONCE(work->best, 1ull << i);
			}
		}
	}
}

/* Adds the version that one snapshot needs. */
static long mark_step(__u32 s, struct marking *marking)
{
	struct hm_work *work = marking->work;
	__u64 snapshot = READ_ONCE(marking->state->snapshots[s & (KDB_SNAPSHOTS - 1)]);

	if (!snapshot || snapshot == KDB_SNAPSHOT_REVOKED)
		return 0;
	if (snapshot == 1) {
		WRITE_ONCE(work->needed, ~0ull);
		return 1;
	}
	if (marking->now_ns && snapshot_gives_way(marking->state, s, snapshot, marking->now_ns))
		return 0;
	hm_needed_at(marking->e, work, snapshot_timestamp(snapshot));
	WRITE_ONCE(work->needed, READ_ONCE(work->needed) | READ_ONCE(work->best));
	return 0;
}

static __always_inline __u32 snapshots_high(struct kdb_state *state)
{
	__u32 high = READ_ONCE(state->snapshot_high);

	return high > KDB_SNAPSHOTS ? KDB_SNAPSHOTS : high;
}

/* Sets work->needed to the versions that the registered snapshots need, one bit a slot. */
static __always_inline void hm_mark_needed(struct kdb_state *state, struct hm_entry *e, struct hm_work *work)
{
	struct marking marking = { .state = state, .e = e, .work = work };

	WRITE_ONCE(work->needed, 0);
	bpf_loop(snapshots_high(state), mark_step, &marking, 0);
}

/*
 * Cooperative collection (paper 4.1): drops committed versions that no snapshot needs, and a newest tombstone that
 * stands alone. The caller holds the exclusive lock. work->scan is the entry's state before and after.
 */
static __noinline int hm_prune(struct kdb_state *state, struct hm_entry *e, struct hm_work *work)
{
	struct hm_scan *scan = &work->scan;
	__u32 newest;

	if (READ_ONCE(scan->newest) >= kdb_config.slots)
		return 0;
	if (READ_ONCE(scan->others)) {
		WRITE_ONCE(work->needed, 0);
		if (READ_ONCE(state->active_snapshots))
			hm_mark_needed(state, e, work);
		STORE(&e->changes, e->changes + 1);
		barrier();
#pragma unroll
		for (__u32 i = 0; i < HM_MAX_SLOTS; i++) {
			if (i < kdb_config.slots) {
				__u64 ts = LOAD(hm_ts(e, i));
				if (ts && !(ts & KDB_MARKER) && i != READ_ONCE(scan->newest) &&
				    !(READ_ONCE(work->needed) & (1ull << i))) {
					hm_drop(e, i);
					kdb_stats(state)->versions_pruned++;
				}
			}
		}
		hm_scan(e, scan);
	}
	newest = READ_ONCE(scan->newest);
	opaque(newest);
	if (newest < kdb_config.slots && !READ_ONCE(scan->others) && !hm_meta(e, newest)->vid) {
		STORE(&e->changes, e->changes + 1);
		barrier();
		hm_drop(e, newest);
		hm_scan(e, scan);
	}
	return 0;
}

/* Finds the version that the oldest snapshot needs among those that give way. Versions in work->needed are kept. */
static long revocable_step(__u32 s, struct marking *marking)
{
	__u64 snapshot = READ_ONCE(marking->state->snapshots[s & (KDB_SNAPSHOTS - 1)]);
	__u64 ts = snapshot_timestamp(snapshot), version;

	if (snapshot == KDB_SNAPSHOT_REVOKED || ts >= marking->oldest ||
	    !snapshot_gives_way(marking->state, s, snapshot, marking->now_ns))
		return 0;
	hm_needed_at(marking->e, marking->work, ts);
	version = READ_ONCE(marking->work->best) & ~READ_ONCE(marking->work->needed);
	if (version) {
		marking->oldest = ts;
		marking->version = version;
	}
	return 0;
}

/* Revokes a snapshot that gives way and needs the version. */
static long revoke_step(__u32 s, struct marking *marking)
{
	__u64 snapshot = READ_ONCE(marking->state->snapshots[s & (KDB_SNAPSHOTS - 1)]);

	if (snapshot == KDB_SNAPSHOT_REVOKED ||
	    !snapshot_gives_way(marking->state, s, snapshot, marking->now_ns))
		return 0;
	hm_needed_at(marking->e, marking->work, snapshot_timestamp(snapshot));
	if (READ_ONCE(marking->work->best) == marking->version)
		snapshot_revoke(marking->state, s, snapshot);
	return 0;
}

/*
 * Revokes snapshots that are in the way of a write to io's key, as version_reclaim() of the arena engine does; returns
 * whether another attempt is worthwhile. It is a global function, so it is verified once, and finds the entry by
 * itself. An auto-commit writer does not hold the entry's lock here. If the entry changes meanwhile, a snapshot that
 * has exceeded its grace period may be revoked in vain.
 */
__noinline int hm_reclaim(struct kdb_ctx *ctx, struct kdb_io *io)
{
	struct kdb_state *state = kdb_state();
	struct marking marking = { .state = state, .oldest = ~0ull };
	struct hm_work *work;
	__u32 high, newest;

	if (!ctx || !io || !state)
		return 0;
	io = hm_io(io);
	if (!io)
		return 0;
	work = hm_work_of(ctx);
	marking.e = hm_find(io);
	marking.work = work;
	if (!work || !marking.e)
		return 0;
	high = snapshots_high(state);
	hm_scan(marking.e, &work->scan);
	newest = READ_ONCE(work->scan.newest);
	marking.now_ns = READ_ONCE(state->coarse_ns);
	WRITE_ONCE(work->needed, 0);
	bpf_loop(high, mark_step, &marking, 0);
	if (newest < kdb_config.slots)
		WRITE_ONCE(work->needed, READ_ONCE(work->needed) | 1ull << (newest & 63));
	bpf_loop(high, revocable_step, &marking, 0);
	if (!marking.version)
		return 0;
	bpf_loop(high, revoke_step, &marking, 0);
	return 1;
}

/* Queues the entry for the collector, under its exclusive lock. */
static __always_inline void hm_queue(struct hm_entry *e, void *key)
{
	struct kdb_hash_state *state = hm_state();

	if (e->gc_queued || !state)
		return;
	/* If the queue is full, the next writer of the key will try again. */
	if (!bpf_map_push_elem(&kdb_hash_queue, key, 0)) {
		e->gc_queued = 1;
		__sync_fetch_and_add(&state->garbage, 1);
	}
}

/* Prunes an entry after a commit or roll-back, before its exclusive lock is released. */
static __always_inline void hm_entry_prune(struct kdb_state *state, struct hm_entry *e, struct hm_work *work, void *key)
{
	__u32 newest;

	hm_scan(e, &work->scan);
	hm_prune(state, e, work);
	newest = READ_ONCE(work->scan.newest);
	opaque(newest);
	if (READ_ONCE(work->scan.others) || newest >= kdb_config.slots || !hm_meta(e, newest)->vid)
		hm_queue(e, key);
}

static __always_inline void hm_unlock(struct hm_entry *e)
{
	barrier();
	STORE(&e->lock, 0);
}

/* Accounts a committed change from the old newest version to the new one. */
static __always_inline void hm_account(struct kdb_state *state, __u32 klen, const struct hm_meta *old,
				       const struct hm_meta *new)
{
	struct kdb_cpu_stats *stats = kdb_stats(state);

	if (old->vid) {
		__sync_fetch_and_add(&stats->live_keys, -1);
		__sync_fetch_and_add(&stats->value_bytes, -(__s64)(klen + old->len));
		if (old->expire_ms) {
			__sync_fetch_and_add(&stats->expiring_keys, -1);
			if (!hm_is_live(state, old->vid, old->expire_ms))
				__sync_fetch_and_add(&stats->expired, 1);
		}
	}
	if (new->vid) {
		__sync_fetch_and_add(&stats->live_keys, 1);
		__sync_fetch_and_add(&stats->value_bytes, (__s64)(klen + new->len));
		if (new->expire_ms)
			__sync_fetch_and_add(&stats->expiring_keys, 1);
	}
}

#endif
