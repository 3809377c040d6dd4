/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The unordered version array of an entry (paper 4.1): finding, installing, pruning.
 *
 * Only the holder of the entry's exclusive lock changes it. An uncommitted version carries a marker {session,
 * transaction number} instead of a timestamp. The session's context says whether, and when, that transaction committed,
 * so a commit of many keys is one store. Readers take no lock:
 *  - The result of a search, even an empty one, is valid if `changes` did not move until the value was copied. It is
 *    bumped before a committed version leaves and its block is freed, and nothing else takes a committed version away.
 *    It is bumped once more after a newest version has left. For an older version one bump is enough: a reader that
 *    sees it finds the newer one as well, and takes that.
 *  - For a registered snapshot it is enough that `changes` did not move during the search. The newest version that the
 *    snapshot needs is never pruned; a tombstone, which it does not need, may be.
 *
 * A crash can take back a commit that a reader has seen, until the log has the commit on disk. A reader therefore
 * reports the newest commit that its outcome reveals (kdb_io.observed_ts): that of the version or tombstone which it
 * found, or, if it found none, removed_ts of the key's hash. removal_note() must be called before the newest committed
 * version of an entry leaves.
 */
#ifndef BEDPLATE_ENGINE_VERSION_H
#define BEDPLATE_ENGINE_VERSION_H

#include "../commit.h"
#include "../snapshot.h"
#include "index.h"
#include "deferred.h"

#define NO_SLOT KDB_MAX_VERSIONS

struct kdb_found {
	__u64 ts;    /* commit timestamp; 0 = none */
	__u32 block;
	__u32 len;   /* with KDB_LEN_* */
	int changed; /* a slot changed during the search */
};

/*
 * The branch predictor cannot guess which slot is the newest, and a wrong guess is noticed only after a cache miss. The
 * functions therefore compute with masks: all ones for "yes".
 */
static __always_inline __u64 mask_negative(__u64 x)
{
	__u64 mask = (__s64)x >> 63;

	opaque(mask);
	return mask;
}

#define PICK(mask, yes, no) ((no) ^ (((no) ^ (yes)) & (typeof(no))(mask)))

/* The value is read together with the timestamp: a version may move to another slot afterwards. */
static __always_inline void find_in_slot(struct kdb_version __arena *v, __u64 snapshot, struct kdb_found *found)
{
	__u64 marker = LOAD(&v->ts), ts = marker;

	barrier();
	/* The timestamp is read before the value: a transaction may replace the value of its version until it commits. */
	if (marker & KDB_MARKER)
		ts = marker_commit_ts(marker);
	barrier();
	__u32 block = LOAD(&v->block), len = LOAD(&v->len);
	barrier();
	/* The context belongs to this transaction only while the slot still carries its marker. */
	if ((marker & KDB_MARKER) && LOAD(&v->ts) != marker)
		found->changed = 1;
	__u64 better = mask_negative(found->ts - ts) & ~mask_negative(snapshot - ts);
	found->ts = PICK(better, ts, found->ts);
	found->block = PICK(better, block, found->block);
	found->len = PICK(better, len, found->len);
}

/*
 * Finds the newest version committed at or before `snapshot`. Returns 0 when the caller must search again.
 *
 * The overflow array is looked up before the inline slots. A version moves from there to an inline slot, so it is found
 * in at least one of them. The array is freed only after `changes` was bumped.
 */
__noinline int version_find(__u32 entry, __u64 snapshot, struct kdb_found *found)
{
	__u32 overflow, i;

	USE_ARENA();
	if (!found)
		return 0;
	found->ts = 0;
	found->block = 0;
	found->len = 0;
	found->changed = 0;
	overflow = LOAD(&entry_at(entry)->overflow);
	barrier();
#pragma unroll
	for (int j = 0; j < KDB_INLINE_VERSIONS; j++)
		find_in_slot(slot_in(entry, 0, j), snapshot, found);
	if (overflow && kdb_config.slots > KDB_INLINE_VERSIONS) {
		bpf_for(i, KDB_INLINE_VERSIONS, kdb_config.slots)
			find_in_slot(slot_in(entry, overflow, i), snapshot, found);
	}
	return !found->changed;
}

/* State of an entry, scanned under its exclusive lock: newest committed version, a free slot. */
struct kdb_scan {
	__u64 newest_ts;
	__u32 newest;
	__u32 free;   /* an inline slot if there is one */
	__u32 others; /* committed versions besides the newest */
	__u32 cells;  /* in use, one bit each */
};

/* The cell that a version's value is in, as a bit; 0 if it is in a block of its own. */
static __always_inline __u32 cell_bit(__u32 len)
{
	return ((len & KDB_LEN_INLINE) != 0) << ((len >> KDB_LEN_CELL_SHIFT) & 1);
}

