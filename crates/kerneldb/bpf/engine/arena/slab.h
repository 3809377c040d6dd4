/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Slabs: their descriptors, the bitmaps that find them, and the size classes of their blocks.
 *
 * The descriptor's word is the only authority on a slab. A bit in a bitmap is a hint that a slab is in a
 * state. The bit is set after the slab has entered the state. A CPU that clears it must look at the slab
 * afterwards. So for every slab in a state the bit is set, or a CPU is about to set it or to look at the slab.
 *
 * src/engine/arena/size.rs mirrors the functions of sizes.
 */
#ifndef BEDPLATE_ENGINE_SLAB_H
#define BEDPLATE_ENGINE_SLAB_H

#include "arena.h"

/* Blocks of up to 1 KiB have sizes in steps of 16 bytes. Up to 4 KiB there are eight sizes a doubling.
 * Larger blocks are a fifteenth to a whole of a slab. */
#define FINE_MAX 1024u
#define STEPPED_MAX 4096u
#define FINE_CLASSES (FINE_MAX / KDB_GRAIN)
#define STEPPED_CLASSES 16u
#define LARGEST_CLASS (KDB_CLASSES - 1)

/* The class of blocks for `bytes` bytes, at least 1. */
static __always_inline __u32 size_class(__u32 bytes)
{
	__u32 grains = (bytes + KDB_GRAIN - 1) / KDB_GRAIN;

	if (bytes <= FINE_MAX)
		return grains - 1;
	if (bytes <= 2 * FINE_MAX)
		return FINE_CLASSES + (bytes - 1 - FINE_MAX) / 128;
	if (bytes <= STEPPED_MAX)
		return FINE_CLASSES + 8 + (bytes - 1 - 2 * FINE_MAX) / 256;
	return LARGEST_CLASS + 1 - KDB_SLAB_BYTES / (grains * KDB_GRAIN);
}

/* Bytes of a block of a class. */
static __always_inline __u32 class_bytes(__u32 class)
{
	if (class < FINE_CLASSES)
		return (class + 1) * KDB_GRAIN;
	if (class < FINE_CLASSES + 8)
		return FINE_MAX + (class - FINE_CLASSES + 1) * 128;
	if (class < FINE_CLASSES + STEPPED_CLASSES)
		return 2 * FINE_MAX + (class - FINE_CLASSES - 8 + 1) * 256;
	return KDB_SLAB_BYTES / (LARGEST_CLASS + 1 - class) & ~(KDB_GRAIN - 1);
}

/* Bytes of a block, or of an entry, of a kind. */
static __always_inline __u32 kind_bytes(__u32 kind)
{
	return kind < KDB_CLASSES ? class_bytes(kind) : entry_bytes(kind - KDB_CLASSES);
}

static __always_inline struct kdb_slab __arena *slab_at(__u32 slab)
{
	return AT(struct kdb_slab, kdb_config.slabs + slab * sizeof(struct kdb_slab));
}

/* The number of the slab that contains an offset. */
static __always_inline __u32 slab_of(__u32 off)
{
	return (off - kdb_config.heap) / KDB_SLAB_BYTES;
}

static __always_inline __u32 slab_start(__u32 slab)
{
	return kdb_config.heap + slab * KDB_SLAB_BYTES;
}

#define ONE_USED (1ull << KDB_WORD_USED_SHIFT)
#define ONE_CARVED (1ull << KDB_WORD_CARVED_SHIFT)
#define ONE_TAG (1ull << KDB_WORD_TAG_SHIFT)
#define STATE_MASK (7ull << KDB_WORD_STATE_SHIFT)
#define TAG_MASK (~0ull << KDB_WORD_TAG_SHIFT)

static __always_inline __u32 word_state(__u64 word)
{
	return (word & STATE_MASK) >> KDB_WORD_STATE_SHIFT;
}

static __always_inline __u32 word_used(__u64 word)
{
	return word >> KDB_WORD_USED_SHIFT & KDB_WORD_COUNT;
}

static __always_inline __u32 word_carved(__u64 word)
{
	return word >> KDB_WORD_CARVED_SHIFT & KDB_WORD_COUNT;
}

static __always_inline __u64 word_with_state(__u64 word, __u64 state)
{
	return (word & ~STATE_MASK) | state << KDB_WORD_STATE_SHIFT;
}

static __always_inline __u32 bitmap_at(__u32 kind)
{
	return kdb_config.bitmaps + kind * kdb_config.bitmap_words * 8;
}

/* Sets a slab's bit. */
static __always_inline void bitmap_set(__u32 kind, __u32 slab)
{
	struct kdb_arena __arena *s = super();
	__u32 word = slab / 64, at = bitmap_at(kind) + word * 8, i;

	bpf_for(i, 0, 1 << 20) {
		__u64 old = ALOAD64(at);

		if (CAS(AT(__u64, at), old, old | 1ull << (slab & 63)) == old)
			break;
	}
	if (word < LOAD(&s->hints[kind]))
		STORE(&s->hints[kind], word);
}

/* Clears the bit of a slab at a low address; returns its number + 1, or 0 if no bit is set. */
static __always_inline __u32 bitmap_take(__u32 kind)
{
	struct kdb_arena __arena *s = super();
	__u32 words = kdb_config.bitmap_words, hint, at, word, i;

	hint = LOAD(&s->hints[kind]);
	bpf_for(i, 0, words) {
		word = hint + i;
		if (word >= words)
			word -= words;
		at = bitmap_at(kind) + word * 8;
		while (few_steps) {
			__u64 old = ALOAD64(at);

			if (!old)
				break;
			if (CAS(AT(__u64, at), old, old & (old - 1)) != old)
				continue;
			STORE(&s->hints[kind], word);
			return word * 64 + __builtin_ctzll(old) + 1;
		}
	}
	return 0;
}

#endif
