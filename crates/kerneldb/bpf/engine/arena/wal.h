/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The producers' side of the log rings (paper 4.3): one ring per CPU in each partition's arena.
 *
 * A producer reserves space, fills the record and completes it with interrupts off. It is alone with its
 * CPU's ring, and no record stays incomplete for long: the reader stops at the first incomplete one. A record
 * is complete when `state` is a certain function of its position and the database's secret. The memory's
 * previous contents, which may be any bytes that clients sent, never equal that, so no thread has to clear
 * them. A reserved record that turns out not to be needed is completed as VOID.
 */
#ifndef BEDPLATE_ENGINE_WAL_H
#define BEDPLATE_ENGINE_WAL_H

#include "arena.h"
#include "copy.h"

#define PAD8(n) (((n) + 7) & ~7u)

struct kdb_wal_rec {
	__u64 pos; /* position in the ring (bytes ever) */
	__u32 off; /* arena offset of the record; 0 = nothing is logged */
	__u32 more; /* bytes of its header beyond the short one: REC_MORE for a struct kdb_rec_long, else 0 */
	__u32 bytes; /* bytes of the whole record */
};

#define REC_MORE ((__u32)(sizeof(struct kdb_rec_long) - sizeof(struct kdb_rec)))

static __always_inline struct kdb_rec __arena *rec_at(const struct kdb_wal_rec *rec)
{
	return AT(struct kdb_rec, rec->off);
}

/* Offset of a record's key. */
static __always_inline __u32 rec_key(const struct kdb_wal_rec *rec)
{
	return rec->off + sizeof(struct kdb_rec) + rec->more;
}

/* Sets the word of a long record. */
static __always_inline void rec_word(const struct kdb_wal_rec *rec, __u64 word)
{
	ASTORE64(rec->off + offsetof(struct kdb_rec_long, word), word);
}

/*
 * Ring memory comes from the consumer's cache or from main memory. A producer that has begun a new stretch
 * touches all lines of the next one at once, so that the misses overlap. It does so at the very end, because
 * every locked instruction would wait for the misses.
 */
#define WAL_STRETCH 1024u

static __always_inline void wal_ahead(const struct kdb_wal_rec *rec)
{
	__u64 end = rec->pos + rec->bytes;

	if (!rec->off || (rec->pos ^ end) < WAL_STRETCH)
		return;
	/* The thread may have moved to another CPU. That does no harm, because the memory is only touched. */
	__u32 cpu = bpf_get_smp_processor_id();
	if (cpu >= kdb_config.ncpus)
		return;
	struct kdb_ring __arena *ring = AT(struct kdb_ring, kdb_config.rings + cpu * sizeof(struct kdb_ring));
	__u32 next = ring->data + (((__u32)(end & ~(__u64)(WAL_STRETCH - 1)) + WAL_STRETCH) & (ring->size - 1));
#pragma unroll
	for (int line = 0; line < WAL_STRETCH / KDB_CACHE_LINE; line++)
		ALOAD64(next + line * KDB_CACHE_LINE);
}

/* `state` of the complete record at a position. */
static __always_inline __u64 complete_state(__u64 pos)
{
	return (pos << 1 | 1) ^ kdb_config.log_secret;
}

/* Reserves a record; 0 when the ring is full. Interrupts are off. */
static __always_inline int wal_reserve(struct kdb_wal_rec *rec, __u32 bytes)
{
	__u32 cpu = bpf_get_smp_processor_id();

	rec->off = 0;
	if (cpu >= kdb_config.ncpus)
		return 0;
	struct kdb_ring __arena *ring = AT(struct kdb_ring, kdb_config.rings + cpu * sizeof(struct kdb_ring));
	__u32 size = ring->size, data = ring->data;
	__u64 head = LOAD(&ring->head), tail = LOAD(&ring->tail_seen);
	__u32 at = head & (size - 1), room = size - at;
	__u64 start = room < bytes ? head + room : head;

	/* The consumer's cache line is read only when the last value seen of it does not leave enough room. */
	if (start + bytes - tail > size) {
		tail = LOAD(&ring->tail);
		STORE(&ring->tail_seen, tail);
		if (start + bytes - tail > size)
			return 0;
	}
	STORE(&ring->head, start + bytes);
	if (start != head && room >= 16) {
		struct kdb_rec __arena *pad = AT(struct kdb_rec, data + at);
		STORE(&pad->size, room);
		STORE(&pad->type, KDB_REC_PAD);
		barrier();
		*(volatile __u64 __arena *)&pad->state = complete_state(head);
	}
	rec->pos = start;
	rec->bytes = bytes;
	rec->off = data + (start & (size - 1));
	return 1;
}