static __always_inline void scan_slot(struct kdb_version __arena *v, __u32 i, struct kdb_scan *scan)
{
	__u64 ts = v->ts;
	__u64 marker = mask_negative(ts);
	__u64 empty = mask_negative(ts - 1) & ~marker;
	__u64 committed = ~empty & ~marker;
	__u64 newer = committed & mask_negative(scan->newest_ts - ts);

	scan->free = PICK(empty, i, scan->free);
	scan->cells |= cell_bit(v->len) & (__u32)~empty;
	scan->others -= (__u32)committed;
	scan->newest_ts = PICK(newer, ts, scan->newest_ts);
	scan->newest = PICK(newer, i, scan->newest);
}

/* A global function is verified once, and its callers are verified with unknown numbers as its results. */
__noinline int version_scan(__u32 entry, struct kdb_scan *scan)
{
	__u32 overflow, i;

	USE_ARENA();
	if (!scan)
		return 0;
	scan->newest_ts = 0;
	scan->newest = NO_SLOT;
	scan->free = NO_SLOT;
	scan->others = 0;
	scan->cells = 0;
	overflow = entry_at(entry)->overflow;
	if (overflow && kdb_config.slots > KDB_INLINE_VERSIONS) {
		bpf_for(i, KDB_INLINE_VERSIONS, kdb_config.slots)
			scan_slot(slot_in(entry, overflow, i), i, scan);
	}
#pragma unroll
	for (int j = 0; j < KDB_INLINE_VERSIONS; j++)
		scan_slot(slot_in(entry, 0, j), j, scan);
	if (scan->others)
		scan->others--;
	return 0;
}

/* Frees a value that no version has any more. */
static __always_inline void value_free(__u32 block, __u32 len)
{
	if (block && !(len & KDB_LEN_INLINE))
		block_free(block, len);
}

/* Empties a slot. No record that the log's reader will use refers to a value that was not committed. */
static __always_inline void version_drop(struct kdb_state *state, __u32 entry, __u32 slot)
{
	struct kdb_version __arena *v = slot_at(entry, slot);
	__u32 block = v->block, len = v->len;
	__u64 ts = v->ts;

	STORE(&v->ts, 0);
	barrier();
	if (!block || (len & KDB_LEN_INLINE))
		return;
	if (ts & KDB_MARKER)
		block_free(block, len);
	else
		block_retire(state, block, len, ts);
}

/* version_drop() for functions whose own variables leave no room on the stack for its variables. */
__noinline int version_drop_apart(__u32 entry, __u32 slot)
{
	struct kdb_state *state = kdb_state();

	USE_ARENA();
	if (state)
		version_drop(state, entry, slot);
	return 0;
}

static __always_inline __u64 *removal_slot(struct kdb_state *state, __u32 tag)
{
	return &state->removed_ts[tag & (KDB_REMOVED_SLOTS - 1)];
}

/* The newest commit that may be the reason why a search found nothing. Called after the search. */
static __always_inline __u64 removal_seen(struct kdb_state *state, __u64 hash)
{
	barrier();
	return READ_ONCE(*removal_slot(state, tag_of(hash)));
}

/* Called before an entry's newest committed version, of commit `ts`, leaves: notes the commit if it is not durable. */
static __always_inline void removal_note(struct kdb_state *state, __u32 entry, __u64 ts)
{
	__u64 *slot;
	__u32 i;

	if (!kdb_config.wal || ts <= READ_ONCE(state->durable_ts))
		return;
	slot = removal_slot(state, LOAD(&entry_at(entry)->hash));
	bpf_for(i, 0, 1 << 20) {
		__u64 seen = READ_ONCE(*slot);

		if (seen >= ts || __sync_val_compare_and_swap(slot, seen, ts) == seen)
			break;
	}
}

/* The version that a snapshot needs, as a bit of its slot; 0 = none. */
static __always_inline __u64 version_needed_at(__u32 entry, __u64 snapshot)
{
	__u64 best_ts = 0, best = 0;
	__u32 i;

	bpf_for(i, 0, kdb_config.slots) {
		__u64 ts = slot_at(entry, i)->ts;
		if (ts > best_ts && ts <= snapshot) {
			best_ts = ts;
			best = 1ull << (i & 63);
		}
	}
	return best;
}

/* Returns which versions the registered snapshots need, one bit a slot (the newest is always needed). With `now_ns` it
 * considers only those snapshots that do not give way to a writer at that time. */
__noinline __u64 versions_needed(__u32 entry, __u64 now_ns)
{
	struct kdb_state *state = kdb_state();
	__u64 needed = 0;
	__u32 s, high;

	USE_ARENA();
	if (!state)
		return ~0ull;
	high = READ_ONCE(state->snapshot_high);
	if (high > KDB_SNAPSHOTS)
		high = KDB_SNAPSHOTS;
	bpf_for(s, 0, high) {
		__u64 snapshot = READ_ONCE(state->snapshots[s & (KDB_SNAPSHOTS - 1)]);

		if (!snapshot || snapshot == KDB_SNAPSHOT_REVOKED)
			continue;
		if (snapshot == 1)
			return ~0ull;
		if (now_ns && snapshot_gives_way(state, s, snapshot, now_ns))
			continue;
		needed |= version_needed_at(entry, snapshot_timestamp(snapshot));
	}
	return needed;
}

