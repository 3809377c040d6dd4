/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The producers' side of the log rings (paper 4.3): one ring per CPU in each partition's arena.
 *
 * A producer reserves space by compare-and-swap of `head` (an interrupt may nest one producer into
 * another), fills the record, and completes it by storing into `state` a function of its own position and
 * the database's secret. What the memory held before, which may be anything that clients sent, is never
 * that, so nobody has to clear it. A reserved record that turns out not to be needed is completed as VOID.
 */
#ifndef BEDPLATE_ENGINE_WAL_H
#define BEDPLATE_ENGINE_WAL_H

#include "arena.h"
#include "copy.h"

#define PAD8(n) (((n) + 7) & ~7u)

struct kdb_wal_rec {
	__u64 pos; /* position in the ring (bytes ever) */
	__u32 off; /* arena offset of the record; 0 = nothing is logged */
};

static __always_inline struct kdb_rec __arena *rec_at(const struct kdb_wal_rec *rec)
{
	return AT(struct kdb_rec, rec->off);
}

/*
 * Ring memory comes back from the consumer's cache or from main memory. It is touched so far ahead of its
 * use that the producer does not wait for it.
 */
#define WAL_AHEAD 2048u
#define WAL_AHEAD_LINES 18u /* at most; a record of 1 KiB and its header */

static __always_inline void wal_ahead(__u32 data, __u32 size, __u64 pos, __u32 bytes)
{
#pragma unroll
	for (int line = 0; line < WAL_AHEAD_LINES; line++) {
		if (line * KDB_CACHE_LINE >= bytes)
			break;
		ALOAD64(data + ((__u32)(pos + WAL_AHEAD + line * KDB_CACHE_LINE) & (size - 1) & ~7u));
	}
}

/* `state` of the complete record at a position. */
static __always_inline __u64 complete_state(__u64 pos)
{
	return (pos << 1 | 1) ^ kdb_config.seed;
}

#define RESERVE_AGAIN (-1)

/* One attempt: 1, or 0 when the ring is full. */
static __always_inline int wal_reserve_once(struct kdb_ring __arena *ring, struct kdb_wal_rec *rec, __u32 bytes)
{
	__u32 size = ring->size, data = ring->data;
	__u64 head = LOAD(&ring->head), tail = LOAD(&ring->tail_seen);
	__u32 at = head & (size - 1), room = size - at;
	__u64 start = room < bytes ? head + room : head;

	/* The consumer's cache line is looked at only when what was seen of it does not do. */
	if (start + bytes - tail > size) {
		tail = LOAD(&ring->tail);
		STORE(&ring->tail_seen, tail);
	}
	/* Others have moved on, and the consumer behind them: this look at the head is stale. */
	if (tail > head)
		return RESERVE_AGAIN;
	if (start + bytes - tail > size)
		return 0;
	if (CAS(&ring->head, head, start + bytes) != head)
		return RESERVE_AGAIN;
	if (start != head && room >= 16) {
		struct kdb_rec __arena *pad = AT(struct kdb_rec, data + at);
		STORE(&pad->size, room);
		STORE(&pad->type, KDB_REC_PAD);
		barrier();
		*(volatile __u64 __arena *)&pad->state = complete_state(head);
	}
	rec->pos = start;
	rec->off = data + (start & (size - 1));
	rec_at(rec)->size = bytes;
	wal_ahead(data, size, start, bytes);
	return 1;
}

/* Reserves a record; 0 when the ring is full. */
__noinline int wal_reserve(struct kdb_wal_rec *rec, __u32 bytes)
{
	__u32 cpu = bpf_get_smp_processor_id(), i;
	int got;

	USE_ARENA();
	if (!rec)
		return 0;
	rec->off = 0;
	if (cpu >= kdb_config.ncpus)
		return 0;
	struct kdb_ring __arena *ring = AT(struct kdb_ring, kdb_config.rings + cpu * sizeof(struct kdb_ring));

	got = wal_reserve_once(ring, rec, bytes);
	if (got != RESERVE_AGAIN)
		return got;
	bpf_for(i, 0, 1 << 12) {
		got = wal_reserve_once(ring, rec, bytes);
		if (got != RESERVE_AGAIN)
			return got;
	}
	return 0;
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

/* Reserves a record for a change of io's key and fills all but what is known only at commit. */
static __always_inline int wal_prepare(struct kdb_wal_rec *rec, struct kdb_io *io, __u32 type, __u32 vlen)
{
	__u32 key_bytes = PAD8(io->klen);

	if (!wal_reserve(rec, sizeof(struct kdb_rec) + key_bytes + PAD8(vlen)))
		return 0;
	struct kdb_rec __arena *r = rec_at(rec);
	STORE(&r->klen, io->klen);
	STORE(&r->type, type);
	STORE(&r->flags, 0);
	STORE(&r->ts, 0);
	STORE(&r->txid, 0);
	STORE(&r->vlen, vlen);
	STORE(&r->index, 0);
	STORE(&r->expire_ms, io->expire_ms);
	copy_key_in(io, rec->off + sizeof(struct kdb_rec));
	if (vlen)
		copy_value_in(io, rec->off + sizeof(struct kdb_rec) + key_bytes, vlen);
	return 1;
}

/* A record without key and value: COMMIT, ABORT, SKIP. */
static __always_inline int wal_prepare_bare(struct kdb_wal_rec *rec, __u32 type, __u64 txid, __u32 index)
{
	if (!wal_reserve(rec, sizeof(struct kdb_rec)))
		return 0;
	struct kdb_rec __arena *r = rec_at(rec);
	STORE(&r->klen, 0);
	STORE(&r->type, type);
	STORE(&r->flags, 0);
	STORE(&r->ts, 0);
	STORE(&r->txid, txid);
	STORE(&r->vlen, 0);
	STORE(&r->index, index);
	STORE(&r->expire_ms, 0);
	return 1;
}

#endif
