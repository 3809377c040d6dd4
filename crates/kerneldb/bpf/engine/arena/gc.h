/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The background collector: prunes entries that kept old versions for a snapshot, and removes entries
 * without any version. It visits only entries that the operators queued, and skips locked ones.
 */
#ifndef BEDPLATE_ENGINE_GC_H
#define BEDPLATE_ENGINE_GC_H

#include "common.h"

__noinline int collect_one(__u32 entry)
{
	struct kdb_state *state = kdb_state();
	struct kdb_entry __arena *e = entry_at(entry);
	struct kdb_scan scan = {};
	unsigned long irq;

	USE_ARENA();
	bpf_local_irq_save(&irq);
	if (CAS(&e->lock, 0, KDB_LOCK_AUTO) != 0) {
		/* The entry is locked. Its holder cannot clear gc_queued, so it is queued again. */
		struct kdb_arena __arena *s = super();
		__u32 i;
		bpf_for(i, 0, 1 << 20) {
			__u64 head = LOAD(&s->gc_head);
			STORE(&e->gc_next, head);
			if (CAS(&s->gc_head, head, (__u64)entry) == head)
				break;
		}
		goto out;
	}
	e->gc_queued = 0;
	version_scan(entry, &scan);
	version_prune(entry, &scan);
	if (scan.newest == NO_SLOT) {
		STORE(&e->lock, KDB_LOCK_DEAD);
		if (entry_unlink(entry)) {
			entry_free(entry);
			__sync_fetch_and_add(&super()->entries, -1ull);
			if (state)
				kdb_stats(state)->gc_entries++;
		} else {
			/* The chain is damaged. The entry stays where it is, and remains usable. */
			unlock_exclusive(entry);
		}
		goto out;
	}
	if (scan.others || !slot_at(entry, scan.newest)->block)
		gc_queue(entry);
	unlock_exclusive(entry);
out:
	bpf_local_irq_restore(&irq);
	return 0;
}

/* Visits up to `budget` queued entries of this partition, and frees up to `budget` deferred blocks; returns
 * the number of visited entries. */
__noinline int kdb_collect(__u32 budget)
{
	struct kdb_arena __arena *s = super();
	__u32 entry, i, visited;

	USE_ARENA();
	if (CAS(&s->gc_latch, 0, 1) != 0)
		return 0;
	/* gc_rest: the entries that an earlier call took off the queue and did not visit. */
	entry = s->gc_rest ? (__u32)s->gc_rest : (__u32)__sync_lock_test_and_set(&s->gc_head, 0);
	s->gc_visited = 0;
	bpf_for(i, 0, budget) {
		if (!entry)
			break;
		__u32 next = LOAD(&entry_at(entry)->gc_next);
		collect_one(entry);
		s->gc_visited++;
		entry = next;
	}
	s->gc_rest = entry;
	visited = s->gc_visited;
	if (kdb_config.wal)
		deferred_collect(budget);
	barrier();
	STORE(&s->gc_latch, 0);
	return visited;
}

#endif