static __always_inline void wal_complete(const struct kdb_wal_rec *rec)
{
	barrier();
	*(volatile __u64 __arena *)&rec_at(rec)->state = complete_state(rec->pos);
}

static __always_inline void wal_void(const struct kdb_wal_rec *rec)
{
	if (!rec->off)
		return;
	rec_at(rec)->type = KDB_REC_VOID;
	wal_complete(rec);
}

/* Writes the adjacent fields of a record, in whole words. */
static __always_inline void rec_head(const struct kdb_wal_rec *rec, __u32 bytes, __u64 klen, __u64 type,
				     __u64 flags, __u32 vlen, __u64 index)
{
	ASTORE64(rec->off + offsetof(struct kdb_rec, size), bytes | klen << 32 | type << 48 | flags << 56);
	ASTORE64(rec->off + offsetof(struct kdb_rec, vlen), vlen | index << 32);
}

/* Bytes of a record with a copy of the value. */
static __always_inline __u32 wal_bytes(const struct kdb_wal_rec *rec, struct kdb_io *io, __u32 vlen)
{
	return sizeof(struct kdb_rec) + rec->more + PAD8(io->klen) + PAD8(vlen);
}

/*
 * Fills a reserved record for a change of io's key, except for the fields that are known only at commit. With
 * `block` the record refers to the value there, else it has a copy.
 */
static __always_inline void wal_fill(struct kdb_wal_rec *rec, struct kdb_io *io, __u32 type, __u32 vlen,
				     __u32 block)
{
	__u32 key_bytes = PAD8(io->klen);
	__u32 bytes = wal_bytes(rec, io, block ? 0 : vlen);
	__u64 flags = (block ? KDB_REC_BY_REFERENCE : 0) | (rec->more ? KDB_REC_LONG : 0);

	rec_head(rec, bytes, io->klen, type, flags, vlen, block);
	copy_key_in(io, rec_key(rec));
	if (block)
		return;
	if (vlen <= KDB_CELL_MAX)
		copy_small_in(io, rec_key(rec) + key_bytes, vlen);
	else
		copy_value_in(io, rec_key(rec) + key_bytes, vlen);
}

/* Fills a record without key and value: ABORT, SKIP. */
static __always_inline void wal_fill_bare(struct kdb_wal_rec *rec, __u32 type, __u64 stamp, __u32 index)
{
	rec_head(rec, sizeof(struct kdb_rec), 0, type, 0, 0, index);
	rec_at(rec)->stamp = stamp;
}

/* Reserves and fills such a record. Interrupts are off. */
static __always_inline int wal_begin_bare(struct kdb_wal_rec *rec, __u32 type, __u64 stamp, __u32 index)
{
	if (!wal_reserve(rec, sizeof(struct kdb_rec)))
		return 0;
	wal_fill_bare(rec, type, stamp, index);
	return 1;
}

/* The same for the record of a transaction's commit, except for its timestamp. */
static __always_inline int wal_begin_commit(struct kdb_wal_rec *rec, __u64 transaction, __u32 writes)
{
	if (!wal_reserve(rec, sizeof(struct kdb_rec_long)))
		return 0;
	rec_head(rec, sizeof(struct kdb_rec_long), 0, KDB_REC_COMMIT, KDB_REC_LONG, 0, writes);
	rec_word(rec, transaction);
	return 1;
}

/* Logs that a transaction is rolled back, if there is room. */
__noinline int wal_abort(__u64 transaction, __u32 writes)
{
	struct kdb_wal_rec rec = {};
	unsigned long irq;

	USE_ARENA();
	bpf_local_irq_save(&irq);
	if (wal_begin_bare(&rec, KDB_REC_ABORT, transaction, writes))
		wal_complete(&rec);
	bpf_local_irq_restore(&irq);
	return 0;
}

#endif
