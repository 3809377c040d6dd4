/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The partition's arena: the map, and typed access by offset.
 *
 * User space maps the arena at an address that is a multiple of 4 GiB, so an arena pointer's low half
 * is the offset. Offsets are data, never trusted by the verifier: an access outside of the committed
 * pages reads zero and writes nothing. Correctness therefore rests on the protocols, safety does not.
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

/* An arena offset as an address. The model checker, which runs these headers in a process, has its own. */
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

static __always_inline struct kdb_version __arena *slot_at(__u32 entry, __u32 slot)
{
	return AT(struct kdb_version, entry + sizeof(struct kdb_entry) + slot * sizeof(struct kdb_version));
}

static __always_inline __u32 entry_key_off(__u32 entry)
{
	return entry + sizeof(struct kdb_entry) + kdb_config.slots * sizeof(struct kdb_version);
}

/* Bytes of an entry in front of its cells. */
static __always_inline __u32 entry_fixed(__u32 klen)
{
	return sizeof(struct kdb_entry) + kdb_config.slots * sizeof(struct kdb_version) + ((klen + 7) & ~7u);
}

/* Bytes of an entry of a class: whole cache lines. */
static __always_inline __u32 entry_bytes(__u32 class)
{
	return (class + 1) * KDB_CACHE_LINE;
}

/* The class of an entry with room for values of `vlen` bytes in its cells, if they may be there at all. */
static __always_inline __u32 entry_class(__u32 klen, __u32 vlen)
{
	__u32 cell = vlen > KDB_CELL_MAX ? 0 : vlen < KDB_CELL_DEFAULT ? KDB_CELL_DEFAULT : (vlen + 7) & ~7u;

	return (entry_fixed(klen) + KDB_CELLS * cell - 1) / KDB_CACHE_LINE;
}

/* Bytes of one of the entry's cells: what its class has left, in whole words. */
static __always_inline __u32 cell_bytes(__u32 klen, __u32 class)
{
	return ((entry_bytes(class) - entry_fixed(klen)) / KDB_CELLS) & ~7u;
}

/* Loads and stores that the compiler neither repeats nor merges; x86 keeps their order (TSO). */
/* Plain stores may be merged into a memset, which the compiler does not cast to the arena. */
#define STORE(p, v) (*(volatile typeof(*(p)) *)(p) = (v))
#define LOAD(p) (*(volatile typeof(*(p)) *)(p))
#define ALOAD64(off) (*(volatile __u64 __arena *)AT(__u64, off))
#define ASTORE64(off, v) (*(volatile __u64 __arena *)AT(__u64, off) = (v))

#define CAS(p, old, new) __sync_val_compare_and_swap(p, old, new)

#endif
