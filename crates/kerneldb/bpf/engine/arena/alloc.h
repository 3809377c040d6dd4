/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The allocator of blocks and index entries (paper 4.1, [25, 26]).
 *
 * The heap consists of slabs of 64 KiB. A slab has a kind: it holds blocks of one size class, or entries of one
 * size. Each CPU has one current slab for each kind that it has used. It allocates freed blocks of that slab
 * first, then blocks that were never handed out. When the slab is full, the CPU takes a partial slab of the kind,
 * the one at the lowest address, then a free slab, then one that was never used. Only then it takes blocks from
 * other CPUs' current slabs, or larger blocks. Any CPU may free into any slab.
 *
 * A slab's state is part of the word that also has its free list, so that every transition is one
 * compare-and-swap:
 *  - FREE -> CLAIMED -> CURRENT: a CPU takes a free slab, and gives it a kind.
 *  - PARTIAL -> CLAIMED -> CURRENT: a CPU takes a slab of the kind that it needs.
 *  - CURRENT -> FULL: the owner found nothing left in it.
 *  - FULL -> PARTIAL: a block was freed.
 *  - PARTIAL or FULL -> FREE: the last block in use was freed. Slabs of entries are different, see below.
 *  - PARTIAL, CURRENT or FULL -> EVACUATING -> FREE: user space (src/engine/arena/reclaim.rs) decides so. Nothing
 *    is allocated from such a slab. A block that is freed in it is only counted, not linked, because readers may
 *    still look at it. User space frees the slab when nothing in it is in use, and every program and every scan
 *    that may have a pointer into it has ended.
 * An empty slab of entries waits for user space, because stale pointers to its entries may be locked. User space
 * may also take empty current slabs. An owner therefore must see its slab's state and kind together with the word
 * that it changes.
 *
 * User space that fills an arena before any operator runs on it (recovery, src/engine/arena/load.rs) takes slabs
 * at `brk`, which stay CLAIMED while it writes `kind`, `capacity` and blocks. Then it stores the word: FULL, or
 * PARTIAL with the slab's bit in the bitmap of its kind, or FREE with its bit in that of free slabs. Entries that
 * are not carved need no contents.
 */
#ifndef BEDPLATE_ENGINE_ALLOC_H
#define BEDPLATE_ENGINE_ALLOC_H

#include "slab.h"

/* The free-list link lies in the first word of a block, and behind the lock word of an entry. */
#define LINK_BLOCK 0u
#define LINK_ENTRY 8u

static __always_inline __u32 link_of(__u32 kind)
{
	return kind < KDB_CLASSES ? LINK_BLOCK : LINK_ENTRY;
}

static __always_inline __u32 current_off(__u32 cpu, __u32 kind)
{
	return kdb_config.cpus + cpu * sizeof(struct kdb_cpu_alloc) + kind * 4;
}

/* Pops a block from the free list of a current slab of a kind; returns 0 if that is not possible, or another CPU
 * was quicker. */
static __always_inline __u32 slab_pop(__u32 slab, __u32 kind)
{
	struct kdb_slab __arena *d = slab_at(slab);
	__u64 word = LOAD(&d->word);
	__u32 first = word & KDB_WORD_FIRST;

	if (word_state(word) != KDB_SLAB_CURRENT || !first)
		return 0;
	barrier();
	if (LOAD(&d->kind) != kind)
		return 0;
	__u32 off = slab_start(slab) + (first - 1) * KDB_GRAIN;
	/* If another CPU pops the block meanwhile and writes into it, the tag has changed. */
	__u64 next = *(volatile __u32 __arena *)AT(__u32, off + link_of(kind)) & KDB_WORD_FIRST;
	__u64 after = ((word & ~KDB_WORD_FIRST) | next) + ONE_USED + ONE_TAG;
	return CAS(&d->word, word, after) == word ? off : 0;
}

/* Prepares an entry that was never in use for scans of its slab: it has no version, and a stale pointer cannot
 * lock it. */
static __always_inline void entry_clear(__u32 off)
{
	struct kdb_entry __arena *e = entry_at(off);

	STORE(&e->lock, KDB_LOCK_DEAD);
	STORE(&e->overflow, 0);
	STORE(&e->gc_queued, 0);
	STORE(&e->changes, 0);
	STORE(&e->v[0].ts, 0);
	STORE(&e->v[1].ts, 0);
	barrier();
}

/* Hands out a block of a current slab for the first time; returns 0 if that is not possible, or another CPU was
 * quicker. Only the slab's owner, `cpu`, may hand out an entry, with interrupts off, because the function writes
 * to the entry before it has it. */
static __always_inline __u32 slab_carve(__u32 slab, __u32 kind, __u32 cpu)
{
	struct kdb_slab __arena *d = slab_at(slab);
	__u64 word = LOAD(&d->word);
	__u32 carved = word_carved(word);

	if (word_state(word) != KDB_SLAB_CURRENT)
		return 0;
	barrier();
	if (LOAD(&d->kind) != kind || carved >= LOAD(&d->capacity))
		return 0;
	__u32 off = slab_start(slab) + carved * kind_bytes(kind);
	if (kind >= KDB_CLASSES) {
		if (LOAD(&d->owner) != cpu + 1)
			return 0;
		entry_clear(off);
	}
	return CAS(&d->word, word, word + ONE_CARVED + ONE_USED + ONE_TAG) == word ? off : 0;
}