/*
 * Moves versions of the overflow array to free inline slots, and frees the array if it is then empty. The caller holds
 * the exclusive lock. A reader that has the array's offset finds its versions there until `changes` moves; every other
 * reader finds them in the inline slots. Uncommitted versions stay, because their transaction knows their slot.
 */
static __always_inline int overflow_release(__u32 entry)
{
	struct kdb_entry __arena *e = entry_at(entry);
	__u32 overflow = e->overflow, i;

	if (!overflow)
		return 0;
	bpf_for(i, KDB_INLINE_VERSIONS, kdb_config.slots) {
		struct kdb_version __arena *from = slot_in(entry, overflow, i);
		struct kdb_version __arena *to = slot_in(entry, 0, e->v[0].ts ? 1 : 0);
		__u64 ts = from->ts;

		if (!ts || (ts & KDB_MARKER))
			continue;
		if (to->ts)
			break;
		STORE(&to->block, from->block);
		STORE(&to->len, from->len);
		barrier();
		STORE(&to->ts, ts);
		barrier();
		STORE(&e->changes, e->changes + 1);
		barrier();
		STORE(&from->ts, 0);
	}
	bpf_for(i, KDB_INLINE_VERSIONS, kdb_config.slots) {
		if (slot_in(entry, overflow, i)->ts)
			return 1;
	}
	STORE(&e->overflow, 0);
	barrier();
	STORE(&e->changes, e->changes + 1);
	barrier();
	slab_free(overflow, LINK_BLOCK);
	return 1;
}

/* Gives the entry an overflow array, if it may have one. The caller holds the exclusive lock. */
static __always_inline int overflow_create(__u32 entry, __u32 *slot)
{
	__u32 array, i;

	if (kdb_config.slots <= KDB_INLINE_VERSIONS || entry_at(entry)->overflow)
		return KDB_ERR_NO_VERSION;
	array = block_alloc(overflow_bytes());
	if (!array)
		return KDB_ERR_NO_MEMORY;
	bpf_for(i, KDB_INLINE_VERSIONS, kdb_config.slots) {
		STORE(&slot_in(entry, array, i)->ts, 0);
	}
	barrier();
	STORE(&entry_at(entry)->overflow, array);
	*slot = KDB_INLINE_VERSIONS;
	return KDB_OK;
}

/*
 * Cooperative collection: drops committed versions that no snapshot needs, and a newest tombstone that stands alone.
 * The caller holds the exclusive lock. `scan` is the entry's state before and after.
 */
__noinline int version_prune(__u32 entry, struct kdb_scan *scan)
{
	struct kdb_state *state = kdb_state();
	struct kdb_entry __arena *e = entry_at(entry);
	__u64 needed = 0;
	__u32 i;

	USE_ARENA();
	if (!state || !scan)
		return 0;
	if (scan->newest == NO_SLOT)
		goto out;
	if (scan->others) {
		if (READ_ONCE(state->active_snapshots))
			needed = versions_needed(entry, 0);
		e->changes++;
		barrier();
		bpf_for(i, 0, kdb_config.slots) {
			__u64 ts = slot_at(entry, i)->ts;
			if (!ts || (ts & KDB_MARKER) || i == scan->newest || (needed & (1ull << (i & 63))))
				continue;
			version_drop_apart(entry, i);
			kdb_stats(state)->versions_pruned++;
		}
		version_scan(entry, scan);
	}
	/* A tombstone hides older versions from newer readers; without older versions it means the same as no version. */
	if (!scan->others && scan->newest < NO_SLOT && !slot_at(entry, scan->newest)->block) {
		removal_note(state, entry, scan->newest_ts);
		e->changes++;
		barrier();
		version_drop_apart(entry, scan->newest);
		/* `changes` is bumped again for a reader that began between the two steps. It may have loaded the
		 * tombstone's timestamp before the drop, and may load the value of the slot's next version after it. */
		barrier();
		e->changes++;
		version_scan(entry, scan);
	}
out:
	if (e->overflow && overflow_release(entry))
		version_scan(entry, scan);
	return 0;
}

/*
 * Finds room for one more version. The caller holds the exclusive lock; `scan` is the entry's state before and after.
 * At KDB_ERR_NO_VERSION the caller may revoke old snapshots (revoke.h) and try again. This function does not, because
 * calls nest too deeply.
 */
static __always_inline int version_room(__u32 entry, struct kdb_scan *scan)
{
	if (scan->free == NO_SLOT)
		version_prune(entry, scan);
	return scan->free == NO_SLOT ? overflow_create(entry, &scan->free) : KDB_OK;
}

#endif
