/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The partition's arena: the map, and typed access by offset.
 *
 * User space maps the arena at an address that is a multiple of 4 GiB, so an arena pointer's low half is the
 * offset. The verifier does not trust offsets: an access outside of the committed pages reads zero and writes
 * nothing. Correctness therefore depends on the protocols; safety does not.
 */
#ifndef BEDPLATE_ENGINE_ARENA_H
#define BEDPLATE_ENGINE_ARENA_H

#include "../maps.h"

struct {
	__uint(type, KDB_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
} kdb_arena SEC(".maps");

/* A program is bound to the arena that it mentions; every global function has to mention it. */
#define USE_ARENA() asm volatile("" ::"r"(&kdb_arena))

/* An arena offset as an address. The model checker, which runs these headers in a process, defines its own. */
#ifndef AT
#define AT(type, off) ((type __arena *)(unsigned long)(__u64)(__u32)(off))
#endif

static __always_inline struct kdb_arena __arena *super(void)
{
	return AT(struct kdb_arena, KDB_SUPER_OFF);
}

static __always_inline struct kdb_entry __arena *entry_at(__u32 off)
{
	return AT(struct kdb_entry, off);
}

/* Loads and stores that the compiler neither repeats nor merges; x86 keeps their order (TSO). */
/* Plain stores may be merged into a memset, which the compiler does not cast to the arena. */
#define STORE(p, v) (*(volatile typeof(*(p)) *)(p) = (v))
#define LOAD(p) (*(volatile typeof(*(p)) *)(p))
#define ALOAD64(off) (*(volatile __u64 __arena *)AT(__u64, off))
#define ASTORE64(off, v) (*(volatile __u64 __arena *)AT(__u64, off) = (v))

#define CAS(p, old, new) __sync_val_compare_and_swap(p, old, new)

/*
 * A version slot. The first KDB_INLINE_VERSIONS slots are in the entry. Without an overflow array the others
 * read as zeros, that is as free: they are in page 0 then, which nothing uses.
 */
static __always_inline struct kdb_version __arena *slot_in(__u32 entry, __u32 overflow, __u32 slot)
{
	__u32 off = slot < KDB_INLINE_VERSIONS
			    ? entry + offsetof(struct kdb_entry, v) + slot * sizeof(struct kdb_version)
			    : overflow + (slot - KDB_INLINE_VERSIONS) * sizeof(struct kdb_version);

	return AT(struct kdb_version, off);
}

/* The same for a caller that holds the entry's exclusive lock. */
static __always_inline struct kdb_version __arena *slot_at(__u32 entry, __u32 slot)
{
	return slot_in(entry, slot < KDB_INLINE_VERSIONS ? 0 : LOAD(&entry_at(entry)->overflow), slot);
}

/* Bytes of an overflow array. */
static __always_inline __u32 overflow_bytes(void)
{
	return (kdb_config.slots - KDB_INLINE_VERSIONS) * sizeof(struct kdb_version);
}

static __always_inline __u32 entry_key_off(__u32 entry)
{
	return entry + sizeof(struct kdb_entry);
}

/* Bytes of an entry in front of its cells. */
static __always_inline __u32 entry_fixed(__u32 klen)
{
	return sizeof(struct kdb_entry) + ((klen + 7) & ~7u);
}

/* Bytes of an entry of a class. */
static __always_inline __u32 entry_bytes(__u32 class)
{
	return (class + 1) * KDB_GRAIN;
}

/* The class of an entry whose cells have room for values of `vlen` bytes, if cells may hold such values. */
static __always_inline __u32 entry_class(__u32 klen, __u32 vlen)
{
	__u32 cell = vlen > KDB_CELL_MAX ? 0 : vlen < KDB_CELL_DEFAULT ? KDB_CELL_DEFAULT : (vlen + 7) & ~7u;

	return (entry_fixed(klen) + KDB_CELLS * cell - 1) / KDB_GRAIN;
}

/* Bytes of one of the entry's cells: its share of the bytes that the class has left, in whole words. */
static __always_inline __u32 cell_bytes(__u32 klen, __u32 class)
{
	__u32 bytes = ((entry_bytes(class) - entry_fixed(klen)) / KDB_CELLS) & ~7u;

	return bytes > KDB_CELL_MAX ? KDB_CELL_MAX : bytes;
}

#endif