/* Makes a slab that this CPU has claimed its current one. Meanwhile other CPUs can only free into the slab. */
static __always_inline void slab_own(__u32 slab, __u32 cpu, __u32 kind)
{
	struct kdb_slab __arena *d = slab_at(slab);

	STORE(&d->owner, cpu + 1);
	barrier();
	while (few_steps) {
		__u64 word = LOAD(&d->word);

		if (CAS(&d->word, word, word_with_state(word, KDB_SLAB_CURRENT) + ONE_TAG) == word)
			break;
	}
	STORE(AT(__u32, current_off(cpu, kind)), slab + 1);
}

/* Gives the CPU a partial slab of a kind. */
static __always_inline int own_partial(__u32 cpu, __u32 kind)
{
	while (few_steps) {
		__u32 slab = bitmap_take(kind);

		if (!slab)
			return 0;
		slab--;
		struct kdb_slab __arena *d = slab_at(slab);
		while (few_steps) {
			__u64 word = LOAD(&d->word);

			if (word_state(word) != KDB_SLAB_PARTIAL)
				break;
			barrier();
			if (LOAD(&d->kind) != kind)
				break;
			if (CAS(&d->word, word, word_with_state(word, KDB_SLAB_CLAIMED) + ONE_TAG) != word)
				continue;
			slab_own(slab, cpu, kind);
			return 1;
		}
	}
	return 0;
}

/* Claims a slab that was never used; returns its number + 1, or 0 if there is none within the committed memory. */
static __always_inline __u32 claim_new(void)
{
	struct kdb_arena __arena *s = super();

	while (few_steps) {
		__u64 brk = LOAD(&s->brk);

		if (brk + KDB_SLAB_BYTES > LOAD(&s->committed))
			return 0;
		if (CAS(&s->brk, brk, brk + KDB_SLAB_BYTES) != brk)
			continue;
		__u32 slab = slab_of(brk);
		STORE(&slab_at(slab)->word, (__u64)KDB_SLAB_CLAIMED << KDB_WORD_STATE_SHIFT);
		return slab + 1;
	}
	return 0;
}

/* Claims a slab of the pool; returns its number + 1, or 0 if there is none. */
static __always_inline __u32 claim_free(void)
{
	while (few_steps) {
		__u32 slab = bitmap_take(KDB_KIND_FREE);

		if (!slab)
			return 0;
		struct kdb_slab __arena *d = slab_at(slab - 1);
		__u64 word = LOAD(&d->word);
		/* Nothing else changes the word of a free slab. */
		if (word_state(word) == KDB_SLAB_FREE &&
		    CAS(&d->word, word,
			word_with_state(word & TAG_MASK, KDB_SLAB_CLAIMED) + ONE_TAG) == word)
			return slab;
	}
	return 0;
}

/* Gives the CPU a slab that is free or was never used. */
static __always_inline int own_free(__u32 cpu, __u32 kind)
{
	__u32 slab = claim_free();

	if (!slab)
		slab = claim_new();
	if (!slab)
		return 0;
	struct kdb_slab __arena *d = slab_at(slab - 1);
	STORE(&d->kind, kind);
	STORE(&d->capacity, KDB_SLAB_BYTES / kind_bytes(kind));
	slab_own(slab - 1, cpu, kind);
	return 1;
}

/* Gives the CPU a slab with room. Interrupts are off. */
__noinline int own_slab(__u32 cpu, __u32 kind)
{
	USE_ARENA();
	if (kind >= KDB_KINDS)
		return 0;
	return own_partial(cpu, kind) || own_free(cpu, kind);
}

/* Allocates from the CPU's current slab, or gives that up. Interrupts are off. */
__noinline __u32 alloc_current(__u32 cpu, __u32 kind)
{
	__u32 slab = LOAD(AT(__u32, current_off(cpu, kind)));

	USE_ARENA();
	if (!slab)
		return 0;
	slab--;
	struct kdb_slab __arena *d = slab_at(slab);
	while (few_steps) {
		__u32 off = slab_pop(slab, kind);

		if (!off)
			off = slab_carve(slab, kind, cpu);
		if (off)
			return off;
		__u64 word = LOAD(&d->word);
		barrier();
		/* User space took the slab, perhaps for another CPU. */
		if (word_state(word) != KDB_SLAB_CURRENT || LOAD(&d->kind) != kind || LOAD(&d->owner) != cpu + 1)
			break;
		if ((word & KDB_WORD_FIRST) || word_carved(word) < LOAD(&d->capacity))
			continue;
		if (CAS(&d->word, word, word_with_state(word, KDB_SLAB_FULL) + ONE_TAG) == word)
			break;
	}
	STORE(AT(__u32, current_off(cpu, kind)), 0);
	return 0;
}

