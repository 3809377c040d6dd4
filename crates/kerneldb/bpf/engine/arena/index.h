/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The hash index: bucket words with chains of entries.
 *
 * Readers and inserters take no lock. A bucket word is {tag, first entry}; an insert swaps in a new first
 * entry by compare-and-swap of the whole word, so two inserts of one key cannot both succeed. Only the
 * collector removes entries, one at a time: it locks the entry for good (dead), unlinks it, bumps the tag, and
 * only then frees the memory. A reader that found an entry without locking it must see the tag unchanged after
 * its last look at the entry. An operator that locked an entry must see its key unchanged.
 */
#ifndef BEDPLATE_ENGINE_INDEX_H
#define BEDPLATE_ENGINE_INDEX_H

#include "../hash.h"
#include "alloc.h"
#include "copy.h"
#include "usage.h"

struct kdb_pos {
	__u64 hash;
	__u64 word;   /* bucket word seen before the chain was walked */
	__u32 bucket; /* offset of the bucket word */
	__u32 entry;  /* 0 = not found */
	__u32 chain;  /* enum kdb_chain; only when the key was not found */
};

/* Result of a walk to the end of a chain. */
enum kdb_chain {
	CHAIN_HAS_ROOM,
	CHAIN_FULL,     /* KDB_CHAIN_MAX entries: the key is absent, and cannot be added */
	CHAIN_TOO_LONG, /* more entries: the key may be among them or not */
};

static __always_inline __u32 tag_of(__u64 hash)
{
	return (__u32)hash;
}

static __always_inline int pos_unchanged(const struct kdb_pos *pos)
{
	barrier();
	return ALOAD64(pos->bucket) >> 32 == pos->word >> 32;
}

static __always_inline int entry_matches(__u32 off, struct kdb_io *io, __u32 tag)
{
	struct kdb_entry __arena *e = entry_at(off);

	return LOAD(&e->hash) == tag && LOAD(&e->klen) == io->klen && key_equal(io, entry_key_off(off));
}

/*
 * Walks the chain of pos->hash. With entry == 0 the key was absent at some moment if pos_unchanged() holds and
 * pos->chain is not CHAIN_TOO_LONG.
 */
static __always_inline void index_find(struct kdb_io *io, struct kdb_pos *pos)
{
	__u32 tag = tag_of(pos->hash), off, i;

	pos->bucket = kdb_config.buckets + ((__u32)pos->hash & kdb_config.bucket_mask) * 8;
	pos->word = ALOAD64(pos->bucket);
	pos->entry = 0;
	pos->chain = CHAIN_HAS_ROOM;
	off = (__u32)pos->word;
	/* Most chains are this short. The loop below costs a kernel function call per step. */
	for (int j = 0; j < 2; j++) {
		if (!off)
			return;
		if (entry_matches(off, io, tag)) {
			pos->entry = off;
			return;
		}
		off = LOAD(&entry_at(off)->next);
	}
	pos->chain = CHAIN_FULL;
	bpf_for(i, 2, KDB_CHAIN_MAX) {
		if (!off) {
			pos->chain = CHAIN_HAS_ROOM;
			break;
		}
		if (entry_matches(off, io, tag)) {
			pos->entry = off;
			break;
		}
		off = LOAD(&entry_at(off)->next);
	}
	if (off && !pos->entry)
		pos->chain = CHAIN_TOO_LONG;
}

/* Creates an entry with the lock word `lock`, not linked yet; returns 0 when out of memory. `vlen`: bytes of
 * the values to expect. */
static __always_inline __u32 entry_create(struct kdb_io *io, __u64 hash, __u64 lock, __u32 vlen)
{
	__u32 class = entry_class(io->klen, vlen);
	__u32 off = class < KDB_ENTRY_CLASSES ? alloc_kind(KDB_CLASSES + class) : 0;

	if (!off)
		return 0;
	struct kdb_entry __arena *e = entry_at(off);
	STORE(&e->hash, tag_of(hash));
	STORE(&e->klen, io->klen);
	STORE(&e->class_, class);
	STORE(&e->gc_queued, 0);
	STORE(&e->usage, usage_of_new());
	STORE(&e->gc_next, 0);
	STORE(&e->overflow, 0);
	STORE(&e->v[0].ts, 0);
	STORE(&e->v[1].ts, 0);
	copy_key_in(io, entry_key_off(off));
	barrier();
	/* Stale pointers to this memory may exist, so the lock word is written last. It was `dead` until now. */
	STORE(&e->lock, lock);
	return off;
}

/* Links a new entry; fails when the bucket changed since index_find(). */
static __always_inline int entry_link(struct kdb_pos *pos, __u32 entry)
{
	entry_at(entry)->next = (__u32)pos->word;
	barrier();
	return CAS(AT(__u64, pos->bucket), pos->word, (pos->word & ~0xffffffffull) | entry) == pos->word;
}

/*
 * Unlinks an entry that is locked dead; returns 0, and changes nothing, if it is not in its chain. Only the
 * collector calls this, and only one collector runs, so no other entry of the chain leaves meanwhile.
 */
__noinline int entry_unlink(__u32 entry)
{
	__u32 bucket = kdb_config.buckets + (LOAD(&entry_at(entry)->hash) & kdb_config.bucket_mask) * 8;
	__u32 next = LOAD(&entry_at(entry)->next), i;

	USE_ARENA();
	bpf_for(i, 0, 1 << 16) {
		__u64 word = ALOAD64(bucket);
		__u64 tag = ((word >> 32) + 1) << 32;
		__u32 prev = (__u32)word, j;

		if (prev == entry) {
			if (CAS(AT(__u64, bucket), word, tag | next) == word)
				return 1;
			continue;
		}
		int found = 0;
		bpf_for(j, 0, KDB_CHAIN_MAX) {
			if (!prev)
				break;
			__u32 after = LOAD(&entry_at(prev)->next);
			if (after == entry) {
				found = 1;
				break;
			}
			prev = after;
		}
		if (!found)
			return 0;
		/* Only this function changes the links of entries in the middle of a chain. */
		STORE(&entry_at(prev)->next, next);
		bpf_for(j, 0, 1 << 16) {
			word = ALOAD64(bucket);
			if (CAS(AT(__u64, bucket), word, word + (1ull << 32)) == word)
				return 1;
		}
		return 0;
	}
	return 0;
}

#endif
