/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Moving values, and arrays of versions, out of slabs that user space is emptying (state EVACUATING).
 *
 * A block is copied without a lock. Then the entry is locked, and the version gets the copy if it is still the
 * same: a commit timestamp is never used again. The old block is only counted as free, not linked. User space
 * gives its slab to the pool after every program and every scan that may read it has ended, so readers need not
 * notice the move.
 */
#ifndef BEDPLATE_ENGINE_EVACUATE_H
#define BEDPLATE_ENGINE_EVACUATE_H

#include "common.h"

static __always_inline int is_evacuating(__u32 off)
{
	return off >= kdb_config.heap && word_state(LOAD(&slab_at(slab_of(off))->word)) == KDB_SLAB_EVACUATING;
}

/* Copies whole grains. */
__noinline int copy_block(__u32 to, __u32 from, __u32 bytes)
{
	__u32 i;

	USE_ARENA();
	bpf_for(i, 0, (bytes + KDB_GRAIN - 1) / KDB_GRAIN) {
		ASTORE64(to + i * KDB_GRAIN, ALOAD64(from + i * KDB_GRAIN));
		ASTORE64(to + i * KDB_GRAIN + 8, ALOAD64(from + i * KDB_GRAIN + 8));
	}
	return 0;
}

static __always_inline int lock_for_moving(__u32 entry)
{
	return CAS(&entry_at(entry)->lock, 0, KDB_LOCK_AUTO) == 0;
}

/* Moves the value in a slot; returns the bytes moved. */
__noinline int evacuate_value(__u32 entry, __u32 overflow, __u32 slot)
{
	struct kdb_version __arena *v = slot_in(entry, overflow, slot);
	struct kdb_entry __arena *e = entry_at(entry);
	struct kdb_state *state = kdb_state();
	__u64 ts = LOAD(&v->ts);
	__u32 block = LOAD(&v->block), len = LOAD(&v->len), to, head, bytes;
	unsigned long irq;
	int moved = 0;

	USE_ARENA();
	if (!state || !ts || (ts & KDB_MARKER) || !block || (len & KDB_LEN_INLINE))
		return 0;
	head = head_in_block(len);
	if (!is_evacuating(block - head))
		return 0;
	/* A record of the log may refer to the block. */
	if (kdb_config.wal && !log_drained(state, ts))
		return 0;
	bytes = (len & KDB_LEN_MASK) + head ?: 1;
	if (bytes > KDB_SLAB_BYTES)
		return 0;
	to = block_alloc(bytes);
	if (!to)
		return 0;
	copy_block(to, block - head, bytes);
	if ((len & KDB_LEN_HEAD) && !head)
		ASTORE64(head_at(to, len), ALOAD64(head_at(block, len)));
	bpf_local_irq_save(&irq);
	if (lock_for_moving(entry)) {
		if (v->ts == ts && v->block == block && v->len == len &&
		    (slot < KDB_INLINE_VERSIONS || e->overflow == overflow)) {
			STORE(&v->block, to + head);
			barrier();
			STORE(&e->changes, e->changes + 1);
			moved = bytes;
		}
		unlock_exclusive(entry);
	}
	bpf_local_irq_restore(&irq);
	slab_free(moved ? block - head : to, LINK_BLOCK);
	return moved;
}

/* Moves an entry's array of versions; returns the bytes moved. */
__noinline int evacuate_overflow(__u32 entry)
{
	struct kdb_entry __arena *e = entry_at(entry);
	__u32 bytes = overflow_bytes(), overflow, to;
	unsigned long irq;
	int moved = 0;

	USE_ARENA();
	if (!is_evacuating(LOAD(&e->overflow)))
		return 0;
	to = block_alloc(bytes);
	if (!to)
		return 0;
	/* Unlike a value, the array changes, so it is copied under the lock. */
	bpf_local_irq_save(&irq);
	overflow = 0;
	if (lock_for_moving(entry)) {
		overflow = e->overflow;
		if (is_evacuating(overflow)) {
			copy_block(to, overflow, bytes);
			barrier();
			STORE(&e->overflow, to);
			barrier();
			STORE(&e->changes, e->changes + 1);
			moved = bytes;
		}
		unlock_exclusive(entry);
	}
	bpf_local_irq_restore(&irq);
	slab_free(moved ? overflow : to, LINK_BLOCK);
	return moved;
}

/* Moves the values and arrays of a slab's entries out of slabs that are being emptied; returns KiB moved,
 * rounded up. */
__noinline int kdb_evacuate(__u32 slab)
{
	struct kdb_slab __arena *d = slab_at(slab);
	struct kdb_arena __arena *s = super();
	__u32 kind = LOAD(&d->kind), carved, i, j;
	__u64 before = LOAD(&s->evacuated);

	USE_ARENA();
	if (kind < KDB_CLASSES || kind >= KDB_KINDS)
		return 0;
	carved = word_carved(LOAD(&d->word));
	bpf_for(i, 0, carved) {
		__u32 entry = slab_start(slab) + i * kind_bytes(kind);
		__u32 overflow;

		STORE(&s->evacuated, s->evacuated + evacuate_value(entry, 0, 0) + evacuate_value(entry, 0, 1));
		if (!LOAD(&entry_at(entry)->overflow) || kdb_config.slots <= KDB_INLINE_VERSIONS)
			continue;
		STORE(&s->evacuated, s->evacuated + evacuate_overflow(entry));
		overflow = LOAD(&entry_at(entry)->overflow);
		if (!overflow)
			continue;
		bpf_for(j, KDB_INLINE_VERSIONS, kdb_config.slots)
			STORE(&s->evacuated, s->evacuated + evacuate_value(entry, overflow, j));
	}
	return (LOAD(&s->evacuated) - before + 1023) / 1024;
}

#endif