/* Allocates a block of a kind from another CPU's current slab, unless that CPU allocates from it at the same
 * moment. */
__noinline __u32 alloc_foreign(__u32 kind)
{
	__u32 other;

	USE_ARENA();
	bpf_for(other, 0, kdb_config.ncpus) {
		__u32 slab = LOAD(AT(__u32, current_off(other, kind)));
		__u32 off;

		if (!slab)
			continue;
		off = slab_pop(slab - 1, kind);
		if (!off && kind < KDB_CLASSES)
			off = slab_carve(slab - 1, kind, other);
		if (off)
			return off;
	}
	return 0;
}

/* Allocates a block of a kind from any slab. Interrupts are off. */
static __always_inline __u32 alloc_anywhere(__u32 cpu, __u32 kind)
{
	while (few_steps) {
		__u32 off = alloc_current(cpu, kind);

		if (off)
			return off;
		if (!own_slab(cpu, kind))
			break;
	}
	return alloc_foreign(kind);
}

#define LARGER_CLASSES 8u /* Number of larger classes that serve a class for which there is no slab. */

/* The rest of alloc_kind(), after its first attempt. */
__noinline __u32 alloc_slow(__u32 kind)
{
	__u32 cpu, off = 0, larger;
	unsigned long flags;

	USE_ARENA();
	if (kind >= KDB_KINDS)
		return 0;
	bpf_local_irq_save(&flags);
	cpu = bpf_get_smp_processor_id();
	if (cpu < kdb_config.ncpus) {
		bpf_for(larger, 0, LARGER_CLASSES + 1) {
			__u32 other = kind + larger;

			if (other >= KDB_KINDS || (larger && other >= KDB_CLASSES))
				break;
			off = alloc_anywhere(cpu, other);
			if (off)
				break;
		}
	}
	bpf_local_irq_restore(&flags);
	return off;
}

/* Allocates one block, or entry, of a kind; returns 0 when there is none within the limit. */
static __always_inline __u32 alloc_kind(__u32 kind)
{
	__u32 cpu = bpf_get_smp_processor_id(), slab, off = 0;

	if (cpu >= kdb_config.ncpus || kind >= KDB_KINDS)
		return 0;
	slab = LOAD(AT(__u32, current_off(cpu, kind)));
	if (slab)
		off = slab_pop(slab - 1, kind);
	return off ?: alloc_slow(kind);
}

static __always_inline __u32 block_alloc(__u32 bytes)
{
	return alloc_kind(size_class(bytes));
}

/* One attempt at giving a block back; returns 0 if the word has changed. */
static __always_inline int slab_free_once(__u32 off, __u32 link)
{
	__u32 slab = slab_of(off);
	struct kdb_slab __arena *d = slab_at(slab);
	__u64 word = LOAD(&d->word), after = word - ONE_USED + ONE_TAG;
	__u32 state = word_state(word), bitmap = KDB_KINDS + 1;

	if (state != KDB_SLAB_EVACUATING) {
		*(volatile __u64 __arena *)AT(__u64, off + link) = word & KDB_WORD_FIRST;
		after = (after & ~KDB_WORD_FIRST) | ((off & (KDB_SLAB_BYTES - 1)) / KDB_GRAIN + 1);
	}
	if (state == KDB_SLAB_PARTIAL || state == KDB_SLAB_FULL) {
		if (word_used(word) == 1 && link == LINK_BLOCK) {
			after = word_with_state(after & TAG_MASK, KDB_SLAB_FREE);
			bitmap = KDB_KIND_FREE;
		} else if (state == KDB_SLAB_FULL) {
			after = word_with_state(after, KDB_SLAB_PARTIAL);
			bitmap = LOAD(&d->kind);
		}
	}
	if (CAS(&d->word, word, after) != word)
		return 0;
	if (bitmap <= KDB_KIND_FREE)
		bitmap_set(bitmap, slab);
	return 1;
}

__noinline int slab_free(__u32 off, __u32 link)
{
	__u32 i;

	USE_ARENA();
	if (slab_free_once(off, link))
		return 0;
	bpf_for(i, 0, 1 << 20) {
		if (slab_free_once(off, link))
			break;
	}
	return 0;
}

/* Bytes of a value's head that are in its block. */
static __always_inline __u32 head_in_block(__u32 len)
{
	return (len & KDB_LEN_HEAD) && (len & KDB_LEN_MASK) <= KDB_HEADED_MAX ? KDB_HEAD_BYTES : 0;
}

/* Offset of a value's head. */
static __always_inline __u32 head_at(__u32 block, __u32 len)
{
	if ((len & KDB_LEN_MASK) <= KDB_HEADED_MAX)
		return block - KDB_HEAD_BYTES;
	return kdb_config.slabs + slab_of(block) * sizeof(struct kdb_slab) + offsetof(struct kdb_slab, head);
}

/* Frees the block of a value. */
static __always_inline void block_free(__u32 block, __u32 len)
{
	slab_free(block - head_in_block(len), LINK_BLOCK);
}

static __always_inline void entry_free(__u32 entry)
{
	slab_free(entry, LINK_ENTRY);
}

#endif
