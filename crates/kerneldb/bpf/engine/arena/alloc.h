/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Size-class allocator inside the arena (paper 4.1, [25, 26]).
 *
 * Four classes of values per doubling (16-byte steps up to 128); a block is 16 bytes larger than the
 * longest value of its class, so that a value whose length is a power of two wastes nothing. Each CPU has, per class, a free list (Treiber
 * stack; the tag in the head's upper half defeats ABA) and the rest of the slab it carves. Only its own
 * CPU touches a slab, with interrupts off; any CPU may take a whole free list when it runs dry. Value
 * blocks and index entries have separate lists: entry memory is type-stable (see layout.h), and entries
 * are whole cache lines.
 *
 * Memory is handed out below `committed`, which user space raises by backing more pages. Pages never go
 * back and never change their kind; blocks of one class are not merged into another.
 */
#ifndef BEDPLATE_ENGINE_ALLOC_H
#define BEDPLATE_ENGINE_ALLOC_H

#include "arena.h"

#define LARGE_SLABS 9u     /* taken together for the largest class, whose blocks exceed one slab */
#define BLOCK_OVERHEAD 16u /* struct kdb_block, and what keeps blocks multiples of 16 */

/* Where the free-list link lies: in the first word of a block; behind the lock word of an entry. */
#define LINK_BLOCK 0u
#define LINK_ENTRY 8u

/* The class of values of `bytes` bytes. */
static __always_inline __u32 size_class(__u32 bytes)
{
	__u32 n = bytes - 1, k = 7;

	if (bytes <= 16)
		return 0;
	if (bytes <= 128)
		return (bytes + 15) / 16 - 1;
	if (n >= 1u << 12) {
		k = 12;
	}
	if (n >> k >= 16)
		k += 4;
	if (n >> k >= 4)
		k += 2;
	if (n >> k >= 2)
		k += 1;
	return 8 + (k - 7) * 4 + ((n >> (k - 2)) & 3);
}

/* Bytes of a block of a class. */
static __always_inline __u32 block_bytes(__u32 class)
{
	if (class < 8)
		return (class + 1) * 16 + BLOCK_OVERHEAD;
	__u32 k = (class - 8) / 4 + 7, m = (class - 8) % 4;
	return (1u << k) + ((m + 1) << (k - 2)) + BLOCK_OVERHEAD;
}

static __always_inline __u32 freelist_off(__u32 cpu, __u32 class, __u32 link)
{
	__u32 list = class + (link == LINK_ENTRY ? KDB_CLASSES : 0);
	return kdb_config.cpus + cpu * sizeof(struct kdb_cpu_alloc) + list * sizeof(struct kdb_freelist);
}

/* Pops from one free list; 0 when it is empty or contended for too long. */
static __always_inline __u32 freelist_pop(__u32 list, __u32 link)
{
	struct kdb_freelist __arena *fl = AT(struct kdb_freelist, list);

	for (int i = 0; i < 8; i++) {
		__u64 head = LOAD(&fl->head);
		__u32 off = (__u32)head;

		if (!off)
			return 0;
		/* Another CPU may pop it meanwhile and write into it: then the tag has changed. */
		__u32 next = *(volatile __u32 __arena *)AT(__u32, off + link);
		__u64 after = ((head >> 32) + 1) << 32 | next;
		if (CAS(&fl->head, head, after) == head)
			return off;
	}
	return 0;
}

/* Pushes the chain first..last. */
static __always_inline void freelist_push(__u32 list, __u32 first, __u32 last, __u32 link)
{
	struct kdb_freelist __arena *fl = AT(struct kdb_freelist, list);
	__u32 i;

	bpf_for(i, 0, 1 << 20) {
		__u64 head = LOAD(&fl->head);

		*(volatile __u64 __arena *)AT(__u64, last + link) = (__u32)head;
		if (CAS(&fl->head, head, ((head >> 32) + 1) << 32 | first) == head)
			return;
	}
}

/* Takes the whole free list of another CPU, keeps its first block and adopts the rest. */
static __always_inline __u32 steal(__u32 cpu, __u32 class, __u32 link)
{
	__u32 other;

	bpf_for(other, 0, kdb_config.ncpus) {
		struct kdb_freelist __arena *fl = AT(struct kdb_freelist, freelist_off(other, class, link));
		__u64 head = LOAD(&fl->head);
		__u32 off = (__u32)head;

		if (other == cpu || !off)
			continue;
		if (CAS(&fl->head, head, ((head >> 32) + 1) << 32) != head)
			continue;
		__u32 rest = *(volatile __u32 __arena *)AT(__u32, off + link);
		if (rest) {
			/* The own list was empty and interrupts are off: only a thief can touch it. */
			struct kdb_freelist __arena *own =
				AT(struct kdb_freelist, freelist_off(cpu, class, link));
			__u64 mine = LOAD(&own->head);
			if ((__u32)mine || CAS(&own->head, mine, ((mine >> 32) + 1) << 32 | rest) != mine) {
				/* Somebody freed into it first: walk to the end of the chain. */
				__u32 last = rest, i;
				bpf_for(i, 0, 1 << 22) {
					__u32 next = *(volatile __u32 __arena *)AT(__u32, last + link);
					if (!next)
						break;
					last = next;
				}
				freelist_push(freelist_off(cpu, class, link), rest, last, link);
			}
		}
		return off;
	}
	return 0;
}

/* Carves one block from the CPU's slab, after a refill from the arena's unused end if need be. */
static __always_inline __u32 carve(__u32 list, __u32 bytes, __u8 kind)
{
	struct kdb_freelist __arena *fl = AT(struct kdb_freelist, list);
	struct kdb_arena __arena *s = super();
	__u64 slab = fl->slab;
	__u32 left = slab >> 32, off = (__u32)slab;

	if (!left) {
		__u32 want = bytes > KDB_SLAB_BYTES ? LARGE_SLABS * KDB_SLAB_BYTES : KDB_SLAB_BYTES;
		int got = 0;

		for (int i = 0; i < 16; i++) {
			__u64 brk = LOAD(&s->brk);
			if (brk + want > LOAD(&s->committed))
				return 0;
			if (CAS(&s->brk, brk, brk + want) == brk) {
				/* Before the first entry in it is linked: who reads the heap in order needs it. */
				if (kind)
					STORE(AT(__u8, kdb_config.slabs + ((__u32)brk - kdb_config.heap) / KDB_SLAB_BYTES),
					      kind);
				off = brk;
				got = 1;
				break;
			}
		}
		if (!got)
			return 0;
		left = want / bytes;
	}
	fl->slab = (__u64)(left - 1) << 32 | (off + bytes);
	return off;
}

/* One block of a class; 0 when there is none within the limit. */
__noinline __u32 alloc_class(__u32 class, __u32 link)
{
	__u32 cpu = bpf_get_smp_processor_id(), list, off;
	unsigned long flags;

	USE_ARENA();
	if (cpu >= kdb_config.ncpus || class >= KDB_CLASSES)
		return 0;
	list = freelist_off(cpu, class, link);
	off = freelist_pop(list, link);
	if (off)
		return off;
	bpf_local_irq_save(&flags);
	off = steal(cpu, class, link);
	if (!off)
		off = link == LINK_ENTRY ? carve(list, entry_bytes(class), class + 1)
					 : carve(list, block_bytes(class), 0);
	bpf_local_irq_restore(&flags);
	return off;
}

static __always_inline __u32 block_alloc(__u32 vlen)
{
	return alloc_class(size_class(vlen), LINK_BLOCK);
}

static __always_inline void class_free(__u32 block, __u32 class)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (cpu < kdb_config.ncpus)
		freelist_push(freelist_off(cpu, class, LINK_BLOCK), block, block, LINK_BLOCK);
}

static __always_inline void block_free(__u32 block, __u32 vlen)
{
	class_free(block, size_class(vlen));
}

static __always_inline void entry_free(__u32 entry)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (cpu < kdb_config.ncpus)
		freelist_push(freelist_off(cpu, entry_at(entry)->class_, LINK_ENTRY), entry, entry, LINK_ENTRY);
}

#endif
