/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The background collector: prunes entries that kept old versions for a snapshot, and removes entries
 * without any version. It visits only entries that the operators queued, and skips locked ones. User
 * space runs only one call at a time.
 */
#ifndef BEDPLATE_HASHMAP_GC_H
#define BEDPLATE_HASHMAP_GC_H

#include "lock.h"

/* Visits one queued key; returns 0 when there is none. */
__noinline int collect_one(void)
{
	struct kdb_hash_state *shared = hm_state();
	struct kdb_state *state = kdb_state();
	struct hm_work *work;
	struct hm_entry *e;
	unsigned long irq;
	__u32 newest, zero = 0;

	work = bpf_map_lookup_elem(&kdb_hash_work, &zero);
	if (!work || !state || !shared || bpf_map_pop_elem(&kdb_hash_queue, &work->key))
		return 0;
	__sync_fetch_and_add(&shared->garbage, -1);
	e = bpf_map_lookup_elem(&kdb_index, &work->key);
	if (!e)
		return 1;
	irqs_off(&irq);
	if (CAS(&e->lock, 0, KDB_LOCK_AUTO) != 0) {
		/* The entry is locked. Its holder does not queue it again, so the collector does. */
		if (!bpf_map_push_elem(&kdb_hash_queue, &work->key, 0))
			__sync_fetch_and_add(&shared->garbage, 1);
		goto out;
	}
	/* Only the collector removes entries, so this is still the entry that was looked up. */
	e->gc_queued = 0;
	hm_scan(e, &work->scan);
	hm_prune(state, e, work);
	newest = READ_ONCE(work->scan.newest);
	opaque(newest);
	if (newest < kdb_config.slots) {
		if (READ_ONCE(work->scan.others) || !hm_meta(e, newest)->vid)
			hm_queue(e, &work->key);
		hm_unlock(e);
		goto out;
	}
	STORE(&e->lock, KDB_LOCK_DEAD);
	barrier();
	for (int i = 0; i < HM_TRIES; i++) {
		if (!bpf_map_delete_elem(&kdb_index, &work->key)) {
			__sync_fetch_and_add(&shared->entries, -1);
			hm_uncharge(hm_entry_cost());
			kdb_stats(state)->gc_entries++;
			goto out;
		}
	}
	/* The map cannot be changed from this context, so the entry stays in use. */
	hm_unlock(e);
out:
	irqs_on(&irq);
	return 1;
}

static long collect_step(__u32 i, __u64 *visited)
{
	if (!collect_one())
		return 1;
	++*visited;
	return 0;
}

/* Visits up to `budget` queued keys; returns how many were visited. */
__noinline int kdb_collect(__u32 budget)
{
	struct kdb_hash_state *shared = hm_state();
	__u64 visited = 0;

	if (!shared)
		return 0;
	/* Keys that are queued again meanwhile are left to the next call. */
	if (budget > READ_ONCE(shared->garbage))
		budget = READ_ONCE(shared->garbage);
	bpf_loop(budget, collect_step, &visited, 0);
	return visited;
}

#endif
